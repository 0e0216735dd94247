#include "attention/ring_work.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace ithaca {
namespace {

constexpr MaskRule kCausal{true, 0};

// Blocks of 128 x 128 on and below the diagonal of `blocks` blocks.
double triangle(int64_t blocks) {
  return static_cast<double>(blocks * (blocks + 1) / 2 * kWorkTile * kWorkTile);
}
double square(int64_t rows, int64_t columns) {
  return static_cast<double>(rows * columns * kWorkTile * kWorkTile);
}
double calls(int64_t queries) {
  return static_cast<double>(queries * kKeysOfACall);
}

TEST(RingWork, CountsTilesAndCalls) {
  const Documents one = Documents::single(1024);
  RingWork work = busiest_ring_work(Layout::contiguous, one, kCausal, 1);
  EXPECT_EQ(work.pairs, triangle(8) + calls(1024));
  EXPECT_EQ(work.hops, 0);
  // The last of two ranks sees all keys of the first.
  work = busiest_ring_work(Layout::contiguous, one, kCausal, 2);
  EXPECT_EQ(work.pairs, triangle(4) + square(4, 4) + calls(2 * 512));
  EXPECT_EQ(work.hops, 1);
  // Zigzag, two chunks of 256 a rank: both of rank 1 see the first one of rank 0.
  work = busiest_ring_work(Layout::zigzag, one, kCausal, 2);
  EXPECT_EQ(work.pairs, 2 * triangle(2) + square(2, 2) + 2 * square(2, 2) + calls(2 * 512));
  // Striped: a triangle in each hop; rank 0's queries do not see rank 1's token beside them.
  work = busiest_ring_work(Layout::striped, one, kCausal, 2);
  EXPECT_EQ(work.pairs, 2 * triangle(4) + calls(2 * 512));
}

TEST(RingWork, DocumentsHaveTilesOfTheirOwn) {
  // 200 tokens are two tiles, of which the second is not full.
  const Documents documents(std::vector<int64_t>{200, 200, 112});
  EXPECT_EQ(busiest_ring_work(Layout::contiguous, documents, kCausal, 1).pairs,
            2 * triangle(2) + triangle(1) + calls(512));
  // The first rank ends within the second document, so the second has a rectangle and a triangle of it.
  const RingWork work = busiest_ring_work(Layout::contiguous, documents, kCausal, 2);
  EXPECT_EQ(work.pairs, triangle(2) + square(2, 1) + triangle(1) + calls(256) + calls(144 + 256) / 2);
  EXPECT_EQ(work.hops, 1);
}

TEST(RingWork, LongCallsAreSlower) {
  const double work = busiest_ring_work(Layout::contiguous, Documents::single(4 * kKeysInCache), kCausal, 1).pairs;
  EXPECT_NEAR(work, 1.04 * triangle(4 * kKeysInCache / kWorkTile) + calls(4 * kKeysInCache), 1e-9 * work);
}

TEST(RingWork, WhatNobodySeesCostsNothing) {
  const Documents documents(std::vector<int64_t>(4, 256));
  const RingWork work = busiest_ring_work(Layout::contiguous, documents, kCausal, 4);
  EXPECT_EQ(work.pairs, triangle(2) + calls(256));
  EXPECT_EQ(work.hops, 0);
  EXPECT_EQ(busiest_ring_work(Layout::zigzag, Documents{}, kCausal, 4).pairs, 0.0);
  EXPECT_EQ(busiest_ring_work(Layout::striped, Documents::single(1), kCausal, 4).hops, 0);
}

// However many ranks there are, the one that has most is found.
TEST(RingWork, OneLongDocumentAmongShortOnesIsFound) {
  for (const int64_t place : {0, 1, 500, 1017, 1023}) {
    std::vector<int64_t> lengths(1024, 128);
    lengths[static_cast<size_t>(place)] = 128 * 30;
    const Documents documents(lengths);
    const RingWork work = busiest_ring_work(Layout::contiguous, documents, kCausal, 512);
    // Its last rank has a shard of 263 tokens.
    EXPECT_GT(work.pairs, 3000.0 * 200.0) << place;
    EXPECT_GT(work.hops, 10) << place;
  }
}

TEST(RingWork, BeyondThirtyTwoBits) {
  const int64_t tokens = int64_t{1} << 35;
  const auto exact = static_cast<double>(tokens) * static_cast<double>(tokens) / 2;
  for (const Layout layout : {Layout::contiguous, Layout::striped}) {
    const double pairs = busiest_ring_work(layout, Documents::single(tokens), kCausal, 1).pairs;
    EXPECT_GT(pairs, exact) << layout_name(layout);
    EXPECT_LT(pairs, 1.5 * exact) << layout_name(layout);
  }
}

// More ranks than are looked at.
TEST(RingWork, LargeRingsAreSampled) {
  const Documents one = Documents::single(int64_t{1} << 20);
  const double even = (triangle(8192) + calls(int64_t{1} << 20)) / 1024;
  for (const Layout layout : {Layout::zigzag, Layout::striped}) {
    const RingWork work = busiest_ring_work(layout, one, kCausal, 1024);
    // Calls are 1024 times as many; tiles of the short shards are not full.
    EXPECT_GT(work.pairs, even);
    EXPECT_LT(work.pairs, 1.2 * triangle(8192) / 1024 + calls(int64_t{1} << 20)) << layout_name(layout);
    EXPECT_EQ(work.hops, 1023);
  }
  const auto start = std::chrono::steady_clock::now();
  for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
    busiest_ring_work(layout, Documents(std::vector<int64_t>(65536, 64)), kCausal, 1024);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

}  // namespace
}  // namespace ithaca
