// How kernels read and write: elements as float, several at a time in 16-byte accesses. Internal to backend/cuda.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "backend/cuda/cuda_check.h"
#include "base/error.h"
#include "tensor/tensor.h"

namespace ithaca::cuda {

using BFloat = __nv_bfloat16;

__device__ inline float to_float(float value) {
  return value;
}
__device__ inline float to_float(BFloat value) {
  return __bfloat162float(value);
}
template <typename T>
__device__ inline T from_float(float value) {
  if constexpr (std::is_same_v<T, BFloat>) {
    return __float2bfloat16_rn(value);
  } else {
    return value;
  }
}

// One store to global memory. An assignment of a word whose parts were just computed can become a store of each part.
__device__ inline void store_word(uint4* to, const uint4& word) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(word.x), "r"(word.y),
               "r"(word.z), "r"(word.w)
               : "memory");
}
__device__ inline void store_word(uint2* to, const uint2& word) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "r"(word.x), "r"(word.y)
               : "memory");
}

// N neighbouring elements, moved in words of 16 bytes (8 where they are no more).
//
// Pairs of bfloat16 stay in the 32 bits that they came in until they are used. As elements of their own they are taken
// apart right behind the load where that stands under a condition, which waits for memory there, before the kernel has
// asked for what it loads next.
template <typename T, int N>
struct Pack {
  static constexpr bool kIsPairs = std::is_same_v<T, BFloat> && N > 1;
  static constexpr int kBytes = N * static_cast<int>(sizeof(T));
  static_assert(kBytes % 16 == 0 || kBytes == 8 || N == 1, "a pack is whole words or a single element");
  using Word = std::conditional_t<kBytes % 16 == 0, uint4, uint2>;
  static constexpr int kWords = kBytes / static_cast<int>(sizeof(Word));
  using Stored = std::conditional_t<kIsPairs, uint32_t, T>;
  alignas(N == 1 ? sizeof(T) : sizeof(Word)) Stored values[kIsPairs ? N / 2 : N];

  __device__ static Pack load(const T* from) {
    Pack pack;
    if constexpr (N == 1) {
      pack.values[0] = *from;
    } else {
#pragma unroll
      for (int word = 0; word < kWords; ++word) {
        reinterpret_cast<Word*>(pack.values)[word] = reinterpret_cast<const Word*>(from)[word];
      }
    }
    return pack;
  }
  // To global memory.
  __device__ void store(T* to) const {
    if constexpr (N == 1) {
      *to = values[0];
    } else {
#pragma unroll
      for (int word = 0; word < kWords; ++word) {
        store_word(reinterpret_cast<Word*>(to) + word, reinterpret_cast<const Word*>(values)[word]);
      }
    }
  }
  __device__ float operator[](int index) const {
    if constexpr (kIsPairs) {
      const uint32_t pair = values[index / 2];
      return __uint_as_float(index % 2 == 0 ? pair << 16 : pair & 0xFFFF0000u);
    } else {
      return to_float(values[index]);
    }
  }
  __device__ void set(int index, float value) {
    reinterpret_cast<T*>(values)[index] = from_float<T>(value);
  }
};

// Elements of T in one 16-byte word.
template <typename T>
inline constexpr int kVectorWidth = 16 / static_cast<int>(sizeof(T));

// ---- host side: which kernel a tensor can have ----

template <typename T>
T* data_of(const Tensor& tensor) {
  return static_cast<T*>(tensor.data);
}

// Calls function(T{}) with the element type of `dtype`, float or BFloat.
template <typename Function>
void with_float_type(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::float32:
      return function(float{});
    case DType::bfloat16:
      return function(BFloat{});
    default:
      throw ContractError("a CUDA operation was given a tensor that is neither float32 nor bfloat16");
  }
}

// As with_float_type, for a tensor that operations allow to be T or float32.
template <typename T, typename Function>
void with_type_or_float(DType dtype, Function&& function) {
  if (dtype == DType::float32) {
    function(float{});
  } else if constexpr (std::is_same_v<T, float>) {
    throw ContractError("a CUDA operation in float32 was given a bfloat16 tensor");
  } else {
    function(T{});
  }
}

// True when all rows of the tensor (every index but the last) begin at multiples of 16 bytes for vectors of `width`
// elements: the pointer, the strides of all dimensions but the last, and the last extent.
inline bool rows_are_vectors(const Tensor& tensor, int width) {
  if (tensor.is_absent()) return true;
  if (reinterpret_cast<uintptr_t>(tensor.data) % 16 != 0) return false;
  const int last = tensor.rank() - 1;
  if (last < 0 || tensor.extent(last) % width != 0) return false;
  for (int dimension = 0; dimension < last; ++dimension) {
    if (tensor.extent(dimension) > 1 && tensor.stride(dimension) * element_size(tensor.dtype) % 16 != 0) return false;
  }
  return true;
}

inline int64_t divide_up(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

// How many blocks of `kernel` the current device runs at a time: the grid of a kernel whose blocks stay until all is
// done. A part of one more wave would leave most of the device idle.
template <typename Kernel>
int64_t resident_blocks(Kernel kernel, int threads, size_t shared_bytes = 0) {
  int device = 0;
  int multiprocessors = 0;
  int blocks = 0;
  ITHACA_CUDA_CHECK(cudaGetDevice(&device));
  ITHACA_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  ITHACA_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes));
  return static_cast<int64_t>(std::max(blocks, 1)) * multiprocessors;
}

}  // namespace ithaca::cuda
