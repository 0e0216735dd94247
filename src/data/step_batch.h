// StepBatch: everything one rank needs for one optimizer step, known before its first forward.
//
// A micro-batch is one token axis: its sequences are laid end to end as documents, then cut by the layout; this rank
// holds its shard of it. Host memory; the training step copies it to the device. Thread-safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attention/documents.h"
#include "attention/layout.h"
#include "model/description.h"

namespace ithaca {

inline constexpr int64_t kNoLabel = -100;

// This rank's shard of one token axis. The vectors have shard.size() elements, in the shard's local order.
struct MicroBatch {
  Documents documents;  // of the whole axis
  Shard shard;          // which positions of the axis this rank holds
  std::vector<int64_t> token_ids;
  std::vector<int64_t> position_ids;    // within each token's document
  std::vector<int64_t> shifted_labels;  // successor of each token, made before the cut; kNoLabel = none
  std::vector<float> label_weights;     // empty: 1 wherever there is a label
  int64_t largest_position = 0;         // of the whole axis
  std::optional<RopeDescription> rope;  // where it is not the model's own (context curriculum)
};

struct StepBatch {
  std::vector<MicroBatch> micro_batches;
  double label_weight_sum = 0.0;  // over every rank and micro-batch of the step: the denominator of the loss
  int64_t valid_tokens = 0;       // labels, over every rank and micro-batch
  int64_t tokens = 0;             // tokens, over every dp rank and micro-batch (each sequence counted once)
  uint64_t content_hash = 0;      // of the whole sequences: equal on all ranks of one cp group
};

}  // namespace ithaca
