#include "train/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "base/error.h"

namespace ithaca {

namespace {

constexpr std::string_view kBeginning = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr int kHostThread = 0;

int thread_of(TraceTrack track) {
  return static_cast<int>(track) + 1;
}

void append_escaped(std::string& text, std::string_view plain) {
  for (const char character : plain) {
    if (character == '"' || character == '\\') {
      text += '\\';
      text += character;
    } else if (static_cast<unsigned char>(character) < 0x20) {
      fmt::format_to(std::back_inserter(text), "\\u{:04x}", static_cast<unsigned>(character));
    } else {
      text += character;
    }
  }
}

}  // namespace

// The events of one step of one rank, given to the file in chunks of whole events.
class TraceEvents {
 public:
  TraceEvents(TraceFile& file, int rank, int64_t origin, const SpanRecorder& recorded)
      : file_(file), rank_(rank), origin_(origin), recorded_(recorded) {}

  void introduce() {
    name_of("process_name", kHostThread, fmt::format("rank {}", rank_));
    sort_index("process_sort_index", kHostThread, rank_);
    thread(kHostThread, "host");
    for (int track = 0; track < kTraceTracks; ++track) {
      const auto stream = static_cast<TraceTrack>(track);
      thread(thread_of(stream), fmt::format("{} stream", trace_track_name(stream)));
    }
  }

  void add(int64_t step) {
    write_slice(kHostThread, "step", fmt::format("step {}", step), recorded_.begin_time(), recorded_.end_time());
    const std::vector<SpanRecorder::Scope>& scopes = recorded_.scopes();
    for (size_t index = 0; index < scopes.size(); ++index) {
      write_scope(kHostThread, scopes[index], scopes[index].host_begin, scopes[index].host_end);
    }
    is_tied_.assign(scopes.size(), false);
    for (int track = 0; track < kTraceTracks; ++track) add_track(static_cast<TraceTrack>(track));
    flush();
  }

 private:
  // A slice of a stream: a scope, or a span when `scope` is kNoScope.
  struct Slice {
    int32_t scope = kNoScope;
    const SpanRecorder::Span* span = nullptr;
    int64_t begin = 0;
    int64_t end = 0;
  };

  // Streams run in order, so the work of a scope lies together; scopes last from their first work to their last. Work
  // of an outer scope may come between that of an inner one, which is then shown twice.
  void add_track(TraceTrack track) {
    const std::vector<SpanRecorder::Span> spans = recorded_.spans_of(track);
    std::vector<Slice> slices;
    std::vector<size_t> open;  // slices of the scopes around the present span, outermost first
    std::vector<int32_t> chain;
    const auto close_behind = [&](size_t depth) {
      while (open.size() > depth) open.pop_back();
    };
    for (const SpanRecorder::Span& span : spans) {
      chain.clear();
      for (int32_t scope = span.scope; scope != kNoScope; scope = scope_at(scope).parent) chain.push_back(scope);
      std::reverse(chain.begin(), chain.end());
      size_t common = 0;
      while (common < open.size() && common < chain.size() && slices[open[common]].scope == chain[common]) ++common;
      close_behind(common);
      for (size_t depth = common; depth < chain.size(); ++depth) {
        open.push_back(slices.size());
        slices.push_back({chain[depth], nullptr, span.begin, span.end});
      }
      for (const size_t slice : open) slices[slice].end = span.end;
      const bool is_said_by_scope = recorded_.name(span.name).empty() && !chain.empty() &&
                                    scope_at(chain.back()).kind == ScopeName::Kind::exchange;
      if (!is_said_by_scope) slices.push_back({kNoScope, &span, span.begin, span.end});
    }
    for (const Slice& slice : slices) {
      if (slice.span == nullptr) {
        write_scope(thread_of(track), scope_at(slice.scope), slice.begin, slice.end);
        tie(thread_of(track), slice);
      } else {
        const std::string& name = recorded_.name(slice.span->name);
        const char* category = slice.span->kind == SpanRecorder::Kind::wait ? "wait" : "operation";
        write_slice(thread_of(track), category, name.empty() ? "host work" : name, slice.begin, slice.end);
      }
    }
  }

  const SpanRecorder::Scope& scope_at(int32_t index) const { return recorded_.scopes()[static_cast<size_t>(index)]; }

  // Arrows from and to exchanges of other ranks.
  void tie(int thread, const Slice& slice) {
    const SpanRecorder::Scope& scope = scope_at(slice.scope);
    if (is_tied_[static_cast<size_t>(slice.scope)]) return;
    is_tied_[static_cast<size_t>(slice.scope)] = true;
    if (scope.flow_out != 0) write_flow("\"s\"", thread, scope.flow_out, slice.begin);
    if (scope.flow_in != 0) {
      write_flow("\"f\",\"bp\":\"e\"", thread, scope.flow_in, std::max(slice.begin, slice.end - 1));
    }
  }

