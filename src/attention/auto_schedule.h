// `auto`: which schedule, sizes and layout to use, and why in plain words.
//
// Among the schedules that the request allows, heads must be dealt evenly (query heads a multiple of the ulysses size),
// so that no rank computes more than another; of those the one whose busiest rank sends the fewest bytes per layer
// (forward and backward, attention/communication_cost.h) is taken. Equal bytes: fewer exchanges, and ring before
// all_gather, because its exchange is always hidden behind a computation. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "attention/layout.h"
#include "attention/schedule.h"

namespace ithaca {

struct ScheduleRequest {
  int cp_size = 1;
  HeadShape heads;
  int64_t tokens = 0;         // of one token axis, the longest expected
  int64_t element_bytes = 4;  // of the compute dtype
  // What the user has fixed; empty or 0: free.
  std::optional<ScheduleKind> kind;
  std::optional<Layout> layout;
  int ulysses_size = 0;
  int ring_size = 0;
};

struct ScheduleChoice {
  ScheduleKind kind = ScheduleKind::ring;
  Layout layout = Layout::contiguous;
  int ulysses_size = 1;
  int ring_size = 1;
  std::string reason;  // one sentence for each thing that was chosen; empty when nothing was
};

// Throws ConfigurationError, naming the options and sizes that would work, when nothing fits the request.
ScheduleChoice choose_schedule(const ScheduleRequest& request);

}  // namespace ithaca
