#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/text.h"
#include "cli/bench_tables.h"

namespace ithaca {

namespace {

nlohmann::ordered_json raw_attention(const AttentionBenchmarkRow& row, const BackendChoice& backend,
                                     const HeadShape& heads) {
  nlohmann::ordered_json line = raw_row("attention", backend, row.ranks);
  line["query_heads"] = heads.query_heads;
  line["key_heads"] = heads.key_heads;
  line["head_size"] = heads.key_size;
  line["tokens"] = row.tokens;
  line["documents"] = document_mix_text(row.documents);
  line["schedule"] = row.schedule;
  if (!row.chosen.empty()) line["chosen"] = row.chosen;
  line["predicted"] = row.predicted;
  line["unfit"] = row.unfit;
  line["failure"] = row.failure;
  line["forward_seconds"] = row.forward_seconds;
  line["backward_seconds"] = row.backward_seconds;
  line["forward_flops_per_second_per_device"] = row.forward_flops_per_second;
  line["backward_flops_per_second_per_device"] = row.backward_flops_per_second;
  line["forward_efficiency"] = row.forward_efficiency;
  line["efficiency"] = row.efficiency;
  line["dense_share"] = row.dense_share;
  line["exposed_share"] = row.exposed_share;
  line["bytes_sent"] = row.bytes_sent;
  return line;
}

}  // namespace

int bench_attention(const BenchArguments& arguments, const BackendChoice& backend, RawRows& raw, std::ostream& out) {
  AttentionBenchmark benchmark;
  benchmark.backend = backend;
  benchmark.heads.query_heads = arguments.query_heads;
  benchmark.heads.key_heads = arguments.key_heads;
  benchmark.heads.key_size = benchmark.heads.value_size = arguments.head_size;
  benchmark.heads.scale = 1.0f / std::sqrt(static_cast<float>(arguments.head_size));
  benchmark.tokens = tokens_or(arguments, backend);
  benchmark.documents = document_mixes(arguments);
  benchmark.window = arguments.window;
  benchmark.ranks = arguments.ranks;
  benchmark.schedules = arguments.schedules;
  benchmark.predicted_ranks = arguments.predicted_ranks;
  benchmark.seconds_per_measurement = arguments.seconds;
  check_attention_benchmark(benchmark);
  raw.open();
  out << fmt::format("attention, {}/{} heads of {}, causal{}, {}\n{}{}\n", arguments.query_heads, arguments.key_heads,
                     arguments.head_size,
                     arguments.window > 0 ? fmt::format(", window {}", arguments.window) : std::string(),
                     documents_text(benchmark.documents), device_text(backend, arguments.ranks),
                     transport_text(backend, arguments.ranks));
  if (!arguments.predicted_ranks.empty()) {
    out << fmt::format("predicted for {} ranks\n", fmt::join(arguments.predicted_ranks, ", "));
  }
  out << fmt::format("{:>9} {:<16} {:>5} {:<30} {:>10} {:>9} {:>10} {:>9} {:>8} {:>8} {:>8} {:>8} {:>10}\n", "tokens",
                     "documents", "ranks", "schedule", "forward ms", "TFLOP/s", "backward", "TFLOP/s", "forward",
                     "both", "of dense", "exposed", "sent")
      << std::flush;
  bool all_ran = true;
  bool any_predicted = false;
  bool any_each_alone = false;
  run_attention_benchmark(benchmark, [&](const AttentionBenchmarkRow& measured) {
    AttentionBenchmarkRow row = measured;
    row.unfit = in_flags(row.unfit, BenchFlags::of_others);
    raw.add(raw_attention(row, backend, benchmark.heads));
    out << fmt::format("{:>9} {:<16} {:>5} {:<30} ", row.tokens,
                       row.documents.kind == DocumentMix::Kind::one ? "one" : document_mix_text(row.documents),
                       row.ranks, row.chosen.empty() ? row.schedule : row.schedule + ": " + row.chosen);
    if (!row.unfit.empty()) {
      out << fmt::format("does not fit: {}{}\n", row.unfit, row.predicted ? "  predicted" : "") << std::flush;
      return;
    }
    if (!row.failure.empty()) {
      all_ran = false;
      out << fmt::format("did not run: {}\n", row.failure) << std::flush;
      return;
    }
    any_predicted = any_predicted || row.predicted;
    any_each_alone = any_each_alone || row.schedule == kEachAlone;
    out << fmt::format("{:>10.3f} {:>9.3f} {:>10.3f} {:>9.3f} {:>8} {:>8} {:>8} {:>7.1f}% {:>10}{}\n",
                       1e3 * row.forward_seconds, tera(row.forward_flops_per_second), 1e3 * row.backward_seconds,
                       tera(row.backward_flops_per_second), percent(row.forward_efficiency), percent(row.efficiency),
                       percent(row.dense_share), 100.0 * row.exposed_share, format_bytes(row.bytes_sent),
                       row.predicted ? "  predicted" : "")
        << std::flush;
  });
  out << "TFLOP/s of one device on the visible pairs; forward, both: one rank's time / (devices x this time); of "
         "dense: "
         "the rate of\nboth, of that of one document; exposed: rank 0's compute waiting for communication; sent: by "
         "rank 0, forward and backward.\n";
  if (any_each_alone) {
    out << kEachAlone
        << ": each device computes the whole, all at the same time; what they lose to one rank there, by heat and "
           "power, no\nschedule can keep.\n";
  }
  if (any_predicted) {
    out << "predicted: not run. The busiest rank's attention was measured on one device and bandwidth between the "
           "ranks "
           "that there\nare; exposed communication follows from both by the formulas of docs/benchmarks.md, with a "
           "device for every rank.\n";
  }
  return all_ran ? 0 : 1;
}

}  // namespace ithaca
