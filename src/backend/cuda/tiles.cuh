// Element-by-element kernels over [rows, columns] tensors: one grid for all of them. Internal to backend/cuda.
//
// An operation is a struct with
//   struct Loaded;                                                what one thread keeps of one vector
//   __device__ Loaded load(int64_t row, int64_t column) const;    column of the vector's first element
//   __device__ void finish(const Loaded&, int64_t row, int64_t column) const;
// Each thread loads kUnroll vectors before it finishes the first, so that enough reads are under way.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/vectors.cuh"

namespace ithaca::cuda {

inline constexpr int kTileThreads = 256;

template <typename Operation, int kWidth, int kUnroll>
__global__ void __launch_bounds__(kTileThreads)
    tile_kernel(const Operation operation, int64_t vectors_per_row, int64_t tiles_per_row, int64_t tiles) {
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t row = tiles_per_row == tiles ? 0 : tile / tiles_per_row;
    const int64_t first = (tile - row * tiles_per_row) * (kTileThreads * kUnroll) + threadIdx.x;
    typename Operation::Loaded loaded[kUnroll];
#pragma unroll
    for (int step = 0; step < kUnroll; ++step) {
      const int64_t vector = first + step * kTileThreads;
      if (vector < vectors_per_row) loaded[step] = operation.load(row, vector * kWidth);
    }
#pragma unroll
    for (int step = 0; step < kUnroll; ++step) {
      const int64_t vector = first + step * kTileThreads;
      if (vector < vectors_per_row) operation.finish(loaded[step], row, vector * kWidth);
    }
  }
}

// `columns` is a multiple of kWidth.
template <int kWidth, int kUnroll, typename Operation>
void launch_tiles(const Operation& operation, int64_t rows, int64_t columns, cudaStream_t stream, const char* name) {
  if (rows == 0 || columns == 0) return;
  const int64_t vectors = columns / kWidth;
  const int64_t tiles_per_row = divide_up(vectors, int64_t{kTileThreads} * kUnroll);
  const int64_t tiles = rows * tiles_per_row;
  constexpr int64_t kLargestGrid = (int64_t{1} << 31) - 1;
  const auto blocks = static_cast<unsigned>(std::min(tiles, kLargestGrid));
  tile_kernel<Operation, kWidth, kUnroll>
      <<<blocks, kTileThreads, 0, stream>>>(operation, vectors, tiles_per_row, tiles);
  check_cuda(cudaGetLastError(), name, __FILE__, __LINE__);
}

}  // namespace ithaca::cuda
