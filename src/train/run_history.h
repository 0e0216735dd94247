// The history of a run, read back from its metrics.jsonl: what `inspect` and `report` show.
// Thread-safety: values; read_run_history reads one file.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tensor/memory.h"

namespace ithaca {

inline constexpr double kNotRecorded = std::numeric_limits<double>::quiet_NaN();

// One optimizer step. What was not finite, and what the line does not have, is NaN.
struct HistoryStep {
  int64_t step = 0;
  double loss = kNotRecorded;       // nats per token
  double grad_norm = kNotRecorded;  // before clipping
  double learning_rate = kNotRecorded;
  int64_t tokens = 0;
  double seconds = kNotRecorded;  // of this step
  double tokens_per_second = kNotRecorded;
  double exposed_wait_seconds = kNotRecorded;
  bool skipped = false;
  double peak_bytes = kNotRecorded;  // of the rank that used most
  std::array<double, kMemoryClasses> peak_bytes_by_class = {kNotRecorded, kNotRecorded, kNotRecorded,
                                                            kNotRecorded, kNotRecorded, kNotRecorded};
};

struct HistoryEvaluation {
  int64_t step = 0;
  double loss = kNotRecorded;
};

struct RunHistory {
  std::vector<HistoryStep> steps;  // steps rise: where a resumed run did steps again, the last ones are kept
  std::vector<HistoryEvaluation> evaluations;
  bool cut = false;  // the last line is not complete: the run is writing it, or was killed while it did

  int64_t tokens() const;
  double seconds() const;  // of all steps
  // tokens() / seconds(): the number that `ithaca train` says at its end. 0 when no time was recorded.
  double tokens_per_second() const;
  int64_t skipped() const;
  double peak_bytes() const;  // 0 when none was recorded
  // The first and the last loss that is finite, the lowest one and its step; NaN when there is none.
  double first_loss() const;
  double last_loss() const;
  const HistoryStep* lowest_loss() const;  // null when there is none
};

// Throws FileError, and InputError with file, line and column for what is not a line of a run: an object with a step
// and either a loss or an eval_loss.
RunHistory read_run_history(const std::string& path);

}  // namespace ithaca
