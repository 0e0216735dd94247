#include "base/integer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ithaca {
namespace {

TEST(Integer, DivisionsRoundDownAndUp) {
  for (int64_t numerator = -20; numerator <= 20; ++numerator) {
    for (int64_t denominator = 1; denominator <= 7; ++denominator) {
      const double exact = static_cast<double>(numerator) / static_cast<double>(denominator);
      EXPECT_EQ(floor_divide(numerator, denominator), static_cast<int64_t>(std::floor(exact)));
      EXPECT_EQ(ceiling_divide(numerator, denominator), static_cast<int64_t>(std::ceil(exact)));
    }
  }
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(ceiling_divide(kLargest, 2), kLargest / 2 + 1);
  EXPECT_EQ(floor_divide(-kLargest, 2), -(kLargest / 2) - 1);
}

}  // namespace
}  // namespace ithaca
