#include "comm/stall_clock.h"

#include <gtest/gtest.h>

#include <chrono>

namespace ithaca {
namespace {

using namespace std::chrono_literals;

TEST(StallClock, CountsTimeInWhichItIsLookedAt) {
  StallClock::Clock::time_point now{};
  StallClock clock(2.0, now);
  ASSERT_TRUE(clock.has_limit());
  EXPECT_DOUBLE_EQ(clock.until_next_look().count(), 0.1);  // a twentieth of the limit
  for (int look = 0; look < 19; ++look) EXPECT_FALSE(clock.look(false, now += 100ms));
  EXPECT_FALSE(clock.look(false, now += 60ms));
  EXPECT_NEAR(clock.until_next_look().count(), 0.04, 1e-9);  // the limit comes first
  EXPECT_TRUE(clock.look(false, now += 41ms));
}

// Stopped for an hour: that is a slice.
TEST(StallClock, CountsASuspensionAsASlice) {
  StallClock::Clock::time_point now{};
  StallClock clock(2.0, now);
  for (int look = 0; look < 18; ++look) EXPECT_FALSE(clock.look(false, now += 1h));
  EXPECT_NEAR(clock.until_next_look().count(), 0.1, 1e-9);
  EXPECT_FALSE(clock.look(false, now += 150ms));
  EXPECT_FALSE(clock.look(false, now += 50ms));
  EXPECT_TRUE(clock.look(false, now += 60ms));
}

TEST(StallClock, CountsNothingThatIsExcused) {
  StallClock::Clock::time_point now{};
  StallClock clock(0.1, now);
  for (int look = 0; look < 100; ++look) EXPECT_FALSE(clock.look(true, now += 50ms));
  EXPECT_FALSE(clock.look(false, now += 50ms));
  EXPECT_TRUE(clock.look(false, now += 50ms));
}

TEST(StallClock, LooksOftenEnoughAndNotTooOften) {
  EXPECT_DOUBLE_EQ(StallClock(600.0).until_next_look().count(), 1.0);
  EXPECT_DOUBLE_EQ(StallClock(0.2).until_next_look().count(), 0.05);
  EXPECT_DOUBLE_EQ(StallClock(0.01).until_next_look().count(), 0.01);
}

TEST(StallClock, HasNoLimitWhereThereIsNone) {
  for (const double none : {0.0, 1e9}) {
    StallClock::Clock::time_point now{};
    StallClock clock(none, now);
    EXPECT_FALSE(clock.has_limit());
    for (int look = 0; look < 10; ++look) EXPECT_FALSE(clock.look(false, now += 1h));
  }
}

}  // namespace
}  // namespace ithaca
