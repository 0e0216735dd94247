#include "attention/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace ithaca {
namespace {

using Positions = std::vector<int64_t>;

TEST(Layout, PositionsOfEachRankByHand) {
  EXPECT_EQ(ring_shard(Layout::contiguous, 8, 0, 2).positions(), (Positions{0, 1, 2, 3}));
  EXPECT_EQ(ring_shard(Layout::contiguous, 8, 1, 2).positions(), (Positions{4, 5, 6, 7}));
  EXPECT_EQ(ring_shard(Layout::zigzag, 8, 0, 2).positions(), (Positions{0, 1, 6, 7}));
  EXPECT_EQ(ring_shard(Layout::zigzag, 8, 1, 2).positions(), (Positions{2, 3, 4, 5}));
  EXPECT_EQ(ring_shard(Layout::striped, 8, 0, 2).positions(), (Positions{0, 2, 4, 6}));
  EXPECT_EQ(ring_shard(Layout::striped, 8, 1, 2).positions(), (Positions{1, 3, 5, 7}));
  // Ring parts are cut contiguously, in their local order, over the ulysses ranks.
  EXPECT_EQ(sequence_shard(Layout::zigzag, 12, 0, 2, 0, 2).positions(), (Positions{0, 1, 2}));
  EXPECT_EQ(sequence_shard(Layout::zigzag, 12, 0, 2, 1, 2).positions(), (Positions{9, 10, 11}));
  EXPECT_EQ(sequence_shard(Layout::striped, 12, 1, 2, 1, 2).positions(), (Positions{7, 9, 11}));
}

TEST(Layout, EveryTokenIsHeldOnceAndPartsDifferByLittle) {
  for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
    for (int ring = 1; ring <= 5; ++ring) {
      for (int ulysses = 1; ulysses <= 3; ++ulysses) {
        for (const int64_t tokens : {0, 1, 2, 7, 8, 13, 64, 97}) {
          Positions all;
          for (int rank = 0; rank < ring; ++rank) {
            Positions part;
            for (int head_rank = 0; head_rank < ulysses; ++head_rank) {
              const Shard shard = sequence_shard(layout, tokens, rank, ring, head_rank, ulysses);
              const Positions positions = shard.positions();
              ASSERT_EQ(shard.size(), static_cast<int64_t>(positions.size()));
              for (int64_t index = 0; index < shard.size(); ++index) {
                ASSERT_EQ(shard.position(index), positions[static_cast<size_t>(index)]);
              }
              part.insert(part.end(), positions.begin(), positions.end());
            }
            const Shard whole = ring_shard(layout, tokens, rank, ring);
            EXPECT_EQ(part, whole.positions());
            EXPECT_LE(std::abs(whole.size() - tokens / ring), 2);
            all.insert(all.end(), part.begin(), part.end());
          }
          std::sort(all.begin(), all.end());
          Positions expected(static_cast<size_t>(tokens));
          std::iota(expected.begin(), expected.end(), 0);
          ASSERT_EQ(all, expected) << layout_name(layout) << " ring " << ring << " ulysses " << ulysses;
        }
      }
    }
  }
}

TEST(Layout, SliceTakesLocalIndices) {
  for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
    const Shard shard = ring_shard(layout, 29, 1, 3);
    const Positions positions = shard.positions();
    for (int64_t begin = 0; begin <= shard.size(); ++begin) {
      for (int64_t end = begin; end <= shard.size(); ++end) {
        EXPECT_EQ(shard.slice(begin, end).positions(), Positions(positions.begin() + begin, positions.begin() + end));
      }
    }
    EXPECT_THROW(shard.slice(1, shard.size() + 1), ContractError);
    EXPECT_THROW(shard.position(shard.size()), ContractError);
  }
}

TEST(Layout, SegmentsAreNormalised) {
  EXPECT_EQ(Shard({{0, 3, 1}, {3, 0, 1}, {3, 2, 1}, {9, 1, 4}}).segments(),
            (std::vector<Segment>{{0, 5, 1}, {9, 1, 1}}));
  EXPECT_EQ(ring_shard(Layout::zigzag, 10, 0, 1), ring_shard(Layout::contiguous, 10, 0, 1));
  EXPECT_EQ(ring_shard(Layout::striped, 10, 0, 1), ring_shard(Layout::contiguous, 10, 0, 1));
  EXPECT_THROW(Shard({{-1, 3, 1}}), ContractError);
  EXPECT_THROW(Shard({{0, 3, 0}}), ContractError);
  EXPECT_THROW(Shard({{0, -3, 1}}), ContractError);
}

TEST(Layout, PartsBeyondThirtyTwoBits) {
  const int64_t tokens = (int64_t{1} << 60) + 3;
  EXPECT_EQ(part_begin(tokens, 16, 16), tokens);
  EXPECT_EQ(part_begin(tokens, 0, 16), 0);
  EXPECT_EQ(part_begin(tokens, 8, 16), (int64_t{1} << 59) + 1);
  EXPECT_EQ(ring_shard(Layout::zigzag, (int64_t{1} << 33), 0, 2).position((int64_t{1} << 32) - 1),
            (int64_t{1} << 33) - 1);
}

TEST(Layout, RefusesRanksThatDoNotExist) {
  EXPECT_THROW(ring_shard(Layout::zigzag, 8, 2, 2), ContractError);
  EXPECT_THROW(ring_shard(Layout::zigzag, -1, 0, 2), ContractError);
  EXPECT_THROW(sequence_shard(Layout::zigzag, 8, 0, 2, 3, 3), ContractError);
  EXPECT_THROW(part_begin(8, 3, 2), ContractError);
}

}  // namespace
}  // namespace ithaca
