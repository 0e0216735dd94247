#include "train/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "checkpoint/file_output.h"
#include "checkpoint/hugging_face.h"
#include "checkpoint/line_output.h"
#include "data/dataset.h"
#include "model/parameters.h"
#include "train/context_curriculum.h"
#include "train/initialize.h"
#include "train/metrics.h"
#include "train/plan_file.h"
#include "train/plan_run.h"
#include "train/rank.h"
#include "train/step_trace.h"
#include "train/tensorboard.h"

namespace ithaca {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// What all ranks of the process share, read-only.
struct SharedRun {
  const Recipe& recipe;
  const ModelDirectory& directory;
  const ModelDescription& model;
  const Dataset& train;
  const Dataset* eval;
  const RunDecisions& decisions;
  const std::atomic<bool>& stop;
  TraceRequest trace;
  TraceFile* trace_file = nullptr;  // null where nothing is traced
};

// After so many steps in a row without a finite loss and norm nothing will come of it.
constexpr int64_t kLargestDivergedRun = 50;

// One rank's life: build, initialise, train, evaluate, export. Rank 0 also talks to the observer and keeps the metrics.
class RankRun {
 public:
  RankRun(ThreadRank& thread, const SharedRun& shared, RunObserver& observer, RunResult& result)
      : shared_(shared),
        observer_(observer),
        result_(result),
        speaks_(thread.rank() == 0),
        rank_(thread, shared.model, shared.decisions.rank),
        loader_(shared.train, shared.decisions.loader) {
    if (shared.trace_file != nullptr) trace_.emplace(rank_.backend(), shared.trace_file, thread.rank());
    if (!speaks_) return;
    metrics_ = std::make_unique<LineOutput>(result.metrics_file);
    const std::filesystem::path events = std::filesystem::path(shared.recipe.train.output_dir) / kTensorboardFolder;
    if (shared.recipe.train.tensorboard) {
      tensorboard_ = std::make_unique<TensorboardWriter>(events.string(), 0);
    } else {
      remove_event_files(events.string());  // of another run, whose curves would pass for this one's
    }
  }

  void run() {
    {
      const HostWork loading(rank_.mesh().world());
      give_first_weights(shared_.recipe, shared_.directory, rank_.parameters(), &shared_.stop);
    }
    if (is_stop_wanted()) {
      if (speaks_) result_.stopped_early = true;
      return;
    }
    const int64_t eval_steps = shared_.recipe.train.eval_steps;
    int64_t step = 0;
    bool stopped = false;
    while (step < shared_.decisions.steps && !stopped) {
      stopped = train_step(step);
      ++step;
      const bool last = step == shared_.decisions.steps;
      if (shared_.eval != nullptr && !stopped && !last && eval_steps > 0 && step % eval_steps == 0)
        stopped = !evaluate(step);
    }
    if (speaks_) {
      result_.steps = step;
      result_.stopped_early = stopped && step < shared_.decisions.steps;
      result_.skipped_steps = skipped_steps_;
      result_.diverged_steps = diverged_steps_;
      result_.training_seconds = training_seconds_;
      if (trace_ && step < shared_.trace.first_step) {
        observer_.on_warning(fmt::format("--trace: the run ended before step {}, so {} was not written",
                                         shared_.trace.first_step, shared_.trace.path));
      }
    }
    // The export comes first: what happens in a long last evaluation must not cost the trained model.
    export_weights();
    const bool evaluated = shared_.eval == nullptr || stopped || evaluate(step);
    if (speaks_ && !evaluated) result_.stopped_early = true;
  }

 private:
  // Whether any rank was asked to stop; all ranks ask together and get the same answer.
  bool is_stop_wanted() {
    const int64_t own = shared_.stop.load() ? 1 : 0;
    const std::vector<int64_t> all = gather_values(rank_.mesh().world(), rank_.backend(), std::span(&own, 1));
    return std::any_of(all.begin(), all.end(), [](int64_t value) { return value != 0; });
  }

