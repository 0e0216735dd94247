// Division of integers with a chosen rounding. Thread-safety: pure functions.
#pragma once

#include <cstdint>

namespace ithaca {

// Rounded towards minus infinity; `denominator` > 0.
constexpr int64_t floor_divide(int64_t numerator, int64_t denominator) {
  const int64_t quotient = numerator / denominator;
  return quotient - (numerator % denominator < 0 ? 1 : 0);
}

// Rounded towards plus infinity; `denominator` > 0.
constexpr int64_t ceiling_divide(int64_t numerator, int64_t denominator) {
  const int64_t quotient = numerator / denominator;
  return quotient + (numerator % denominator > 0 ? 1 : 0);
}

}  // namespace ithaca
