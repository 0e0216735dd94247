// The gated activation of the CPU backend. Formulas: backend/reference.cpp.
#include <cstdint>

#include "backend/cpu/kernels.h"

// Instruction sets between AVX2 and the portable code, and variants of AVX-512 that add nothing here, would only cost
// compile time.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/swiglu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backend/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ithaca::cpu::HWY_NAMESPACE {
namespace {

// sigmoid(x) and 1 - sigmoid(x), each to a few 1e-8 relative also where it is tiny: both are made from e^-|x|.
template <class V>
struct Sigmoid {
  V value;
  V complement;
};

template <class D, class V>
HWY_INLINE Sigmoid<V> sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V decayed = exponential(d, hn::Neg(hn::Abs(x)));
  const V reciprocal = hn::Div(one, hn::Add(one, decayed));
  const V smaller = hn::Mul(decayed, reciprocal);
  const auto is_negative = hn::Lt(x, hn::Zero(d));
  return {hn::IfThenElse(is_negative, smaller, reciprocal), hn::IfThenElse(is_negative, reciprocal, smaller)};
}

void swiglu_forward(const SwigluForward& arguments) {
  for (int64_t token = 0; token < arguments.gate.extent(0); ++token) {
    const float* const gate = arguments.gate.as<float>() + token * arguments.gate.stride(0);
    const float* const up = arguments.up.as<float>() + token * arguments.up.stride(0);
    float* const output = arguments.output.as<float>() + token * arguments.output.stride(0);
    for_each(arguments.gate.extent(1), [=](auto d, int64_t i) HWY_ATTR {
      const auto x = hn::LoadU(d, gate + i);
      hn::StoreU(hn::Mul(hn::Mul(x, sigmoid(d, x).value), hn::LoadU(d, up + i)), d, output + i);
    });
  }
}

void swiglu_backward(const SwigluBackward& arguments) {
  for (int64_t token = 0; token < arguments.gate.extent(0); ++token) {
    const float* const doutput = arguments.doutput.as<float>() + token * arguments.doutput.stride(0);
    const float* const gate = arguments.gate.as<float>() + token * arguments.gate.stride(0);
    const float* const up = arguments.up.as<float>() + token * arguments.up.stride(0);
    float* const dgate = arguments.dgate.as<float>() + token * arguments.dgate.stride(0);
    float* const dup = arguments.dup.as<float>() + token * arguments.dup.stride(0);
    for_each(arguments.gate.extent(1), [=](auto d, int64_t i) HWY_ATTR {
      const auto x = hn::LoadU(d, gate + i);
      const auto s = sigmoid(d, x);
      const auto gradient = hn::LoadU(d, doutput + i);
      const auto slope = hn::Mul(s.value, hn::MulAdd(x, s.complement, hn::Set(d, 1.0f)));
      const auto from_up = hn::Mul(gradient, hn::Mul(x, s.value));
      hn::StoreU(hn::Mul(hn::Mul(gradient, hn::LoadU(d, up + i)), slope), d, dgate + i);
      hn::StoreU(from_up, d, dup + i);
    });
  }
}

}  // namespace
}  // namespace ithaca::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ithaca::cpu {

HWY_EXPORT(swiglu_forward);
HWY_EXPORT(swiglu_backward);

void swiglu_forward(const SwigluForward& arguments) {
  HWY_DYNAMIC_DISPATCH(swiglu_forward)(arguments);
}
void swiglu_backward(const SwigluBackward& arguments) {
  HWY_DYNAMIC_DISPATCH(swiglu_backward)(arguments);
}

}  // namespace ithaca::cpu
#endif
