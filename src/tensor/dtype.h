// Element types, and the rounding conversions between them.
// Thread-safety: pure functions.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace ithaca {

enum class DType : uint8_t { float32, float64, bfloat16, float16, int32, int64, uint8 };

// Bytes of one element.
int64_t element_size(DType dtype);

// "float32", "bfloat16", ...
std::string_view dtype_name(DType dtype);

// Bits of a bfloat16 / IEEE half; arithmetic is always done in float.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

inline float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
float to_float(Float16 value);

// Round to nearest, ties to even; NaN stays NaN.
inline BFloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}
Float16 to_float16(float value);

// The DType of a C++ type; specialised for exactly the types above.
template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::float32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::float64;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::bfloat16;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::float16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::int32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::int64;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::uint8;
};

}  // namespace ithaca
