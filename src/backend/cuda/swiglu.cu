// output = silu(gate) * up, and its gradient.
#include "backend/cuda/kernels.h"
#include "backend/cuda/tiles.cuh"

namespace ithaca::cuda {
namespace {

__device__ inline float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

template <typename T, int kWidth>
struct SwigluForwardOperation {
  const T* gate;
  const T* up;
  T* output;
  int64_t gate_stride, up_stride, output_stride;

  struct Loaded {
    Pack<T, kWidth> gate, up;
  };
  __device__ Loaded load(int64_t row, int64_t column) const {
    return {Pack<T, kWidth>::load(gate + row * gate_stride + column),
            Pack<T, kWidth>::load(up + row * up_stride + column)};
  }
  __device__ void finish(const Loaded& loaded, int64_t row, int64_t column) const {
    Pack<T, kWidth> result;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) result.set(i, loaded.gate[i] * sigmoid(loaded.gate[i]) * loaded.up[i]);
    result.store(output + row * output_stride + column);
  }
};

template <typename T, int kWidth>
struct SwigluBackwardOperation {
  const T* doutput;
  const T* gate;
  const T* up;
  T* dgate;
  T* dup;
  int64_t doutput_stride, gate_stride, up_stride, dgate_stride, dup_stride;

  struct Loaded {
    Pack<T, kWidth> doutput, gate, up;
  };
  __device__ Loaded load(int64_t row, int64_t column) const {
    return {Pack<T, kWidth>::load(doutput + row * doutput_stride + column),
            Pack<T, kWidth>::load(gate + row * gate_stride + column),
            Pack<T, kWidth>::load(up + row * up_stride + column)};
  }
  __device__ void finish(const Loaded& loaded, int64_t row, int64_t column) const {
    Pack<T, kWidth> gate_gradient;
    Pack<T, kWidth> up_gradient;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float g = loaded.gate[i];
      const float s = sigmoid(g);
      gate_gradient.set(i, loaded.doutput[i] * loaded.up[i] * s * (1.0f + g * (1.0f - s)));
      up_gradient.set(i, loaded.doutput[i] * g * s);
    }
    gate_gradient.store(dgate + row * dgate_stride + column);
    up_gradient.store(dup + row * dup_stride + column);
  }
};

// True when the rows of all tensors lie one behind the other, so that they are one long row.
template <typename... Tensors>
bool are_contiguous(const Tensors&... tensors) {
  return (tensors.is_contiguous() && ...);
}

template <typename... Tensors>
bool are_vectors(int width, const Tensors&... tensors) {
  return (rows_are_vectors(tensors, width) && ...);
}

}  // namespace

void swiglu_forward(const SwigluForward& arguments, cudaStream_t stream) {
  const auto& [gate, up, output] = arguments;
  with_float_type(gate.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const bool joined = are_contiguous(gate, up, output);
      const int64_t rows = joined ? 1 : gate.extent(0);
      const int64_t columns = joined ? gate.element_count() : gate.extent(1);
      const SwigluForwardOperation<T, kWidth> operation{data_of<T>(gate), data_of<T>(up), data_of<T>(output),
                                                        gate.stride(0),   up.stride(0),   output.stride(0)};
      launch_tiles<kWidth, 2>(operation, rows, columns, stream, "launch of the kernel swiglu_forward");
    };
    if (are_vectors(kVectorWidth<T>, gate, up, output)) {
      launch(std::integral_constant<int, kVectorWidth<T>>{});
    } else {
      launch(std::integral_constant<int, 1>{});
    }
  });
}

void swiglu_backward(const SwigluBackward& arguments, cudaStream_t stream) {
  const auto& [doutput, gate, up, dgate, dup] = arguments;
  with_float_type(gate.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const bool joined = are_contiguous(doutput, gate, up, dgate, dup);
      const int64_t rows = joined ? 1 : gate.extent(0);
      const int64_t columns = joined ? gate.element_count() : gate.extent(1);
      const SwigluBackwardOperation<T, kWidth> operation{
          data_of<T>(doutput), data_of<T>(gate), data_of<T>(up), data_of<T>(dgate), data_of<T>(dup),
          doutput.stride(0),   gate.stride(0),   up.stride(0),   dgate.stride(0),   dup.stride(0)};
      launch_tiles<kWidth, 2>(operation, rows, columns, stream, "launch of the kernel swiglu_backward");
    };
    if (are_vectors(kVectorWidth<T>, doutput, gate, up, dgate, dup)) {
      launch(std::integral_constant<int, kVectorWidth<T>>{});
    } else {
      launch(std::integral_constant<int, 1>{});
    }
  });
}

}  // namespace ithaca::cuda
