// StepTrace: records steps of one rank: as a table of phase times, and for a TraceFile.
//
//   StepTrace trace(rank.backend());          // of a TrainingRank with TrainingRankOptions::traced
//   trace.begin();
//   rank.step().run(batch, rate);
//   trace.end();
//   std::cout << format_phase_table(trace.table());
//
// begin() and end() wait for the device. On CUDA every kernel is recorded by CUPTI, which makes steps of many small
// kernels a little slower: measure speed without it. Thread-safety: the rank's own thread; ranks of one process each
// have their own.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "backend/phase_table.h"
#include "train/trace_file.h"

namespace ithaca {

class StepTrace {
 public:
  // `file`, where there is one, gets the steps of `rank` by write(). Both must outlive it.
  explicit StepTrace(Backend& backend, TraceFile* file = nullptr, int rank = 0);
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;
  ~StepTrace() = default;  // a step that was begun and never ended is recorded until the backend goes

  // Throws ConfigurationError when the backend cannot record.
  void begin();
  void end();
  // Of all steps that have ended.
  const PhaseTable& table() const { return table_; }
  // Adds the step that has ended to the file; all ranks have begun theirs by then.
  void write(int64_t step);

 private:
  Backend& backend_;
  TraceFile* file_;
  int rank_;
  std::shared_ptr<SpanRecorder> recorder_;
  PhaseTable table_;
};

}  // namespace ithaca
