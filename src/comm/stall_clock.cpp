#include "comm/stall_clock.h"

#include <algorithm>

namespace ithaca {

namespace {

// Longer limits than this (three years) are none.
constexpr double kLongestLimitSeconds = 1e8;

// A suspension counts this part of the limit at most, where that is neither too often to look nor too rarely.
constexpr double kSlicesInLimit = 20.0;
constexpr double kShortestSliceSeconds = 0.05;
constexpr double kLongestSliceSeconds = 1.0;

}  // namespace

StallClock::StallClock(double limit_seconds, Clock::time_point now)
    : has_limit_(limit_seconds > 0.0 && limit_seconds < kLongestLimitSeconds),
      limit_(limit_seconds),
      slice_(std::clamp(limit_seconds / kSlicesInLimit, kShortestSliceSeconds, kLongestSliceSeconds)),
      last_look_(now) {}

std::chrono::duration<double> StallClock::until_next_look() const {
  return std::clamp(limit_ - counted_, std::chrono::duration<double>(0.0), slice_);
}

bool StallClock::look(bool is_excused, Clock::time_point now) {
  if (!is_excused) counted_ += std::min<std::chrono::duration<double>>(now - last_look_, slice_);
  last_look_ = now;
  return has_limit_ && counted_ >= limit_;
}

}  // namespace ithaca
