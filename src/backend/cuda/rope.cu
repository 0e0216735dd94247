// Rotary position embedding: the table of angles, and per head the optional normalisation and the rotation.
//
// A group of neighbouring lanes handles a few heads of one token, all read before the first is finished, with one read
// of the token's angles: each lane has a vector of the first half and the same vector of the second half, which is what
// a rotation needs. Heads that do not come in vectors, or are too long for one group, go through plain kernels (a warp
// for each head) that read a head again instead of keeping it.
#include <algorithm>

#include "backend/cuda/kernels.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/tiles.cuh"

namespace ithaca::cuda {
namespace {

constexpr int kThreads = 256;
// Heads of one token that a group of lanes has at a time.
constexpr int kForwardHeads = 4;
constexpr int kBackwardHeads = 2;
// The most blocks of a pass that sums dnorm_weight.
constexpr int64_t kWeightGradientBlocks = 1056;

// The angle is one float32 product, as Hugging Face rounds it; sinf and cosf reduce any argument exactly.
__global__ void __launch_bounds__(kThreads)
    rope_table_kernel(const int64_t* positions, int64_t position_stride, const float* frequencies, float factor,
                      float* cosine, int64_t cosine_stride, float* sine, int64_t sine_stride, int64_t tokens,
                      int64_t half) {
  const int64_t count = tokens * half;
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; index < count;
       index += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t token = index / half;
    const int64_t i = index - token * half;
    const float angle = __fmul_rn(__ll2float_rn(positions[token * position_stride]), frequencies[i]);
    float s = 0.0f;
    float c = 0.0f;
    sincosf(angle, &s, &c);
    cosine[token * cosine_stride + i] = c * factor;
    sine[token * sine_stride + i] = s * factor;
  }
}

// Where one tensor [tokens, heads, size] lies.
struct HeadStrides {
  int64_t token = 0;
  int64_t head = 0;
};

template <typename T>
__device__ inline T* head_of(T* data, const HeadStrides& strides, int64_t token, int64_t head) {
  return data + token * strides.token + head * strides.head;
}

struct HeadShape {
  int64_t tokens, heads, size, half;
  int64_t count() const { return tokens * heads; }
};

struct HeadIndex {
  int64_t token, head;
};

// Division by 32 bits where they suffice, because it is several times faster.
__device__ inline HeadIndex head_at(int64_t index, int64_t heads) {
  if (index <= 0xFFFFFFFFll) {
    const auto token = static_cast<uint32_t>(index) / static_cast<uint32_t>(heads);
    return {token, index - static_cast<int64_t>(token) * heads};
  }
  const int64_t token = index / heads;
  return {token, index - token * heads};
}

template <typename T, typename W>
struct ForwardView {
  const T* input;
  const W* norm_weight;  // null: no normalisation
  float* inverse_rms;    // may be null
  const float* cosine;   // null: no rotation
  const float* sine;
  T* output;
  HeadStrides input_strides, output_strides, inverse_rms_strides;
  int64_t cosine_stride, sine_stride;
  HeadShape shape;
  float epsilon;
};

// cos and sin of one lane's columns.
template <int kWidth>
struct Angles {
  Pack<float, kWidth> cosine, sine;

  template <typename View>
  __device__ inline void load(const View& view, int64_t token, int64_t column) {
    cosine = Pack<float, kWidth>::load(view.cosine + token * view.cosine_stride + column);
    sine = Pack<float, kWidth>::load(view.sine + token * view.sine_stride + column);
  }
};

// One lane's columns of the two halves of a head.
template <typename T, int kWidth>
struct Halves {
  Pack<T, kWidth> low, high;

