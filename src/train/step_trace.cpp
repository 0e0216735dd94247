#include "train/step_trace.h"

#include "backend/span_recorder.h"
#include "base/error.h"

namespace ithaca {

StepTrace::StepTrace(Backend& backend, TraceFile* file, int rank) : backend_(backend), file_(file), rank_(rank) {}

void StepTrace::begin() {
  recorder_ = std::make_shared<SpanRecorder>();
  backend_.start_recording(recorder_);
  if (file_ != nullptr) file_->begin_at(recorder_->begin_time());
}

void StepTrace::end() {
  require(recorder_ != nullptr, "StepTrace::end before begin");
  backend_.stop_recording();
  table_.add(phase_table(*recorder_));
}

void StepTrace::write(int64_t step) {
  require(recorder_ != nullptr && file_ != nullptr, "StepTrace::write without a step, or without a file");
  file_->add(rank_, step, *recorder_);
  recorder_.reset();
}

}  // namespace ithaca