  // Returns whether the run was asked to stop, which all ranks agree on.
  bool train_step(int64_t step) {
    Arena& arena = rank_.backend().arena(Tier::device);
    arena.reset_peak();
    const bool is_traced = shared_.trace.includes(step + 1);
    if (is_traced) trace_->begin();
    auto start = std::chrono::steady_clock::now();
    const double wait_before = rank_.backend().exposed_wait_seconds();
    const double rate = learning_rate(shared_.decisions.rate, step);
    const StepBatch batch = next_batch(step);
    const StepResult outcome = rank_.step().run(batch, rate);
    if (is_traced) {
      // Reading the recording is no part of the step.
      const auto ended = std::chrono::steady_clock::now();
      trace_->end();
      start += std::chrono::steady_clock::now() - ended;
    }

    StepMetrics metrics;
    metrics.step = step + 1;
    metrics.loss = outcome.loss;
    metrics.grad_norm = outcome.grad_norm;
    metrics.learning_rate = rate;
    metrics.tokens = batch.tokens;
    metrics.valid_tokens = batch.valid_tokens;
    metrics.skipped = outcome.skipped;
    metrics.exposed_wait_seconds = rank_.backend().exposed_wait_seconds() - wait_before;
    // Whether any rank was asked to stop: all agree.
    const GatheredPeak peak = gather_peak(rank_, shared_.stop.load());
    const bool stop = peak.any_flag;
    metrics.memory = peak.largest;
    metrics.step_seconds = seconds_since(start);
    metrics.tokens_per_second = static_cast<double>(batch.tokens) / std::max(metrics.step_seconds, 1e-9);
    if (speaks_) record(metrics);
    if (is_traced) write_trace(step + 1, stop);
    // Every rank counts the same, since every rank has read the same numbers.
    const bool diverged = outcome.skipped && batch.valid_tokens > 0;
    diverged_in_a_row_ = diverged ? diverged_in_a_row_ + 1 : 0;
    if (diverged && ++diverged_steps_ == 1) first_diverged_step_ = metrics.step;
    if (diverged_in_a_row_ == kLargestDivergedRun) {
      throw Error(fmt::format(
          "training has diverged: the loss or the gradient norm of the last {} steps, up to step {}, is not finite, so "
          "none of them was applied; a {}",
          kLargestDivergedRun, metrics.step, kDivergenceAdvice));
    }
    return stop;
  }

  // The batch of `step`; the one after it is made on another thread while this one is computed.
  StepBatch next_batch(int64_t step) {
    const HostWork reading(rank_.mesh().world());
    StepBatch batch = next_batch_.valid() ? next_batch_.get() : loader_.load(step, rank_.batch_position());
    if (step + 1 < shared_.decisions.steps) {
      next_batch_ = std::async(std::launch::async, [this, next = step + 1, position = rank_.batch_position()] {
        return loader_.load(next, position);
      });
    }
    return batch;
  }

  // `is_last`: no step follows.
  void write_trace(int64_t step, bool is_last) {
    {
      const HostWork writing(rank_.mesh().world());
      trace_->write(step);
    }
    const bool is_complete = step == shared_.trace.last_step || is_last;
    if (is_complete) rank_.mesh().world().barrier();  // every rank has written
    if (!speaks_ || !result_.trace_failure.empty()) return;
    const HostWork telling(rank_.mesh().world());
    if (is_complete) shared_.trace_file->finish();
    result_.trace_failure = shared_.trace_file->failure();
    if (!result_.trace_failure.empty()) {
      observer_.on_warning(fmt::format("--trace: {}; training goes on without the trace", result_.trace_failure));
    } else if (is_complete) {
      observer_.on_trace({shared_.trace.path, shared_.trace.first_step, step, trace_->table()});
    }
  }

  void record(StepMetrics& metrics) {
    const HostWork telling(rank_.mesh().world());  // a terminal may be held, a disk slow
    if (metrics.skipped) {
      ++skipped_steps_;
      // The first ones one by one, later ones ever more rarely: data without labels must not fill the screen.
      if (skipped_steps_ <= 3 || std::has_single_bit(static_cast<uint64_t>(skipped_steps_))) {
        const char* cause = metrics.valid_tokens == 0 ? "it has no label" : "its loss or gradient norm is not finite";
        observer_.on_warning(fmt::format("step {} was skipped ({} so far): {}", metrics.step, skipped_steps_, cause));
      }
    }
    metrics.skipped_steps = skipped_steps_;
    const int64_t sent = rank_.mesh().total_bytes_sent();
    metrics.bytes_sent = sent - bytes_sent_;
    bytes_sent_ = sent;
    if (metrics.step == 1) result_.first_loss = metrics.loss;
    result_.last_loss = metrics.loss;
    result_.tokens += metrics.tokens;
    training_seconds_ += metrics.step_seconds;
    metrics_->write(step_json(metrics));
    if (tensorboard_) tensorboard_->write(metrics);
    observer_.on_step(metrics);
  }

  // Returns false when it was asked to stop before its end: then there is no evaluation loss.
  bool evaluate(int64_t step) {
    const auto start = std::chrono::steady_clock::now();
    // The same batches as in training with one micro-batch per rank, in the order of the file.
    StepLoaderOptions options = shared_.decisions.loader;
    options.shuffle = false;
    options.accumulation = 1;
    // As the last step that was trained turned its positions.
    options.rope = {{0, rope_at(options.rope, std::max<int64_t>(step - 1, 0))}};
    const StepLoader loader(*shared_.eval, options);
    double loss_sum = 0.0;
    double label_weight_sum = 0.0;
    int64_t valid_tokens = 0;
    for (int64_t index = 0; index < loader.steps_per_epoch(); ++index) {
      if (is_stop_wanted()) return false;
      const StepBatch batch = [&] {
        const HostWork reading(rank_.mesh().world());
        return loader.load(index, rank_.batch_position());
      }();
      const double weight = batch.label_weight_sum;
      const std::optional<double> loss = rank_.step().evaluate(batch.micro_batches, weight);
      if (loss) loss_sum += *loss * weight;
      label_weight_sum += weight;
      valid_tokens += batch.valid_tokens;
    }
    if (!speaks_) return true;
    const HostWork telling(rank_.mesh().world());
    if (label_weight_sum <= 0.0) {
      observer_.on_warning("the evaluation data has no label: there is no evaluation loss");
      return true;
    }
    const double mean_loss = loss_sum / label_weight_sum;
    const EvaluationMetrics metrics = {step, mean_loss, valid_tokens, seconds_since(start)};
    result_.evaluation_loss = mean_loss;
    metrics_->write(evaluation_json(metrics));
    if (tensorboard_) tensorboard_->write(metrics);
    observer_.on_evaluation(metrics);
    return true;
  }

