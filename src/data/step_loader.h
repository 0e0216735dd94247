// StepLoader: which sequences make up which optimizer step, and one rank's cut of them.
//
// The order of an epoch is a permutation that is a function of (seed, epoch); a step takes the next sequences_per_step
// of it. The last step of an epoch may have fewer, spread as evenly as can be: nothing is lost, nothing is repeated.
// All dp ranks get the same number of micro-batches; one may be empty on some ranks, but never on all. Which sequences
// a step has, its denominator and its counts do not depend on how they are dealt to ranks and micro-batches.
// Thread-safety: load() may be called from several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "attention/layout.h"
#include "data/dataset.h"
#include "data/step_batch.h"

namespace ithaca {

struct StepLoaderOptions {
  int64_t micro_batch_size = 1;  // sequences
  int64_t accumulation = 1;      // micro-batches per rank and step
  int64_t dp_size = 1;
  int64_t seed = 42;
  bool shuffle = true;
};

// Whose cut is wanted.
struct BatchPosition {
  int64_t dp_rank = 0;
  int ring_rank = 0;
  int ring_size = 1;
  int ulysses_rank = 0;
  int ulysses_size = 1;
  Layout layout = Layout::contiguous;
};

class StepLoader {
 public:
  // `dataset` must outlive the loader.
  StepLoader(const Dataset& dataset, const StepLoaderOptions& options);

  int64_t sequences_per_step() const;
  int64_t steps_per_epoch() const;
  // The dataset indices of step `step` (0-based, running over epochs), in order: [dp rank][micro-batch][sequence];
  // empty lists included.
  std::vector<std::vector<std::vector<int64_t>>> indices(int64_t step) const;
  StepBatch load(int64_t step, const BatchPosition& position) const;

 private:
  using Permutation = std::shared_ptr<const std::vector<int64_t>>;
  Permutation permutation(int64_t epoch) const;
  std::vector<int64_t> sequences_of_step(int64_t step) const;

  const Dataset& dataset_;
  StepLoaderOptions options_;
  mutable std::mutex mutex_;  // guards the permutation kept from the last call
  mutable int64_t kept_epoch_ = -1;
  mutable Permutation kept_permutation_;
};

// One micro-batch: the sequences laid end to end, then cut for `position`. The building block of load(), also for
// evaluation and tests.
MicroBatch cut_micro_batch(const std::vector<Sequence>& sequences, const BatchPosition& position);

}  // namespace ithaca
