// Gradient norm, clipping and AdamW of the CPU backend. Formulas: backend/operations.h.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "backend/cpu/kernels.h"

// Instruction sets between AVX2 and the portable code, and variants of AVX-512 that add nothing here, would only cost
// compile time.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backend/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ithaca::cpu::HWY_NAMESPACE {
namespace {

// Every square is exact in float64, so only the sum rounds.
double sum_of_squares(const float* values, int64_t size) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> half;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  auto sum2 = hn::Zero(d);
  auto sum3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * lanes <= size; i += 4 * lanes) {
    const auto value0 = hn::PromoteTo(d, hn::LoadU(half, values + i));
    const auto value1 = hn::PromoteTo(d, hn::LoadU(half, values + i + lanes));
    const auto value2 = hn::PromoteTo(d, hn::LoadU(half, values + i + 2 * lanes));
    const auto value3 = hn::PromoteTo(d, hn::LoadU(half, values + i + 3 * lanes));
    sum0 = hn::MulAdd(value0, value0, sum0);
    sum1 = hn::MulAdd(value1, value1, sum1);
    sum2 = hn::MulAdd(value2, value2, sum2);
    sum3 = hn::MulAdd(value3, value3, sum3);
  }
  double rest = 0.0;
  for (; i < size; ++i) rest += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)))) + rest;
}

void adamw(const AdamW& arguments) {
  const auto step = static_cast<double>(*arguments.applied_steps.as<int64_t>());
  const double correction1 = 1.0 - std::pow(arguments.beta1, step);
  const double correction2 = 1.0 - std::pow(arguments.beta2, step);
  const auto keep = static_cast<float>(1.0 - arguments.learning_rate * arguments.weight_decay);
  const auto step_size = static_cast<float>(arguments.learning_rate / correction1);
  const auto root_correction2 = static_cast<float>(std::sqrt(correction2));
  const auto epsilon = static_cast<float>(arguments.epsilon);
  const auto beta2 = static_cast<float>(arguments.beta2);
  const auto new_part1 = static_cast<float>(1.0 - arguments.beta1);
  const auto new_part2 = static_cast<float>(1.0 - arguments.beta2);
  const float clip_factor = *arguments.clip_factor.as<float>();
  float* const weights = arguments.weights.as<float>();
  const float* const gradients = arguments.gradients.as<float>();
  float* const first_moment = arguments.first_moment.as<float>();
  float* const second_moment = arguments.second_moment.as<float>();
  for_each(arguments.weights.extent(0), [=](auto d, int64_t i) HWY_ATTR {
    const auto gradient = hn::Mul(hn::LoadU(d, gradients + i), hn::Set(d, clip_factor));
    auto first = hn::LoadU(d, first_moment + i);
    first = hn::MulAdd(hn::Sub(gradient, first), hn::Set(d, new_part1), first);
    const auto second = hn::MulAdd(hn::Mul(gradient, gradient), hn::Set(d, new_part2),
                                   hn::Mul(hn::LoadU(d, second_moment + i), hn::Set(d, beta2)));
    const auto denominator = hn::Add(hn::Div(hn::Sqrt(second), hn::Set(d, root_correction2)), hn::Set(d, epsilon));
    const auto decayed = hn::Mul(hn::LoadU(d, weights + i), hn::Set(d, keep));
    hn::StoreU(first, d, first_moment + i);
    hn::StoreU(second, d, second_moment + i);
    hn::StoreU(hn::Sub(decayed, hn::Div(hn::Mul(hn::Set(d, step_size), first), denominator)), d, weights + i);
  });
}

}  // namespace
}  // namespace ithaca::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ithaca::cpu {

HWY_EXPORT(sum_of_squares);
HWY_EXPORT(adamw);

void square_sum(const SquareSum& arguments) {
  *arguments.sum.as<double>() +=
      HWY_DYNAMIC_DISPATCH(sum_of_squares)(arguments.input.as<float>(), arguments.input.element_count());
}

void step_numbers(const StepNumbers& arguments) {
  const double norm = std::sqrt(*arguments.square_sum.as<double>());
  const bool skip =
      !std::isfinite(norm) || !std::isfinite(*arguments.loss_sum.as<double>()) || arguments.label_weight_sum == 0.0;
  double factor = 1.0;
  if (arguments.max_norm > 0.0) factor = std::min(1.0, arguments.max_norm / (norm + 1e-6));
  *arguments.gradient_norm.as<double>() = norm;
  *arguments.clip_factor.as<float>() = static_cast<float>(factor);
  *arguments.skipped.as<int64_t>() = skip ? 1 : 0;
  if (!skip) ++*arguments.applied_steps.as<int64_t>();
}

void adamw(const AdamW& arguments) {
  if (*arguments.skipped.as<int64_t>() != 0) return;
  HWY_DYNAMIC_DISPATCH(adamw)(arguments);
  if (!arguments.compute_weights.is_absent()) copy({arguments.weights, arguments.compute_weights});
}

}  // namespace ithaca::cpu
#endif
