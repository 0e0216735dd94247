// What the benchmarks of train/ share: random content of tensors, timing, medians. Internal to them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"

namespace ithaca {

// Fills a contiguous floating point tensor with numbers in [-1, 1), always the same: zeros would run faster than real
// ones on a GPU, whose clock follows its power. Other seeds give other numbers. Enqueued on the compute stream.
// Thread-safety: the rank's own thread.
void fill_random(Backend& backend, const Tensor& tensor, uint32_t seed = 1);

// Runs `work`, which enqueues on the compute stream, on all ranks until about `seconds` have passed, after warming up;
// seconds of one call, the same on every rank, the quicker of two measurements. All ranks call it together.
double seconds_of_call(Backend& backend, Communicator& world, double seconds, const std::function<void()>& work);

// Of one or more values; of an even number the mean of the two in the middle.
double median(std::vector<double> values);

}  // namespace ithaca