  __device__ inline void load(const T* from, int64_t column, int64_t half) {
    low = Pack<T, kWidth>::load(from + column);
    high = Pack<T, kWidth>::load(from + half + column);
  }
  __device__ inline void store(T* to, int64_t column, int64_t half) const {
    low.store(to + column);
    high.store(to + half + column);
  }
};

template <typename T, typename W, int kWidth, int kLanes, bool kNorm, bool kRotate>
__global__ void __launch_bounds__(kThreads, 2) head_rope_forward_kernel(const ForwardView<T, W> view) {
  constexpr int kGroups = kThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t runs = (view.shape.heads + kForwardHeads - 1) / kForwardHeads;  // of a token
  const int64_t count = view.shape.tokens * runs;
  const int64_t half = view.shape.half;
  const bool has_column = lane * kWidth < half;
  const int64_t column = has_column ? lane * kWidth : 0;
  const float inverse_size = 1.0f / static_cast<float>(view.shape.size);
  Halves<W, kWidth> weight;
  if constexpr (kNorm) weight.load(view.norm_weight, column, half);
  const int64_t rounds = (count + kGroups - 1) / kGroups;
  for (int64_t round = blockIdx.x; round < rounds; round += gridDim.x) {  // whole warps stay together for the shuffles
    const int64_t index = round * kGroups + threadIdx.x / kLanes;
    const HeadIndex at = head_at(index < count ? index : 0, runs);
    const int64_t first_head = at.head * kForwardHeads;
    const int64_t heads_here = has_column && index < count ? view.shape.heads - first_head : 0;
    const T* const from = head_of(view.input, view.input_strides, at.token, first_head);
    T* const to = head_of(view.output, view.output_strides, at.token, first_head);
    Angles<kWidth> angles = {};
    Halves<T, kWidth> inputs[kForwardHeads] = {};
    if (heads_here > 0) {  // keeps the work on the first head from being moved in between the reads
      if constexpr (kRotate) angles.load(view, at.token, column);
#pragma unroll
      for (int head = 0; head < kForwardHeads; ++head) {
        if (head < heads_here) inputs[head].load(from + head * view.input_strides.head, column, half);
      }
    }
#pragma unroll
    for (int head = 0; head < kForwardHeads; ++head) {
      const bool has_head = head < heads_here;
      float first[kWidth];
      float second[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        first[i] = inputs[head].low[i];
        second[i] = inputs[head].high[i];
      }
      if constexpr (kNorm) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sum += first[i] * first[i] + second[i] * second[i];
        sum = lanes_sum<kLanes>(sum);
        const float inverse = rsqrtf(sum * inverse_size + view.epsilon);
        if (has_head && lane == 0 && view.inverse_rms != nullptr) {
          *head_of(view.inverse_rms, view.inverse_rms_strides, at.token, first_head + head) = inverse;
        }
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          first[i] *= inverse * weight.low[i];
          second[i] *= inverse * weight.high[i];
        }
      }
      if (!has_head) continue;
      Halves<T, kWidth> result;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if constexpr (kRotate) {
          result.low.set(i, first[i] * angles.cosine[i] - second[i] * angles.sine[i]);
          result.high.set(i, second[i] * angles.cosine[i] + first[i] * angles.sine[i]);
        } else {
          result.low.set(i, first[i]);
          result.high.set(i, second[i]);
        }
      }
      result.store(to + head * view.output_strides.head, column, half);
    }
  }
}

// A warp for each head, element by element.
template <typename T, typename W>
__global__ void __launch_bounds__(kThreads) head_rope_forward_plain_kernel(const ForwardView<T, W> view) {
  constexpr int kWarps = kThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t count = view.shape.tokens * view.shape.heads;
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; index < count;
       index += static_cast<int64_t>(gridDim.x) * kWarps) {
    const HeadIndex at = head_at(index, view.shape.heads);
    const T* const from = head_of(view.input, view.input_strides, at.token, at.head);
    T* const to = head_of(view.output, view.output_strides, at.token, at.head);
    float inverse = 1.0f;
    if (view.norm_weight != nullptr) {
      float sum = 0.0f;
      for (int64_t i = lane; i < view.shape.size; i += 32) sum += to_float(from[i]) * to_float(from[i]);
      sum = lanes_sum<32>(sum);
      inverse = 1.0f / sqrtf(sum / static_cast<float>(view.shape.size) + view.epsilon);
      if (lane == 0 && view.inverse_rms != nullptr) {
        *head_of(view.inverse_rms, view.inverse_rms_strides, at.token, at.head) = inverse;
      }
    }
    const auto normalised = [&](int64_t i) {
      const float value = to_float(from[i]);
      return view.norm_weight == nullptr ? value : value * (inverse * to_float(view.norm_weight[i]));
    };
    if (view.cosine == nullptr) {
      for (int64_t i = lane; i < view.shape.size; i += 32) to[i] = from_float<T>(normalised(i));
      continue;
    }
    const float* const cosine = view.cosine + at.token * view.cosine_stride;
    const float* const sine = view.sine + at.token * view.sine_stride;
    for (int64_t i = lane; i < view.shape.half; i += 32) {
      const float first = normalised(i);
      const float second = normalised(i + view.shape.half);
      to[i] = from_float<T>(first * cosine[i] - second * sine[i]);
      to[i + view.shape.half] = from_float<T>(second * cosine[i] + first * sine[i]);
    }
  }
}

