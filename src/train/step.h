// The training step, top to bottom: micro-batches forward and backward, gradients summed over the ranks, clipping,
// AdamW, one host read. Thread-safety: the rank's own thread; all ranks of the mesh call run() and evaluate() together.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "attention/schedule.h"
#include "backend/backend.h"
#include "comm/mesh.h"
#include "data/step_batch.h"
#include "model/transformer.h"
#include "optim/adamw.h"
#include "shard/device_saved_tensors.h"
#include "shard/sharded_parameters.h"

namespace ithaca {

// What the host reads at the end of a step; the same on every rank.
struct StepResult {
  double loss = 0.0;       // sum(weight * token loss) / sum(weight); 0 when the step has no label
  double grad_norm = 0.0;  // before clipping
  bool skipped = false;    // no label, or a loss or norm that is not finite
  int64_t applied_steps = 0;
};

// One value per rank of a group, on its way to the host.
class GatheredValues {
 public:
  // Enqueued on the compute stream; must live until that has been waited for.
  GatheredValues(Communicator& group, Backend& backend, std::span<const int64_t> values);
  GatheredValues(const GatheredValues&) = delete;
  GatheredValues& operator=(const GatheredValues&) = delete;
  ~GatheredValues() = default;
  // out[rank * values.size() + i], once the host has waited for the compute stream.
  const std::vector<int64_t>& values() const { return values_; }

 private:
  std::vector<int64_t> values_;
};

class TrainingStep {
 public:
  // Everything given must outlive it.
  TrainingStep(Transformer& model, ShardedParameters& parameters, AdamWOptimizer& optimizer,
               const AttentionSchedule& schedule, Backend& backend, Mesh& mesh);

  StepResult run(const StepBatch& batch, double learning_rate);
  // The mean loss over all micro-batches of all ranks; nothing when they hold no label. Ranks may have different
  // numbers of micro-batches, but the ranks of one cp group have the same.
  std::optional<double> evaluate(const std::vector<MicroBatch>& micro_batches, double label_weight_sum);

  // The pieces of run(), for those who look at gradients before the update: forward and backward of all micro-batches,
  // behind which the gradients' sums are on their way.
  void accumulate_gradients(const StepBatch& batch);
  StepResult update(const StepBatch& batch, double learning_rate);

 private:
  void forward_backward(const MicroBatch& micro_batch, double gradient_scale);
  std::optional<GatheredValues> gather_hashes(uint64_t content_hash);  // nothing where a sequence has one rank
  static void check_same_batch(std::span<const int64_t> hashes);

  Transformer& model_;
  ShardedParameters& parameters_;
  AdamWOptimizer& optimizer_;
  const AttentionSchedule& schedule_;
  Backend& backend_;
  Mesh& mesh_;
  DeviceSavedTensors saved_;
};

// Reads one value per rank of `group` (blocking): out[rank * values.size() + i].
std::vector<int64_t> gather_values(Communicator& group, Backend& backend, std::span<const int64_t> values);

}  // namespace ithaca
