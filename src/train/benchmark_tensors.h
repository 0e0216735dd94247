// Random content for benchmarks' tensors. Internal to the benchmarks of train/.
#pragma once

#include <cstdint>

#include "backend/backend.h"

namespace ithaca {

// Fills a contiguous floating point tensor with numbers in [-1, 1), always the same: zeros would run faster than real
// ones on a GPU, whose clock follows its power. Other seeds give other numbers. Enqueued on the compute stream.
// Thread-safety: the rank's own thread.
void fill_random(Backend& backend, const Tensor& tensor, uint32_t seed = 1);

}  // namespace ithaca
