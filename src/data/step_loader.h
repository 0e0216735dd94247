// StepLoader: which sequences make up which optimizer step, and one rank's cut of them.
//
// The order of an epoch is a permutation that is a function of (seed, stage, epoch); a step takes the next
// sequences_per_step of it. The last step of an epoch may have fewer, spread as evenly as can be: nothing is lost,
// nothing is repeated. A stage of a context curriculum begins at its step with an epoch of its own. All dp ranks get
// the same number of micro-batches; one may be empty on some ranks, but never on all. Which sequences a step has, its
// denominator and its counts do not depend on how they are dealt to ranks and micro-batches, which is done so that all
// have about the same work (packing/deal.h). A rank reads the tokens of its own shard and no others.
// Thread-safety: load() may be called from several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "attention/layout.h"
#include "data/data_position.h"
#include "data/dataset.h"
#include "data/epoch_order.h"
#include "data/step_batch.h"
#include "model/description.h"

namespace ithaca {

// From step `first_step` on, up to the next entry, positions are turned by `rope`; nothing: by the model's own.
struct RopeStage {
  int64_t first_step = 0;
  std::optional<RopeDescription> rope;
};

// The entry that holds for step `step`; nothing where there is none.
std::optional<RopeDescription> rope_at(const std::vector<RopeStage>& stages, int64_t step);

struct StepLoaderOptions {
  int64_t micro_batch_size = 1;  // sequences
  int64_t accumulation = 1;      // micro-batches per rank and step
  int64_t dp_size = 1;
  int64_t seed = 42;
  bool shuffle = true;
  std::vector<RopeStage> rope;  // by rising step; empty: always the model's own
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

  // Reads on from `position`, which position(step) of another loader over the same data gave: step `step` is the next.
  // Throws InputError when it was another seed, order or data, or another stage is due at that step.
  void resume(int64_t step, const DataPosition& position);

  int64_t sequences_per_step() const;
  // The same, but no more than the largest stage has: what the step with most sequences takes.
  int64_t most_sequences_in_a_step() const;
  // Of the first stage.
  int64_t steps_per_epoch() const;
  // Where reading stands before step `step` (0-based, running over epochs).
  DataPosition position(int64_t step) const;
  // The dataset indices of step `step`, in order: [dp rank][micro-batch][sequence]; empty lists included.
  std::vector<std::vector<std::vector<int64_t>>> indices(int64_t step) const;
  StepBatch load(int64_t step, const BatchPosition& position) const;
  // The share of the dp ranks' time that is lost in step `step` because they do not have the same work, 0 to 1.
  double imbalance(int64_t step) const;

 private:
  // Where steps are counted from: at the beginning of a stage, or where a run was resumed.
  struct Origin {
    int64_t stage = 0;
    int64_t step = 0;
    int64_t epoch = 0;
    int64_t next = 0;
  };
  using Order = std::shared_ptr<const EpochOrder>;
  Origin origin_of(int64_t step) const;
  DataPosition place_of(int64_t step) const;  // without the hash of the data
  Order order(int64_t stage, int64_t epoch) const;
  std::vector<int64_t> sequences_of_step(int64_t step) const;
  std::vector<std::vector<std::vector<int64_t>>> deal(const std::vector<int64_t>& sequences) const;
  std::vector<double> costs_of(const std::vector<int64_t>& sequences) const;

  const Dataset& dataset_;
  StepLoaderOptions options_;
  std::vector<DatasetStage> stages_;
  std::optional<Origin> resumed_;
  mutable std::mutex mutex_;  // guards the order kept from the last call
  mutable std::pair<int64_t, int64_t> kept_of_{-1, -1};
  mutable Order kept_order_;
};

// One micro-batch: the sequences laid end to end, then cut for `position`. The building block of load(), also for
// evaluation and tests.
MicroBatch cut_micro_batch(const Dataset& dataset, std::span<const int64_t> indices, const BatchPosition& position);
MicroBatch cut_micro_batch(std::vector<Sequence> sequences, const BatchPosition& position);

}  // namespace ithaca
