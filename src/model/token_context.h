// TokenContext: what every layer needs to know of the micro-batch that passes through it. This rank's shard, on the
// device.
#pragma once

#include <cstdint>
#include <span>

#include "attention/schedule.h"
#include "tensor/tensor.h"

namespace ithaca {

struct TokenContext {
  int64_t tokens = 0;                           // of this rank
  Tensor token_ids;                             // [tokens] int64
  Tensor labels;                                // [tokens] int64, shifted; -100 = none
  Tensor label_weights;                         // [tokens] float32, or absent: 1
  std::span<const int64_t> host_labels;         // the labels again, on the host: tiles without any are skipped
  Tensor cosine, sine;                          // [tokens, head size / 2] float32
  std::span<const AttentionPlan* const> plans;  // one per decoder layer (layers with the same mask share theirs)
};

}  // namespace ithaca
