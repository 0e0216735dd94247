// Any strided view as a map from the row-major number of an element (or of a unit of neighbouring elements) to its
// place in memory. Internal to backend/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tensor/tensor.h"

namespace ithaca::cuda {

// Division of numbers under 2^31 by a fixed divisor: a multiplication and a shift (Granlund & Montgomery 1994).
struct FastDivisor {
  uint32_t divisor = 1;
  uint32_t multiplier = 0;
  uint32_t shift = 0;

  FastDivisor() = default;
  explicit FastDivisor(uint32_t value) : divisor(value) {
    while ((uint64_t{1} << shift) < value) ++shift;
    multiplier = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - value)) / value + 1);
  }
  // `value` < 2^31.
  __host__ __device__ uint32_t divide(uint32_t value) const {
    const auto high = static_cast<uint32_t>((uint64_t{value} * multiplier) >> 32);
    return (high + value) >> shift;
  }
};

// Extents from the innermost dimension outwards; strides in elements (or units).
struct StridedLayout {
  int rank = 0;
  int64_t extents[Extents::kMaxRank] = {};
  int64_t strides[Extents::kMaxRank] = {};
  FastDivisor divisors[Extents::kMaxRank];  // of extents that fit

#ifdef __CUDACC__
  // kSmall: the number of elements is under 2^31.
  template <bool kSmall>
  __device__ int64_t offset(int64_t index) const {
    int64_t result = 0;
    if constexpr (kSmall) {
      auto rest = static_cast<uint32_t>(index);
#pragma unroll
      for (int dimension = 0; dimension < Extents::kMaxRank; ++dimension) {
        if (dimension == rank - 1) return result + static_cast<int64_t>(rest) * strides[dimension];
        const uint32_t quotient = divisors[dimension].divide(rest);
        result += static_cast<int64_t>(rest - quotient * divisors[dimension].divisor) * strides[dimension];
        rest = quotient;
      }
    } else {
      int64_t rest = index;
#pragma unroll
      for (int dimension = 0; dimension < Extents::kMaxRank; ++dimension) {
        if (dimension == rank - 1) return result + rest * strides[dimension];
        const int64_t quotient = rest / extents[dimension];
        result += (rest - quotient * extents[dimension]) * strides[dimension];
        rest = quotient;
      }
    }
    return result;
  }
#endif
};

inline constexpr int64_t kSmallCount = int64_t{1} << 31;

// The layout of a view without its dimensions of extent 1, neighbours joined where they lie as one; rank at least 1.
StridedLayout layout_of(const Tensor& tensor);
// The same for two views of equal extents, joined only where both allow it, so that their indices stay the same.
void joint_layouts(const Tensor& first, const Tensor& second, StridedLayout& first_layout,
                   StridedLayout& second_layout);
// Turns elements into units of `elements` neighbours; false, and nothing changed, where rows are not whole units.
bool to_units(StridedLayout& layout, int64_t elements);
// Fills in the divisors; call it when the extents are final.
void set_divisors(StridedLayout& layout);

}  // namespace ithaca::cuda
