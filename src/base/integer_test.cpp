#include "base/integer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/evenly_spaced.h"

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

TEST(EvenlySpaced, FromTheFirstToTheLast) {
  EXPECT_EQ(evenly_spaced(0, 4), (std::vector<int64_t>{}));
  EXPECT_EQ(evenly_spaced(3, 4), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(evenly_spaced(4, 4), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(evenly_spaced(11, 4), (std::vector<int64_t>{0, 3, 6, 10}));
}

}  // namespace
}  // namespace ithaca
