// RMSNorm with the residual addition before it, and its gradient.
//
// One block normalises a row at a time and keeps it in registers between the two passes over it, when the row fits
// (kMostKept vectors a thread); longer or unaligned rows are read again. The gradient of the weight is summed per block
// over the block's rows in their order, then over blocks.
#include <algorithm>

#include "backend/cuda/kernels.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/tiles.cuh"

namespace ithaca::cuda {
namespace {

constexpr int kMostThreads = 512;
// The most blocks that share the rows of one backward pass: eight or, where a block has many threads, four for each
// multiprocessor of a H200.
constexpr int64_t kShortRow = 2048;
constexpr int64_t kShortRowBlocks = 1056;
constexpr int64_t kLongRowBlocks = 528;

template <typename T, typename W>
struct ForwardView {
  const T* input;
  const T* residual;  // may be null; then `sum` is null too
  T* sum;
  const W* weight;
  T* output;
  float* inverse_rms;  // may be null
  int64_t input_stride, residual_stride, sum_stride, output_stride, inverse_rms_stride;
  int64_t tokens, size;
  float epsilon;
};

template <typename T, int kWidth, typename View>
__device__ inline Pack<T, kWidth> load_sum(const View& view, int64_t row, int64_t column) {
  const auto input = Pack<T, kWidth>::load(view.input + row * view.input_stride + column);
  if (view.residual == nullptr) return input;
  const auto residual = Pack<T, kWidth>::load(view.residual + row * view.residual_stride + column);
  Pack<T, kWidth> sum;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum.set(i, input[i] + residual[i]);
  return sum;
}

template <int kWidth, typename T>
__device__ inline float square(const Pack<T, kWidth>& values) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum += values[i] * values[i];
  return sum;
}

// The sum of input and residual is normalised as it is stored, rounded to T: backward sees the same numbers.
template <typename T, typename W, int kWidth, int kKept>
__global__ void __launch_bounds__(kMostThreads) rms_norm_forward_kernel(const ForwardView<T, W> view) {
  __shared__ float scratch[32];
  const int64_t vectors = view.size / kWidth;
  for (int64_t row = blockIdx.x; row < view.tokens; row += gridDim.x) {
    Pack<T, kWidth> kept[kKept];
    float sum = 0.0f;
#pragma unroll
    for (int step = 0; step < kKept; ++step) {
      const int64_t vector = threadIdx.x + static_cast<int64_t>(step) * blockDim.x;
      if (vector < vectors) kept[step] = load_sum<T, kWidth>(view, row, vector * kWidth);
    }
#pragma unroll
    for (int step = 0; step < kKept; ++step) {
      const int64_t vector = threadIdx.x + static_cast<int64_t>(step) * blockDim.x;
      if (vector < vectors) {
        sum += square<kWidth>(kept[step]);
        if (view.sum != nullptr) kept[step].store(view.sum + row * view.sum_stride + vector * kWidth);
      }
    }
    sum = block_sum(sum, scratch);
    const float inverse = 1.0f / sqrtf(sum / static_cast<float>(view.size) + view.epsilon);
    if (threadIdx.x == 0 && view.inverse_rms != nullptr) view.inverse_rms[row * view.inverse_rms_stride] = inverse;
#pragma unroll
    for (int step = 0; step < kKept; ++step) {
      const int64_t vector = threadIdx.x + static_cast<int64_t>(step) * blockDim.x;
      if (vector < vectors) {
        const auto weight = Pack<W, kWidth>::load(view.weight + vector * kWidth);
        Pack<T, kWidth> result;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) result.set(i, kept[step][i] * inverse * weight[i]);
        result.store(view.output + row * view.output_stride + vector * kWidth);
      }
    }
  }
}

