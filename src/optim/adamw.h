// AdamW over the units of a parameter store, with clipping. Each rank updates its own slice of every unit, which is all
// there is of the moments on it. All numbers of a step stay on the device. Thread-safety: the rank's own thread.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "shard/sharded_parameters.h"

namespace ithaca {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  bool decay_all = false;      // false: only two-dimensional parameters decay
  double max_grad_norm = 1.0;  // 0: no clipping
};

// One-element device tensors that hold a step's numbers; read on the host only at the end of the step.
struct StepScalars {
  Tensor loss_sum;       // [1] float64
  Tensor square_sum;     // [1] float64
  Tensor gradient_norm;  // [1] float64
  Tensor clip_factor;    // [1] float32
  Tensor skipped;        // [1] int64
  Tensor applied_steps;  // [1] int64
};

class AdamWOptimizer {
 public:
  // `parameters` and `backend` must outlive it. Allocates two float32 moments for every element of the own slices.
  AdamWOptimizer(const AdamWOptions& options, ShardedParameters& parameters, Backend& backend);

  const StepScalars& scalars() const { return scalars_; }
  // Sets loss_sum and square_sum to 0.
  void begin_step();
  // The square sum of all gradients, each unit's as soon as its sum over the ranks is there: what waits is only what
  // comes last. Collective.
  void sum_squares();
  // Gradient norm, clip factor and skip flag from square_sum and loss_sum, then the update of every unit, whose new
  // weights are on their way to all ranks while the next one is updated. `label_weight_sum` 0 skips the step.
  // Collective.
  void step(double learning_rate, double label_weight_sum);

 private:
  struct Moments {
    Buffer first, second;
  };
  AdamWOptions options_;
  ShardedParameters& parameters_;
  Backend& backend_;
  Stream& stream_;
  std::vector<Moments> moments_;  // by unit
  std::vector<Buffer> scalar_buffers_;
  StepScalars scalars_;
};

// Bytes that an AdamWOptimizer takes of its arena: moments of the own slices and scalars, in whole blocks.
int64_t adamw_bytes(const ParameterBytes& parameters);

}  // namespace ithaca
