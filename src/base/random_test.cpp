#include "base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>

namespace ithaca {
namespace {

// The first outputs of SplitMix64 seeded with 0 and with 1234567, as published with the generator's reference code.
TEST(MixBits, IsSplitMix64) {
  EXPECT_EQ(mix_bits(0), 0xE220A8397B1DCDAFull);
  EXPECT_EQ(mix_bits(0x9E3779B97F4A7C15ull), 0x6E789E6AA1B965F4ull);
  EXPECT_EQ(mix_bits(2 * 0x9E3779B97F4A7C15ull), 0x06C45D188009454Full);
  EXPECT_EQ(mix_bits(1234567), 6457827717110365317ull);
}

TEST(StableHash, DependsOnEveryByteAndOrder) {
  const std::set<uint64_t> hashes = {stable_hash(""),   stable_hash("a"),  stable_hash("b"),
                                     stable_hash("ab"), stable_hash("ba"), stable_hash("ab", 1)};
  EXPECT_EQ(hashes.size(), 6u);
  static_assert(stable_hash("model.embed_tokens.weight") == stable_hash("model.embed_tokens.weight"));
  // FNV-1a 64 of "a" is 0xAF63DC4C8601EC8C (published test vector); the hash is that, mixed.
  EXPECT_EQ(stable_hash("a"), mix_bits(0xAF63DC4C8601EC8Cull));
}

TEST(RandomStream, ValueDependsOnSeedNameAndIndexAlone) {
  const RandomStream first(7, "weights");
  const RandomStream same(7, "weights");
  EXPECT_EQ(first.bits(123), same.bits(123));
  EXPECT_EQ(first.normal(9), same.normal(9));
  EXPECT_NE(first.bits(123), first.bits(124));
  EXPECT_NE(first.bits(123), RandomStream(8, "weights").bits(123));
  EXPECT_NE(first.bits(123), RandomStream(7, "biases").bits(123));
}

TEST(RandomStream, UniformFillsTheUnitInterval) {
  const RandomStream random(1, "uniform");
  constexpr int count = 200000;
  double sum = 0.0;
  double square_sum = 0.0;
  for (int i = 0; i < count; ++i) {
    const double value = random.uniform(static_cast<uint64_t>(i));
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
    square_sum += value * value;
  }
  // Mean 1/2 and second moment 1/3, within 5 standard errors.
  EXPECT_NEAR(sum / count, 0.5, 5 * std::sqrt(1.0 / 12 / count));
  EXPECT_NEAR(square_sum / count, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / count));
}

TEST(RandomStream, NormalHasTheMomentsOfANormal) {
  const RandomStream random(2, "normal");
  constexpr int count = 200000;
  double moment1 = 0.0;
  double moment2 = 0.0;
  double moment4 = 0.0;
  double neighbours = 0.0;
  double previous = 0.0;
  for (int i = 0; i < count; ++i) {
    const double value = random.normal(static_cast<uint64_t>(i));
    ASSERT_TRUE(std::isfinite(value));
    moment1 += value;
    moment2 += value * value;
    moment4 += value * value * value * value;
    neighbours += value * previous;
    previous = value;
  }
  // Variances of the estimates: 1, 2, 96 and 1 over the count.
  EXPECT_NEAR(moment1 / count, 0.0, 5 * std::sqrt(1.0 / count));
  EXPECT_NEAR(moment2 / count, 1.0, 5 * std::sqrt(2.0 / count));
  EXPECT_NEAR(moment4 / count, 3.0, 5 * std::sqrt(96.0 / count));
  EXPECT_NEAR(neighbours / count, 0.0, 5 * std::sqrt(1.0 / count));
}

}  // namespace
}  // namespace ithaca