// Rows that do not fit in registers: read again for the second pass (from `sum`, which may be input or residual).
template <typename T, typename W, int kWidth>
__global__ void __launch_bounds__(kMostThreads) rms_norm_forward_long_kernel(const ForwardView<T, W> view) {
  __shared__ float scratch[32];
  const int64_t vectors = view.size / kWidth;
  for (int64_t row = blockIdx.x; row < view.tokens; row += gridDim.x) {
    float sum = 0.0f;
    for (int64_t vector = threadIdx.x; vector < vectors; vector += blockDim.x) {
      const auto value = load_sum<T, kWidth>(view, row, vector * kWidth);
      sum += square<kWidth>(value);
      if (view.sum != nullptr) value.store(view.sum + row * view.sum_stride + vector * kWidth);
    }
    sum = block_sum(sum, scratch);
    const float inverse = 1.0f / sqrtf(sum / static_cast<float>(view.size) + view.epsilon);
    if (threadIdx.x == 0 && view.inverse_rms != nullptr) view.inverse_rms[row * view.inverse_rms_stride] = inverse;
    const T* values = view.sum != nullptr ? view.sum + row * view.sum_stride : view.input + row * view.input_stride;
    for (int64_t vector = threadIdx.x; vector < vectors; vector += blockDim.x) {
      const auto value = Pack<T, kWidth>::load(values + vector * kWidth);
      const auto weight = Pack<W, kWidth>::load(view.weight + vector * kWidth);
      Pack<T, kWidth> result;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) result.set(i, value[i] * inverse * weight[i]);
      result.store(view.output + row * view.output_stride + vector * kWidth);
    }
  }
}

template <typename T, typename W>
struct BackwardView {
  const T* doutput;
  const T* input;
  const W* weight;
  const float* inverse_rms;
  const T* dresidual;  // may be null
  T* dinput;
  float* partial;  // [blocks, size]; null without dweight
  int64_t doutput_stride, input_stride, inverse_rms_stride, dresidual_stride, dinput_stride;
  int64_t tokens, size;
};

