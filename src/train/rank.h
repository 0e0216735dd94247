// TrainingRank: everything one rank needs to train, built in the order in which it depends on itself.
//
// The same object serves run_training, the parity tests and benchmarks.
// Thread-safety: the rank's own thread; all ranks of the mesh build and use theirs together.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "attention/schedule.h"
#include "backend/backend.h"
#include "comm/mesh.h"
#include "comm/thread_ranks.h"
#include "data/step_loader.h"
#include "model/description.h"
#include "model/model_options.h"
#include "model/transformer.h"
#include "optim/adamw.h"
#include "shard/sharded_parameters.h"
#include "train/backend_choice.h"
#include "train/step.h"

namespace ithaca {

struct TrainingRankOptions {
  BackendChoice backend;
  MeshSizes mesh;
  ScheduleKind schedule = ScheduleKind::ring;
  Layout layout = Layout::contiguous;
  ZeroStage zero = ZeroStage::optimizer_state;
  ModelOptions model;
  AdamWOptions optimizer;
  int64_t memory_limit_bytes = 0;  // of the device tier; 0: the rank's share of the GPU, or of the machine's memory
  bool traced = false;             // steps can be recorded (train/step_trace.h)
  // Benchmarks put their own schedule before the rank's; absent: nothing is put before it.
  std::function<std::unique_ptr<AttentionSchedule>(std::unique_ptr<AttentionSchedule>, Backend&)> wrap_schedule;
};

// The option that would help most when a rank runs out of memory with `usage` in use, what it wanted included.
std::string memory_advice(const TrainingRankOptions& options, const MemoryUsage& usage);

class TrainingRank {
 public:
  // `model` must outlive it. Weights are undefined until load_weights or initialize_weights.
  TrainingRank(ThreadRank& rank, const ModelDescription& model, const TrainingRankOptions& options);

  Backend& backend() { return *backend_; }
  Mesh& mesh() { return *mesh_; }
  ShardedParameters& parameters() { return *parameters_; }
  AdamWOptimizer& optimizer() { return *optimizer_; }
  Transformer& transformer() { return *transformer_; }
  AttentionSchedule& schedule() { return *schedule_; }
  TrainingStep& step() { return *step_; }
  // The same weights and optimizer state, computed in another way from now on.
  void use_model_options(const ModelOptions& options);
  // What this rank reads of every batch.
  BatchPosition batch_position() const;

 private:
  const ModelDescription& model_;
  TrainingRankOptions options_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<AttentionSchedule> schedule_;
  std::unique_ptr<ShardedParameters> parameters_;
  std::unique_ptr<AdamWOptimizer> optimizer_;
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<TrainingStep> step_;
};

// The memory of the rank that uses most, and whether `flag` is set on any rank: the same on every rank. Blocking; all
// ranks call it together.
struct GatheredPeak {
  MemoryUsage largest;  // peaks only
  bool any_flag = false;
};
GatheredPeak gather_peak(TrainingRank& rank, bool flag);

}  // namespace ithaca
