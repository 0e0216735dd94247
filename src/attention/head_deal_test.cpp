#include "attention/head_deal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "attention/communication_cost.h"
#include "attention/local_attention.h"
#include "base/error.h"

namespace ithaca {
namespace {

std::vector<int64_t> deal_of(int64_t query_heads, int64_t key_heads, int ranks) {
  const HeadDeal deal(query_heads, key_heads, ranks, true);
  std::vector<int64_t> sizes;
  for (int rank = 0; rank < ranks; ++rank) sizes.push_back(deal.query_heads(rank).count());
  return sizes;
}

TEST(HeadDeal, KnownDeals) {
  EXPECT_EQ(deal_of(28, 4, 8), (std::vector<int64_t>{4, 3, 4, 3, 4, 3, 4, 3}));
  EXPECT_EQ(deal_of(40, 8, 8), (std::vector<int64_t>(8, 5)));
  // As even as any deal, and the one with the fewest split groups: 6 heads in 3 pairs.
  EXPECT_EQ(deal_of(6, 3, 4), (std::vector<int64_t>{2, 2, 1, 1}));
  EXPECT_EQ(HeadDeal(6, 3, 4, true).key_head_copies(), 4);
  EXPECT_EQ(deal_of(6, 3, 5), (std::vector<int64_t>{2, 1, 1, 1, 1}));
  EXPECT_EQ(deal_of(5, 1, 4), (std::vector<int64_t>{2, 1, 1, 1}));
  EXPECT_EQ(HeadDeal(5, 1, 4, true).key_head_copies(), 4);
  EXPECT_EQ(HeadDeal(28, 4, 8, true).key_head_copies(), 8);
  EXPECT_EQ(HeadDeal(32, 8, 4, true).key_head_copies(), 8);
}

// The fewest copies of key heads over all even deals, by trying them all.
int64_t fewest_copies(int64_t query_heads, int64_t key_heads, int ranks) {
  const int64_t group = query_heads / key_heads;
  int64_t fewest = INT64_MAX;
  std::vector<int64_t> sizes(static_cast<size_t>(ranks), query_heads / ranks);
  for (int64_t rank = 0; rank < query_heads % ranks; ++rank) ++sizes[static_cast<size_t>(rank)];
  std::sort(sizes.begin(), sizes.end());
  do {
    int64_t copies = 0;
    int64_t begin = 0;
    for (const int64_t size : sizes) {
      copies += (begin + size - 1) / group - begin / group + 1;
      begin += size;
    }
    fewest = std::min(fewest, copies);
  } while (std::next_permutation(sizes.begin(), sizes.end()));
  return fewest;
}

TEST(HeadDeal, EvenWithFewestCopiesOfKeyHeads) {
  for (const auto& [query_heads, key_heads] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {4, 2}, {5, 1}, {6, 3}, {6, 2}, {8, 8}, {9, 3}, {10, 5}, {12, 4}, {14, 2}, {28, 4}}) {
    for (int ranks = 1; ranks <= std::min<int64_t>(query_heads, 9); ++ranks) {
      const HeadDeal deal(query_heads, key_heads, ranks, true);
      int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const HeadRange queries = deal.query_heads(rank);
        EXPECT_EQ(queries.begin, next);
        EXPECT_GE(queries.count(), query_heads / ranks);
        EXPECT_LE(queries.count(), (query_heads + ranks - 1) / ranks);
        next = queries.end;
      }
      EXPECT_EQ(next, query_heads);
      EXPECT_EQ(deal.key_head_copies(), fewest_copies(query_heads, key_heads, ranks))
          << query_heads << "/" << key_heads << " on " << ranks;
    }
  }
}

TEST(HeadDeal, GroupsCoverHeadsOnceAndMoveEachKeyHeadOnce) {
  for (const auto& [may_cut, most_groups] : std::vector<std::pair<bool, int>>{
           {false, kLargestHeadGroups}, {true, kLargestHeadGroups}, {false, 2}, {true, 3}, {true, 1}}) {
    for (const auto& [query_heads, key_heads] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {4, 2}, {5, 1}, {6, 3}, {12, 12}, {28, 4}, {40, 8}}) {
      for (int ranks = 1; ranks <= std::min<int64_t>(query_heads, 9); ++ranks) {
        const HeadDeal deal(query_heads, key_heads, ranks, may_cut, most_groups);
        EXPECT_LE(deal.groups(), most_groups);
        for (int rank = 0; rank < ranks; ++rank) {
          const HeadRange keys = deal.key_heads(rank);
          int64_t next_query = deal.query_heads(rank).begin;
          int64_t next_arrival = keys.begin;
          int64_t next_leave = keys.begin;
          for (int index = 0; index < deal.groups(); ++index) {
            const HeadGroup group = deal.group(rank, index);
            if (group.query.count() == 0) continue;
            EXPECT_EQ(group.query.begin, next_query);
            next_query = group.query.end;
            EXPECT_EQ(group.key, deal.key_heads_of(group.query));
            if (group.key_arrives.count() > 0) {
              EXPECT_EQ(group.key_arrives.begin, next_arrival);
              next_arrival = group.key_arrives.end;
            }
            EXPECT_GE(next_arrival, group.key.end) << "a key head is needed before it has arrived";
            if (!may_cut) {
              EXPECT_EQ(group.key_arrives, group.key);
              EXPECT_EQ(group.key_leaves, group.key);
            }
            if (group.key_leaves.count() > 0) {
              EXPECT_EQ(group.key_leaves.begin, next_leave);
              next_leave = group.key_leaves.end;
            }
          }
          EXPECT_EQ(next_query, deal.query_heads(rank).end);
          EXPECT_EQ(next_arrival, keys.end);
          EXPECT_EQ(next_leave, keys.end);
        }
      }
    }
  }
}

