#include "cli/bench_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <ostream>

#include "base/choice.h"
#include "base/error.h"
#include "base/text.h"
#include "checkpoint/hugging_face.h"
#include "train/benchmark.h"

namespace ithaca {

namespace {

constexpr const char* kDefaultShape = "qwen3-0.6b";
constexpr int64_t kDefaultTokensOnGpu = 8192;
constexpr int64_t kDefaultTokensOnCpu = 512;

void check_numbers(const BenchArguments& arguments) {
  const auto refuse = [](const std::string& text) { throw ConfigurationError(text); };
  for (const int64_t tokens : arguments.tokens) {
    if (tokens < 1) refuse(fmt::format("--tokens: {} is not a number of tokens; at least 1 is needed", tokens));
  }
  if (arguments.ranks < 1 || arguments.ranks > 1024) refuse("--ranks must be between 1 and 1024");
  if (arguments.steps < 1) refuse("--steps must be at least 1");
  if (arguments.warmup < 0) refuse("--warmup must be 0 or more");
  if (arguments.documents < 0) refuse("--documents must be 0 (one document) or a mean length");
  if (arguments.window < 0) refuse("--window must be 0 (none) or a number of keys");
  if (arguments.query_heads < 1 || arguments.key_heads < 1 || arguments.head_size < 2 || arguments.head_size % 2 != 0)
    refuse("--query-heads and --key-heads must be at least 1, --head-size an even number");
  if (arguments.query_heads % arguments.key_heads != 0) {
    refuse(
        fmt::format("--query-heads {} is not a multiple of --key-heads {}: every key head serves as many query heads",
                    arguments.query_heads, arguments.key_heads));
  }
  if (!(arguments.seconds > 0.0) || arguments.seconds > 600.0) refuse("--seconds must be above 0, up to 600");
  if (arguments.limit_gib < 0.0) refuse("--limit-gib must be 0 (all that is there) or more");
}

ModelDescription chosen_model(const BenchArguments& arguments) {
  if (!arguments.model.empty() && !arguments.shape.empty()) {
    throw ConfigurationError("--model and --shape exclude each other; leave one of them out");
  }
  if (!arguments.model.empty()) return ModelDirectory(arguments.model).description();
  return published_shape(arguments.shape.empty() ? kDefaultShape : arguments.shape);
}

std::string model_text(const BenchArguments& arguments, const ModelDescription& model) {
  const std::string name = !arguments.model.empty()  ? arguments.model
                           : arguments.shape.empty() ? std::string(kDefaultShape)
                                                     : arguments.shape;
  return fmt::format("{} ({} parameters, random weights)", name, format_count(model.parameter_count()));
}

std::string count_text(int count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string ranks_text(int ranks) {
  return count_text(ranks, "rank");
}

std::string device_text(const BackendChoice& backend, int ranks) {
  if (backend.kind == BackendKind::cpu) {
    return fmt::format("CPU, {}, {}", dtype_name(backend.compute_dtype), ranks_text(ranks));
  }
  return fmt::format("{} x {}, {}, {}{}", std::min(ranks, backend.devices), backend.device_name,
                     dtype_name(backend.compute_dtype), ranks_text(ranks),
                     backend.deterministic ? ", deterministic" : "");
}

std::vector<int64_t> tokens_or(const BenchArguments& arguments, const BackendChoice& backend) {
  if (!arguments.tokens.empty()) return arguments.tokens;
  return {backend.kind == BackendKind::cuda ? kDefaultTokensOnGpu : kDefaultTokensOnCpu};
}

double tera(double flops_per_second) {
  return flops_per_second * 1e-12;
}

std::string documents_text(const BenchArguments& arguments) {
  return arguments.documents == 0 ? std::string("one document")
                                  : fmt::format("documents of mean {} tokens", arguments.documents);
}

int bench_step(const BenchArguments& arguments, const BackendChoice& backend, std::ostream& out) {
  StepBenchmark benchmark;
  benchmark.backend = backend;
  benchmark.model = chosen_model(arguments);
  benchmark.tokens = tokens_or(arguments, backend);
  benchmark.recompute.clear();
  for (const std::string& name : arguments.recompute) {
    benchmark.recompute.push_back(
        parse_choice("--recompute", name, {RecomputePolicy::none, RecomputePolicy::attention, RecomputePolicy::full},
                     recompute_policy_name));
  }
  benchmark.mean_document = arguments.documents;
  benchmark.ranks = arguments.ranks;
  benchmark.schedule = arguments.schedule;
  benchmark.layout = arguments.layout;
  benchmark.ulysses_size = arguments.ulysses_size;
  benchmark.ring_size = arguments.ring_size;
  benchmark.steps = arguments.steps;
  benchmark.warmup = arguments.warmup;
  benchmark.phases = arguments.phases;
  benchmark.memory_limit_bytes = static_cast<int64_t>(std::ldexp(arguments.limit_gib, 30));

  out << fmt::format("training step of {}\n{}, {}; for each row {}, then {} that count\n",
                     model_text(arguments, benchmark.model), device_text(backend, arguments.ranks),
                     documents_text(arguments), count_text(arguments.warmup, "warm-up step"),
                     count_text(arguments.steps, "step"))
      << std::flush;
  bool first = true;
  bool all_ran = true;
  const StepBenchmarkResult result = run_step_benchmark(benchmark, [&](const StepBenchmarkRow& row) {
    if (first) {
      out << fmt::format("{:>9} {:>10} {:>9} {:>9} {:>9} {:>6} {:>8} {:>9}  {}\n", "tokens", "recompute", "seconds",
                         "tokens/s", "TFLOP/s", "peak", "exposed", "memory", "attention");
      first = false;
    }
    if (!row.failure.empty()) {
      all_ran = false;
      out << fmt::format("{:>9} {:>10} did not run: {}\n", row.tokens, recompute_policy_name(row.recompute),
                         row.failure);
      return;
    }
    out << fmt::format("{:>9} {:>10} {:>9.4f} {:>9.0f} {:>9.3f} {:>5.1f}% {:>7.1f}% {:>9}  {}\n", row.tokens,
                       recompute_policy_name(row.recompute), row.seconds, static_cast<double>(row.tokens) / row.seconds,
                       tera(row.flops_per_second_per_device), 100.0 * row.peak_share,
                       100.0 * row.exposed_wait_seconds / row.seconds, format_bytes(row.memory.peak), row.attention)
        << std::flush;
  });
  out << "TFLOP/s: model operations of one device (recompute not counted); exposed: the part of the step that compute "
         "waits "
         "for other streams.\n";
  if (result.gemm_peak > 0.0) {
    out << fmt::format("peak: the share of the {:.4g} TFLOP/s that a large product reached here just before.\n",
                       tera(result.gemm_peak));
  }
  out << '\n';
  out << "peak memory by class (the rank that uses most)\n";
  out << fmt::format("{:>9} {:>10}", "tokens", "recompute");
  for (int index = 0; index < kMemoryClasses; ++index) {
    out << fmt::format(" {:>13}", memory_class_name(static_cast<MemoryClass>(index)));
  }
  out << fmt::format("  {}\n", "seconds of each step");
  for (const StepBenchmarkRow& row : result.rows) {
    if (!row.failure.empty()) continue;
    out << fmt::format("{:>9} {:>10}", row.tokens, recompute_policy_name(row.recompute));
    for (const int64_t bytes : row.memory.peak_by_class) out << fmt::format(" {:>13}", format_bytes(bytes));
    out << fmt::format("  {:.4f}\n", fmt::join(row.step_seconds, " "));
  }
  for (const StepBenchmarkRow& row : result.rows) {
    if (row.phases.steps == 0) continue;
    out << fmt::format("\none more step of {} tokens, recompute {}, recorded (rank 0)\n{}", row.tokens,
                       recompute_policy_name(row.recompute), format_phase_table(row.phases));
  }
  return all_ran ? 0 : 1;
}

int bench_attention(const BenchArguments& arguments, const BackendChoice& backend, std::ostream& out) {
  AttentionBenchmark benchmark;
  benchmark.backend = backend;
  benchmark.heads.query_heads = arguments.query_heads;
  benchmark.heads.key_heads = arguments.key_heads;
  benchmark.heads.key_size = benchmark.heads.value_size = arguments.head_size;
  benchmark.heads.scale = 1.0f / std::sqrt(static_cast<float>(arguments.head_size));
  benchmark.tokens = tokens_or(arguments, backend);
  benchmark.mean_document = arguments.documents;
  benchmark.window = arguments.window;
  benchmark.ranks = arguments.ranks;
  benchmark.schedules =
      arguments.schedules.empty() ? benchmark_schedules(arguments.ranks, arguments.query_heads) : arguments.schedules;
  benchmark.seconds_per_measurement = arguments.seconds;
  out << fmt::format("attention, {}/{} heads of {}, causal{}, {}\n{}\n", arguments.query_heads, arguments.key_heads,
                     arguments.head_size,
                     arguments.window > 0 ? fmt::format(", window {}", arguments.window) : std::string(),
                     documents_text(arguments), device_text(backend, arguments.ranks));
  out << fmt::format("{:>9} {:<20} {:>10} {:>9} {:>10} {:>9} {:>8} {:>8} {:>9} {:>10}\n", "tokens", "schedule",
                     "forward ms", "TFLOP/s", "backward", "TFLOP/s", "forward", "both", "exposed", "sent");
  bool all_ran = true;
  run_attention_benchmark(benchmark, [&](const AttentionBenchmarkRow& row) {
    if (!row.failure.empty()) {
      all_ran = false;
      out << fmt::format("{:>9} {:<20} did not run: {}\n", row.tokens, row.schedule, row.failure);
      return;
    }
    out << fmt::format("{:>9} {:<20} {:>10.3f} {:>9.3f} {:>10.3f} {:>9.3f} {:>7.1f}% {:>7.1f}% {:>8.1f}% {:>10}\n",
                       row.tokens, row.schedule, 1e3 * row.forward_seconds, tera(row.forward_flops_per_second),
                       1e3 * row.backward_seconds, tera(row.backward_flops_per_second), 100.0 * row.forward_efficiency,
                       100.0 * row.efficiency, 100.0 * row.exposed_share, format_bytes(row.bytes_sent))
        << std::flush;
  });
  out << "TFLOP/s of one device on the visible pairs; forward, both: one rank's time / (devices x this time); exposed: "
         "rank 0's\ncompute waiting for communication; sent: by rank 0, forward and backward.\n";
  return all_ran ? 0 : 1;
}

int bench_gemm(const BenchArguments& arguments, const BackendChoice& backend, std::ostream& out) {
  const ModelDescription model = chosen_model(arguments);
  out << fmt::format("matrix products of {}\n{}\n", model_text(arguments, model), device_text(backend, 1))
      << std::flush;
  for (const int64_t tokens : tokens_or(arguments, backend)) {
    const GemmBenchmarkResult result = run_gemm_benchmark(backend, model, tokens);
    out << fmt::format(
        "\n{} tokens; a large product reaches {:.3f} TFLOP/s\n{:<36} {:>8} {:>8} {:>8} {:>9} {:>9} {:>7}\n", tokens,
        tera(result.gemm_peak), "product", "rows", "columns", "depth", "ms", "TFLOP/s", "peak");
    for (const GemmBenchmarkRow& row : result.rows) {
      out << fmt::format("{:<36} {:>8} {:>8} {:>8} {:>9.4f} {:>9.3f} {:>6.1f}%\n", row.name, row.rows, row.columns,
                         row.depth, 1e3 * row.seconds, tera(row.flops_per_second), 100.0 * row.peak_share);
    }
  }
  return 0;
}

void add_common(CLI::App* command, BenchArguments& arguments) {
  command
      ->add_option("--tokens", arguments.tokens,
                   fmt::format("Lengths of the sequence, separated by commas; {} on a GPU, {} on a CPU where not given",
                               kDefaultTokensOnGpu, kDefaultTokensOnCpu))
      ->delimiter(',')
      ->type_name("LIST");
  command->add_option("--backend", arguments.backend, "auto, cpu or cuda")->type_name("NAME")->capture_default_str();
  command->add_option("--dtype", arguments.compute_dtype, "auto, float32 or bfloat16 (cuda)")
      ->type_name("NAME")
      ->capture_default_str();
}

void add_model(CLI::App* command, BenchArguments& arguments) {
  command->add_option("--model", arguments.model, "A directory with the config.json of a model; weights are random")
      ->type_name("DIR");
  command
      ->add_option("--shape", arguments.shape,
                   fmt::format("A published shape: {}; {} where neither is given (minutes a step on a CPU)",
                               fmt::join(published_shape_names(), ", "), kDefaultShape))
      ->type_name("NAME")
      ->capture_default_str();
}

void add_ranks(CLI::App* command, BenchArguments& arguments) {
  command
      ->add_option("--ranks", arguments.ranks, "Ranks that share the sequence; on GPUs one each, as far as there are")
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--documents", arguments.documents, "Mean length of packed documents, long-tailed; 0: one document")
      ->type_name("TOKENS")
      ->capture_default_str();
}

}  // namespace

void declare_bench(CLI::App& app, BenchArguments& arguments) {
  CLI::App* command =
      app.add_subcommand("bench", "Measure training steps, attention or matrix products on this machine");
  command->require_subcommand(1);

  CLI::App* step = command->add_subcommand("step", "Whole training steps: seconds, model TFLOP/s, memory by class");
  add_model(step, arguments);
  add_common(step, arguments);
  add_ranks(step, arguments);
  step->add_option("--recompute", arguments.recompute, "none, attention, full; separated by commas")
      ->delimiter(',')
      ->type_name("LIST");
  step->add_option("--schedule", arguments.schedule, "auto, ulysses, ring, all_gather or hybrid")
      ->type_name("NAME")
      ->capture_default_str();
  step->add_option("--layout", arguments.layout, "auto, contiguous, zigzag or striped")
      ->type_name("NAME")
      ->capture_default_str();
  step->add_option("--ulysses-size", arguments.ulysses_size, "For hybrid; 0: chosen")
      ->type_name("N")
      ->capture_default_str();
  step->add_option("--ring-size", arguments.ring_size, "For hybrid; 0: chosen")->type_name("N")->capture_default_str();
  step->add_option("--steps", arguments.steps, "Steps that are measured")->type_name("N")->capture_default_str();
  step->add_option("--warmup", arguments.warmup, "Steps before them")->type_name("N")->capture_default_str();
  step->add_flag("--phases", arguments.phases, "Record one more step of every row: where its time goes, by phase");
  step->add_option("--limit-gib", arguments.limit_gib, "Memory that a rank may use; 0: all that is there")
      ->type_name("GIB")
      ->capture_default_str();
  step->add_flag("--deterministic", arguments.deterministic, "As train.deterministic");

  CLI::App* attention =
      command->add_subcommand("attention", "One attention layer, split over ranks by each schedule, against one rank");
  add_common(attention, arguments);
  add_ranks(attention, arguments);
  attention->add_option("--query-heads", arguments.query_heads, "Query heads")->type_name("N")->capture_default_str();
  attention->add_option("--key-heads", arguments.key_heads, "Key and value heads")
      ->type_name("N")
      ->capture_default_str();
  attention->add_option("--head-size", arguments.head_size, "Of one head")->type_name("N")->capture_default_str();
  attention->add_option("--window", arguments.window, "Sliding window in keys; 0: none")
      ->type_name("N")
      ->capture_default_str();
  attention
      ->add_option(
          "--schedules", arguments.schedules,
          "Such as ulysses,ring:zigzag,ring:striped,all_gather:zigzag,hybrid:2x4:zigzag; default: all that fit")
      ->delimiter(',')
      ->type_name("LIST");
  attention->add_option("--seconds", arguments.seconds, "Of one measurement")
      ->type_name("SECONDS")
      ->capture_default_str();
  attention->add_flag("--deterministic", arguments.deterministic, "As train.deterministic");

  CLI::App* gemm = command->add_subcommand("gemm", "The matrix products of a model, forward and backward");
  add_model(gemm, arguments);
  add_common(gemm, arguments);
}

int bench_command(const CLI::App& app, const BenchArguments& arguments, std::ostream& out) {
  check_numbers(arguments);
  const BackendChoice backend = choose_backend(arguments.backend, arguments.compute_dtype, arguments.deterministic);
  const CLI::App* bench = app.get_subcommand("bench");
  if (bench->got_subcommand("step")) return bench_step(arguments, backend, out);
  if (bench->got_subcommand("attention")) return bench_attention(arguments, backend, out);
  return bench_gemm(arguments, backend, out);
}

}  // namespace ithaca
