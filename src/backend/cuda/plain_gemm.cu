// Matrix products that cuBLASLt does not take, and what surrounds a product: scaling and biases of rows.
#include <algorithm>

#include "backend/cuda/kernels.h"
#include "backend/cuda/tiles.cuh"

namespace ithaca::cuda {
namespace {

constexpr int kTile = 16;

struct MatrixStrides {
  int64_t row = 0;
  int64_t column = 0;
};

template <typename A, typename C>
struct GemmView {
  const A* a;
  const A* b;
  C* c;
  MatrixStrides a_strides, b_strides;  // of op(a) [m, k], op(b) [k, n]
  int64_t c_stride;
  int64_t m, n, k;
  float alpha, beta;
};

// A block makes a 16 x 16 tile of c, one element a thread, from tiles of a and b in shared memory.
template <typename A, typename C>
__global__ void __launch_bounds__(kTile* kTile) plain_gemm_kernel(const GemmView<A, C> view) {
  __shared__ float a_tile[kTile][kTile + 1];
  __shared__ float b_tile[kTile][kTile + 1];
  const int x = static_cast<int>(threadIdx.x) % kTile;
  const int y = static_cast<int>(threadIdx.x) / kTile;
  const int64_t column_tiles = (view.n + kTile - 1) / kTile;
  const int64_t row = static_cast<int64_t>(blockIdx.x) / column_tiles * kTile + y;
  const int64_t column = static_cast<int64_t>(blockIdx.x) % column_tiles * kTile + x;
  float sum = 0.0f;
  for (int64_t begin = 0; begin < view.k; begin += kTile) {
    const int64_t a_k = begin + x;
    const int64_t b_k = begin + y;
    a_tile[y][x] =
        row < view.m && a_k < view.k ? to_float(view.a[row * view.a_strides.row + a_k * view.a_strides.column]) : 0.0f;
    b_tile[y][x] = column < view.n && b_k < view.k
                       ? to_float(view.b[b_k * view.b_strides.row + column * view.b_strides.column])
                       : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile; ++i) sum += a_tile[y][i] * b_tile[i][x];
    __syncthreads();
  }
  if (row >= view.m || column >= view.n) return;
  C* const to = view.c + row * view.c_stride + column;
  float result = view.alpha * sum;
  if (view.beta != 0.0f) result += view.beta * to_float(*to);
  *to = from_float<C>(result);
}

template <typename T>
struct ScaleOperation {
  T* c;
  int64_t stride;
  float beta;

  struct Loaded {
    T value;
  };
  __device__ Loaded load(int64_t row, int64_t column) const {
    return {beta == 0.0f ? from_float<T>(0.0f) : c[row * stride + column]};
  }
  __device__ void finish(const Loaded& loaded, int64_t row, int64_t column) const {
    c[row * stride + column] = beta == 0.0f ? loaded.value : from_float<T>(beta * to_float(loaded.value));
  }
};

template <typename B, typename T>
struct BiasOperation {
  const B* bias;
  T* c;
  int64_t stride;

  struct Loaded {
    B bias;
    T value;
  };
  __device__ Loaded load(int64_t row, int64_t column) const { return {bias[column], c[row * stride + column]}; }
  __device__ void finish(const Loaded& loaded, int64_t row, int64_t column) const {
    c[row * stride + column] = from_float<T>(to_float(loaded.value) + to_float(loaded.bias));
  }
};

MatrixStrides strides_of(const Tensor& tensor, bool transpose) {
  const MatrixStrides strides{tensor.stride(0), 1};
  return transpose ? MatrixStrides{strides.column, strides.row} : strides;
}

}  // namespace

void plain_gemm(const Gemm& arguments, cudaStream_t stream) {
  const auto& [a, b, c, transpose_a, transpose_b, alpha, beta, bias] = arguments;
  const int64_t m = c.extent(0);
  const int64_t n = c.extent(1);
  const int64_t k = a.extent(transpose_a ? 0 : 1);
  if (m == 0 || n == 0) return;
  const int64_t tiles = divide_up(m, kTile) * divide_up(n, kTile);
  require(tiles < int64_t{1} << 31, "gemm: a product of over 2^31 tiles of 16 x 16");
  // Structured bindings cannot be captured by older compilers' lambdas: name what is used.
  const Tensor& left = a;
  const Tensor& right = b;
  const Tensor& result = c;
  const MatrixStrides a_strides = strides_of(a, transpose_a);
  const MatrixStrides b_strides = strides_of(b, transpose_b);
  const float factor = alpha;
  const float keep = beta;
  with_float_type(left.dtype, [&](auto type) {
    using A = decltype(type);
    with_type_or_float<A>(result.dtype, [&](auto result_type) {
      using C = decltype(result_type);
      const GemmView<A, C> view{data_of<A>(left),
                                data_of<A>(right),
                                data_of<C>(result),
                                a_strides,
                                b_strides,
                                result.stride(0),
                                m,
                                n,
                                k,
                                factor,
                                keep};
      plain_gemm_kernel<A, C><<<static_cast<unsigned>(tiles), kTile * kTile, 0, stream>>>(view);
      ITHACA_CUDA_CHECK_LAUNCH("plain_gemm");
    });
  });
  if (!bias.is_absent()) add_bias(bias, c, stream);
}

void scale_rows(const Tensor& c, float beta, cudaStream_t stream) {
  if (beta == 1.0f) return;
  with_float_type(c.dtype, [&](auto type) {
    using T = decltype(type);
    launch_tiles<1, 2>(ScaleOperation<T>{data_of<T>(c), c.stride(0), beta}, c.extent(0), c.extent(1), stream,
                       "launch of the kernel scale_rows");
  });
}

void add_bias(const Tensor& bias, const Tensor& c, cudaStream_t stream) {
  with_float_type(c.dtype, [&](auto type) {
    using T = decltype(type);
    with_float_type(bias.dtype, [&](auto bias_type) {
      using B = decltype(bias_type);
      launch_tiles<1, 2>(BiasOperation<B, T>{data_of<B>(bias), data_of<T>(c), c.stride(0)}, c.extent(0), c.extent(1),
                         stream, "launch of the kernel add_bias");
    });
  });
}

}  // namespace ithaca::cuda
