#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>
#include <vector>

#include "base/choice.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/bench_tables.h"
#include "cli/progress.h"

namespace ithaca {

namespace {

StepBenchmark step_benchmark(const BenchArguments& arguments, const BackendChoice& backend) {
  StepBenchmark benchmark;
  benchmark.backend = backend;
  benchmark.model = chosen_model(arguments);
  benchmark.tokens = tokens_or(arguments, backend);
  for (const std::string& name : arguments.recompute) {
    benchmark.recompute.push_back(
        parse_choice("--recompute", name, {RecomputePolicy::none, RecomputePolicy::attention, RecomputePolicy::full},
                     recompute_policy_name));
  }
  const std::vector<DocumentMix> documents = document_mixes(arguments);
  if (documents.size() > 1)
    throw ConfigurationError("--documents: a step has one mix of documents; leave the others out");
  benchmark.documents = documents.front();
  benchmark.ranks = arguments.ranks;
  benchmark.schedule = arguments.schedule;
  benchmark.layout = arguments.layout;
  benchmark.ulysses_size = arguments.ulysses_size;
  benchmark.ring_size = arguments.ring_size;
  benchmark.zero =
      parse_choice("--zero", arguments.zero, {ZeroStage::replicated, ZeroStage::optimizer_state}, zero_stage_name);
  benchmark.steps = arguments.steps;
  benchmark.warmup = arguments.warmup;
  benchmark.phases = arguments.phases;
  benchmark.attention_layers = arguments.attention_layers;
  benchmark.memory_limit_bytes = static_cast<int64_t>(std::ldexp(arguments.limit_gib, 30));
  return benchmark;
}

// Prints rows as they come, and what belongs below them.
class StepTable {
 public:
  // Where failures are expected, they take a line each; the raw rows have the whole text.
  enum class Failures { in_full, in_short };
  StepTable(const StepBenchmark& benchmark, Failures failures, RawRows& raw, std::ostream& out)
      : benchmark_(benchmark), failures_(failures), raw_(raw), out_(out) {}

  void add(StepBenchmarkRow row) {
    row.failure = in_flags(row.failure, BenchFlags::of_step);
    if (!has_head_) {
      out_ << fmt::format("{:>9} {:>10} {:>9} {:>9} {:>9} {:>9} {:>6} {:>8} {:>10} {:>10}  {}\n", "tokens", "recompute",
                          "seconds", "planned", "tokens/s", "TFLOP/s", "peak", "exposed", "sent", "memory",
                          "attention");
      has_head_ = true;
    }
    add_raw(row);
    if (!row.failure.empty()) {
      const size_t end = failures_ == Failures::in_full ? std::string::npos : row.failure.find("; ");
      out_ << fmt::format("{:>9} {:>10} did not run: {}\n", row.tokens, recompute_policy_name(row.recompute),
                          row.failure.substr(0, end))
           << std::flush;
      return;
    }
    const std::string planned = row.planned_seconds > 0.0 ? fmt::format("+{:.3f}", row.planned_seconds) : "-";
    out_ << fmt::format("{:>9} {:>10} {:>9.4f} {:>9} {:>9.0f} {:>9.3f} {:>6} {:>7.1f}% {:>10} {:>10}  {}\n", row.tokens,
                        recompute_policy_name(row.recompute), row.seconds, planned,
                        static_cast<double>(row.tokens) / (row.seconds + row.planned_seconds),
                        tera(row.flops_per_second_per_device), percent(row.peak_share),
                        100.0 * row.exposed_wait_seconds / row.seconds, format_bytes(row.bytes_sent),
                        format_bytes(row.memory.peak), row.attention)
         << std::flush;
    any_without_ring_ =
        any_without_ring_ || row.attention.empty() || row.attention == schedule_name(ScheduleKind::ulysses);
  }

  void explain(double gemm_peak) {
    out_ << "TFLOP/s: model operations of one device (recompute not counted); exposed: the part of the step that "
            "compute "
            "waits "
            "for other streams;\nsent: by rank 0, per step; memory: of the rank that uses most.\n";
    if (gemm_peak > 0.0) {
      out_ << fmt::format("peak: the share of the {:.4g} TFLOP/s that a large product reached here just before.\n",
                          tera(gemm_peak));
    } else {
      out_ << "peak: not measured: there was no memory for a large product to compare with.\n";
    }
    if (any_without_ring_ && benchmark_.layout != "auto" && benchmark_.layout != layout_name(Layout::contiguous)) {
      out_ << fmt::format("--layout {} has no effect without a ring: layouts deal tokens to ring ranks.\n",
                          benchmark_.layout);
    }
    if (benchmark_.attention_layers > 0 && benchmark_.attention_layers < benchmark_.model.layer_count()) {
      out_ << fmt::format(
          "Attention was computed in the last {} of {} layers, and left out in the others, which did everything else.\n"
          "planned: seconds of the attention that was left out, NOT run: those of a computed layer for each of the "
          "others.\nTokens/s, TFLOP/s and peak are planned too: of both times together.\n",
          benchmark_.attention_layers, benchmark_.model.layer_count());
    }
  }

