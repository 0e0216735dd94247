// Rotary positions of the CPU backend, with the optional RMS normalisation of heads. Formulas: backend/reference.cpp.
#include <cmath>
#include <cstdint>

#include "backend/cpu/kernels.h"
#include "backend/cpu/weight_sum.h"

// Instruction sets between AVX2 and the portable code, and variants of AVX-512 that add nothing here, would only cost
// compile time.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/rope.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backend/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ithaca::cpu::HWY_NAMESPACE {
namespace {

// The rows of one token's table, or nothing to rotate by.
struct Rotation {
  const float* cosine = nullptr;
  const float* sine = nullptr;
};

Rotation rotation_of(const Tensor& cosine, const Tensor& sine, int64_t token) {
  if (cosine.is_absent()) return {};
  return {cosine.as<float>() + token * cosine.stride(0), sine.as<float>() + token * sine.stride(0)};
}

// Per head: x -> rotation of (x * inverse * weight), where weight may be null (no normalisation).
void forward_head(const float* x, const float* weight, float inverse, const Rotation& rotation, int64_t size,
                  float* output) {
  const auto normalised = [=](auto d, int64_t i) HWY_ATTR {
    const auto value = hn::LoadU(d, x + i);
    if (weight == nullptr) return value;
    return hn::Mul(hn::Mul(value, hn::Set(d, inverse)), hn::LoadU(d, weight + i));
  };
  if (rotation.cosine == nullptr) {
    for_each(size, [=](auto d, int64_t i) HWY_ATTR { hn::StoreU(normalised(d, i), d, output + i); });
    return;
  }
  const int64_t half = size / 2;
  for_each(half, [=](auto d, int64_t i) HWY_ATTR {
    const auto first = normalised(d, i);
    const auto second = normalised(d, i + half);
    const auto cosine = hn::LoadU(d, rotation.cosine + i);
    const auto sine = hn::LoadU(d, rotation.sine + i);
    hn::StoreU(hn::NegMulAdd(second, sine, hn::Mul(first, cosine)), d, output + i);
    hn::StoreU(hn::MulAdd(first, sine, hn::Mul(second, cosine)), d, output + half + i);
  });
}

void head_rope_forward(const HeadRopeForward& arguments) {
  const Tensor& input = arguments.input;
  const int64_t size = input.extent(2);
  const float* const weight = arguments.norm_weight.is_absent() ? nullptr : arguments.norm_weight.as<float>();
  for (int64_t token = 0; token < input.extent(0); ++token) {
    const Rotation rotation = rotation_of(arguments.cosine, arguments.sine, token);
    for (int64_t head = 0; head < input.extent(1); ++head) {
      const float* const x = input.as<float>() + token * input.stride(0) + head * input.stride(1);
      float* const output =
          arguments.output.as<float>() + token * arguments.output.stride(0) + head * arguments.output.stride(1);
      float inverse = 1.0f;
      if (weight != nullptr) {
        const double square_sum = sum_of(size, [=](auto d, int64_t i) HWY_ATTR {
          const auto value = hn::LoadU(d, x + i);
          return hn::Mul(value, value);
        });
        inverse = static_cast<float>(
            1.0 / std::sqrt(square_sum / static_cast<double>(size) + static_cast<double>(arguments.epsilon)));
        if (!arguments.inverse_rms.is_absent()) {
          arguments.inverse_rms
              .as<float>()[token * arguments.inverse_rms.stride(0) + head * arguments.inverse_rms.stride(1)] = inverse;
        }
      }
      forward_head(x, weight, inverse, rotation, size, output);
    }
  }
}

// One head of the backward pass. The gradient of the normalised head, i.e. doutput rotated back, is made on the fly.
struct BackwardHead {
  const float* dy = nullptr;
  const float* x = nullptr;  // with weight only
  const float* weight = nullptr;
  float inverse = 1.0f;
  Rotation rotation;
  int64_t size = 0;
  float* dx = nullptr;
};

// Calls visit(d, i, gradient of element i) for every element; pairs are visited one after the other.
template <class Visit>
HWY_INLINE void for_each_rotated_back(const BackwardHead& head, const Visit& visit) {
  const float* const dy = head.dy;
  if (head.rotation.cosine == nullptr) {
    for_each(head.size, [=](auto d, int64_t i) HWY_ATTR { visit(d, i, hn::LoadU(d, dy + i)); });
    return;
  }
  const int64_t half = head.size / 2;
  const Rotation rotation = head.rotation;
  for_each(half, [=](auto d, int64_t i) HWY_ATTR {
    const auto first = hn::LoadU(d, dy + i);
    const auto second = hn::LoadU(d, dy + half + i);
    const auto cosine = hn::LoadU(d, rotation.cosine + i);
    const auto sine = hn::LoadU(d, rotation.sine + i);
    visit(d, i, hn::MulAdd(second, sine, hn::Mul(first, cosine)));
    visit(d, i + half, hn::NegMulAdd(first, sine, hn::Mul(second, cosine)));
  });
}

void backward_head(const BackwardHead& head, float* piece) {
  float* const dx = head.dx;
  if (head.weight == nullptr) {
    for_each_rotated_back(head, [=](auto d, int64_t i, auto gradient) HWY_ATTR { hn::StoreU(gradient, d, dx + i); });
    return;
  }
  const float* const x = head.x;
  const float* const weight = head.weight;
  const float inverse = head.inverse;
  // dx holds weight * gradient until the projection on x is known.
  for_each_rotated_back(head, [=](auto d, int64_t i, auto gradient) HWY_ATTR {
    if (piece != nullptr) {
      const auto normalised = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse));
      hn::StoreU(hn::MulAdd(normalised, gradient, hn::LoadU(d, piece + i)), d, piece + i);
    }
    hn::StoreU(hn::Mul(gradient, hn::LoadU(d, weight + i)), d, dx + i);
  });
  const double product =
      sum_of(head.size, [=](auto d, int64_t i) HWY_ATTR { return hn::Mul(hn::LoadU(d, dx + i), hn::LoadU(d, x + i)); });
  const auto projection =
      static_cast<float>(product / static_cast<double>(head.size) * static_cast<double>(inverse) * inverse);
  for_each(head.size, [=](auto d, int64_t i) HWY_ATTR {
    const auto gradient = hn::NegMulAdd(hn::LoadU(d, x + i), hn::Set(d, projection), hn::LoadU(d, dx + i));
    hn::StoreU(hn::Mul(hn::Set(d, inverse), gradient), d, dx + i);
  });
}

