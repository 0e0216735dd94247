#include "data/epoch_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace ithaca {
namespace {

std::vector<int64_t> all(const EpochOrder& order, int64_t count) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(order.at(i));
  return values;
}

// As a list and without one.
TEST(EpochOrder, IsAPermutation) {
  for (const int64_t largest_list : {EpochOrder::kLargestList, int64_t{0}}) {
    for (const int64_t count : {1, 2, 3, 5, 16, 17, 1000, 4099}) {
      std::vector<int64_t> values = all(EpochOrder(count, 1, "x", largest_list), count);
      std::sort(values.begin(), values.end());
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(values[static_cast<size_t>(i)], i);
    }
  }
}

TEST(EpochOrder, IsAFunctionOfSeedAndName) {
  for (const int64_t largest_list : {EpochOrder::kLargestList, int64_t{0}}) {
    const auto order = [&](int64_t seed, const char* name) {
      return all(EpochOrder(500, seed, name, largest_list), 500);
    };
    EXPECT_EQ(order(1, "x"), order(1, "x"));
    EXPECT_NE(order(1, "x"), order(2, "x"));
    EXPECT_NE(order(1, "x"), order(1, "y"));
  }
}

// Where a sequence comes has nothing to do with its number: no correlation of the two, and every place is as likely.
TEST(EpochOrder, LooksRandomWithoutAList) {
  constexpr int64_t kCount = 20000;
  const EpochOrder order(kCount, 3, "x", 0);
  double sum = 0.0;
  int64_t fixed = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const double mean = 0.5 * static_cast<double>(kCount - 1);
    sum += (static_cast<double>(i) - mean) * (static_cast<double>(order.at(i)) - mean);
    fixed += order.at(i) == i ? 1 : 0;
  }
  const double variance = static_cast<double>(kCount) * static_cast<double>(kCount) / 12.0;
  EXPECT_LT(std::abs(sum / (variance * static_cast<double>(kCount))), 5.0 / std::sqrt(kCount));
  EXPECT_LT(fixed, 10);
  std::vector<int64_t> first_places(8, 0);
  for (int64_t seed = 0; seed < 4000; ++seed) ++first_places[static_cast<size_t>(EpochOrder(8, seed, "x", 0).at(0))];
  for (const int64_t times : first_places) EXPECT_NEAR(static_cast<double>(times), 500.0, 120.0);
}

TEST(EpochOrder, BeyondWhatFitsIntoMemory) {
  const EpochOrder order(int64_t{1} << 40, 1, "x");
  EXPECT_NE(order.at(0), order.at(1));
  EXPECT_THROW(order.at(int64_t{1} << 40), ContractError);
  EXPECT_THROW(order.at(-1), ContractError);
}

}  // namespace
}  // namespace ithaca
