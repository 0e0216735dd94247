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
#include <string>
#include <string_view>

#include "backend/span_recorder.h"
#include "checkpoint/file_output.h"

namespace ithaca {

class TraceFile {
 public:
  // Throws FileError when the file cannot be written.
  explicit TraceFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  // A step begins at `time` on some rank: times in the file count from the first one. To be called for every rank
  // before the first add().
  void begin_at(int64_t time);
  // Step `step` of `rank`, for its end.
  void add(int rank, int64_t step, const SpanRecorder& recorded);
  // All steps have been added: the file appears.
  void finish();

 private:
  friend class TraceEvents;
  void append(std::string_view events);

  std::mutex mutex_;
  FileOutput file_;
  bool has_origin_ = false;
  int64_t origin_ = 0;
  bool is_first_ = true;
  std::map<int, bool> introduced_;  // ranks whose names are in the file
};

}  // namespace ithaca
