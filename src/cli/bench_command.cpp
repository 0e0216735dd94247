#include "cli/bench_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/hugging_face.h"
#include "cli/bench_tables.h"
#include "cli/number_option.h"
#include "cli/output_file.h"
#include "cli/progress.h"

namespace ithaca {

namespace {

constexpr int64_t kMostBenchHeads = 1024;  // and elements of one

void check_numbers(const BenchArguments& arguments) {
  const auto refuse = [](const std::string& text) { throw ConfigurationError(text); };
  for (const int64_t tokens : arguments.tokens) {
    check_benchmark_sequence(tokens, {});
  }
  if (arguments.ranks < 1 || arguments.ranks > 1024) refuse("--ranks must be between 1 and 1024");
  if (arguments.steps < 1) refuse("--steps must be at least 1");
  if (arguments.warmup < 0) refuse("--warmup must be 0 or more");
  if (arguments.attention_layers < 0) refuse("--attention-layers must be 0 (all) or a number of layers");
  if (arguments.window < 0) refuse("--window must be 0 (none) or a number of keys");
  for (const auto& [option, size] :
       {std::pair("--ulysses-size", arguments.ulysses_size), std::pair("--ring-size", arguments.ring_size)}) {
    if (size < 0 || size > 1024) refuse(fmt::format("{} must be 0 (chosen) or a number of ranks up to 1024", option));
  }
  const auto is_count = [](int64_t count) { return count >= 1 && count <= kMostBenchHeads; };
  if (!is_count(arguments.query_heads) || !is_count(arguments.key_heads) || !is_count(arguments.head_size) ||
      arguments.head_size % 2 != 0) {
    refuse(fmt::format("--query-heads and --key-heads must be between 1 and {0}, --head-size an even number up to {0}",
                       kMostBenchHeads));
  }
  if (arguments.query_heads % arguments.key_heads != 0) {
    refuse(
        fmt::format("--query-heads {} is not a multiple of --key-heads {}: every key head serves as many query heads",
                    arguments.query_heads, arguments.key_heads));
  }
  if (!(arguments.seconds > 0.0) || arguments.seconds > 600.0) refuse("--seconds must be above 0, up to 600");
  // Written so that what is not a number is refused, and what rounds to no byte at all is no limit of 0.
  if (arguments.limit_gib != 0.0 && !(arguments.limit_gib >= 1e-6 && arguments.limit_gib <= 1e6)) {
    refuse("--limit-gib must be 0 (all that is there), or between 1e-6 and 1e6");
  }
}

}  // namespace

// ---- what the tables share ----

bool is_benchmark_rows_beginning(std::string_view bytes) {
  return bytes.starts_with("{\"bench\":");  // as raw_row() begins
}

void RawRows::open() {
  if (path_.empty()) return;
  check_output_file("--output", path_, OutputKind::rows, {});
  file_.emplace(path_);
}

void RawRows::add(const nlohmann::ordered_json& row) {
  if (file_) file_->write(row.dump());
}

nlohmann::ordered_json raw_row(const char* bench, const BackendChoice& backend, int ranks) {
  nlohmann::ordered_json row;
  row["bench"] = bench;
  row["backend"] = backend_kind_name(backend.kind);
  row["device"] = backend.device_name;
  row["devices"] = backend.kind == BackendKind::cuda ? std::min(ranks, backend.devices) : 1;
  row["ranks"] = ranks;
  row["transport"] = transport_name(backend.transport);
  row["dtype"] = dtype_name(backend.compute_dtype);
  return row;
}

ModelDescription chosen_model(const BenchArguments& arguments) {
  if (!arguments.model.empty() && !arguments.shape.empty()) {
    throw ConfigurationError("--model and --shape exclude each other; leave one of them out");
  }
  if (!arguments.model.empty()) return ModelDirectory(arguments.model).description();
  return published_shape(arguments.shape.empty() ? kDefaultBenchShape : arguments.shape);
}

std::string model_text(const BenchArguments& arguments, const ModelDescription& model) {
  const std::string name = !arguments.model.empty()  ? arguments.model
                           : arguments.shape.empty() ? std::string(kDefaultBenchShape)
                                                     : arguments.shape;
  return fmt::format("{} ({} parameters, random weights)", name, format_count(model.parameter_count()));
}

std::string device_text(const BackendChoice& backend, int ranks) {
  if (backend.kind == BackendKind::cpu) {
    return fmt::format("CPU, {}, {}", dtype_name(backend.compute_dtype), plural(ranks, "rank"));
  }
  return fmt::format("{} x {}, {}, {}{}", std::min(ranks, backend.devices), backend.device_name,
                     dtype_name(backend.compute_dtype), plural(ranks, "rank"),
                     backend.deterministic ? ", deterministic" : "");
}

std::string in_flags(std::string text, BenchFlags flags) {
  using Names = std::vector<std::pair<std::string_view, std::string_view>>;
  // The longer ones first. What there is no flag for goes.
  static const Names all = {
      {" or parallel.dp_shard_size", ""}, {"; or smaller tiles (memory.mlp_tile, memory.loss_tile)", ""},
      {"train.backend: ", "--backend "},  {"train.backend", "--backend"},
      {"model.compute_dtype", "--dtype"}, {"parallel.transport", "--transport"},
      {"parallel.sp_size", "--ranks"},    {"data.max_length", "--tokens"}};
  static const Names of_step = {{"memory.recompute: ", "--recompute "},
                                {"memory.limit_gib", "--limit-gib"},
                                {"parallel.zero: ", "--zero "},
                                {"parallel.schedule", "--schedule"},
                                {"parallel.ulysses_size", "--ulysses-size"},
                                {"parallel.ring_size", "--ring-size"},
                                {"ulysses_size", "--ulysses-size"},
                                {"ring_size", "--ring-size"},
                                {"sp_size", "--ranks"}};
  static const Names of_others = {{"parallel.", ""}};
  for (const Names* names : {&all, flags == BenchFlags::of_step ? &of_step : &of_others}) {
    for (const auto& [name, flag] : *names) {
      for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + flag.size())) {
        text.replace(at, name.size(), flag);
      }
    }
  }
  return text;
}

