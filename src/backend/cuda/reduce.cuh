// Sums and maxima over the threads of a block, in an order that is always the same. Internal to backend/cuda.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/vectors.cuh"

namespace ithaca::cuda {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// Over kLanes neighbouring lanes (a power of two); every lane gets the result.
template <int kLanes, typename T>
__device__ inline T lanes_sum(T value) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(kAllLanes, value, distance);
  return value;
}

// Over all threads of a block of whole warps (at most 32); every thread gets the result. Contains barriers, so all
// threads must come here. `scratch`: 32 elements of shared memory, of this call alone until the next barrier.
template <typename T>
__device__ inline T block_sum(T value, T* scratch) {
  value = lanes_sum<32>(value);
  const int warps = static_cast<int>(blockDim.x) / 32;
  if (warps == 1) return value;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  __syncthreads();  // the scratch may still be read by the call before
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  value = lane < warps ? scratch[lane] : T{};
  return lanes_sum<32>(value);
}

// block_sum() with one barrier instead of two, for a loop that gives each of two scratches every other time.
template <typename T>
__device__ inline T alternating_block_sum(T value, T* scratch) {
  value = lanes_sum<32>(value);
  const int warps = static_cast<int>(blockDim.x) / 32;
  if (warps == 1) return value;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = lane < warps ? scratch[lane] : T{};
  return lanes_sum<32>(value);
}

// The second stages of sums (row_sums.cu): total[c * total_stride] += sum over rows r of partial[r * columns + c], and
// *total += sum of `count` partials.
void add_partial_rows(const float* partial, int64_t rows, int64_t columns, float* total, int64_t total_stride,
                      cudaStream_t stream);
void add_partials(const double* partial, int64_t count, double* total, cudaStream_t stream);

}  // namespace ithaca::cuda
