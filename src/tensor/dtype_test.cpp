#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace ithaca {
namespace {

TEST(DTypes, HaveSizesAndNames) {
  EXPECT_EQ(element_size(DType::float32), 4);
  EXPECT_EQ(element_size(DType::float64), 8);
  EXPECT_EQ(element_size(DType::bfloat16), 2);
  EXPECT_EQ(element_size(DType::float16), 2);
  EXPECT_EQ(element_size(DType::int32), 4);
  EXPECT_EQ(element_size(DType::int64), 8);
  EXPECT_EQ(element_size(DType::uint8), 1);
  EXPECT_EQ(dtype_name(DType::bfloat16), "bfloat16");
  EXPECT_EQ(dtype_name(DType::int64), "int64");
}

bool is_nan_bits(uint16_t bits, uint16_t exponent_mask) {
  return (bits & exponent_mask) == exponent_mask && (bits & ~(exponent_mask | 0x8000u) & 0xFFFFu) != 0;
}

// The value of a 16-bit float by definition: sign, exponent and mantissa, in double.
double defined_value(uint16_t bits, int mantissa_bits, int exponent_bias) {
  const int exponent = (bits & 0x7FFF) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - exponent_bias);
  if (exponent == (1 << (15 - mantissa_bits)) - 1) return sign * std::numeric_limits<double>::infinity();
  return sign * std::ldexp(1.0 + fraction, exponent - exponent_bias);
}

TEST(Float16s, EveryValueIsReadByDefinitionAndSurvivesARoundTrip) {
  for (uint32_t pattern = 0; pattern <= 0xFFFF; ++pattern) {
    const auto bits = static_cast<uint16_t>(pattern);
    const float value = to_float(Float16{bits});
    if (is_nan_bits(bits, 0x7C00)) {
      ASSERT_TRUE(std::isnan(value)) << pattern;
      ASSERT_TRUE(std::isnan(to_float(to_float16(value)))) << pattern;
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), defined_value(bits, 10, 15)) << pattern;
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << pattern;
    ASSERT_EQ(to_float16(value).bits, bits) << pattern;
  }
}

TEST(BFloat16s, EveryValueIsReadByDefinitionAndSurvivesARoundTrip) {
  for (uint32_t pattern = 0; pattern <= 0xFFFF; ++pattern) {
    const auto bits = static_cast<uint16_t>(pattern);
    const float value = to_float(BFloat16{bits});
    if (is_nan_bits(bits, 0x7F80)) {
      ASSERT_TRUE(std::isnan(value)) << pattern;
      ASSERT_TRUE(std::isnan(to_float(to_bfloat16(value)))) << pattern;
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), defined_value(bits, 7, 127)) << pattern;
    ASSERT_EQ(to_bfloat16(value).bits, bits) << pattern;
  }
}

// Between two neighbours: the middle goes to the even one, and everything else to the nearer one.
template <typename Half, typename Convert>
void check_rounding_between_all_neighbours(uint16_t largest, Convert convert) {
  for (uint16_t bits = 0; bits < largest; ++bits) {
    const double low = static_cast<double>(to_float(Half{bits}));
    const double high = static_cast<double>(to_float(Half{static_cast<uint16_t>(bits + 1)}));
    const auto middle = static_cast<float>((low + high) / 2);  // exact: one bit more than the half has
    const uint16_t even = (bits & 1) == 0 ? bits : static_cast<uint16_t>(bits + 1);
    ASSERT_EQ(convert(middle).bits, even) << bits;
    ASSERT_EQ(convert(-middle).bits, even | 0x8000) << bits;
    ASSERT_EQ(convert(std::nextafter(middle, 0.0f)).bits, bits) << bits;
    ASSERT_EQ(convert(std::nextafter(middle, std::numeric_limits<float>::infinity())).bits, bits + 1) << bits;
  }
}

TEST(Float16s, RoundToNearestEven) {
  check_rounding_between_all_neighbours<Float16>(0x7BFF, [](float value) { return to_float16(value); });
}

TEST(BFloat16s, RoundToNearestEven) {
  check_rounding_between_all_neighbours<BFloat16>(0x7F7F, [](float value) { return to_bfloat16(value); });
}

TEST(Float16s, OverflowBecomesInfinity) {
  EXPECT_EQ(to_float16(65504.0f).bits, 0x7BFF);
  EXPECT_EQ(to_float16(std::nextafter(65520.0f, 0.0f)).bits, 0x7BFF);
  EXPECT_EQ(to_float16(65520.0f).bits, 0x7C00);
  EXPECT_EQ(to_float16(-65520.0f).bits, 0xFC00);
  EXPECT_EQ(to_float16(std::numeric_limits<float>::max()).bits, 0x7C00);
  EXPECT_EQ(to_float16(std::numeric_limits<float>::infinity()).bits, 0x7C00);
}

TEST(BFloat16s, OverflowBecomesInfinity) {
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_EQ(to_bfloat16(-std::numeric_limits<float>::max()).bits, 0xFF80);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::infinity()).bits, 0x7F80);
}

TEST(HalfFloats, TinyNumbersKeepTheirSign) {
  EXPECT_EQ(to_float16(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(to_float16(-std::numeric_limits<float>::denorm_min()).bits, 0x8000);
  EXPECT_EQ(to_float16(0x1.0p-25f).bits, 0);  // half of the smallest subnormal: a tie, to even
  EXPECT_EQ(to_float16(std::nextafter(0x1.0p-25f, 1.0f)).bits, 1);
  EXPECT_EQ(to_bfloat16(-0.0f).bits, 0x8000);
}

TEST(HalfFloats, EveryNaNStaysNaN) {
  // Payloads whose upper bits are all zero would turn into infinity if they were just cut off.
  for (const uint32_t bits : {0x7F800001u, 0xFF800001u, 0x7FC00000u, 0x7F80FFFFu, 0xFFFFFFFFu}) {
    const auto value = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(to_float(to_float16(value)))) << bits;
    EXPECT_TRUE(std::isnan(to_float(to_bfloat16(value)))) << bits;
    EXPECT_EQ(std::signbit(to_float(to_float16(value))), std::signbit(value)) << bits;
  }
}

}  // namespace
}  // namespace ithaca
