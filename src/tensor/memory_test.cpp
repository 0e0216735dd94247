#include "tensor/memory.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/random.h"

namespace ithaca {
namespace {

TEST(MemoryNames, AreWhatReportsSay) {
  EXPECT_EQ(memory_class_name(MemoryClass::weights), "weights");
  EXPECT_EQ(memory_class_name(MemoryClass::communication), "communication");
  EXPECT_EQ(static_cast<int>(MemoryClass::communication), kMemoryClasses - 1);
  EXPECT_EQ(tier_name(Tier::device), "device");
  EXPECT_EQ(tier_name(Tier::disk), "disk");
}

TEST(MemoryUsages, KeepThePeaksOfTheTotalAndOfEveryClass) {
  MemoryUsage usage;
  usage.add(MemoryClass::weights, 100);
  usage.add(MemoryClass::saved, 50);
  usage.remove(MemoryClass::saved, 50);
  usage.add(MemoryClass::workspace, 30);
  EXPECT_EQ(usage.current, 130);
  EXPECT_EQ(usage.peak, 150);
  EXPECT_EQ(usage.current_by_class[static_cast<size_t>(MemoryClass::saved)], 0);
  EXPECT_EQ(usage.peak_by_class[static_cast<size_t>(MemoryClass::saved)], 50);
  EXPECT_EQ(usage.peak_by_class[static_cast<size_t>(MemoryClass::workspace)], 30);
  EXPECT_EQ(usage.peak_by_class[static_cast<size_t>(MemoryClass::weights)], 100);
}

TEST(OffsetAllocators, HandOutTheLowestOffsetThatFits) {
  OffsetAllocator allocator(1024, 64);
  EXPECT_EQ(allocator.allocate(100), 0);
  EXPECT_EQ(allocator.allocate(1), 128);
  EXPECT_EQ(allocator.allocate(64), 192);
  EXPECT_EQ(allocator.used(), 256);
  allocator.free(0);
  EXPECT_EQ(allocator.allocate(200), 256);  // does not fit into the gap of 128
  EXPECT_EQ(allocator.allocate(128), 0);
  EXPECT_EQ(allocator.largest_gap(), 512);
}

TEST(OffsetAllocators, ServeEmptyBlocksWithOffsetsOfTheirOwn) {
  OffsetAllocator allocator(256, 64);
  EXPECT_EQ(allocator.allocate(0), 0);
  EXPECT_EQ(allocator.allocate(0), 64);
  EXPECT_EQ(allocator.used(), 128);
}

TEST(OffsetAllocators, JoinNeighboursInAnyOrder) {
  for (const auto& order : {std::array{0, 1, 2}, std::array{0, 2, 1}, std::array{1, 0, 2}, std::array{1, 2, 0},
                            std::array{2, 0, 1}, std::array{2, 1, 0}}) {
    OffsetAllocator allocator(192, 64);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(allocator.allocate(64));
    EXPECT_EQ(allocator.largest_gap(), 0);
    for (const int index : order) allocator.free(index * 64);
    EXPECT_EQ(allocator.largest_gap(), 192);
    EXPECT_EQ(allocator.allocate(192), 0);
  }
}

TEST(OffsetAllocators, SayWhenNothingFits) {
  OffsetAllocator allocator(1000, 64);  // 960 usable
  EXPECT_EQ(allocator.capacity(), 960);
  EXPECT_EQ(allocator.allocate(961), std::nullopt);
  EXPECT_EQ(allocator.allocate(960), 0);
  EXPECT_EQ(allocator.allocate(0), std::nullopt);
  EXPECT_EQ(OffsetAllocator(0, 64).allocate(1), std::nullopt);
}

TEST(OffsetAllocators, RefuseMisuse) {
  OffsetAllocator allocator(1024, 64);
  EXPECT_THROW(allocator.free(0), ContractError);
  ASSERT_EQ(allocator.allocate(64), 0);
  EXPECT_THROW(allocator.free(32), ContractError);
  allocator.free(0);
  EXPECT_THROW(allocator.free(0), ContractError);
  EXPECT_THROW(allocator.allocate(-1), ContractError);
  EXPECT_THROW(allocator.allocate(INT64_MAX), ContractError);
  EXPECT_THROW(OffsetAllocator(1024, 0), ContractError);
  EXPECT_THROW(OffsetAllocator(-1, 64), ContractError);
}

TEST(OffsetAllocators, WorkBeyondThirtyTwoBits) {
  OffsetAllocator allocator(int64_t{1} << 50, 256);
  ASSERT_EQ(allocator.allocate((int64_t{1} << 40) + 1), 0);
  EXPECT_EQ(allocator.allocate(1), (int64_t{1} << 40) + 256);
}

// Against a map of what is in use: never an overlap, never a lost byte.
TEST(OffsetAllocators, SurviveRandomUse) {
  constexpr int64_t capacity = 64 * 200;
  OffsetAllocator allocator(capacity, 64);
  std::map<int64_t, int64_t> in_use;
  const RandomStream random(3, "offset allocator");
  int64_t used = 0;
  for (uint64_t step = 0; step < 5000; ++step) {
    if (in_use.empty() || random.uniform(3 * step) < 0.55) {
      const auto bytes = static_cast<int64_t>(random.uniform(3 * step + 1) * 1000);
      const std::optional<int64_t> offset = allocator.allocate(bytes);
      if (!offset) {
        ASSERT_LT(allocator.largest_gap(), allocator.rounded(bytes));
        continue;
      }
      const int64_t size = allocator.rounded(bytes);
      ASSERT_LE(*offset + size, capacity);
      const auto next = in_use.lower_bound(*offset);
      if (next != in_use.end()) {
        ASSERT_LE(*offset + size, next->first);
      }
      if (next != in_use.begin()) {
        ASSERT_LE(std::prev(next)->first + std::prev(next)->second, *offset);
      }
      in_use.emplace(*offset, size);
      used += size;
    } else {
      auto victim = in_use.begin();
      std::advance(victim, static_cast<int64_t>(random.bits(3 * step + 2) % in_use.size()));
      allocator.free(victim->first);
      used -= victim->second;
      in_use.erase(victim);
    }
    ASSERT_EQ(allocator.used(), used);
  }
  for (const auto& [offset, size] : in_use) allocator.free(offset);
  EXPECT_EQ(allocator.used(), 0);
  EXPECT_EQ(allocator.largest_gap(), capacity);
}

}  // namespace
}  // namespace ithaca
