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
#include "train/benchmark_tensors.h"
#include "train/partial_attention.h"
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

// Numbers of the size that initial weights have, from a short list over and over: those of a real start take a host
// longer to draw than the steps take.
void give_weights(TrainingRank& rank, const ModelDescription& model) {
  constexpr int64_t kPeriod = 65521;  // prime, so that rows differ
  const RandomStream random(1, "benchmark weights");
  std::vector<float> period(static_cast<size_t>(kPeriod));
  for (size_t index = 0; index < period.size(); ++index) {
    period[index] = static_cast<float>(model.initializer_range * random.normal(index));
  }
  auto& parameters = rank.parameters();
  std::vector<float> values;
  for (size_t index = 0; index < parameters.specs().size(); ++index) {
    const ParameterSpec& spec = parameters.specs()[index];
    values.assign(static_cast<size_t>(spec.extents.product()),
                  spec.initialization == Initialization::ones ? 1.0f : 0.0f);
    if (spec.initialization == Initialization::normal) {
      for (size_t begin = 0; begin < values.size(); begin += period.size()) {
        const size_t part = std::min(period.size(), values.size() - begin);
        std::copy_n(period.begin(), part, values.begin() + static_cast<std::ptrdiff_t>(begin));
      }
    }
    parameters.set_weights(static_cast<int64_t>(index), values);
  }
}

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
  request.mask = widest_mask(model);
  request.sequences = {Documents(benchmark_documents(tokens, benchmark.documents))};
  request.preferred_attention_rows = preferred_attention_rows(benchmark.backend.kind);
  request.cp_size = benchmark.ranks;
  request.kind = parse_choice_or_auto(
      "--schedule", benchmark.schedule,
      {ScheduleKind::ulysses, ScheduleKind::ring, ScheduleKind::all_gather, ScheduleKind::hybrid}, schedule_name);
  request.layout = parse_choice_or_auto("--layout", benchmark.layout,
                                        {Layout::contiguous, Layout::zigzag, Layout::striped}, layout_name);
  if (benchmark.ulysses_size > 0) request.ulysses_size = static_cast<int>(benchmark.ulysses_size);
  if (benchmark.ring_size > 0) request.ring_size = static_cast<int>(benchmark.ring_size);
  return choose_schedule(request);
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
    ThreadRankOptions options;
    options.transport = benchmark_.backend.transport;
    try {
      run_thread_ranks(benchmark_.ranks, options, [&](ThreadRank& thread) { run_rank(thread, begin, end); });
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
    options.zero = benchmark_.zero;
    options.memory_limit_bytes = benchmark_.memory_limit_bytes;
    options.model.recompute = rows_[begin].row.recompute;
    options.traced = benchmark_.phases;
    PartialAttention* partial = nullptr;  // owned by the rank
    if (benchmark_.attention_layers > 0) {
      options.wrap_schedule = [&](std::unique_ptr<AttentionSchedule> schedule, Backend& backend) {
        auto wrapped = std::make_unique<PartialAttention>(std::move(schedule), backend, benchmark_.model.layer_count(),
                                                          benchmark_.attention_layers);
        partial = wrapped.get();
        return wrapped;
      };
    }
    TrainingRank rank(thread, benchmark_.model, options);
    const bool speaks = thread.rank() == 0;
    if (speaks && result_.gemm_peak == 0.0) result_.gemm_peak = measure_gemm_peak(rank.backend());
    give_weights(rank, benchmark_.model);
    for (size_t index = begin; index < end; ++index) {
      rank.mesh().world().barrier();  // the row that a failure is booked under is the same for all ranks
      if (speaks) at_ = index;
      options.model.recompute = rows_[index].row.recompute;
      rank.use_model_options(options.model);
      measure(rank, partial, speaks, rows_[index].row);
    }
    if (speaks) at_ = end;
  }

  // A length whose hidden states alone have no room fails here, before the host has drawn as many tokens.
  void require_room(TrainingRank& rank, int64_t tokens) const {
    static_cast<void>(rank.backend()
                          .arena(Tier::device)
                          .allocate("hidden states", MemoryClass::workspace, benchmark_.backend.compute_dtype,
                                    {std::max<int64_t>(tokens / benchmark_.ranks, 1), benchmark_.model.hidden_size},
                                    rank.backend().compute_stream()));
  }

  void measure(TrainingRank& rank, const PartialAttention* partial, bool speaks, StepBenchmarkRow& row) {
    require_room(rank, row.tokens);
    const RandomSequence data(benchmark_documents(row.tokens, benchmark_.documents), benchmark_.model.vocabulary);
    StepLoaderOptions loader_options;
    loader_options.shuffle = false;
    const StepBatch batch = StepLoader(data, loader_options).load(0, rank.batch_position());
    for (int step = 0; step < benchmark_.warmup; ++step) static_cast<void>(rank.step().run(batch, 1e-5));
    rank.backend().arena(Tier::device).reset_peak();
    const double wait_before = rank.backend().exposed_wait_seconds();
    const int64_t sent_before = rank.mesh().total_bytes_sent();
    const double layer_before = partial != nullptr ? partial->seconds_of_a_layer() : 0.0;
    StepResult result;
    std::vector<double> seconds;
    for (int step = 0; step < benchmark_.steps; ++step) {
      const auto start = std::chrono::steady_clock::now();
      result = rank.step().run(batch, 1e-5);
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    const double exposed = rank.backend().exposed_wait_seconds() - wait_before;
    const int64_t sent = rank.mesh().total_bytes_sent() - sent_before;
    const double layer_seconds =
        partial != nullptr ? (partial->seconds_of_a_layer() - layer_before) / benchmark_.steps : 0.0;
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
    if (partial != nullptr) row.planned_seconds = layer_seconds * static_cast<double>(partial->layers_left_out());
    row.loss = result.loss;
    row.memory = memory;
    row.exposed_wait_seconds = exposed / benchmark_.steps;
    row.bytes_sent = sent / benchmark_.steps;
    row.flops = model_step_flops(benchmark_.model, benchmark_documents(row.tokens, benchmark_.documents));
    row.flops_per_second_per_device = row.flops / (row.seconds + row.planned_seconds) / result_.devices;
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

void check_step_benchmark(const StepBenchmark& benchmark) {
  require(benchmark.ranks >= 1 && benchmark.steps >= 1 && benchmark.warmup >= 0,
          "a step benchmark needs ranks and steps");
  if (benchmark.attention_layers < 0 || benchmark.attention_layers > benchmark.model.layer_count()) {
    throw ConfigurationError(fmt::format("--attention-layers: {} is not one of 1 to {}, the layers of the model, or 0",
                                         benchmark.attention_layers, benchmark.model.layer_count()));
  }
  for (const int64_t tokens : benchmark.tokens) {
    check_benchmark_sequence(tokens, benchmark.documents);
    static_cast<void>(choose(benchmark, tokens));
  }
}

StepBenchmarkResult run_step_benchmark(const StepBenchmark& benchmark,
                                       const std::function<void(const StepBenchmarkRow&)>& on_row) {
  check_step_benchmark(benchmark);
  StepBenchmarkResult result;
  result.devices =
      benchmark.backend.kind == BackendKind::cuda ? std::min(benchmark.ranks, benchmark.backend.devices) : 1;
  std::vector<AutoScheduleChoice> choices;
  for (const int64_t tokens : benchmark.tokens) choices.push_back(choose(benchmark, tokens));
  std::vector<PlannedRow> rows;
  for (const RecomputePolicy recompute : benchmark.recompute) {
    for (size_t index = 0; index < benchmark.tokens.size(); ++index) {
      PlannedRow planned;
      planned.row.tokens = benchmark.tokens[index];
      planned.row.recompute = recompute;
      planned.choice = choices[index];
      if (benchmark.ranks > 1) planned.row.attention = schedule_text(planned.choice);
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

LongestSequence find_longest_sequence(const StepBenchmark& benchmark,
                                      const std::function<void(const StepBenchmarkRow&)>& on_try) {
  require(benchmark.tokens.size() == 1 && benchmark.recompute.size() == 1,
          "the longest sequence is looked for from one length, with one recompute policy");
  constexpr int64_t kLargestStep = 8192;
  const int64_t first = benchmark.tokens.front();
  const int64_t step = std::min(first, kLargestStep);
  LongestSequence longest;
  const auto runs = [&](int64_t tokens) {
    StepBenchmark one = benchmark;
    one.tokens = {tokens};
    StepBenchmarkResult result = run_step_benchmark(one, on_try);
    longest.gemm_peak = std::max(longest.gemm_peak, result.gemm_peak);
    const bool ran = result.rows.front().failure.empty();
    (ran ? longest.tokens : longest.shortest_failure) = tokens;
    longest.tries.push_back(std::move(result.rows.front()));
    return ran;
  };
  for (int64_t tokens = first; runs(tokens);) tokens *= 2;
  while (longest.shortest_failure - longest.tokens > std::max(step, longest.tokens / 16)) {
    const int64_t middle = (longest.tokens + longest.shortest_failure) / 2 / step * step;
    if (middle <= longest.tokens) break;
    static_cast<void>(runs(middle));
  }
  return longest;
}

}  // namespace ithaca
