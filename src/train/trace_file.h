// TraceFile: steps of several ranks as one trace in Chrome's JSON format, which ui.perfetto.dev and chrome://tracing
// show (docs/tracing.md says what is in it).
//
// Every rank is a process of the trace; its threads are the host, where the rank's thread enqueues, and its streams.
// The file is written as the steps come, under a temporary name, and renamed when it is complete.
// Thread-safety: any rank's thread may call; a recorder must be complete.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "backend/span_recorder.h"
#include "checkpoint/file_output.h"

namespace ithaca {

// Whether a file that begins so is one that a TraceFile wrote.
bool is_trace_beginning(std::string_view bytes);

class TraceFile {
 public:
  // Throws FileError when the file cannot be made.
  explicit TraceFile(const std::string& path);

  // A step begins at `time` on some rank: times in the file count from the first one. To be called for every rank
  // before the first add().
  void begin_at(int64_t time);
  // Step `step` of `rank`, for its end.
  void add(int rank, int64_t step, const SpanRecorder& recorded);
  // All steps have been added: the file appears, unless there is a failure().
  void finish();
  // What went wrong with writing; empty while nothing did. From then on there is no file, and what is added is dropped:
  // a trace is no reason to lose a run.
  std::string failure();

 private:
  friend class TraceEvents;
  void append(std::string_view events);
  // Does something with the file while there is one; the caller holds the mutex.
  template <typename Action>
  void with_file(const Action& action);

  std::mutex mutex_;
  std::optional<FileOutput> file_;  // nothing after a failure
  std::string failure_;
  bool has_origin_ = false;
  int64_t origin_ = 0;
  bool is_first_ = true;
  std::map<int, bool> introduced_;  // ranks whose names are in the file
};

}  // namespace ithaca