  void export_weights() {
    ShardedParameters& parameters = rank_.parameters();
    if (speaks_) {
      ExportOptions options;
      options.directory = result_.export_directory;
      options.replace_existing = true;
      options.rope = rope_at(shared_.decisions.loader.rope, std::max<int64_t>(result_.steps - 1, 0));
      if (options.rope) {
        options.max_positions = positions_with(*options.rope, shared_.model, shared_.train.summary().longest_sequence);
      }
      options.if_not_finite = fmt::format(
          "training has diverged: {}; a {}; every step's numbers are in {}",
          diverged_steps_ > 0
              ? fmt::format("step {} was the first whose loss or gradient norm was not finite", first_diverged_step_)
              : "in the last step that was applied",
          kDivergenceAdvice, result_.metrics_file);
      int64_t index = 0;
      std::vector<float> values;
      std::optional<HostWork> writing(std::in_place, rank_.mesh().world());
      export_model(shared_.directory, parameters.specs(), options,
                   [&](const ParameterSpec& spec, const TensorSink& sink) {
                     values.resize(static_cast<size_t>(spec.extents.product()));
                     writing.reset();  // here the others are waited for
                     parameters.get_weights(index++, values);
                     writing.emplace(rank_.mesh().world());
                     sink(values);
                   });
      observer_.on_export(options.directory);
    } else {
      // Each rank may hold a part of every parameter: all of them take part, in the order in which rank 0 writes.
      for (size_t spec = 0; spec < parameters.specs().size(); ++spec) {
        parameters.get_weights(static_cast<int64_t>(spec), {});
      }
    }
    rank_.mesh().world().barrier();
  }

  const SharedRun& shared_;
  RunObserver& observer_;
  RunResult& result_;
  bool speaks_;
  TrainingRank rank_;
  StepLoader loader_;
  std::future<StepBatch> next_batch_;
  std::optional<StepTrace> trace_;
  std::unique_ptr<LineOutput> metrics_;
  std::unique_ptr<TensorboardWriter> tensorboard_;
  double training_seconds_ = 0.0;
  int64_t skipped_steps_ = 0;
  int64_t diverged_steps_ = 0;
  int64_t diverged_in_a_row_ = 0;
  int64_t first_diverged_step_ = 0;
  int64_t bytes_sent_ = 0;
};

}  // namespace

RunResult run_training(const Recipe& recipe, RunObserver& observer, const std::atomic<bool>& stop,
                       const TraceRequest& trace) {
  const ModelDirectory directory(recipe.model.path);
  const ModelDescription& model = directory.description();
  if (recipe.model.init != "random") require_weights(directory);
  DataWatch watch;
  watch.on_progress = [&](const TokenizeProgress& progress) { observer.on_tokenize(progress); };
  watch.on_note = [&](const std::string& text) { observer.on_data_note(text); };
  watch.stop = &stop;
  const std::unique_ptr<Dataset> train = open_training_data(recipe, model, watch);
  const std::unique_ptr<Dataset> eval = open_evaluation_data(recipe, model, watch);
  if (stop.load()) throw StoppedError("stopped before the first step; nothing was trained");
  RunDecisions decisions = decide_run(recipe, model, *train);
  const TraceRequest settled_trace = settle_trace(trace, decisions.steps, decisions.rank.backend.kind);
  decisions.rank.traced = !settled_trace.path.empty();

  const RunPlan plan = describe_run(recipe, model, decisions, *train, eval.get());
  require_room_for_state(recipe, plan);

  RunResult result;
  const std::filesystem::path output = recipe.train.output_dir;
  std::error_code error;
  std::filesystem::create_directories(output, error);
  if (error)
    throw FileError(fmt::format("train.output_dir: {} cannot be created: {}", output.string(), error.message()));
  result.export_directory = (output / "export").string();
  result.metrics_file = (output / "metrics.jsonl").string();

  const std::unique_ptr<TraceFile> trace_file = open_trace(settled_trace);
  observer.on_plan(plan);
  write_whole_file((output / kPlanFile).string(), plan_json(plan));
  const SharedRun shared = {recipe,    directory, model,         *train,          eval.get(),
                            decisions, stop,      settled_trace, trace_file.get()};
  run_thread_ranks(decisions.rank.mesh.ranks(), thread_rank_options(recipe, decisions.rank),
                   [&](ThreadRank& thread) { RankRun(thread, shared, observer, result).run(); });
  return result;
}

}  // namespace ithaca
