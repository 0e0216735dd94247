// PhaseTable: where the time of a step went, by phase; the rows add up to the step.
//
// At every moment of a step a rank's compute stream works for one phase, or stands still: exposed to communication or
// copies that it has not hidden, or idle (work enqueued too late, or a rank that waits for another one whose streams
// are not seen here). So for every phase: total = compute + exposed + idle, and the totals of all rows add up to the
// wall time of the steps, to the nanosecond. Work of the communication and copy streams is told beside it, hidden or
// not.
// Thread-safety: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/span_recorder.h"

namespace ithaca {

// All in nanoseconds.
struct PhaseTimes {
  std::string phase;
  int64_t compute = 0;  // the compute stream works
  // The compute stream stands still, while the communication stream (or else the copy stream) works for this phase.
  int64_t exposed = 0;
  int64_t idle = 0;           // nothing works, before compute work of this phase begins
  int64_t communication = 0;  // the communication stream works for this phase, hidden or not
  int64_t copies = 0;         // the copy stream does
  int64_t operations = 0;     // of the compute stream: operations on CPU, kernels and copies on CUDA

  int64_t total() const { return compute + exposed + idle; }
};

// The row of work outside of every phase, and of the time after the last work.
inline constexpr std::string_view kOtherPhase = "other";

struct PhaseTable {
  std::vector<PhaseTimes> rows;  // in the order of a step, then `other`; phases in which nothing happened are left out
  int64_t steps = 0;
  int64_t nanoseconds = 0;  // wall time of the steps: the sum of the rows' totals
  int64_t dropped = 0;      // operations that were too many to be recorded

  PhaseTimes sum() const;
  // Another step of the same rank.
  void add(const PhaseTable& other);
};

PhaseTable phase_table(const SpanRecorder& recorded);

// Lines of text: milliseconds of one step (the mean of all), and each phase's share of it.
std::string format_phase_table(const PhaseTable& table);

}  // namespace ithaca