// dinput of one vector: inverse * (weight * doutput - input * projection) + dresidual.
template <typename T, typename W, int kWidth>
__device__ inline void finish_gradient(const BackwardView<T, W>& view, int64_t row, int64_t column,
                                       const Pack<T, kWidth>& input, const Pack<T, kWidth>& doutput, float inverse,
                                       float projection) {
  const auto weight = Pack<W, kWidth>::load(view.weight + column);
  Pack<T, kWidth> result;
  if (view.dresidual != nullptr) {
    const auto residual = Pack<T, kWidth>::load(view.dresidual + row * view.dresidual_stride + column);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      result.set(i, inverse * (weight[i] * doutput[i] - input[i] * projection) + residual[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) result.set(i, inverse * (weight[i] * doutput[i] - input[i] * projection));
  }
  result.store(view.dinput + row * view.dinput_stride + column);
}

// What a thread keeps of one row.
template <typename T, int kWidth, int kKept>
struct BackwardRow {
  Pack<T, kWidth> input[kKept];
  Pack<T, kWidth> doutput[kKept];
  Pack<T, kWidth> residual[kKept];
  float inverse;

  template <bool kWithResidual, typename W>
  __device__ inline void load(const BackwardView<T, W>& view, int64_t row) {
    const int64_t vectors = view.size / kWidth;
    inverse = view.inverse_rms[row * view.inverse_rms_stride];
#pragma unroll
    for (int step = 0; step < kKept; ++step) {
      const int64_t vector = threadIdx.x + static_cast<int64_t>(step) * blockDim.x;
      if (vector >= vectors) continue;
      input[step] = Pack<T, kWidth>::load(view.input + row * view.input_stride + vector * kWidth);
      doutput[step] = Pack<T, kWidth>::load(view.doutput + row * view.doutput_stride + vector * kWidth);
      if (kWithResidual && view.dresidual != nullptr) {
        residual[step] = Pack<T, kWidth>::load(view.dresidual + row * view.dresidual_stride + vector * kWidth);
      }
    }
  }
};

// The block's next row is on its way while this one is summed and written: what a multiprocessor has under way is then
// never less than one row of every block, also at the barriers. Rows of more than two vectors a thread leave no
// registers for that.
template <typename T, typename W, int kWidth, int kKept, bool kWeightGradient>
__global__ void __launch_bounds__(kMostThreads, kKept == 1 ? 2 : 1)
    rms_norm_backward_kernel(const BackwardView<T, W> view) {
  __shared__ float scratch[2][32];
  constexpr bool kPrefetches = kKept <= 2;
  constexpr bool kKeepsWeight = kKept == 1;
  const int64_t vectors = view.size / kWidth;
  Pack<W, kWidth> kept_weight;
  float weight_sum[kWeightGradient ? kKept : 1][kWidth] = {};
  if (kKeepsWeight && threadIdx.x < vectors) kept_weight = Pack<W, kWidth>::load(view.weight + threadIdx.x * kWidth);
  const auto weight_of = [&](int64_t vector) {
    return kKeepsWeight ? kept_weight : Pack<W, kWidth>::load(view.weight + vector * kWidth);
  };
  const float inverse_size = 1.0f / static_cast<float>(view.size);
  BackwardRow<T, kWidth, kKept> next;
  if (kPrefetches && blockIdx.x < view.tokens) next.template load<kPrefetches>(view, blockIdx.x);
  int parity = 0;
  for (int64_t row = blockIdx.x; row < view.tokens; row += gridDim.x) {
    if (!kPrefetches) next.template load<kPrefetches>(view, row);
    const BackwardRow<T, kWidth, kKept> now = next;
    if (kPrefetches && row + gridDim.x < view.tokens) next.template load<kPrefetches>(view, row + gridDim.x);
    float projection = 0.0f;
#pragma unroll
    for (int step = 0; step < kKept; ++step) {
      const int64_t vector = threadIdx.x + static_cast<int64_t>(step) * blockDim.x;
      if (vector >= vectors) continue;
      const auto weight = weight_of(vector);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float product = now.input[step][i] * now.doutput[step][i];
        projection += product * weight[i];
        if constexpr (kWeightGradient) weight_sum[step][i] += product * now.inverse;
      }
    }
    // Two scratches in turn save the barrier between one row's reads and the next row's writes.
    projection = alternating_block_sum(projection, scratch[parity]) * now.inverse * now.inverse * inverse_size;
    parity ^= 1;
#pragma unroll
    for (int step = 0; step < kKept; ++step) {
      const int64_t vector = threadIdx.x + static_cast<int64_t>(step) * blockDim.x;
      if (vector >= vectors) continue;
      const auto weight = weight_of(vector);
      Pack<T, kWidth> residual = now.residual[step];
      if (!kPrefetches && view.dresidual != nullptr) {
        residual = Pack<T, kWidth>::load(view.dresidual + row * view.dresidual_stride + vector * kWidth);
      }
      Pack<T, kWidth> result;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        float gradient = now.inverse * (weight[i] * now.doutput[step][i] - now.input[step][i] * projection);
        if (view.dresidual != nullptr) gradient += residual[i];
        result.set(i, gradient);
      }
      result.store(view.dinput + row * view.dinput_stride + vector * kWidth);
    }
  }
  if constexpr (kWeightGradient) {
#pragma unroll
    for (int step = 0; step < kKept; ++step) {
      const int64_t vector = threadIdx.x + static_cast<int64_t>(step) * blockDim.x;
      if (vector < vectors) {
        float* const to = view.partial + blockIdx.x * view.size + vector * kWidth;
        if constexpr (kWidth % 4 == 0) {
#pragma unroll
          for (int i = 0; i < kWidth; i += 4) {
            *reinterpret_cast<float4*>(to + i) = make_float4(weight_sum[step][i], weight_sum[step][i + 1],
                                                             weight_sum[step][i + 2], weight_sum[step][i + 3]);
          }
        } else {
#pragma unroll
          for (int i = 0; i < kWidth; ++i) to[i] = weight_sum[step][i];
        }
      }
    }
  }
}

