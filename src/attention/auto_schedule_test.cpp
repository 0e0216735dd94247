#include "attention/auto_schedule.h"

#include <gtest/gtest.h>

#include "attention/communication_cost.h"
#include "base/error.h"

namespace ithaca {
namespace {

ScheduleRequest request(int cp_size, int64_t query_heads, int64_t key_heads) {
  ScheduleRequest result;
  result.cp_size = cp_size;
  result.heads = {query_heads, key_heads, 128, 128, 0.1f};
  result.tokens = 131072;
  result.element_bytes = 2;
  return result;
}

TEST(AutoSchedule, OneRankNeedsNoReason) {
  const ScheduleChoice choice = choose_schedule(request(1, 32, 8));
  EXPECT_EQ(choice.ulysses_size * choice.ring_size, 1);
  EXPECT_TRUE(choice.reason.empty());
}

TEST(AutoSchedule, TakesTheFewestBytesAmongEvenDeals) {
  for (const auto& [query_heads, key_heads] :
       std::vector<std::pair<int64_t, int64_t>>{{32, 8}, {32, 32}, {28, 4}, {6, 3}, {5, 1}, {40, 8}, {1, 1}}) {
    for (const int ranks : {2, 3, 4, 5, 6, 8, 16}) {
      const ScheduleRequest asked = request(ranks, query_heads, key_heads);
      const ScheduleChoice choice = choose_schedule(asked);
      ASSERT_EQ(choice.ulysses_size * choice.ring_size, ranks);
      EXPECT_EQ(query_heads % choice.ulysses_size, 0) << query_heads << " heads on " << ranks;
      const auto bytes = [&](const ScheduleSizes& sizes) {
        int64_t most = 0;
        for (int rank = 0; rank < sizes.ulysses_size; ++rank) {
          const CommunicationCost cost =
              communication_cost(sizes, asked.heads, rank, (asked.tokens + ranks - 1) / ranks, 2);
          most = std::max(most, cost.forward_bytes + cost.backward_bytes);
        }
        return most;
      };
      const int64_t chosen = bytes({choice.kind, choice.ulysses_size, choice.ring_size});
      EXPECT_LE(chosen, bytes({ScheduleKind::ring, 1, ranks}));
      if (query_heads % ranks == 0) {
        EXPECT_LE(chosen, bytes({ScheduleKind::ulysses, ranks, 1}));
      }
      EXPECT_FALSE(choice.reason.empty());
    }
  }
}

TEST(AutoSchedule, ManyKeyHeadsPreferUlyssesAndOneKeyHeadPrefersRing) {
  EXPECT_EQ(choose_schedule(request(8, 32, 32)).kind, ScheduleKind::ulysses);
  EXPECT_EQ(choose_schedule(request(2, 32, 1)).kind, ScheduleKind::ring);
}

TEST(AutoSchedule, WishesAreKept) {
  ScheduleRequest asked = request(8, 32, 8);
  asked.kind = ScheduleKind::hybrid;
  asked.ulysses_size = 2;
  asked.layout = Layout::striped;
  const ScheduleChoice choice = choose_schedule(asked);
  EXPECT_EQ(choice.kind, ScheduleKind::hybrid);
  EXPECT_EQ(choice.ulysses_size, 2);
  EXPECT_EQ(choice.ring_size, 4);
  EXPECT_EQ(choice.layout, Layout::striped);
  EXPECT_TRUE(choice.reason.empty());  // nothing was left to choose
}

TEST(AutoSchedule, RingLayoutsBalanceCausalWork) {
  ScheduleRequest asked = request(4, 32, 8);
  asked.kind = ScheduleKind::ring;
  EXPECT_EQ(choose_schedule(asked).layout, Layout::zigzag);
  asked.kind = ScheduleKind::ulysses;
  EXPECT_EQ(choose_schedule(asked).layout, Layout::contiguous);
}

TEST(AutoSchedule, WhatCannotWorkNamesWhatWould) {
  ScheduleRequest asked = request(8, 6, 3);
  asked.kind = ScheduleKind::ulysses;
  try {
    choose_schedule(asked);
    FAIL();
  } catch (const ConfigurationError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("6 query heads"), std::string::npos) << text;
    EXPECT_NE(text.find("hybrid (ulysses 2 x ring 4)"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace ithaca