TEST(HeadDeal, GroupsAreNoSmallerThanCallsLikeToBe) {
  EXPECT_EQ(head_group_count(100, 1, 4), 4);
  EXPECT_EQ(head_group_count(3, 1, 4), 3);
  EXPECT_EQ(head_group_count(0, 1, 4), 1);
  EXPECT_EQ(head_group_count(int64_t{32768} * 16, int64_t{1} << 18, 4), 2);
  EXPECT_EQ(head_group_count((int64_t{1} << 18) - 1, int64_t{1} << 18, 4), 1);
  EXPECT_EQ(head_group_count(int64_t{1} << 40, int64_t{1} << 18, 8), 8);
}

TEST(HeadDeal, RefusesMoreRanksThanHeads) {
  EXPECT_THROW(HeadDeal(4, 2, 5, true), ConfigurationError);
  EXPECT_THROW(HeadDeal(5, 2, 1, true), ContractError);
}

TEST(HeadRuns, OneRunWhereTheRatioIsOne) {
  const HeadShape shape{.query_heads = 28, .key_heads = 4, .key_size = 8, .value_size = 8};
  using Runs = std::vector<HeadRun>;
  EXPECT_EQ(head_runs(shape, {0, 28}), (Runs{{{0, 28}, {0, 4}}}));
  EXPECT_EQ(head_runs(shape, {7, 21}), (Runs{{{0, 14}, {0, 2}}}));
  EXPECT_EQ(head_runs(shape, {4, 7}), (Runs{{{0, 3}, {0, 1}}}));
  EXPECT_EQ(head_runs(shape, {4, 11}), (Runs{{{0, 3}, {0, 1}}, {{3, 7}, {1, 2}}}));
  EXPECT_EQ(head_runs(shape, {5, 23}), (Runs{{{0, 2}, {0, 1}}, {{2, 16}, {1, 3}}, {{16, 18}, {3, 4}}}));
}

// With one group everything is seen; with several that are alike and hold whole key heads, each is as much of all.
TEST(HeadDeal, SeenExchangesAreThoseOfTheFirstAndTheLastGroup) {
  for (const auto& [query_heads, key_heads, ranks] : std::vector<std::array<int, 3>>{
           {32, 8, 2}, {32, 8, 4}, {32, 8, 8}, {32, 8, 16}, {28, 4, 8}, {9, 3, 2}, {5, 1, 3}, {16, 16, 4}}) {
    const HeadShape heads{.query_heads = query_heads, .key_heads = key_heads, .key_size = 16, .value_size = 24};
    const ScheduleSizes sizes{ScheduleKind::ulysses, ranks, 1};
    for (int rank = 0; rank < ranks; ++rank) {
      const CommunicationCost all = communication_cost(sizes, heads, rank, 10, 2);
      const ExchangeBytes whole = seen_exchanges(HeadDeal(query_heads, key_heads, ranks, true, 1), heads, rank, 10, 2);
      EXPECT_EQ(whole.forward_bytes, all.forward_bytes) << query_heads << "/" << key_heads << ", " << ranks;
      EXPECT_EQ(whole.backward_bytes, all.backward_bytes) << query_heads << "/" << key_heads << ", " << ranks;
    }
  }
  const HeadShape heads{.query_heads = 32, .key_heads = 8, .key_size = 16, .value_size = 16};
  const CommunicationCost all = communication_cost({ScheduleKind::ulysses, 2, 1}, heads, 1, 10, 2);
  const ExchangeBytes fourth = seen_exchanges(HeadDeal(32, 8, 2, true, 4), heads, 1, 10, 2);
  EXPECT_EQ(4 * fourth.forward_bytes, all.forward_bytes);
  EXPECT_EQ(4 * fourth.backward_bytes, all.backward_bytes);
}

}  // namespace
}  // namespace ithaca
