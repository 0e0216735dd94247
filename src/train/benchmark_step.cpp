#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "attention/auto_schedule.h"
#include "base/choice.h"
#include "base/error.h"
#include "base/random.h"
#include "comm/thread_ranks.h"
#include "data/step_loader.h"
#include "train/benchmark.h"
#include "train/initialize.h"
#include "train/rank.h"
#include "train/step_trace.h"

namespace ithaca {

namespace {

// One sequence of random tokens with a label everywhere.
class RandomSequence final : public Dataset {
 public:
  RandomSequence(const std::vector<int64_t>& document_lengths, int64_t vocabulary) {
    const RandomStream random(1, "benchmark tokens");
    sequence_.document_lengths = document_lengths;
    uint64_t number = 0;
    for (const int64_t length : document_lengths) {
      for (int64_t position = 0; position < length; ++position) {
        sequence_.token_ids.push_back(static_cast<int64_t>(random.bits(number++) % static_cast<uint64_t>(vocabulary)));
        sequence_.position_ids.push_back(position);
        if (sequence_.token_ids.size() > 1) {
          sequence_.shifted_labels.push_back(position == 0 ? kNoLabel : sequence_.token_ids.back());
        }
      }
    }
    sequence_.shifted_labels.push_back(kNoLabel);
    summary_.sequences = 1;
    summary_.documents = static_cast<int64_t>(document_lengths.size());
    summary_.tokens = summary_.longest_sequence = static_cast<int64_t>(sequence_.token_ids.size());
    summary_.valid_tokens = sequence_totals(sequence_).valid_tokens;
  }

  int64_t size() const override { return 1; }
  Sequence sequence(int64_t) const override { return sequence_; }
  const DatasetSummary& summary() const override { return summary_; }

