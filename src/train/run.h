// A whole run: from a recipe to an exported model.
//
// run_training builds the ranks, trains, evaluates, writes metrics.jsonl and exports; it tells an observer what happens
// and prints nothing itself. Thread-safety: the observer is called from rank 0's thread, one call at a time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "attention/schedule.h"
#include "comm/mesh.h"
#include "data/cache/cache_builder.h"
#include "data/dataset.h"
#include "model/description.h"
#include "shard/zero_stage.h"
#include "tensor/memory.h"
#include "train/backend_choice.h"
#include "train/recipe.h"
#include "train/trace_request.h"

namespace ithaca {

// What a run is going to do, known before the first step.
struct RunPlan {
  ModelDescription model;
  int64_t parameters = 0;
  BackendChoice backend;
  MeshSizes mesh;
  ScheduleKind schedule = ScheduleKind::ring;
  Layout layout = Layout::contiguous;
  std::string schedule_reason;  // why `auto` chose it; empty when given
  int64_t train_sequences = 0;
  int64_t train_tokens = 0;  // of one epoch
  int64_t eval_sequences = 0;
  int64_t longest_sequence = 0;
  DatasetSummary train_data;         // of one epoch; with a curriculum, of the longest stage
  std::vector<DatasetStage> stages;  // of data.max_length: one, unless it is a schedule
  bool tokens_are_bytes = false;
  int64_t steps = 0;
  int64_t sequences_per_step = 0;
  ZeroStage zero = ZeroStage::optimizer_state;
  int state_shards = 1;  // ranks that hold a part of the optimizer state each
  std::array<int64_t, kMemoryClasses>
      state_bytes_per_rank{};  // weights, gradients, optimizer: allocated before the first step
  std::string output_dir;
  std::vector<std::string> notes;  // worth saying once: what was chosen, what is unusual
};

// One optimizer step; also one line of metrics.jsonl.
struct StepMetrics {
  int64_t step = 0;        // 1-based
  double loss = 0.0;       // mean over valid tokens, nats
  double grad_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  int64_t tokens = 0;
  int64_t valid_tokens = 0;
  bool skipped = false;
  int64_t skipped_steps = 0;  // so far
  double step_seconds = 0.0;
  double tokens_per_second = 0.0;
  double exposed_wait_seconds = 0.0;  // of this rank's compute, for communication
  MemoryUsage memory;                 // largest rank, this step
  int64_t bytes_sent = 0;             // by rank 0 in this step
};

struct EvaluationMetrics {
  int64_t step = 0;
  double loss = 0.0;
  int64_t valid_tokens = 0;
  double seconds = 0.0;
};

class RunObserver {
 public:
  virtual ~RunObserver() = default;
  // While data is tokenized, which is before on_plan: a few times a second; and what is worth telling meanwhile.
  virtual void on_tokenize(const TokenizeProgress&) {}
  virtual void on_data_note(const std::string&) {}
  virtual void on_plan(const RunPlan&) {}
  virtual void on_step(const StepMetrics&) {}
  virtual void on_evaluation(const EvaluationMetrics&) {}
  virtual void on_warning(const std::string&) {}
  virtual void on_trace(const TraceSummary&) {}
  virtual void on_export(const std::string& /*directory*/) {}
};

// What may help a run that has diverged; behind an article.
inline constexpr const char* kDivergenceAdvice =
    "lower optim.learning_rate, more optim.warmup_steps or clipping by a small optim.max_grad_norm may help";

struct RunResult {
  bool stopped_early = false;  // `stop` was set; what was trained so far has been exported
  int64_t steps = 0;
  int64_t skipped_steps = 0;   // of `steps`
  int64_t diverged_steps = 0;  // of the skipped ones: with a loss or gradient norm that was not finite
  double first_loss = 0.0;
  double last_loss = 0.0;
  std::optional<double> evaluation_loss;
  double training_seconds = 0.0;  // sum of the steps' step_seconds: without evaluations and the export
  int64_t tokens = 0;
  std::string export_directory;
  std::string metrics_file;
  std::string trace_failure;  // why there is no trace though one was asked for; empty otherwise
};

// Throws ConfigurationError, InputError, FileError, CommunicationError, OutOfMemoryError; Error where training has
// diverged for good, or has left weights that are not finite: those are not exported. `stop` may be set from a
// signal handler.
RunResult run_training(const Recipe& recipe, RunObserver& observer, const std::atomic<bool>& stop,
                       const TraceRequest& trace = {});

}  // namespace ithaca