// Rows that do not fit in registers; each thread keeps its columns' weight sums in the block's own row of `partial`.
template <typename T, typename W, int kWidth>
__global__ void __launch_bounds__(kMostThreads) rms_norm_backward_long_kernel(const BackwardView<T, W> view) {
  __shared__ float scratch[32];
  const int64_t vectors = view.size / kWidth;
  float* const partial = view.partial == nullptr ? nullptr : view.partial + blockIdx.x * view.size;
  if (partial != nullptr) {
    for (int64_t vector = threadIdx.x; vector < vectors; vector += blockDim.x) {
      for (int i = 0; i < kWidth; ++i) partial[vector * kWidth + i] = 0.0f;
    }
  }
  for (int64_t row = blockIdx.x; row < view.tokens; row += gridDim.x) {
    const float inverse = view.inverse_rms[row * view.inverse_rms_stride];
    float projection = 0.0f;
    for (int64_t vector = threadIdx.x; vector < vectors; vector += blockDim.x) {
      const auto input = Pack<T, kWidth>::load(view.input + row * view.input_stride + vector * kWidth);
      const auto doutput = Pack<T, kWidth>::load(view.doutput + row * view.doutput_stride + vector * kWidth);
      const auto weight = Pack<W, kWidth>::load(view.weight + vector * kWidth);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float product = input[i] * doutput[i];
        projection += product * weight[i];
        if (partial != nullptr) partial[vector * kWidth + i] += product * inverse;
      }
    }
    projection = block_sum(projection, scratch) * inverse * inverse / static_cast<float>(view.size);
    for (int64_t vector = threadIdx.x; vector < vectors; vector += blockDim.x) {
      const auto input = Pack<T, kWidth>::load(view.input + row * view.input_stride + vector * kWidth);
      const auto doutput = Pack<T, kWidth>::load(view.doutput + row * view.doutput_stride + vector * kWidth);
      finish_gradient<T, W, kWidth>(view, row, vector * kWidth, input, doutput, inverse, projection);
    }
  }
}

// Threads for `vectors` of which each keeps up to `kept`: whole warps, no more than needed.
int threads_for(int64_t vectors, int64_t kept) {
  const int64_t threads = divide_up(divide_up(vectors, kept), 32) * 32;
  return static_cast<int>(std::clamp<int64_t>(threads, 32, kMostThreads));
}

// How many vectors a thread keeps: 1, 2 or 4; 0 when the row does not fit.
int kept_for(int64_t vectors) {
  if (vectors <= kMostThreads) return 1;
  if (vectors <= 2 * kMostThreads) return 2;
  return vectors <= 4 * kMostThreads ? 4 : 0;
}

template <typename Launch>
void with_kept(int64_t vectors, const Launch& launch) {
  switch (kept_for(vectors)) {
    case 1:
      return launch(std::integral_constant<int, 1>{});
    case 2:
      return launch(std::integral_constant<int, 2>{});
    case 4:
      return launch(std::integral_constant<int, 4>{});
    default:
      return launch(std::integral_constant<int, 0>{});
  }
}

unsigned forward_blocks(int64_t tokens) {
  return static_cast<unsigned>(std::min<int64_t>(tokens, 1 << 20));
}

}  // namespace

int64_t rms_norm_partial_rows(int64_t tokens, int64_t size) {
  return std::min(tokens, size <= kShortRow ? kShortRowBlocks : kLongRowBlocks);
}

