// DeviceRecording: records when the kernels and copies of one CUDA backend run on the device, for a SpanRecorder.
// Internal to backend/cuda: includes CUDA headers.
//
// CUPTI tells the time of every kernel, and which external number was on top of the launching thread's stack: the
// number of the scope. Work that another thread issues for the rank's thread carries the scope's number there.
//
// CUPTI works for the whole process: recordings of several ranks share it, and collect together when all of them have
// finished (or some have not for seconds), since CUPTI gives its records away only when all work in a buffer is done.
// Thread-safety: the rank's thread; LaunchScope on any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "backend/span_recorder.h"

namespace ithaca::cuda {

// Why nothing can be recorded; empty when it can.
std::string recording_absence_reason();

class DeviceRecording {
 public:
  struct RecordedStream {
    cudaStream_t handle = nullptr;
    TraceTrack track = TraceTrack::compute;
  };

  // Begins. `device` is current and has nothing to do. Throws ConfigurationError when there is no CUPTI.
  DeviceRecording(std::shared_ptr<SpanRecorder> recorder, int device, std::span<const RecordedStream> streams);
  DeviceRecording(const DeviceRecording&) = delete;
  DeviceRecording& operator=(const DeviceRecording&) = delete;
  ~DeviceRecording();  // gives up what has not been finished

  void begin_scope(const ScopeName& name);
  void end_scope() noexcept;
  // What work that is launched now belongs to, for LaunchScope on another thread. 0: nothing.
  uint64_t launch_scope() const;
  // The streams have nothing to do any more: completes the recorder.
  void finish();

 private:
  void pop_scopes() noexcept;

  std::shared_ptr<SpanRecorder> recorder_;
  uint32_t number_ = 0;  // of this recording, in the process
  int64_t pushed_ = 0;   // scopes on the stack of the rank's thread
  bool is_finished_ = false;
};

// While it lives, what this thread launches belongs to `scope`.
class LaunchScope {
 public:
  explicit LaunchScope(uint64_t scope);
  LaunchScope(const LaunchScope&) = delete;
  LaunchScope& operator=(const LaunchScope&) = delete;
  ~LaunchScope();

 private:
  bool is_pushed_;
};

}  // namespace ithaca::cuda