std::string percent(double share) {
  return share > 0.0 ? fmt::format("{:.1f}%", 100.0 * share) : "-";
}

std::string transport_text(const BackendChoice& backend, int ranks) {
  return std::min(ranks, backend.devices) > 1 ? fmt::format(", {}", transport_name(backend.transport)) : "";
}

std::vector<int64_t> tokens_or(const BenchArguments& arguments, const BackendChoice& backend) {
  if (!arguments.tokens.empty()) return arguments.tokens;
  return {backend.kind == BackendKind::cuda ? kDefaultBenchTokensOnGpu : kDefaultBenchTokensOnCpu};
}

std::vector<DocumentMix> document_mixes(const BenchArguments& arguments) {
  std::vector<DocumentMix> mixes;
  for (const std::string& text : arguments.documents) mixes.push_back(parse_document_mix(text));
  return mixes;
}

std::string documents_text(const std::vector<DocumentMix>& documents) {
  std::vector<std::string> texts;
  for (const DocumentMix& mix : documents) {
    texts.push_back(mix.kind == DocumentMix::Kind::one
                        ? "one document"
                        : fmt::format("{} documents of mean {} tokens",
                                      mix.kind == DocumentMix::Kind::exponential ? "exponential" : "long-tailed",
                                      mix.mean));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

int bench_gemm(const BenchArguments& arguments, const BackendChoice& backend, RawRows& raw, std::ostream& out) {
  const ModelDescription model = chosen_model(arguments);
  raw.open();
  out << fmt::format("matrix products of {}\n{}\n", model_text(arguments, model), device_text(backend, 1))
      << std::flush;
  for (const int64_t tokens : tokens_or(arguments, backend)) {
    const GemmBenchmarkResult result = run_gemm_benchmark(backend, model, tokens);
    out << fmt::format("\n{} tokens; {}\n{:<36} {:>8} {:>8} {:>8} {:>9} {:>9} {:>7}\n", tokens,
                       result.gemm_peak > 0.0
                           ? fmt::format("a large product reaches {:.3f} TFLOP/s", tera(result.gemm_peak))
                           : "there is no memory for a large product to compare with",
                       "product", "rows", "columns", "depth", "ms", "TFLOP/s", "peak");
    for (const GemmBenchmarkRow& row : result.rows) {
      nlohmann::ordered_json line = raw_row("gemm", backend, 1);
      line["tokens"] = tokens;
      line["product"] = row.name;
      line["rows"] = row.rows;
      line["columns"] = row.columns;
      line["depth"] = row.depth;
      line["seconds"] = row.seconds;
      line["flops_per_second"] = row.flops_per_second;
      line["peak_share"] = row.peak_share;
      raw.add(line);
      out << fmt::format("{:<36} {:>8} {:>8} {:>8} {:>9.4f} {:>9.3f} {:>7}\n", row.name, row.rows, row.columns,
                         row.depth, 1e3 * row.seconds, tera(row.flops_per_second), percent(row.peak_share));
    }
  }
  return 0;
}

namespace {

void add_tokens(CLI::App* command, BenchArguments& arguments) {
  add_number(command, "--tokens", arguments.tokens,
             fmt::format("Lengths of the sequence, separated by commas; {} on a GPU, {} on a CPU where not given",
                         kDefaultBenchTokensOnGpu, kDefaultBenchTokensOnCpu))
      ->delimiter(',')
      ->type_name("LIST");
}

void add_common(CLI::App* command, BenchArguments& arguments) {
  command->add_option("--backend", arguments.backend, "auto, cpu or cuda")->type_name("NAME")->capture_default_str();
  command->add_option("--dtype", arguments.compute_dtype, "auto, float32 or bfloat16 (cuda)")
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--output", arguments.output, "Writes the numbers of every row there too, a JSON object a line")
      ->type_name("FILE");
}

void add_model(CLI::App* command, BenchArguments& arguments) {
  command->add_option("--model", arguments.model, "A directory with the config.json of a model; weights are random")
      ->type_name("DIR");
  command
      ->add_option("--shape", arguments.shape,
                   fmt::format("A published shape: {}; {} where neither is given (minutes a step on a CPU)",
                               fmt::join(published_shape_names(), ", "), kDefaultBenchShape))
      ->type_name("NAME")
      ->capture_default_str();
}

void add_ranks(CLI::App* command, BenchArguments& arguments) {
  add_number(command, "--ranks", arguments.ranks,
             "Ranks that share the sequence; on GPUs one each, as far as there are")
      ->type_name("N")
      ->capture_default_str();
}

void add_transport(CLI::App* command, BenchArguments& arguments) {
  command
      ->add_option("--transport", arguments.transport,
                   "How bytes move between GPUs: auto, peer or nccl, as parallel.transport")
      ->type_name("NAME")
      ->capture_default_str();
}

void add_documents(CLI::App* command, BenchArguments& arguments, const std::string& more) {
  command
      ->add_option("--documents", arguments.documents,
                   "Packed documents: their mean length (exponential distribution), or long-tailed:8192 (log-normal, "
                   "sigma 1.2); 0: one document" +
                       more)
      ->delimiter(',')
      ->type_name("MIX");
}

}  // namespace

void declare_bench(CLI::App& app, BenchArguments& arguments) {
  CLI::App* command =
      app.add_subcommand("bench", "Measure training steps, attention or matrix products on this machine");
  command->require_subcommand(1);

  CLI::App* step = command->add_subcommand("step", "Whole training steps: seconds, model TFLOP/s, memory by class");
  add_model(step, arguments);
  add_tokens(step, arguments);
  add_common(step, arguments);
  add_ranks(step, arguments);
  add_transport(step, arguments);
  add_documents(step, arguments, "");
  step->add_option("--recompute", arguments.recompute,
                   "none, attention, full; separated by commas; attention where not given")
      ->delimiter(',')
      ->type_name("LIST");
  step->add_option("--schedule", arguments.schedule, "auto, ulysses, ring, all_gather or hybrid")
      ->type_name("NAME")
      ->capture_default_str();
  step->add_option("--layout", arguments.layout, "auto, contiguous, zigzag or striped")
      ->type_name("NAME")
      ->capture_default_str();
  add_number(step, "--ulysses-size", arguments.ulysses_size, "For hybrid; 0: chosen")
      ->type_name("N")
      ->capture_default_str();
  add_number(step, "--ring-size", arguments.ring_size, "For hybrid; 0: chosen")->type_name("N")->capture_default_str();
  step->add_option("--zero", arguments.zero, "As parallel.zero: 0 or 1")->type_name("STAGE")->capture_default_str();
  add_number(step, "--steps", arguments.steps, "Steps that are measured")->type_name("N")->capture_default_str();
  add_number(step, "--warmup", arguments.warmup, "Steps before them")->type_name("N")->capture_default_str();
  step->add_flag("--phases", arguments.phases, "Record one more step of every row: where its time goes, by phase");
  add_number(step, "--attention-layers", arguments.attention_layers,
             "Computes attention in so many layers, the last ones, leaves it out in the others and plans its time; "
             "0: all")
      ->type_name("N")
      ->capture_default_str();
  step->add_flag("--longest", arguments.longest,
                 "Looks for the longest sequence that fits, from --tokens upwards: twice as long each time, then "
                 "halves, in steps of a sixteenth or of --tokens, at most 8192");
  add_number(step, "--limit-gib", arguments.limit_gib, "Memory that a rank may use; 0: all that is there")
      ->type_name("GIB")
      ->capture_default_str();
  step->add_flag("--deterministic", arguments.deterministic, "As train.deterministic");

  CLI::App* attention =
      command->add_subcommand("attention", "One attention layer, split over ranks by each schedule, against one rank");
  add_tokens(attention, arguments);
  add_common(attention, arguments);
  add_ranks(attention, arguments);
  add_transport(attention, arguments);
  add_documents(attention, arguments, "; several mixes, separated by commas: one after the other");
  add_number(attention, "--query-heads", arguments.query_heads, "Query heads")->type_name("N")->capture_default_str();
  add_number(attention, "--key-heads", arguments.key_heads, "Key and value heads")
      ->type_name("N")
      ->capture_default_str();
  add_number(attention, "--head-size", arguments.head_size, "Of one head")->type_name("N")->capture_default_str();
  add_number(attention, "--window", arguments.window, "Sliding window in keys; 0: none")
      ->type_name("N")
      ->capture_default_str();
  attention
      ->add_option("--schedules", arguments.schedules,
                   "Such as ulysses,ring:striped,hybrid:2x4:zigzag (ulysses x ring; zigzag without a layout), or auto: "
                   "what a run would choose; default: all that fit, and auto")
      ->delimiter(',')
      ->type_name("LIST");
  add_number(attention, "--seconds", arguments.seconds, "Of one measurement")
      ->type_name("SECONDS")
      ->capture_default_str();
  attention->add_flag("--deterministic", arguments.deterministic, "As train.deterministic");

  add_number(attention, "--predict-ranks", arguments.predicted_ranks,
             "Rank counts, separated by commas, for which schedules are predicted from what is measured here")
      ->delimiter(',')
      ->type_name("LIST");

  CLI::App* exchange = command->add_subcommand(
      "exchange", "Bandwidth of exchanges between ranks, beside a plain copy: GB/s that each rank sends");
  add_common(exchange, arguments);
  add_ranks(exchange, arguments);
  exchange
      ->add_option("--transport", arguments.transports,
                   "peer (peer access), nccl, or peer,nccl; default: both, as far as they are there")
      ->delimiter(',')
      ->type_name("LIST");
  exchange
      ->add_option("--sizes", arguments.sizes,
                   "That each rank sends in a call: 4MiB,64MiB or 1MiB..1GiB (fourfold steps), which is the default")
      ->delimiter(',')
      ->type_name("LIST");
  add_number(exchange, "--seconds", arguments.seconds, "Of one measurement")
      ->type_name("SECONDS")
      ->capture_default_str();

  CLI::App* gemm = command->add_subcommand("gemm", "The matrix products of a model, forward and backward");
  add_model(gemm, arguments);
  add_tokens(gemm, arguments);
  add_common(gemm, arguments);
}

namespace {

int run_bench(const CLI::App& bench, const BenchArguments& arguments, std::ostream& out) {
  BackendChoice backend = choose_backend(arguments.backend, arguments.compute_dtype, arguments.deterministic);
  RawRows raw(arguments.output);
  if (bench.got_subcommand("exchange")) return bench_exchange(arguments, backend, raw, out);
  settle_transport(backend, "--transport", arguments.transport, arguments.ranks);
  if (bench.got_subcommand("step")) return bench_step(arguments, backend, raw, out);
  if (bench.got_subcommand("attention")) return bench_attention(arguments, backend, raw, out);
  return bench_gemm(arguments, backend, raw, out);
}

}  // namespace

int bench_command(const CLI::App& app, const BenchArguments& arguments, std::ostream& out) {
  check_numbers(arguments);
  const CLI::App* bench = app.get_subcommand("bench");
  const BenchFlags flags = bench->got_subcommand("step") ? BenchFlags::of_step : BenchFlags::of_others;
  try {
    return run_bench(*bench, arguments, out);
  } catch (const ConfigurationError& error) {
    throw ConfigurationError(in_flags(error.what(), flags));
  } catch (const OutOfMemoryError& error) {
    throw OutOfMemoryError(in_flags(error.what(), flags));
  }
}

}  // namespace ithaca