template <typename T, typename D, typename W>
struct BackwardView {
  const D* doutput;
  const T* input;  // with norm_weight
  const W* norm_weight;
  const float* inverse_rms;
  const float* cosine;  // null: no rotation
  const float* sine;
  T* dinput;
  float* partial;  // [blocks, size]; null without dnorm_weight
  HeadStrides doutput_strides, input_strides, inverse_rms_strides, dinput_strides;
  int64_t cosine_stride, sine_stride;
  HeadShape shape;
};

template <typename T, typename D, typename W, int kWidth, int kLanes, bool kNorm, bool kRotate, bool kWeightGradient>
__global__ void __launch_bounds__(kThreads, 2) head_rope_backward_kernel(const BackwardView<T, D, W> view) {
  constexpr int kGroups = kThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int group = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t runs = (view.shape.heads + kBackwardHeads - 1) / kBackwardHeads;  // of a token
  const int64_t count = view.shape.tokens * runs;
  const int64_t half = view.shape.half;
  const bool has_column = lane * kWidth < half;
  const int64_t column = has_column ? lane * kWidth : 0;
  const int64_t rounds = (count + kGroups - 1) / kGroups;
  const float inverse_size = 1.0f / static_cast<float>(view.shape.size);
  float first_sum[kWeightGradient ? kWidth : 1] = {};
  float second_sum[kWeightGradient ? kWidth : 1] = {};
  Halves<W, kWidth> weight;
  if constexpr (kNorm) weight.load(view.norm_weight, column, half);
  for (int64_t round = blockIdx.x; round < rounds; round += gridDim.x) {
    const int64_t index = round * kGroups + group;
    const HeadIndex at = head_at(index < count ? index : 0, runs);
    const int64_t first_head = at.head * kBackwardHeads;
    const int64_t heads_here = has_column && index < count ? view.shape.heads - first_head : 0;
    const D* const gradients = head_of(view.doutput, view.doutput_strides, at.token, first_head);
    const T* const from = head_of(view.input, view.input_strides, at.token, first_head);
    const float* const inverse_rms = head_of(view.inverse_rms, view.inverse_rms_strides, at.token, first_head);
    T* const to = head_of(view.dinput, view.dinput_strides, at.token, first_head);
    Angles<kWidth> angles = {};
    Halves<D, kWidth> doutputs[kBackwardHeads] = {};
    Halves<T, kWidth> inputs[kNorm ? kBackwardHeads : 1] = {};
    float inverses[kBackwardHeads] = {};
    if (heads_here > 0) {  // as in forward
      if constexpr (kRotate) angles.load(view, at.token, column);
#pragma unroll
      for (int head = 0; head < kBackwardHeads; ++head) {
        if (head >= heads_here) continue;
        doutputs[head].load(gradients + head * view.doutput_strides.head, column, half);
        if constexpr (kNorm) {
          inputs[head].load(from + head * view.input_strides.head, column, half);
          inverses[head] = inverse_rms[head * view.inverse_rms_strides.head];
        }
      }
    }
#pragma unroll
    for (int head = 0; head < kBackwardHeads; ++head) {
      float first[kWidth];
      float second[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float low = doutputs[head].low[i];
        const float high = doutputs[head].high[i];
        first[i] = kRotate ? low * angles.cosine[i] + high * angles.sine[i] : low;
        second[i] = kRotate ? high * angles.cosine[i] - low * angles.sine[i] : high;
      }
      if constexpr (kNorm) {
        const float inverse = inverses[head];
        float projection = 0.0f;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          const float low = inputs[head].low[i];
          const float high = inputs[head].high[i];
          if constexpr (kWeightGradient) {
            first_sum[i] += low * inverse * first[i];
            second_sum[i] += high * inverse * second[i];
          }
          first[i] *= weight.low[i];
          second[i] *= weight.high[i];
          projection += low * first[i] + high * second[i];
        }
        projection = lanes_sum<kLanes>(projection) * inverse * inverse * inverse_size;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          first[i] = inverse * (first[i] - inputs[head].low[i] * projection);
          second[i] = inverse * (second[i] - inputs[head].high[i] * projection);
        }
      }
      if (head >= heads_here) continue;
      Halves<T, kWidth> result;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        result.low.set(i, first[i]);
        result.high.set(i, second[i]);
      }
      result.store(to + head * view.dinput_strides.head, column, half);
    }
  }
  if constexpr (kWeightGradient) {
    // Groups in their order, column by column: [2 halves][kLanes * kWidth columns].
    __shared__ float sums[kGroups][2 * kLanes * kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      sums[group][lane * kWidth + i] = first_sum[i];
      sums[group][kLanes * kWidth + lane * kWidth + i] = second_sum[i];
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(view.shape.size); i += kThreads) {
      const int half = static_cast<int>(view.shape.half);
      const int place = i < half ? i : kLanes * kWidth + (i - half);
      float sum = 0.0f;
      for (int other = 0; other < kGroups; ++other) sum += sums[other][place];
      view.partial[blockIdx.x * view.shape.size + i] = sum;
    }
  }
}

