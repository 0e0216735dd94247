// Host side of strided_layout.cuh.
#include "backend/cuda/strided_layout.cuh"

#include <algorithm>
#include <array>

namespace ithaca::cuda {
namespace {

// Appends a dimension outside of those there, joined with the outermost when `joins`.
void append(StridedLayout& layout, int64_t extent, int64_t stride, bool joins) {
  if (joins) {
    layout.extents[layout.rank - 1] *= extent;
    return;
  }
  layout.extents[layout.rank] = extent;
  layout.strides[layout.rank] = stride;
  ++layout.rank;
}

bool continues(const StridedLayout& layout, int64_t stride) {
  return layout.rank > 0 && stride == layout.strides[layout.rank - 1] * layout.extents[layout.rank - 1];
}

void finish(StridedLayout& layout) {
  if (layout.rank == 0) append(layout, 1, 1, false);
}

}  // namespace

StridedLayout layout_of(const Tensor& tensor) {
  StridedLayout layout;
  for (int dimension = tensor.rank() - 1; dimension >= 0; --dimension) {
    if (tensor.extent(dimension) == 1) continue;
    append(layout, tensor.extent(dimension), tensor.stride(dimension), continues(layout, tensor.stride(dimension)));
  }
  finish(layout);
  return layout;
}

void joint_layouts(const Tensor& first, const Tensor& second, StridedLayout& first_layout,
                   StridedLayout& second_layout) {
  first_layout = {};
  second_layout = {};
  for (int dimension = first.rank() - 1; dimension >= 0; --dimension) {
    if (first.extent(dimension) == 1) continue;
    const bool joins =
        continues(first_layout, first.stride(dimension)) && continues(second_layout, second.stride(dimension));
    append(first_layout, first.extent(dimension), first.stride(dimension), joins);
    append(second_layout, second.extent(dimension), second.stride(dimension), joins);
  }
  finish(first_layout);
  finish(second_layout);
}

void set_divisors(StridedLayout& layout) {
  for (int dimension = 0; dimension < layout.rank; ++dimension) {
    const int64_t extent = layout.extents[dimension];
    layout.divisors[dimension] =
        FastDivisor(extent > 0 && extent < kSmallCount ? static_cast<uint32_t>(extent) : uint32_t{1});
  }
}

bool to_units(StridedLayout& layout, int64_t elements) {
  if (elements == 1) return true;
  if (layout.strides[0] != 1 || layout.extents[0] % elements != 0) return false;
  for (int dimension = 1; dimension < layout.rank; ++dimension) {
    if (layout.strides[dimension] % elements != 0) return false;
  }
  layout.extents[0] /= elements;
  for (int dimension = 1; dimension < layout.rank; ++dimension) layout.strides[dimension] /= elements;
  return true;
}

}  // namespace ithaca::cuda
