// RMS normalisation of the CPU backend. Formulas: backend/reference.cpp.
#include <cmath>
#include <cstdint>

#include "backend/cpu/kernels.h"
#include "backend/cpu/weight_sum.h"

// Instruction sets between AVX2 and the portable code, and variants of AVX-512 that add nothing here, would only cost
// compile time.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/rms_norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backend/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ithaca::cpu::HWY_NAMESPACE {
namespace {

void rms_norm_forward(const RmsNormForward& arguments) {
  const int64_t size = arguments.input.extent(1);
  const bool with_residual = !arguments.residual.is_absent();
  const float* const weight = arguments.weight.as<float>();
  for (int64_t token = 0; token < arguments.input.extent(0); ++token) {
    const float* x = arguments.input.as<float>() + token * arguments.input.stride(0);
    double square_sum = 0.0;
    if (with_residual) {
      const float* const residual = arguments.residual.as<float>() + token * arguments.residual.stride(0);
      float* const sum = arguments.sum.as<float>() + token * arguments.sum.stride(0);
      square_sum = sum_of(size, [=](auto d, int64_t i) HWY_ATTR {
        const auto value = hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, residual + i));
        hn::StoreU(value, d, sum + i);
        return hn::Mul(value, value);
      });
      x = sum;
    } else {
      square_sum = sum_of(size, [=](auto d, int64_t i) HWY_ATTR {
        const auto value = hn::LoadU(d, x + i);
        return hn::Mul(value, value);
      });
    }
    const auto inverse = static_cast<float>(
        1.0 / std::sqrt(square_sum / static_cast<double>(size) + static_cast<double>(arguments.epsilon)));
    float* const output = arguments.output.as<float>() + token * arguments.output.stride(0);
    for_each(size, [=](auto d, int64_t i) HWY_ATTR {
      const auto normalised = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse));
      hn::StoreU(hn::Mul(normalised, hn::LoadU(d, weight + i)), d, output + i);
    });
    if (!arguments.inverse_rms.is_absent()) {
      arguments.inverse_rms.as<float>()[token * arguments.inverse_rms.stride(0)] = inverse;
    }
  }
}

void rms_norm_backward(const RmsNormBackward& arguments, WeightSumSpace space) {
  const int64_t size = arguments.input.extent(1);
  const bool with_residual = !arguments.dresidual.is_absent();
  const float* const weight = arguments.weight.as<float>();
  WeightSum weight_sum(space);
  for (int64_t token = 0; token < arguments.input.extent(0); ++token) {
    const float* const x = arguments.input.as<float>() + token * arguments.input.stride(0);
    const float* const dy = arguments.doutput.as<float>() + token * arguments.doutput.stride(0);
    float* const dx = arguments.dinput.as<float>() + token * arguments.dinput.stride(0);
    const float inverse = arguments.inverse_rms.as<float>()[token * arguments.inverse_rms.stride(0)];
    const double product = sum_of(size, [=](auto d, int64_t i) HWY_ATTR {
      return hn::Mul(hn::Mul(hn::LoadU(d, dy + i), hn::LoadU(d, weight + i)), hn::LoadU(d, x + i));
    });
    const auto projection =
        static_cast<float>(product / static_cast<double>(size) * static_cast<double>(inverse) * inverse);
    const auto gradient = [=](auto d, int64_t i) HWY_ATTR {
      const auto scaled = hn::Mul(hn::LoadU(d, dy + i), hn::LoadU(d, weight + i));
      return hn::Mul(hn::Set(d, inverse), hn::NegMulAdd(hn::LoadU(d, x + i), hn::Set(d, projection), scaled));
    };
    if (weight_sum.is_wanted()) {
      float* const piece = weight_sum.piece();
      for_each(size, [=](auto d, int64_t i) HWY_ATTR {
        const auto normalised = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse));
        hn::StoreU(hn::MulAdd(normalised, hn::LoadU(d, dy + i), hn::LoadU(d, piece + i)), d, piece + i);
      });
      weight_sum.row_added();
    }
    if (with_residual) {
      const float* const residual = arguments.dresidual.as<float>() + token * arguments.dresidual.stride(0);
      for_each(size, [=](auto d, int64_t i)
                         HWY_ATTR { hn::StoreU(hn::Add(gradient(d, i), hn::LoadU(d, residual + i)), d, dx + i); });
    } else {
      for_each(size, [=](auto d, int64_t i) HWY_ATTR { hn::StoreU(gradient(d, i), d, dx + i); });
    }
  }
  if (weight_sum.is_wanted()) weight_sum.finish(arguments.dweight.as<float>());
}

}  // namespace
}  // namespace ithaca::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ithaca::cpu {

HWY_EXPORT(rms_norm_forward);
HWY_EXPORT(rms_norm_backward);

void rms_norm_forward(const RmsNormForward& arguments) {
  HWY_DYNAMIC_DISPATCH(rms_norm_forward)(arguments);
}

void rms_norm_backward(const RmsNormBackward& arguments, WeightSumSpace space) {
  HWY_DYNAMIC_DISPATCH(rms_norm_backward)(arguments, space);
}

}  // namespace ithaca::cpu
#endif