void head_rope_backward(const HeadRopeBackward& arguments, WeightSumSpace space) {
  const Tensor& doutput = arguments.doutput;
  const bool with_norm = !arguments.norm_weight.is_absent();
  WeightSum weight_sum(space);
  for (int64_t token = 0; token < doutput.extent(0); ++token) {
    BackwardHead row;
    row.size = doutput.extent(2);
    row.rotation = rotation_of(arguments.cosine, arguments.sine, token);
    for (int64_t head = 0; head < doutput.extent(1); ++head) {
      row.dy = doutput.as<float>() + token * doutput.stride(0) + head * doutput.stride(1);
      row.dx = arguments.dinput.as<float>() + token * arguments.dinput.stride(0) + head * arguments.dinput.stride(1);
      if (with_norm) {
        row.x = arguments.input.as<float>() + token * arguments.input.stride(0) + head * arguments.input.stride(1);
        row.weight = arguments.norm_weight.as<float>();
        row.inverse =
            arguments.inverse_rms
                .as<float>()[token * arguments.inverse_rms.stride(0) + head * arguments.inverse_rms.stride(1)];
      }
      backward_head(row, weight_sum.piece());
      weight_sum.row_added();
    }
  }
  if (weight_sum.is_wanted()) weight_sum.finish(arguments.dnorm_weight.as<float>());
}

}  // namespace
}  // namespace ithaca::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ithaca::cpu {

HWY_EXPORT(head_rope_forward);
HWY_EXPORT(head_rope_backward);

void head_rope_forward(const HeadRopeForward& arguments) {
  HWY_DYNAMIC_DISPATCH(head_rope_forward)(arguments);
}

void head_rope_backward(const HeadRopeBackward& arguments, WeightSumSpace space) {
  HWY_DYNAMIC_DISPATCH(head_rope_backward)(arguments, space);
}

// The angle is rounded to float32 as Hugging Face does; the C library reduces it over the full range.
void rope_table(const RopeTable& arguments) {
  const int64_t* const positions = arguments.position_ids.as<int64_t>();
  const float* const frequencies = arguments.inverse_frequencies.as<float>();
  const float factor = arguments.attention_factor;
  for (int64_t token = 0; token < arguments.position_ids.extent(0); ++token) {
    const auto position = static_cast<float>(positions[token * arguments.position_ids.stride(0)]);
    float* const cosine = arguments.cosine.as<float>() + token * arguments.cosine.stride(0);
    float* const sine = arguments.sine.as<float>() + token * arguments.sine.stride(0);
    for (int64_t i = 0; i < arguments.inverse_frequencies.extent(0); ++i) {
      const float angle = position * frequencies[i];
      cosine[i] = std::cos(angle) * factor;
      sine[i] = std::sin(angle) * factor;
    }
  }
}

}  // namespace ithaca::cpu
#endif
