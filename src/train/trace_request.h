// Which steps of a run are traced, and to which file (docs/tracing.md). Thread-safety: values and pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "backend/phase_table.h"
#include "train/backend_choice.h"
#include "train/trace_file.h"

namespace ithaca {

struct TraceRequest {
  std::string path;  // empty: none
  // 1-based, inclusive. 0: step 3, when the first ones have warmed up, or the last one of a shorter run.
  int64_t first_step = 0;
  int64_t last_step = 0;

  // Of a settled request; `step` is 1-based.
  bool includes(int64_t step) const { return !path.empty() && step >= first_step && step <= last_step; }
};

// What was traced.
struct TraceSummary {
  std::string path;
  int64_t first_step = 0;
  int64_t last_step = 0;
  PhaseTable phases;  // of rank 0
};

// "3" or "2:3", as --trace-steps has it. Throws ConfigurationError.
void parse_trace_steps(const std::string& text, TraceRequest& request);

// The request for a run of `steps` steps. Throws ConfigurationError when it has not that many, or when the backend can
// record nothing.
TraceRequest settle_trace(const TraceRequest& request, int64_t steps, BackendKind backend);

// Nothing where nothing is traced. Throws ConfigurationError when the file cannot be written.
std::unique_ptr<TraceFile> open_trace(const TraceRequest& request);

}  // namespace ithaca
