#include "data/packing/deal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/random.h"

namespace ithaca {
namespace {

using testing::ElementsAre;

TEST(Deal, EvenParts) {
  EXPECT_EQ(even_part(7, 0, 3), std::pair(int64_t{0}, int64_t{3}));
  EXPECT_EQ(even_part(7, 1, 3), std::pair(int64_t{3}, int64_t{5}));
  EXPECT_EQ(even_part(7, 2, 3), std::pair(int64_t{5}, int64_t{7}));
  EXPECT_EQ(even_part(1, 1, 3), std::pair(int64_t{1}, int64_t{1}));
}

TEST(Deal, ByHand) {
  // 9 to the first, 7 to the second, 6 to the second (7 < 9), 5 to the first; then both are full.
  const std::vector<double> costs = {5, 9, 6, 7};
  EXPECT_THAT(deal_evenly(costs, 2), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  // Equal costs go around.
  EXPECT_THAT(deal_evenly(std::vector<double>(5, 1.0), 2), ElementsAre(ElementsAre(0, 2, 4), ElementsAre(1, 3)));
  EXPECT_THAT(deal_evenly({}, 2), ElementsAre(ElementsAre(), ElementsAre()));
  EXPECT_THROW(deal_evenly(costs, 0), ContractError);
}

TEST(Deal, EveryItemOnceAsEvenlyAsCanBe) {
  const RandomStream random(1, "deal");
  for (uint64_t round = 0; round < 200; ++round) {
    const auto micro_batch = static_cast<int64_t>(1 + random.bits(5 * round) % 4);
    const auto accumulation = static_cast<int64_t>(1 + random.bits(5 * round + 1) % 5);
    const auto dp = static_cast<int64_t>(1 + random.bits(5 * round + 2) % 6);
    const auto most = static_cast<uint64_t>(micro_batch * accumulation * dp);
    std::vector<double> costs(1 + random.bits(5 * round + 3) % most);
    for (size_t i = 0; i < costs.size(); ++i) costs[i] = static_cast<double>(random.bits(1000 * round + i) % 50);
    const auto deal = deal_step(costs, dp, accumulation);
    ASSERT_EQ(static_cast<int64_t>(deal.size()), dp);
    std::multiset<int64_t> seen;
    std::vector<bool> used(deal[0].size(), false);
    for (const auto& rank : deal) {
      ASSERT_EQ(rank.size(), deal[0].size());
      ASSERT_LE(static_cast<int64_t>(rank.size()), accumulation);
      size_t own = 0;
      for (size_t batch = 0; batch < rank.size(); ++batch) {
        EXPECT_LE(static_cast<int64_t>(rank[batch].size()), micro_batch);
        used[batch] = used[batch] || !rank[batch].empty();
        own += rank[batch].size();
        seen.insert(rank[batch].begin(), rank[batch].end());
      }
      EXPECT_GE(own, costs.size() / static_cast<size_t>(dp));
      EXPECT_LE(own, (costs.size() - 1) / static_cast<size_t>(dp) + 1);
    }
    EXPECT_TRUE(std::all_of(used.begin(), used.end(), [](bool each) { return each; }));
    std::multiset<int64_t> expected;
    for (size_t i = 0; i < costs.size(); ++i) expected.insert(static_cast<int64_t>(i));
    EXPECT_EQ(seen, expected);
    const double lost = deal_imbalance(deal, costs);
    EXPECT_GE(lost, -1e-12);
    EXPECT_LT(lost, 1.0);
  }
}

// Long-tailed costs, as of documents: far less waiting than when dealt as they come.
TEST(Deal, BalancesTheWork) {
  const RandomStream random(2, "costs");
  std::vector<double> costs(128);
  for (size_t i = 0; i < costs.size(); ++i) costs[i] = std::exp(2.0 * random.normal(i));
  std::vector<std::vector<std::vector<int64_t>>> as_they_come(4);
  for (int64_t rank = 0; rank < 4; ++rank) {
    const auto [begin, end] = even_part(128, rank, 4);
    std::vector<int64_t> own(static_cast<size_t>(end - begin));
    std::iota(own.begin(), own.end(), begin);
    as_they_come[static_cast<size_t>(rank)] = {own};
  }
  const double plain = deal_imbalance(as_they_come, costs);
  const double dealt = deal_imbalance(deal_step(costs, 4, 1), costs);
  EXPECT_LT(dealt, 0.1 * plain);
  EXPECT_EQ(deal_imbalance({{{0}, {1}}, {{2}, {3}}}, std::vector<double>{4, 1, 2, 1}), 1.0 - 8.0 / 10.0);
}

}  // namespace
}  // namespace ithaca
