// SpanRecorder: what one rank did in one step, as spans of time on its streams, inside the scopes that name them.
//
// A backend that records (Backend::start_recording) fills it; backend/phase_table.h adds it up, train/step_trace.h
// writes it to a file. Times are nanoseconds of one clock of the process, the same for all its ranks. Memory: about 40
// bytes for every operation or kernel of the step, up to kMostSpans; what is beyond is counted and dropped.
// Thread-safety: scopes belong to the rank's thread, add() may be called from any thread; everything may be read once
// the recording has been stopped.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "backend/trace_scope.h"

namespace ithaca {

// The streams of a rank.
enum class TraceTrack : uint8_t { compute, communication, copy };
inline constexpr int kTraceTracks = 3;
std::string_view trace_track_name(TraceTrack track);

inline constexpr int32_t kNoScope = -1;

class SpanRecorder {
 public:
  enum class Kind : uint8_t {
    operation,  // the stream works
    wait        // it stands still for another one
  };
  struct Span {
    int64_t begin = 0;
    int64_t end = 0;
    int32_t name = 0;  // of names(); an empty name: only the scopes around it say what it was
    int32_t scope = kNoScope;
    TraceTrack track = TraceTrack::compute;
    Kind kind = Kind::operation;
  };
  struct Scope {
    int32_t parent = kNoScope;
    int32_t name = 0;
    ScopeName::Kind kind = ScopeName::Kind::part;
    int64_t index = -1;
    int64_t bytes = -1;
    uint64_t flow_in = 0;
    uint64_t flow_out = 0;
    // When the rank's thread was inside of it: the time of enqueueing, not of running.
    int64_t host_begin = 0;
    int64_t host_end = 0;
  };

  static constexpr int64_t kMostSpans = int64_t{1} << 23;

  // Of the step.
  void begin(int64_t now) { begin_ = now; }
  void finish(int64_t now);
  int64_t begin_time() const { return begin_; }
  int64_t end_time() const { return end_; }

  // The scope's number.
  int32_t open_scope(const ScopeName& name, int64_t now);
  // The innermost open one; nothing when none is open (it was opened before the recording began).
  void close_scope(int64_t now) noexcept;
  int32_t current_scope() const { return open_.empty() ? kNoScope : open_.back(); }

  void add(TraceTrack track, std::string_view name, int32_t scope, int64_t begin, int64_t end,
           Kind kind = Kind::operation);

  // So many operations could not be recorded.
  void drop(int64_t count);

  // Of one track, by begin; none begins before the one in front of it has ended (where they did overlap, on a GPU that
  // starts the next kernel early, the later one is shortened), and none reaches out of the step.
  std::vector<Span> spans_of(TraceTrack track) const;
  const std::vector<Scope>& scopes() const { return scopes_; }
  const std::string& name(int32_t index) const { return names_[static_cast<size_t>(index)]; }
  // The innermost phase around `scope`, itself included; kNoScope when there is none.
  int32_t phase_of(int32_t scope) const;
  int64_t span_count() const { return static_cast<int64_t>(spans_.size()); }
  int64_t dropped() const { return dropped_; }

 private:
  int32_t number_of(std::string_view name);

  int64_t begin_ = 0;
  int64_t end_ = 0;
  std::vector<int32_t> open_;
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
  std::vector<Scope> scopes_;
  std::vector<std::string> names_;
  std::map<std::string, int32_t, std::less<>> numbers_;
  int64_t dropped_ = 0;
};

}  // namespace ithaca