 private:
  Sequence sequence_;
  DatasetSummary summary_;
};

// What a row is going to run.
struct PlannedRow {
  StepBenchmarkRow row;
  AutoScheduleChoice choice;
};

AutoScheduleChoice choose(const StepBenchmark& benchmark, int64_t tokens) {
  const ModelDescription& model = benchmark.model;
  AutoScheduleRequest request;
  request.heads = attention_heads(model);
  request.element_bytes = element_size(benchmark.backend.compute_dtype);
  request.tokens = tokens;
  request.mean_document_tokens = benchmark.mean_document;
  request.cp_size = benchmark.ranks;
  if (benchmark.schedule != "auto") {
    request.kind = parse_choice(
        "--schedule", benchmark.schedule,
        {ScheduleKind::ulysses, ScheduleKind::ring, ScheduleKind::all_gather, ScheduleKind::hybrid}, schedule_name);
  }
  if (benchmark.layout != "auto") {
    request.layout =
        parse_choice("--layout", benchmark.layout, {Layout::contiguous, Layout::zigzag, Layout::striped}, layout_name);
  }
  if (benchmark.ulysses_size > 0) request.ulysses_size = static_cast<int>(benchmark.ulysses_size);
  if (benchmark.ring_size > 0) request.ring_size = static_cast<int>(benchmark.ring_size);
  return choose_schedule(request);
}

std::string attention_text(const AutoScheduleChoice& choice, int ranks) {
  if (ranks == 1) return "";
  std::string text(schedule_name(choice.sizes.kind));
  if (choice.sizes.kind == ScheduleKind::hybrid) {
    text += fmt::format(" {}x{}", choice.sizes.ulysses_size, choice.sizes.ring_size);
  }
  if (choice.sizes.ring_size > 1) text += fmt::format(", {}", layout_name(choice.layout));
  return text;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

// Measures consecutive rows that share a mesh and a schedule on ranks that stay.
class StepMeasurement {
 public:
  StepMeasurement(const StepBenchmark& benchmark, std::vector<PlannedRow>& rows, StepBenchmarkResult& result,
                  const std::function<void(const StepBenchmarkRow&)>& on_row)
      : benchmark_(benchmark), rows_(rows), result_(result), on_row_(on_row) {}

  // Runs rows [begin, end); returns the index of the first one that is not done, which is `end` unless it failed.
  size_t run(size_t begin, size_t end) {
    at_ = begin;
    try {
      run_thread_ranks(benchmark_.ranks, {}, [&](ThreadRank& thread) { run_rank(thread, begin, end); });
    } catch (const OutOfMemoryError& error) {
      if (at_ == end) throw;
      rows_[at_].row.failure = error.what();
      on_row_(rows_[at_].row);
      return at_ + 1;
    }
    return end;
  }

 private:
  void run_rank(ThreadRank& thread, size_t begin, size_t end) {
    const AutoScheduleChoice& choice = rows_[begin].choice;
    TrainingRankOptions options;
    options.backend = benchmark_.backend;
    options.mesh.ring = choice.sizes.ring_size;
    options.mesh.ulysses = choice.sizes.ulysses_size;
    options.schedule = choice.sizes.kind;
    options.layout = choice.layout;
    options.memory_limit_bytes = benchmark_.memory_limit_bytes;
    options.model.recompute = rows_[begin].row.recompute;
    options.traced = benchmark_.phases;
    TrainingRank rank(thread, benchmark_.model, options);
    const bool speaks = thread.rank() == 0;
    if (speaks && result_.gemm_peak == 0.0) result_.gemm_peak = measure_gemm_peak(rank.backend());
    initialize_weights(benchmark_.model, 1, rank.parameters());
    for (size_t index = begin; index < end; ++index) {
      rank.mesh().world().barrier();  // the row that a failure is booked under is the same for all ranks
      if (speaks) at_ = index;
      options.model.recompute = rows_[index].row.recompute;
      rank.use_model_options(options.model);
      measure(rank, speaks, rows_[index].row);
    }
    if (speaks) at_ = end;
  }

  void measure(TrainingRank& rank, bool speaks, StepBenchmarkRow& row) {
    const RandomSequence data(benchmark_documents(row.tokens, benchmark_.mean_document), benchmark_.model.vocabulary);
    StepLoaderOptions loader_options;
    loader_options.shuffle = false;
    const StepBatch batch = StepLoader(data, loader_options).load(0, rank.batch_position());
    for (int step = 0; step < benchmark_.warmup; ++step) static_cast<void>(rank.step().run(batch, 1e-5));
    rank.backend().arena(Tier::device).reset_peak();
    const double wait_before = rank.backend().exposed_wait_seconds();
    const int64_t sent_before = rank.mesh().total_bytes_sent();
    StepResult result;
    std::vector<double> seconds;
    for (int step = 0; step < benchmark_.steps; ++step) {
      const auto start = std::chrono::steady_clock::now();
      result = rank.step().run(batch, 1e-5);
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    const double exposed = rank.backend().exposed_wait_seconds() - wait_before;
    const int64_t sent = rank.mesh().total_bytes_sent() - sent_before;
    const MemoryUsage memory = gather_peak(rank, false).largest;
    if (benchmark_.phases) {
      StepTrace trace(rank.backend());
      trace.begin();
      static_cast<void>(rank.step().run(batch, 1e-5));
      trace.end();
      if (speaks) row.phases = trace.table();
    }
    if (!speaks) return;
    row.step_seconds = seconds;
    row.seconds = median(seconds);
    row.loss = result.loss;
    row.memory = memory;
    row.exposed_wait_seconds = exposed / benchmark_.steps;
    row.bytes_sent = sent / benchmark_.steps;
    row.flops = model_step_flops(benchmark_.model, benchmark_documents(row.tokens, benchmark_.mean_document));
    row.flops_per_second_per_device = row.flops / row.seconds / result_.devices;
    row.peak_share = result_.gemm_peak > 0.0 ? row.flops_per_second_per_device / result_.gemm_peak : 0.0;
    on_row_(row);
  }

  const StepBenchmark& benchmark_;
  std::vector<PlannedRow>& rows_;
  StepBenchmarkResult& result_;
  const std::function<void(const StepBenchmarkRow&)>& on_row_;
  size_t at_ = 0;  // the row that runs; written by rank 0, read once the ranks have ended
};

}  // namespace

StepBenchmarkResult run_step_benchmark(const StepBenchmark& benchmark,
                                       const std::function<void(const StepBenchmarkRow&)>& on_row) {
  require(benchmark.ranks >= 1 && benchmark.steps >= 1 && benchmark.warmup >= 0,
          "a step benchmark needs ranks and steps");
  StepBenchmarkResult result;
  result.devices =
      benchmark.backend.kind == BackendKind::cuda ? std::min(benchmark.ranks, benchmark.backend.devices) : 1;
  std::vector<PlannedRow> rows;
  for (const RecomputePolicy recompute : benchmark.recompute) {
    for (const int64_t tokens : benchmark.tokens) {
      PlannedRow planned;
      planned.row.tokens = tokens;
      planned.row.recompute = recompute;
      planned.choice = choose(benchmark, tokens);
      planned.row.attention = attention_text(planned.choice, benchmark.ranks);
      rows.push_back(std::move(planned));
    }
  }
  StepMeasurement measurement(benchmark, rows, result, on_row);
  size_t begin = 0;
  while (begin < rows.size()) {
    size_t end = begin + 1;
    while (end < rows.size() && rows[end].choice.sizes == rows[begin].choice.sizes &&
           rows[end].choice.layout == rows[begin].choice.layout) {
      ++end;
    }
    begin = measurement.run(begin, end);
  }
  for (PlannedRow& planned : rows) result.rows.push_back(std::move(planned.row));
  return result;
}

}  // namespace ithaca