// A warp for each head, element by element, one block's heads one after the other where the weight gradient is summed
// (in the block's own row of `partial`).
template <typename T, typename D, typename W>
__global__ void __launch_bounds__(32) head_rope_backward_plain_kernel(const BackwardView<T, D, W> view) {
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t count = view.shape.tokens * view.shape.heads;
  const int64_t half = view.shape.half;
  const int64_t size = view.shape.size;
  float* const partial = view.partial == nullptr ? nullptr : view.partial + blockIdx.x * size;
  if (partial != nullptr) {
    for (int64_t i = lane; i < size; i += 32) partial[i] = 0.0f;
    __syncwarp();
  }
  for (int64_t index = blockIdx.x; index < count; index += gridDim.x) {
    const HeadIndex at = head_at(index, view.shape.heads);
    const D* const from = head_of(view.doutput, view.doutput_strides, at.token, at.head);
    T* const to = head_of(view.dinput, view.dinput_strides, at.token, at.head);
    const T* const input = head_of(view.input, view.input_strides, at.token, at.head);  // with norm_weight
    const float* const cosine = view.cosine == nullptr ? nullptr : view.cosine + at.token * view.cosine_stride;
    const float* const sine = view.cosine == nullptr ? nullptr : view.sine + at.token * view.sine_stride;
    // Calls use(i, gradient of the normalised element i) for the elements of this lane: pairs i, i + half.
    const auto for_each = [&](const auto& use) {
      if (cosine == nullptr) {
        for (int64_t i = lane; i < size; i += 32) use(i, to_float(from[i]));
        return;
      }
      for (int64_t i = lane; i < half; i += 32) {
        const float low = to_float(from[i]);
        const float high = to_float(from[i + half]);
        use(i, low * cosine[i] + high * sine[i]);
        use(i + half, high * cosine[i] - low * sine[i]);
      }
    };
    if (view.norm_weight == nullptr) {
      for_each([&](int64_t i, float gradient) { to[i] = from_float<T>(gradient); });
      continue;
    }
    const float inverse = *head_of(view.inverse_rms, view.inverse_rms_strides, at.token, at.head);
    float projection = 0.0f;
    for_each([&](int64_t i, float gradient) {
      const float x = to_float(input[i]);
      if (partial != nullptr) partial[i] += x * inverse * gradient;
      projection += x * gradient * to_float(view.norm_weight[i]);
    });
    projection = lanes_sum<32>(projection) * inverse * inverse / static_cast<float>(size);
    for_each([&](int64_t i, float gradient) {
      to[i] = from_float<T>(inverse * (gradient * to_float(view.norm_weight[i]) - to_float(input[i]) * projection));
    });
  }
}

HeadStrides strides_of(const Tensor& tensor) {
  if (tensor.is_absent()) return {};
  return {tensor.stride(0), tensor.stride(1)};
}

HeadShape shape_of(const Tensor& tensor) {
  return {tensor.extent(0), tensor.extent(1), tensor.extent(2), tensor.extent(2) / 2};
}

