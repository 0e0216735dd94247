// What the forward and backward task kernels share: tiles in shared memory and the visible part of a task. Internal to
// backend/cuda.
//
// Plain arithmetic in float32 for any head size up to 256, any strides and both dtypes: these kernels are what the
// fused ones are held to, and what computes everything that those do not take. 256 threads are a 16 x 16 grid: thread
// (y, x) has the 4 rows 4 y ... of a tile of 64 and, of 32 columns of scores, x and x + 16.
#pragma once

#include <cstdint>

#include "backend/cuda/attention_kernels.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/vectors.cuh"

namespace ithaca::cuda {

inline constexpr int kTaskThreads = 256;
inline constexpr int kOuterTile = static_cast<int>(kTaskTile);  // tokens that a block owns
inline constexpr int kInnerTile = 32;                           // tokens of the other side, at a time
inline constexpr int kScorePitch = kInnerTile + 4;              // floats of one row of scores in shared memory

// Floats of one row of a tile with room for 64 * kGroups elements; the rows begin in different banks.
template <int kGroups>
inline constexpr int kTilePitch = 64 * kGroups + 4;

// A [tokens, heads, size] argument, and a [tokens, heads] one.
template <typename T>
struct HeadsView {
  T* data;
  int64_t token_stride;
  int64_t head_stride;
  int size;
  __device__ T* row(int64_t token, int64_t head) const { return data + token * token_stride + head * head_stride; }
};
struct RowsView {
  float* data;
  int64_t token_stride;
  int64_t head_stride;
  __device__ float& at(int64_t token, int64_t head) const { return data[token * token_stride + head * head_stride]; }
};

template <typename T>
HeadsView<T> heads_view(const Tensor& tensor) {
  return {static_cast<T*>(tensor.data), tensor.stride(0), tensor.stride(1), static_cast<int>(tensor.extent(2))};
}
inline RowsView rows_view(const Tensor& tensor) {
  return {static_cast<float*>(tensor.data), tensor.stride(0), tensor.stride(1)};
}

// Rows [begin, begin + kRows) of one head as floats, zeros from `end` on and behind the last element.
template <int kRows, int kGroups, typename T>
__device__ void load_tile(const HeadsView<const T>& from, int64_t head, int64_t begin, int64_t end, float* tile) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int row = warp; row < kRows; row += kTaskThreads / 32) {
    const int64_t token = begin + row;
    const bool is_live = token < end;
    const T* source = from.row(is_live ? token : begin, head);
    float* target = tile + row * kTilePitch<kGroups>;
#pragma unroll
    for (int i = 0; i < 64 * kGroups; i += 32) {
      const int column = i + lane;
      target[column] = is_live && column < from.size ? to_float(source[column]) : 0.0f;
    }
  }
}

// sums[i][j] = the inner product of row 4 y + i of `outer` and row x + 16 j of `inner`.
template <int kGroups>
__device__ void inner_products(const float* outer, const float* inner, int y, int x, float (&sums)[4][2]) {
  constexpr int kPitch = kTilePitch<kGroups>;
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i][0] = sums[i][1] = 0.0f;
#pragma unroll 4
  for (int column = 0; column < 64 * kGroups; column += 4) {
    float4 a[4];
    float4 b[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = *reinterpret_cast<const float4*>(outer + (4 * y + i) * kPitch + column);
#pragma unroll
    for (int j = 0; j < 2; ++j) b[j] = *reinterpret_cast<const float4*>(inner + (x + 16 * j) * kPitch + column);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        sums[i][j] += a[i].x * b[j].x;
        sums[i][j] += a[i].y * b[j].y;
        sums[i][j] += a[i].z * b[j].z;
        sums[i][j] += a[i].w * b[j].w;
      }
    }
  }
}

// sums[i][4 g + c] += sum over the 32 inner rows of weights[4 y + i][row] * inner[row][64 g + 4 x + c].
template <int kGroups>
__device__ void add_products(const float* weights, const float* inner, int y, int x, float (&sums)[4][4 * kGroups]) {
  constexpr int kPitch = kTilePitch<kGroups>;
#pragma unroll 2
  for (int row = 0; row < kInnerTile; row += 4) {
    float a[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 word = *reinterpret_cast<const float4*>(weights + (4 * y + i) * kScorePitch + row);
      a[i][0] = word.x;
      a[i][1] = word.y;
      a[i][2] = word.z;
      a[i][3] = word.w;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const float4 b = *reinterpret_cast<const float4*>(inner + (row + k) * kPitch + 64 * g + 4 * x);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[i][4 * g + 0] += a[i][k] * b.x;
          sums[i][4 * g + 1] += a[i][k] * b.y;
          sums[i][4 * g + 2] += a[i][k] * b.z;
          sums[i][4 * g + 3] += a[i][k] * b.w;
        }
      }
    }
  }
}

// The queries of a task within a tile, and the keys that any of them sees; tokens. Empty when they do not meet.
struct TaskPart {
  int64_t q_begin, q_end, k_begin, k_end;
  __device__ bool is_empty() const { return q_begin >= q_end || k_begin >= k_end; }
};

__device__ inline int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}
__device__ inline int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

__device__ inline TaskPart part_of_queries(const AttentionTask& task, int64_t tile_begin) {
  TaskPart part;
  part.q_begin = larger(task.q_begin, tile_begin);
  part.q_end = smaller(task.q_end, tile_begin + kOuterTile);
  const int64_t first = part.q_begin - task.q_begin;
  const int64_t last = part.q_end - 1 - task.q_begin;
  part.k_begin = larger(task.k_begin, task.k_begin + first + task.lower + 1);
  part.k_end = smaller(task.k_end, task.k_begin + last + task.upper + 1);
  return part;
}

__device__ inline TaskPart part_of_keys(const AttentionTask& task, int64_t tile_begin) {
  TaskPart part;
  part.k_begin = larger(task.k_begin, tile_begin);
  part.k_end = smaller(task.k_end, tile_begin + kOuterTile);
  const int64_t first = part.k_begin - task.k_begin;
  const int64_t last = part.k_end - 1 - task.k_begin;
  part.q_begin = larger(task.q_begin, task.q_begin + first - task.upper);
  part.q_end = smaller(task.q_end, task.q_begin + last - task.lower);
  return part;
}

__device__ inline bool is_visible(const AttentionTask& task, const TaskPart& part, int64_t query, int64_t key) {
  const int64_t diagonal = (key - task.k_begin) - (query - task.q_begin);
  return query >= part.q_begin && query < part.q_end && key >= part.k_begin && key < part.k_end &&
         task.lower < diagonal && diagonal <= task.upper;
}

// ---- host side ----

// Calls function(integral constant) with the number of groups of 64 elements that `size` needs.
template <typename Function>
void with_groups(int64_t size, const Function& function) {
  switch (divide_up(size, 64)) {
    case 0:
    case 1:
      return function(std::integral_constant<int, 1>{});
    case 2:
      return function(std::integral_constant<int, 2>{});
    case 3:
      return function(std::integral_constant<int, 3>{});
    case 4:
      return function(std::integral_constant<int, 4>{});
    default:
      throw ContractError("CUDA attention takes heads of at most 256 elements");
  }
}

// Lets `kernel` have `bytes` of shared memory.
template <typename Kernel>
void allow_shared_memory(Kernel* kernel, int bytes) {
  ITHACA_CUDA_CHECK(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

}  // namespace ithaca::cuda