void rms_norm_forward(const RmsNormForward& arguments, cudaStream_t stream) {
  const auto& [input, residual, sum, weight, output, inverse_rms, epsilon] = arguments;
  if (input.extent(0) == 0) return;
  with_float_type(input.dtype, [&](auto type) {
    using T = decltype(type);
    with_type_or_float<T>(weight.dtype, [&](auto weight_type) {
      using W = decltype(weight_type);
      const ForwardView<T, W> view{data_of<T>(input),
                                   data_of<T>(residual),
                                   data_of<T>(sum),
                                   data_of<W>(weight),
                                   data_of<T>(output),
                                   data_of<float>(inverse_rms),
                                   input.stride(0),
                                   residual.is_absent() ? 0 : residual.stride(0),
                                   sum.is_absent() ? 0 : sum.stride(0),
                                   output.stride(0),
                                   inverse_rms.is_absent() ? 0 : inverse_rms.stride(0),
                                   input.extent(0),
                                   input.extent(1),
                                   epsilon};
      constexpr int kVector = kVectorWidth<T>;
      const unsigned blocks = forward_blocks(view.tokens);
      const bool vectors = rows_are_vectors(input, kVector) && rows_are_vectors(residual, kVector) &&
                           rows_are_vectors(sum, kVector) && rows_are_vectors(weight, kVector) &&
                           rows_are_vectors(output, kVector);
      if (!vectors) {
        rms_norm_forward_long_kernel<T, W, 1><<<blocks, threads_for(view.size, 4), 0, stream>>>(view);
        ITHACA_CUDA_CHECK_LAUNCH("rms_norm_forward");
        return;
      }
      with_kept(view.size / kVector, [&](auto kept) {
        constexpr int kKept = decltype(kept)::value;
        if constexpr (kKept == 0) {
          rms_norm_forward_long_kernel<T, W, kVector><<<blocks, kMostThreads, 0, stream>>>(view);
        } else {
          rms_norm_forward_kernel<T, W, kVector, kKept>
              <<<blocks, threads_for(view.size / kVector, kKept), 0, stream>>>(view);
        }
        ITHACA_CUDA_CHECK_LAUNCH("rms_norm_forward");
      });
    });
  });
}

void rms_norm_backward(const RmsNormBackward& arguments, float* partial, cudaStream_t stream) {
  const auto& [doutput, input, weight, inverse_rms, dresidual, dinput, dweight] = arguments;
  if (input.extent(0) == 0 || input.extent(1) == 0) return;
  const bool with_weight = !dweight.is_absent();
  int64_t blocks = 0;
  with_float_type(input.dtype, [&](auto type) {
    using T = decltype(type);
    with_type_or_float<T>(weight.dtype, [&](auto weight_type) {
      using W = decltype(weight_type);
      const BackwardView<T, W> view{data_of<T>(doutput),
                                    data_of<T>(input),
                                    data_of<W>(weight),
                                    data_of<float>(inverse_rms),
                                    data_of<T>(dresidual),
                                    data_of<T>(dinput),
                                    with_weight ? partial : nullptr,
                                    doutput.stride(0),
                                    input.stride(0),
                                    inverse_rms.stride(0),
                                    dresidual.is_absent() ? 0 : dresidual.stride(0),
                                    dinput.stride(0),
                                    input.extent(0),
                                    input.extent(1)};
      constexpr int kVector = kVectorWidth<T>;
      const bool vectors = rows_are_vectors(doutput, kVector) && rows_are_vectors(input, kVector) &&
                           rows_are_vectors(weight, kVector) && rows_are_vectors(dresidual, kVector) &&
                           rows_are_vectors(dinput, kVector);
      const auto launch = [&](auto kernel, int threads) {
        blocks = std::min(rms_norm_partial_rows(view.tokens, view.size), resident_blocks(kernel, threads));
        kernel<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(view);
        ITHACA_CUDA_CHECK_LAUNCH("rms_norm_backward");
      };
      if (!vectors) return launch(rms_norm_backward_long_kernel<T, W, 1>, threads_for(view.size, 4));
      with_kept(view.size / kVector, [&](auto kept) {
        constexpr int kKept = decltype(kept)::value;
        const int threads = threads_for(view.size / kVector, std::max(kKept, 1));
        if constexpr (kKept == 0) {
          launch(rms_norm_backward_long_kernel<T, W, kVector>, threads);
        } else if (with_weight) {
          launch(rms_norm_backward_kernel<T, W, kVector, kKept, true>, threads);
        } else {
          launch(rms_norm_backward_kernel<T, W, kVector, kKept, false>, threads);
        }
      });
    });
  });
  if (with_weight) {
    add_partial_rows(partial, blocks, input.extent(1), dweight.as<float>(), dweight.stride(0), stream);
  }
}

}  // namespace ithaca::cuda
