#include "model/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace ithaca {

namespace {

// theta ^ (2i / head_size) for every pair of dimensions: what the wavelengths are proportional to. Each operation is
// rounded to float32 on its own, as in an eager tensor library; so are all formulas below.
std::vector<float> powers_of_theta(float theta, int64_t head_size) {
  std::vector<float> powers;
  powers.reserve(static_cast<size_t>(head_size / 2));
  for (int64_t dimension = 0; dimension < head_size; dimension += 2) {
    const float exponent = static_cast<float>(dimension) / static_cast<float>(head_size);
    powers.push_back(std::pow(theta, exponent));
  }
  return powers;
}

std::vector<float> inverses(const std::vector<float>& powers) {
  std::vector<float> result;
  result.reserve(powers.size());
  for (const float power : powers) result.push_back(1.0f / power);
  return result;
}

// theta grows with the length once that exceeds max_positions, so that the slowest dimension is stretched by it:
// theta (factor L / L0 - (factor - 1)) ^ (d / (d - 2)).
float dynamic_theta(const RopeDescription& rope, int64_t head_size, int64_t max_positions, int64_t sequence_length) {
  if (sequence_length <= max_positions) return static_cast<float>(rope.theta);
  const auto factor = static_cast<float>(rope.factor);
  const float stretched = factor * static_cast<float>(sequence_length) / static_cast<float>(max_positions);
  const float growth = stretched - static_cast<float>(rope.factor - 1.0);
  const double exponent = static_cast<double>(head_size) / static_cast<double>(head_size - 2);
  return static_cast<float>(rope.theta) * std::pow(growth, static_cast<float>(exponent));
}

// Wavelengths longer than original / low are divided by the factor, those shorter than original / high are kept, and
// between them the two are blended linearly in the number of turns that fit into the original length.
void apply_llama3(const RopeDescription& rope, std::vector<float>& frequencies) {
  const auto original = static_cast<double>(rope.original_max_positions);
  const auto longest_blended = static_cast<float>(original / rope.low_frequency_factor);
  const auto shortest_blended = static_cast<float>(original / rope.high_frequency_factor);
  const auto low = static_cast<float>(rope.low_frequency_factor);
  const auto range = static_cast<float>(rope.high_frequency_factor - rope.low_frequency_factor);
  const auto factor = static_cast<float>(rope.factor);
  for (float& frequency : frequencies) {
    // A number divided by a tensor is computed as reciprocal times number there.
    const float wavelength = (1.0f / frequency) * static_cast<float>(2.0 * std::numbers::pi);
    if (wavelength > longest_blended) {
      frequency = frequency / factor;
    } else if (!(wavelength < shortest_blended)) {
      const float turns = (1.0f / wavelength) * static_cast<float>(original);
      const float kept = (turns - low) / range;
      const float scaled_part = (1.0f - kept) * frequency / factor;
      frequency = scaled_part + kept * frequency;
    }
  }
}

// The (fractional) pair of dimensions that turns `rotations` times within the original length.
double correction_dimension(const RopeDescription& rope, int64_t head_size, double rotations) {
  const double turns = static_cast<double>(rope.original_max_positions) / (rotations * 2.0 * std::numbers::pi);
  return static_cast<double>(head_size) * std::log(turns) / (2.0 * std::log(rope.theta));
}

// Frequencies that turn more than beta_fast times are kept, those that turn less than beta_slow times are divided by
// the factor, with a linear ramp over the dimensions between.
std::vector<float> yarn_frequencies(const RopeDescription& rope, int64_t head_size) {
  double low = correction_dimension(rope, head_size, rope.beta_fast);
  double high = correction_dimension(rope, head_size, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_size - 1));
  if (low == high) high += 0.001;  // a step instead of a division by zero

  const std::vector<float> powers = powers_of_theta(static_cast<float>(rope.theta), head_size);
  std::vector<float> frequencies;
  frequencies.reserve(powers.size());
  for (size_t pair = 0; pair < powers.size(); ++pair) {
    const float kept = 1.0f / powers[pair];
    const float scaled = 1.0f / (static_cast<float>(rope.factor) * powers[pair]);
    const float position = (static_cast<float>(pair) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float keep = 1.0f - std::clamp(position, 0.0f, 1.0f);
    const float scaled_part = scaled * (1.0f - keep);
    const float kept_part = kept * keep;
    frequencies.push_back(scaled_part + kept_part);
  }
  return frequencies;
}

double yarn_scale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double yarn_attention_factor(const RopeDescription& rope) {
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.mscale && rope.mscale_all_dimensions) {
    return yarn_scale(rope.factor, *rope.mscale) / yarn_scale(rope.factor, *rope.mscale_all_dimensions);
  }
  return yarn_scale(rope.factor, 1.0);
}

}  // namespace

RopeFrequencies rope_frequencies(const RopeDescription& rope, int64_t head_size, int64_t max_positions,
                                 int64_t sequence_length) {
  require(head_size > 0 && head_size % 2 == 0, fmt::format("RoPE needs an even head size, not {}", head_size));
  require(max_positions > 0, "RoPE needs max_positions above 0");
  const auto theta = static_cast<float>(rope.theta);
  RopeFrequencies result;
  switch (rope.kind) {
    case RopeKind::standard:
      result.inverse_frequencies = inverses(powers_of_theta(theta, head_size));
      break;
    case RopeKind::linear:
      result.inverse_frequencies = inverses(powers_of_theta(theta, head_size));
      for (float& frequency : result.inverse_frequencies) frequency /= static_cast<float>(rope.factor);
      break;
    case RopeKind::dynamic:
      require(head_size > 2, "dynamic RoPE needs a head size above 2");
      result.inverse_frequencies =
          inverses(powers_of_theta(dynamic_theta(rope, head_size, max_positions, sequence_length), head_size));
      break;
    case RopeKind::llama3:
      result.inverse_frequencies = inverses(powers_of_theta(theta, head_size));
      apply_llama3(rope, result.inverse_frequencies);
      break;
    case RopeKind::yarn:
      result.inverse_frequencies = yarn_frequencies(rope, head_size);
      result.attention_factor = static_cast<float>(yarn_attention_factor(rope));
      break;
  }
  return result;
}

}  // namespace ithaca