// Lanes of one head when each has `width` elements of a half: 4, 8, 16 or 32; 0 when they do not suffice or the half
// is not whole vectors.
int lanes_for(const HeadShape& shape, int width) {
  if (shape.size % (2 * width) != 0) return 0;
  for (const int lanes : {4, 8, 16, 32}) {
    if (lanes * width >= shape.half) return lanes;
  }
  return 0;
}

template <typename Launch>
void with_lanes(int lanes, const Launch& launch) {
  switch (lanes) {
    case 4:
      return launch(std::integral_constant<int, 4>{});
    case 8:
      return launch(std::integral_constant<int, 8>{});
    case 16:
      return launch(std::integral_constant<int, 16>{});
    default:
      return launch(std::integral_constant<int, 32>{});
  }
}

template <typename Launch>
void with_flag(bool flag, const Launch& launch) {
  if (flag) {
    launch(std::true_type{});
  } else {
    launch(std::false_type{});
  }
}

unsigned grid_for(int64_t blocks) {
  return static_cast<unsigned>(std::min<int64_t>(blocks, int64_t{1} << 30));
}

}  // namespace

void rope_table(const RopeTable& arguments, cudaStream_t stream) {
  const int64_t tokens = arguments.position_ids.extent(0);
  const int64_t half = arguments.inverse_frequencies.extent(0);
  if (tokens == 0 || half == 0) return;
  rope_table_kernel<<<grid_for(divide_up(tokens * half, kThreads)), kThreads, 0, stream>>>(
      arguments.position_ids.as<int64_t>(), arguments.position_ids.stride(0), arguments.inverse_frequencies.as<float>(),
      arguments.attention_factor, arguments.cosine.as<float>(), arguments.cosine.stride(0), arguments.sine.as<float>(),
      arguments.sine.stride(0), tokens, half);
  ITHACA_CUDA_CHECK_LAUNCH("rope_table");
}

void head_rope_forward(const HeadRopeForward& arguments, cudaStream_t stream) {
  const auto& [input, norm_weight, epsilon, inverse_rms, cosine, sine, output] = arguments;
  const HeadShape shape = shape_of(input);
  if (shape.count() == 0 || shape.size == 0) return;
  with_float_type(input.dtype, [&](auto type) {
    using T = decltype(type);
    with_type_or_float<T>(norm_weight.is_absent() ? DType::float32 : norm_weight.dtype, [&](auto weight_type) {
      using W = decltype(weight_type);
      const ForwardView<T, W> view{data_of<T>(input),
                                   data_of<W>(norm_weight),
                                   norm_weight.is_absent() ? nullptr : data_of<float>(inverse_rms),
                                   data_of<float>(cosine),
                                   data_of<float>(sine),
                                   data_of<T>(output),
                                   strides_of(input),
                                   strides_of(output),
                                   strides_of(inverse_rms),
                                   cosine.is_absent() ? 0 : cosine.stride(0),
                                   sine.is_absent() ? 0 : sine.stride(0),
                                   shape,
                                   epsilon};
      constexpr int kVector = kVectorWidth<T>;
      const int lanes = lanes_for(shape, kVector);
      // A float32 vector has as many elements as one of T here, so its rows must be aligned for kVector floats.
      const bool vectors = lanes > 0 && rows_are_vectors(input, kVector) && rows_are_vectors(output, kVector) &&
                           rows_are_vectors(norm_weight, kVector) && rows_are_vectors(cosine, kVector) &&
                           rows_are_vectors(sine, kVector);
      if (!vectors) {
        head_rope_forward_plain_kernel<T, W>
            <<<grid_for(divide_up(shape.count(), kThreads / 32)), kThreads, 0, stream>>>(view);
        ITHACA_CUDA_CHECK_LAUNCH("head_rope_forward");
        return;
      }
      const unsigned blocks =
          grid_for(divide_up(shape.tokens * divide_up(shape.heads, kForwardHeads), kThreads / lanes));
      with_lanes(lanes, [&](auto lane_count) {
        with_flag(!norm_weight.is_absent(), [&](auto norm) {
          with_flag(!cosine.is_absent(), [&](auto rotate) {
            head_rope_forward_kernel<T, W, kVector, decltype(lane_count)::value, decltype(norm)::value,
                                     decltype(rotate)::value><<<blocks, kThreads, 0, stream>>>(view);
          });
        });
      });
      ITHACA_CUDA_CHECK_LAUNCH("head_rope_forward");
    });
  });
}

