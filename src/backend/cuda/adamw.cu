// The numbers of a step, and AdamW over one contiguous piece of parameters.
#include "backend/cuda/kernels.h"
#include "backend/cuda/tiles.cuh"

namespace ithaca::cuda {
namespace {

__global__ void step_numbers_kernel(const double* square_sum, const double* loss_sum, double label_weight_sum,
                                    double max_norm, double* gradient_norm, float* clip_factor, int64_t* skipped,
                                    int64_t* applied_steps) {
  const double norm = sqrt(*square_sum);
  const bool skip = !isfinite(norm) || !isfinite(*loss_sum) || label_weight_sum == 0.0;
  *gradient_norm = norm;
  *clip_factor = max_norm == 0.0 ? 1.0f : static_cast<float>(fmin(1.0, max_norm / (norm + 1e-6)));
  *skipped = skip ? 1 : 0;
  if (!skip) *applied_steps += 1;
}

// What AdamW needs of the device's numbers, as float32: [0] 1 when the step is made, else 0; [1] clip factor;
// [2] learning rate / (1 - beta1^t); [3] 1 / sqrt(1 - beta2^t).
__global__ void adamw_numbers_kernel(const float* clip_factor, const int64_t* skipped, const int64_t* applied_steps,
                                     double learning_rate, double beta1, double beta2, float* numbers) {
  const auto step = static_cast<double>(*applied_steps);
  numbers[0] = *skipped == 0 ? 1.0f : 0.0f;
  numbers[1] = *clip_factor;
  numbers[2] = static_cast<float>(learning_rate / (1.0 - pow(beta1, step)));
  numbers[3] = static_cast<float>(1.0 / sqrt(1.0 - pow(beta2, step)));
}

template <typename C, int kWidth>
struct AdamWOperation {
  float* weights;
  const float* gradients;
  float* first_moment;
  float* second_moment;
  C* compute_weights;  // may be null
  const float* numbers;
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, decay_factor;

  struct Loaded {
    Pack<float, kWidth> weight, gradient, first, second;
  };
  __device__ Loaded load(int64_t /*row*/, int64_t column) const {
    return {Pack<float, kWidth>::load(weights + column), Pack<float, kWidth>::load(gradients + column),
            Pack<float, kWidth>::load(first_moment + column), Pack<float, kWidth>::load(second_moment + column)};
  }
  __device__ void finish(const Loaded& loaded, int64_t /*row*/, int64_t column) const {
    if (numbers[0] == 0.0f) return;
    const float clip = numbers[1];
    const float step_size = numbers[2];
    const float root_correction = numbers[3];
    Pack<float, kWidth> weight;
    Pack<float, kWidth> first;
    Pack<float, kWidth> second;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float gradient = clip * loaded.gradient[i];
      first.values[i] = beta1 * loaded.first[i] + one_minus_beta1 * gradient;
      second.values[i] = beta2 * loaded.second[i] + one_minus_beta2 * gradient * gradient;
      const float denominator = sqrtf(second.values[i]) * root_correction + epsilon;
      weight.values[i] = loaded.weight[i] * decay_factor - step_size * (first.values[i] / denominator);
    }
    weight.store(weights + column);
    first.store(first_moment + column);
    second.store(second_moment + column);
    if (compute_weights == nullptr) return;
    Pack<C, kWidth> rounded;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) rounded.set(i, weight[i]);
    rounded.store(compute_weights + column);
  }
};

bool is_aligned(const Tensor& tensor, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(tensor.data) % bytes == 0;
}

}  // namespace

cudaError_t find_kernels() {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, step_numbers_kernel);
  static_cast<void>(cudaGetLastError());
  return status;
}

void step_numbers(const StepNumbers& arguments, cudaStream_t stream) {
  step_numbers_kernel<<<1, 1, 0, stream>>>(arguments.square_sum.as<double>(), arguments.loss_sum.as<double>(),
                                           arguments.label_weight_sum, arguments.max_norm,
                                           arguments.gradient_norm.as<double>(), arguments.clip_factor.as<float>(),
                                           arguments.skipped.as<int64_t>(), arguments.applied_steps.as<int64_t>());
  ITHACA_CUDA_CHECK_LAUNCH("step_numbers");
}

void adamw(const AdamW& arguments, float* numbers, cudaStream_t stream) {
  const int64_t count = arguments.weights.extent(0);
  if (count == 0) return;
  adamw_numbers_kernel<<<1, 1, 0, stream>>>(arguments.clip_factor.as<float>(), arguments.skipped.as<int64_t>(),
                                            arguments.applied_steps.as<int64_t>(), arguments.learning_rate,
                                            arguments.beta1, arguments.beta2, numbers);
  ITHACA_CUDA_CHECK_LAUNCH("adamw_numbers");
  const Tensor& compute = arguments.compute_weights;
  with_float_type(compute.is_absent() ? DType::float32 : compute.dtype, [&](auto type) {
    using C = decltype(type);
    const auto launch = [&](auto width, int64_t begin, int64_t end) {
      constexpr int kWidth = decltype(width)::value;
      const AdamWOperation<C, kWidth> operation{
          arguments.weights.as<float>() + begin,
          arguments.gradients.as<float>() + begin,
          arguments.first_moment.as<float>() + begin,
          arguments.second_moment.as<float>() + begin,
          compute.is_absent() ? nullptr : data_of<C>(compute) + begin,
          numbers,
          static_cast<float>(arguments.beta1),
          static_cast<float>(1.0 - arguments.beta1),
          static_cast<float>(arguments.beta2),
          static_cast<float>(1.0 - arguments.beta2),
          static_cast<float>(arguments.epsilon),
          static_cast<float>(1.0 - arguments.learning_rate * arguments.weight_decay)};
      launch_tiles<kWidth, 2>(operation, 1, end - begin, stream, "launch of the kernel adamw");
    };
    const bool aligned = is_aligned(arguments.weights, 16) && is_aligned(arguments.gradients, 16) &&
                         is_aligned(arguments.first_moment, 16) && is_aligned(arguments.second_moment, 16) &&
                         (compute.is_absent() || is_aligned(compute, 16));
    const int64_t in_vectors = aligned ? count / 4 * 4 : 0;
    launch(std::integral_constant<int, 4>{}, 0, in_vectors);
    launch(std::integral_constant<int, 1>{}, in_vectors, count);
  });
}

}  // namespace ithaca::cuda