  void begin_event() {
    if (text_.size() > kChunkBytes) flush();
    text_ += ",\n";
  }
  void flush() {
    file_.append(text_);
    text_.clear();
  }

  // Microseconds with nanoseconds behind the point.
  void append_time(int64_t nanoseconds) {
    fmt::format_to(std::back_inserter(text_), "{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
  }

  void write_scope(int thread, const SpanRecorder::Scope& scope, int64_t begin, int64_t end) {
    static constexpr const char* kCategories[] = {"phase", "part", "exchange"};
    std::string name = recorded_.name(scope.name);
    if (scope.index >= 0) name += fmt::format(" {}", scope.index);
    std::string details;
    if (scope.index >= 0) details = fmt::format(",\"args\":{{\"number\":{}}}", scope.index);
    if (scope.bytes >= 0) details = fmt::format(",\"args\":{{\"bytes sent\":{}}}", scope.bytes);
    write_slice(thread, kCategories[static_cast<size_t>(scope.kind)], name, begin, end, details);
  }

  void write_slice(int thread, std::string_view category, std::string_view name, int64_t begin, int64_t end,
                   std::string_view details = {}) {
    begin_event();
    text_ += "{\"ph\":\"X\",\"name\":\"";
    append_escaped(text_, name);
    fmt::format_to(std::back_inserter(text_), "\",\"cat\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":", category, rank_,
                   thread);
    append_time(begin - origin_);
    text_ += ",\"dur\":";
    append_time(end - begin);
    text_ += details;
    text_ += '}';
  }

  void write_flow(std::string_view kind, int thread, uint64_t number, int64_t time) {
    begin_event();
    fmt::format_to(std::back_inserter(text_),
                   "{{\"ph\":{},\"name\":\"exchange\",\"cat\":\"exchange\",\"id\":\"0x{:x}\",\"pid\":{},\"tid\":{},"
                   "\"ts\":",
                   kind, number, rank_, thread);
    append_time(time - origin_);
    text_ += '}';
  }

  void name_of(std::string_view what, int thread, std::string_view name) {
    begin_event();
    fmt::format_to(std::back_inserter(text_),
                   "{{\"ph\":\"M\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":\"{}\"}}}}", what, rank_,
                   thread, name);
  }
  void sort_index(std::string_view what, int thread, int index) {
    begin_event();
    fmt::format_to(std::back_inserter(text_),
                   "{{\"ph\":\"M\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"args\":{{\"sort_index\":{}}}}}", what, rank_,
                   thread, index);
  }
  void thread(int number, std::string_view name) {
    name_of("thread_name", number, name);
    sort_index("thread_sort_index", number, number);
  }

  TraceFile& file_;
  int rank_;
  int64_t origin_;
  const SpanRecorder& recorded_;
  std::string text_;
  std::vector<bool> is_tied_;  // by scope
};

bool is_trace_beginning(std::string_view bytes) {
  return bytes.starts_with(kBeginning);
}

TraceFile::TraceFile(const std::string& path) {
  file_.emplace(path);
  file_->write(kBeginning);
}

template <typename Action>
void TraceFile::with_file(const Action& action) {
  if (!file_) return;
  try {
    action(*file_);
  } catch (const FileError& error) {
    failure_ = error.what();
    file_.reset();
  }
}

void TraceFile::begin_at(int64_t time) {
  const std::lock_guard lock(mutex_);
  origin_ = has_origin_ ? std::min(origin_, time) : time;
  has_origin_ = true;
}

void TraceFile::add(int rank, int64_t step, const SpanRecorder& recorded) {
  bool is_new = false;
  int64_t origin = 0;
  {
    const std::lock_guard lock(mutex_);
    require(has_origin_ && origin_ <= recorded.begin_time(), "TraceFile::add: a step that has not begun");
    is_new = !std::exchange(introduced_[rank], true);
    origin = origin_;
  }
  TraceEvents events(*this, rank, origin, recorded);
  if (is_new) events.introduce();
  events.add(step);
}

void TraceFile::append(std::string_view events) {
  const std::lock_guard lock(mutex_);
  // Every event brings the comma in front of it.
  if (std::exchange(is_first_, false)) events.remove_prefix(std::min<size_t>(2, events.size()));
  with_file([&](FileOutput& file) { file.write(events); });
}

void TraceFile::finish() {
  const std::lock_guard lock(mutex_);
  with_file([](FileOutput& file) {
    file.write("\n]}\n");
    file.finish();
  });
}

std::string TraceFile::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace ithaca