int64_t head_rope_partial_rows(int64_t heads_of_all_tokens) {
  return std::min(heads_of_all_tokens, kWeightGradientBlocks);
}

void head_rope_backward(const HeadRopeBackward& arguments, float* partial, cudaStream_t stream) {
  const auto& [doutput, input, norm_weight, inverse_rms, cosine, sine, dinput, dnorm_weight] = arguments;
  const HeadShape shape = shape_of(doutput);
  if (shape.count() == 0 || shape.size == 0) return;
  const bool has_norm = !norm_weight.is_absent();
  const bool has_weight_gradient = !dnorm_weight.is_absent();
  int64_t partial_rows = head_rope_partial_rows(shape.count());
  with_float_type(dinput.dtype, [&](auto type) {
    using T = decltype(type);
    with_type_or_float<T>(doutput.dtype, [&](auto gradient_type) {
      using D = decltype(gradient_type);
      with_type_or_float<T>(has_norm ? norm_weight.dtype : DType::float32, [&](auto weight_type) {
        using W = decltype(weight_type);
        const BackwardView<T, D, W> view{data_of<D>(doutput),
                                         has_norm ? data_of<T>(input) : nullptr,
                                         data_of<W>(norm_weight),
                                         has_norm ? data_of<float>(inverse_rms) : nullptr,
                                         data_of<float>(cosine),
                                         data_of<float>(sine),
                                         data_of<T>(dinput),
                                         has_weight_gradient ? partial : nullptr,
                                         strides_of(doutput),
                                         has_norm ? strides_of(input) : HeadStrides{},
                                         has_norm ? strides_of(inverse_rms) : HeadStrides{},
                                         strides_of(dinput),
                                         cosine.is_absent() ? 0 : cosine.stride(0),
                                         sine.is_absent() ? 0 : sine.stride(0),
                                         shape};
        constexpr int kVector = kVectorWidth<T>;
        const int lanes = lanes_for(shape, kVector);
        const bool vectors = lanes > 0 && rows_are_vectors(doutput, kVector) && rows_are_vectors(dinput, kVector) &&
                             (!has_norm || rows_are_vectors(input, kVector)) &&
                             rows_are_vectors(norm_weight, kVector) && rows_are_vectors(cosine, kVector) &&
                             rows_are_vectors(sine, kVector);
        if (!vectors) {
          const unsigned blocks = grid_for(has_weight_gradient ? partial_rows : shape.count());
          head_rope_backward_plain_kernel<T, D, W><<<blocks, 32, 0, stream>>>(view);
          ITHACA_CUDA_CHECK_LAUNCH("head_rope_backward");
          return;
        }
        const int64_t rounds =
            divide_up(shape.tokens * divide_up(shape.heads, kBackwardHeads), kThreads / static_cast<int64_t>(lanes));
        with_lanes(lanes, [&](auto lane_count) {
          constexpr int kLanes = decltype(lane_count)::value;
          with_flag(!cosine.is_absent(), [&](auto rotate) {
            constexpr bool kRotate = decltype(rotate)::value;
            if (has_weight_gradient) {
              const auto kernel = head_rope_backward_kernel<T, D, W, kVector, kLanes, true, kRotate, true>;
              partial_rows = std::min({partial_rows, rounds, resident_blocks(kernel, kThreads)});
              kernel<<<static_cast<unsigned>(partial_rows), kThreads, 0, stream>>>(view);
            } else if (has_norm) {
              head_rope_backward_kernel<T, D, W, kVector, kLanes, true, kRotate, false>
                  <<<grid_for(rounds), kThreads, 0, stream>>>(view);
            } else {
              head_rope_backward_kernel<T, D, W, kVector, kLanes, false, kRotate, false>
                  <<<grid_for(rounds), kThreads, 0, stream>>>(view);
            }
          });
        });
        ITHACA_CUDA_CHECK_LAUNCH("head_rope_backward");
      });
    });
  });
  if (has_weight_gradient) {
    add_partial_rows(partial, partial_rows, shape.size, dnorm_weight.as<float>(), dnorm_weight.stride(0), stream);
  }
}

}  // namespace ithaca::cuda
