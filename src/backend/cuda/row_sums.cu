// Sums over rows and over all elements, in two stages of a fixed order.
#include <algorithm>

#include "backend/cuda/kernels.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/tiles.cuh"

namespace ithaca::cuda {
namespace {

// ---- second stage: rows of partial sums ----

constexpr int kPartialColumns = 32;
constexpr int kPartialGroups = 32;

// A block has 32 columns; group g sums the rows g, g + 32, ..., then the groups are added in their order.
__global__ void __launch_bounds__(kPartialColumns* kPartialGroups)
    add_partial_rows_kernel(const float* partial, int64_t rows, int64_t columns, float* total, int64_t total_stride) {
  __shared__ float sums[kPartialGroups][kPartialColumns];
  const int lane = static_cast<int>(threadIdx.x) % kPartialColumns;
  const int group = static_cast<int>(threadIdx.x) / kPartialColumns;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kPartialColumns + lane;
  float sum = 0.0f;
  if (column < columns) {
#pragma unroll 4
    for (int64_t row = group; row < rows; row += kPartialGroups) sum += partial[row * columns + column];
  }
  sums[group][lane] = sum;
  __syncthreads();
  if (group != 0 || column >= columns) return;
  sum = 0.0f;
  for (int other = 0; other < kPartialGroups; ++other) sum += sums[other][lane];
  total[column * total_stride] += sum;
}

// ---- column sums ----

constexpr int kColumnThreads = 256;
constexpr int kColumnLanes = 32;
constexpr int kColumnGroups = kColumnThreads / kColumnLanes;
constexpr int64_t kLeastRows = 64;       // of one block
constexpr int64_t kMostRowBlocks = 128;  // rows of partial sums

// Block (x, y): 32 vectors of columns, the y-th of gridDim.y runs of rows.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kColumnThreads)
    column_sum_kernel(const T* input, int64_t row_stride, int64_t rows, int64_t columns, float* partial) {
  __shared__ float sums[kColumnGroups][kColumnLanes * kWidth];
  const int lane = static_cast<int>(threadIdx.x) % kColumnLanes;
  const int group = static_cast<int>(threadIdx.x) / kColumnLanes;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kColumnLanes * kWidth;
  const int64_t column = first_column + lane * kWidth;
  const int64_t run = (rows + gridDim.y - 1) / gridDim.y;
  const int64_t begin = blockIdx.y * run;
  const int64_t end = begin + run < rows ? begin + run : rows;
  float sum[kWidth] = {};
  if (column < columns) {
#pragma unroll 4
    for (int64_t row = begin + group; row < end; row += kColumnGroups) {
      const auto values = Pack<T, kWidth>::load(input + row * row_stride + column);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[i] += values[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sums[group][lane * kWidth + i] = sum[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kColumnLanes * kWidth; i += kColumnThreads) {
    if (first_column + i >= columns) break;
    float total = 0.0f;
    for (int other = 0; other < kColumnGroups; ++other) total += sums[other][i];
    partial[blockIdx.y * columns + first_column + i] = total;
  }
}

// ---- sums of squares ----

constexpr int kSquareThreads = 256;

__device__ inline double square(float value) {
  return static_cast<double>(value) * static_cast<double>(value);
}

// `head` single elements, `vectors` whole vectors of four behind them, and what is left of `count`.
__global__ void __launch_bounds__(kSquareThreads)
    square_sum_kernel(const float* input, int64_t head, int64_t vectors, int64_t count, double* partial) {
  __shared__ double scratch[32];
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kSquareThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kSquareThreads;
  double sum = 0.0;
#pragma unroll 4
  for (int64_t vector = thread; vector < vectors; vector += threads) {
    const auto values = Pack<float, 4>::load(input + head + vector * 4);
    sum += (square(values[0]) + square(values[1])) + (square(values[2]) + square(values[3]));
  }
  // What lies before the first and behind the last whole vector.
  const int64_t singles = count - vectors * 4;
  for (int64_t single = thread; single < singles; single += threads) {
    sum += square(input[single < head ? single : single + vectors * 4]);
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(1024) add_partials_kernel(const double* partial, int64_t count, double* total) {
  __shared__ double scratch[32];
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += partial[i];
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) *total += sum;
}

}  // namespace

void add_partial_rows(const float* partial, int64_t rows, int64_t columns, float* total, int64_t total_stride,
                      cudaStream_t stream) {
  if (rows == 0 || columns == 0) return;
  const auto blocks = static_cast<unsigned>(divide_up(columns, kPartialColumns));
  add_partial_rows_kernel<<<blocks, kPartialColumns * kPartialGroups, 0, stream>>>(partial, rows, columns, total,
                                                                                   total_stride);
  ITHACA_CUDA_CHECK_LAUNCH("add_partial_rows");
}

void add_partials(const double* partial, int64_t count, double* total, cudaStream_t stream) {
  if (count == 0) return;
  add_partials_kernel<<<1, 1024, 0, stream>>>(partial, count, total);
  ITHACA_CUDA_CHECK_LAUNCH("add_partials");
}

int64_t column_sum_partial_rows(int64_t rows) {
  return std::clamp<int64_t>(divide_up(rows, kLeastRows), 1, kMostRowBlocks);
}

void column_sum(const ColumnSum& arguments, float* partial, cudaStream_t stream) {
  const Tensor& input = arguments.input;
  const int64_t rows = input.extent(0);
  const int64_t columns = input.extent(1);
  if (rows == 0 || columns == 0) return;
  const int64_t partial_rows = column_sum_partial_rows(rows);
  with_float_type(input.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const dim3 blocks(static_cast<unsigned>(divide_up(columns, int64_t{kColumnLanes} * kWidth)),
                        static_cast<unsigned>(partial_rows));
      column_sum_kernel<T, kWidth>
          <<<blocks, kColumnThreads, 0, stream>>>(data_of<T>(input), input.stride(0), rows, columns, partial);
      ITHACA_CUDA_CHECK_LAUNCH("column_sum");
    };
    if (rows_are_vectors(input, kVectorWidth<T>)) {
      launch(std::integral_constant<int, kVectorWidth<T>>{});
    } else {
      launch(std::integral_constant<int, 1>{});
    }
  });
  add_partial_rows(partial, partial_rows, columns, arguments.sum.as<float>(), arguments.sum.stride(0), stream);
}

void square_sum(const SquareSum& arguments, double* partial, cudaStream_t stream) {
  const int64_t count = arguments.input.element_count();
  if (count == 0) return;
  const auto* const input = arguments.input.as<float>();
  const auto misalignment = static_cast<int64_t>(reinterpret_cast<uintptr_t>(input) % 16 / sizeof(float));
  const int64_t head = std::min(count, (4 - misalignment) % 4);
  const int64_t vectors = (count - head) / 4;
  square_sum_kernel<<<static_cast<unsigned>(kSquareSumPartials), kSquareThreads, 0, stream>>>(input, head, vectors,
                                                                                              count, partial);
  ITHACA_CUDA_CHECK_LAUNCH("square_sum");
  add_partials(partial, kSquareSumPartials, arguments.sum.as<double>(), stream);
}

}  // namespace ithaca::cuda
