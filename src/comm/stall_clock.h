// StallClock: how long a wait for other ranks has lasted, as far as that can be anybody's fault.
//
// Whoever waits looks at least once in a slice(). A look that comes later counts a slice all the same: the process did
// not run meanwhile (it was stopped, or the machine slept), or had no processor. Thread-safety: one thread at a time.
#pragma once

#include <chrono>

namespace ithaca {

class StallClock {
 public:
  using Clock = std::chrono::steady_clock;

  // A wait that counts `limit_seconds` is a stall; 0, or years: there is no limit.
  explicit StallClock(double limit_seconds, Clock::time_point now = Clock::now());

  bool has_limit() const { return has_limit_; }
  // How long until the next look: at most a slice, less where the limit comes first.
  std::chrono::duration<double> until_next_look() const;
  // Counts the time since the last look, or nothing of it where it is excused. Returns whether the limit is reached.
  bool look(bool is_excused, Clock::time_point now = Clock::now());

 private:
  bool has_limit_;
  std::chrono::duration<double> limit_;
  std::chrono::duration<double> slice_;
  std::chrono::duration<double> counted_{0.0};
  Clock::time_point last_look_;
};

}  // namespace ithaca
