// How bytes move between ranks that share host memory: strided copies, and sums in rank order.
//
// The one part of thread communication that touches tensor data; meeting, matching and failing live in comm/board.h.
// Elements correspond in row-major order of their views, so the shapes of two blocks may differ.
// Thread-safety: pure functions of the memory they are given.
#pragma once

#include <span>

#include "tensor/tensor.h"

namespace ithaca {

// to = from: same dtype and element count, any strides. Nothing is done when both are the same view. Otherwise they
// must not overlap.
void copy_elements(const Tensor& from, const Tensor& to);

// to = ((parts[0] + parts[1]) + parts[2]) + ...: float32, float64 or int64, in the arithmetic of that type. `to` may be
// the same view as one of the parts. Sources are read once, the target is written once. Integers wrap around.
void sum_elements(std::span<const Tensor> parts, const Tensor& to);

}  // namespace ithaca
