// The loss of the CPU backend: cross entropy over rows of logits, with its gradient in place.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "backend/cpu/kernels.h"
#include "base/error.h"

// Instruction sets between AVX2 and the portable code, and variants of AVX-512 that add nothing here, would only cost
// compile time.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/cross_entropy.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backend/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ithaca::cpu::HWY_NAMESPACE {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// sum over i of e^(logits[i] - reference), where `reference` is the largest logit (0 if all are -inf).
struct ExponentialSum {
  float reference = 0.0f;
  double sum = 0.0;
};

// Goes over the row once, in pieces that stay in the first-level cache. NaN and +inf make the sum NaN.
ExponentialSum exponential_sum(const float* logits, int64_t size) {
  constexpr int64_t piece = 2048;
  float highest = kMinusInfinity;
  double sum = 0.0;
  for (int64_t begin = 0; begin < size; begin += piece) {
    const float* const values = logits + begin;
    const int64_t count = std::min(piece, size - begin);
    const FullTag full;
    const auto lanes = static_cast<int64_t>(hn::Lanes(full));
    auto largest = hn::Set(full, kMinusInfinity);
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) largest = hn::Max(largest, hn::LoadU(full, values + i));
    float piece_highest = hn::GetLane(hn::MaxOfLanes(full, largest));
    for (; i < count; ++i) piece_highest = std::max(piece_highest, values[i]);
    if (piece_highest > highest) {
      sum *= std::exp(static_cast<double>(highest) - static_cast<double>(piece_highest));
      highest = piece_highest;
    }
    const float reference = highest == kMinusInfinity ? 0.0f : highest;
    sum += sum_of(count, [=](auto d, int64_t j) HWY_ATTR {
      return exponential(d, hn::Sub(hn::LoadU(d, values + j), hn::Set(d, reference)));
    });
  }
  return {highest == kMinusInfinity ? 0.0f : highest, sum};
}

void cross_entropy(const CrossEntropy& arguments) {
  const Tensor& logits = arguments.logits;
  const int64_t vocabulary = logits.extent(1);
  const int64_t* const labels = arguments.labels.as<int64_t>();
  double loss = 0.0;
  for (int64_t token = 0; token < logits.extent(0); ++token) {
    float* const row = logits.as<float>() + token * logits.stride(0);
    const int64_t label = labels[token * arguments.labels.stride(0)];
    if (label != -100 && (label < 0 || label >= vocabulary)) {
      throw ContractError(
          fmt::format("cross_entropy: label {} of row {} is neither -100 nor in [0, {})", label, token, vocabulary));
    }
    const float weight = label == -100 ? 0.0f
                         : arguments.weights.is_absent()
                             ? 1.0f
                             : arguments.weights.as<float>()[token * arguments.weights.stride(0)];
    // A row that does not count contributes exactly nothing, whatever its logits are.
    if (weight == 0.0f) {
      if (arguments.with_gradient) std::fill_n(row, vocabulary, 0.0f);
      continue;
    }
    const ExponentialSum exponentials = exponential_sum(row, vocabulary);
    const float reference = exponentials.reference;
    const double distance = static_cast<double>(row[label]) - static_cast<double>(reference);
    loss += static_cast<double>(weight) * (std::log(exponentials.sum) - distance);
    if (!arguments.with_gradient) continue;
    const double scale = static_cast<double>(weight) * arguments.gradient_scale;
    const auto factor = static_cast<float>(scale / exponentials.sum);
    for_each(vocabulary, [=](auto d, int64_t i) HWY_ATTR {
      const auto value = exponential(d, hn::Sub(hn::LoadU(d, row + i), hn::Set(d, reference)));
      hn::StoreU(hn::Mul(value, hn::Set(d, factor)), d, row + i);
    });
    row[label] = static_cast<float>((std::exp(distance) / exponentials.sum - 1.0) * scale);
  }
  *arguments.loss_sum.as<double>() += loss;
}

}  // namespace
}  // namespace ithaca::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ithaca::cpu {

HWY_EXPORT(cross_entropy);

void cross_entropy(const CrossEntropy& arguments) {
  HWY_DYNAMIC_DISPATCH(cross_entropy)(arguments);
}

}  // namespace ithaca::cpu
#endif
