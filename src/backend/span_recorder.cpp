#include "backend/span_recorder.h"

#include <algorithm>

#include "base/error.h"

namespace ithaca {

std::string_view trace_track_name(TraceTrack track) {
  switch (track) {
    case TraceTrack::compute:
      return "compute";
    case TraceTrack::communication:
      return "communication";
    case TraceTrack::copy:
      return "copy";
  }
  throw ContractError("unknown track of a trace");
}

void SpanRecorder::finish(int64_t now) {
  while (!open_.empty()) close_scope(now);
  end_ = now;
}

int32_t SpanRecorder::open_scope(const ScopeName& name, int64_t now) {
  Scope scope;
  scope.parent = current_scope();
  scope.kind = name.kind;
  scope.index = name.index;
  scope.bytes = name.bytes;
  scope.flow_in = name.flow_in;
  scope.flow_out = name.flow_out;
  scope.host_begin = now;
  scope.host_end = now;
  const std::lock_guard lock(mutex_);
  scope.name = number_of(name.name);
  const auto number = static_cast<int32_t>(scopes_.size());
  scopes_.push_back(scope);
  open_.push_back(number);
  return number;
}

void SpanRecorder::close_scope(int64_t now) noexcept {
  if (open_.empty()) return;
  scopes_[static_cast<size_t>(open_.back())].host_end = now;
  open_.pop_back();
}

void SpanRecorder::add(TraceTrack track, std::string_view name, int32_t scope, int64_t begin, int64_t end, Kind kind) {
  const std::lock_guard lock(mutex_);
  if (static_cast<int64_t>(spans_.size()) >= kMostSpans) {
    ++dropped_;
    return;
  }
  spans_.push_back({begin, std::max(begin, end), number_of(name), scope, track, kind});
}

void SpanRecorder::drop(int64_t count) {
  const std::lock_guard lock(mutex_);
  dropped_ += count;
}

int32_t SpanRecorder::number_of(std::string_view name) {
  const auto found = numbers_.find(name);
  if (found != numbers_.end()) return found->second;
  const auto number = static_cast<int32_t>(names_.size());
  names_.emplace_back(name);
  numbers_.emplace(name, number);
  return number;
}

std::vector<SpanRecorder::Span> SpanRecorder::spans_of(TraceTrack track) const {
  std::vector<Span> result;
  {
    const std::lock_guard lock(mutex_);
    std::copy_if(spans_.begin(), spans_.end(), std::back_inserter(result),
                 [track](const Span& span) { return span.track == track; });
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const Span& left, const Span& right) { return left.begin < right.begin; });
  int64_t earliest = begin_;
  for (Span& span : result) {
    span.begin = std::clamp(span.begin, earliest, std::max(earliest, end_));
    span.end = std::clamp(span.end, span.begin, std::max(span.begin, end_));
    earliest = span.end;
  }
  return result;
}

int32_t SpanRecorder::phase_of(int32_t scope) const {
  while (scope != kNoScope && scopes_[static_cast<size_t>(scope)].kind != ScopeName::Kind::phase) {
    scope = scopes_[static_cast<size_t>(scope)].parent;
  }
  return scope;
}

}  // namespace ithaca