  void memory(const std::vector<StepBenchmarkRow>& rows) {
    out_ << "\npeak memory by class (the rank that uses most)\n";
    out_ << fmt::format("{:>9} {:>10}", "tokens", "recompute");
    for (int index = 0; index < kMemoryClasses; ++index) {
      out_ << fmt::format(" {:>13}", memory_class_name(static_cast<MemoryClass>(index)));
    }
    out_ << fmt::format("  {}\n", "seconds of each step");
    for (const StepBenchmarkRow& row : rows) {
      if (!row.failure.empty()) continue;
      out_ << fmt::format("{:>9} {:>10}", row.tokens, recompute_policy_name(row.recompute));
      for (const int64_t bytes : row.memory.peak_by_class) out_ << fmt::format(" {:>13}", format_bytes(bytes));
      out_ << fmt::format("  {:.4f}\n", fmt::join(row.step_seconds, " "));
    }
  }

 private:
  void add_raw(const StepBenchmarkRow& row) {
    nlohmann::ordered_json line = raw_row("step", benchmark_.backend, benchmark_.ranks);
    line["parameters"] = benchmark_.model.parameter_count();
    line["layers"] = benchmark_.model.layer_count();
    line["tokens"] = row.tokens;
    line["documents"] = document_mix_text(benchmark_.documents);
    line["recompute"] = recompute_policy_name(row.recompute);
    line["attention"] = row.attention;
    line["attention_layers"] =
        benchmark_.attention_layers > 0 ? benchmark_.attention_layers : benchmark_.model.layer_count();
    line["failure"] = row.failure;
    line["step_seconds"] = row.step_seconds;
    line["seconds"] = row.seconds;
    line["planned_seconds"] = row.planned_seconds;
    line["flops"] = row.flops;
    line["flops_per_second_per_device"] = row.flops_per_second_per_device;
    line["peak_share"] = row.peak_share;
    line["exposed_wait_seconds"] = row.exposed_wait_seconds;
    line["bytes_sent"] = row.bytes_sent;
    line["loss"] = row.loss;
    line["peak_bytes"] = row.memory.peak;
    for (int index = 0; index < kMemoryClasses; ++index) {
      line["peak_bytes_by_class"][std::string(memory_class_name(static_cast<MemoryClass>(index)))] =
          row.memory.peak_by_class[static_cast<size_t>(index)];
    }
    raw_.add(line);
  }

  const StepBenchmark& benchmark_;
  Failures failures_;
  RawRows& raw_;
  std::ostream& out_;
  bool has_head_ = false;
  bool any_without_ring_ = false;
};

int bench_longest(StepBenchmark benchmark, RawRows& raw, std::ostream& out) {
  bool any_failed = false;
  const std::vector<RecomputePolicy> policies = benchmark.recompute;
  for (const RecomputePolicy policy : policies) {
    benchmark.recompute = {policy};
    StepTable table(benchmark, StepTable::Failures::in_short, raw, out);
    const LongestSequence longest =
        find_longest_sequence(benchmark, [&](const StepBenchmarkRow& row) { table.add(row); });
    table.explain(longest.gemm_peak);
    table.memory(longest.tries);
    any_failed = any_failed || longest.tokens == 0;
    out << fmt::format("\nlongest sequence, recompute {}: {}; {} had no memory\n\n", recompute_policy_name(policy),
                       longest.tokens > 0 ? fmt::format("{} tokens ran", format_count(longest.tokens))
                                          : std::string("none ran"),
                       format_count(longest.shortest_failure))
        << std::flush;
  }
  return any_failed ? 1 : 0;
}

}  // namespace

int bench_step(const BenchArguments& arguments, const BackendChoice& backend, RawRows& raw, std::ostream& out) {
  const StepBenchmark benchmark = step_benchmark(arguments, backend);
  check_step_benchmark(benchmark);
  if (arguments.longest && benchmark.tokens.size() > 1) {
    throw ConfigurationError("--longest looks from one length upwards; give --tokens one");
  }
  if (arguments.longest && arguments.phases) {
    throw ConfigurationError(
        "--phases records steps of lengths that run, which --longest looks for; give the length that it finds with "
        "--tokens, and --phases without --longest");
  }
  raw.open();
  out << fmt::format("{}training step of {}\n{}{}, {}; for each row {}, then {} measured\n",
                     arguments.longest ? "longest sequence for a " : "", model_text(arguments, benchmark.model),
                     device_text(backend, arguments.ranks), transport_text(backend, arguments.ranks),
                     documents_text({benchmark.documents}), plural(arguments.warmup, "warm-up step"),
                     plural(arguments.steps, "step"))
      << std::flush;
  if (arguments.longest) return bench_longest(benchmark, raw, out);
  bool all_ran = true;
  StepTable table(benchmark, StepTable::Failures::in_full, raw, out);
  const StepBenchmarkResult result = run_step_benchmark(benchmark, [&](const StepBenchmarkRow& row) {
    all_ran = all_ran && row.failure.empty();
    table.add(row);
  });
  table.explain(result.gemm_peak);
  table.memory(result.rows);
  for (const StepBenchmarkRow& row : result.rows) {
    if (row.phases.steps == 0) continue;
    out << fmt::format("\none more step of {} tokens, recompute {}, recorded (rank 0)\n{}", row.tokens,
                       recompute_policy_name(row.recompute), format_phase_table(row.phases));
  }
  return all_ran ? 0 : 1;
}

}  // namespace ithaca
