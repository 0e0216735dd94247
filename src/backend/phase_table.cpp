#include "backend/phase_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace ithaca {

namespace {

size_t place_of(std::string_view phase) {
  const auto* const found = std::find(std::begin(phase::kAll), std::end(phase::kAll), phase);
  const auto place = static_cast<size_t>(found - std::begin(phase::kAll));
  return phase == kOtherPhase ? std::size(phase::kAll) + 1 : place;
}

// Finds or makes the row, in its place.
PhaseTimes& row_of(std::vector<PhaseTimes>& rows, std::string_view phase) {
  for (PhaseTimes& row : rows) {
    if (row.phase == phase) return row;
  }
  const size_t place = place_of(phase);
  const auto behind =
      std::find_if(rows.begin(), rows.end(), [&](const PhaseTimes& row) { return place_of(row.phase) > place; });
  PhaseTimes row;
  row.phase = phase;
  return *rows.insert(behind, std::move(row));
}

struct Busy {
  int64_t begin = 0;
  int64_t end = 0;
  std::string_view phase;
};

class Adder {
 public:
  explicit Adder(const SpanRecorder& recorded) : recorded_(recorded) {}

  PhaseTable add_up() {
    std::vector<Busy> communication = busy(TraceTrack::communication);
    std::vector<Busy> copies = busy(TraceTrack::copy);
    for (const Busy& span : communication) row(span.phase).communication += span.end - span.begin;
    for (const Busy& span : copies) row(span.phase).copies += span.end - span.begin;

    int64_t now = recorded_.begin_time();
    for (const Busy& span : busy(TraceTrack::compute)) {
      stand_still(now, span.begin, span.phase, communication, copies);
      PhaseTimes& times = row(span.phase);
      times.compute += span.end - span.begin;
      ++times.operations;
      now = span.end;
    }
    const int64_t end = std::max(now, recorded_.end_time());
    stand_still(now, end, kOtherPhase, communication, copies);
    table_.nanoseconds = end - recorded_.begin_time();
    table_.steps = 1;
    table_.dropped = recorded_.dropped();
    return std::move(table_);
  }

 private:
  PhaseTimes& row(std::string_view phase) { return row_of(table_.rows, phase); }

  std::vector<Busy> busy(TraceTrack track) const {
    std::vector<Busy> result;
    for (const SpanRecorder::Span& span : recorded_.spans_of(track)) {
      if (span.kind == SpanRecorder::Kind::wait) continue;
      const int32_t phase = recorded_.phase_of(span.scope);
      result.push_back({span.begin, span.end,
                        phase == kNoScope
                            ? kOtherPhase
                            : std::string_view(recorded_.name(recorded_.scopes()[static_cast<size_t>(phase)].name))});
    }
    return result;
  }

  // [begin, end): exposed where another stream works, idle elsewhere.
  void stand_still(int64_t begin, int64_t end, std::string_view next, const std::vector<Busy>& communication,
                   const std::vector<Busy>& copies) {
    cover(begin, end, communication, next_communication_, [&](int64_t from, int64_t to) {
      cover(from, to, copies, next_copy_,
            [&](int64_t idle_from, int64_t idle_to) { row(next).idle += idle_to - idle_from; });
    });
  }

  // Gives what `spans` cover of [begin, end) to their phases, and the rest to `rest`. Calls come in the order of time;
  // `position` is where the last one ended.
  template <typename Rest>
  void cover(int64_t begin, int64_t end, const std::vector<Busy>& spans, size_t& position, const Rest& rest) {
    while (begin < end) {
      while (position < spans.size() && spans[position].end <= begin) ++position;
      if (position == spans.size() || spans[position].begin >= end) return rest(begin, end);
      const Busy& span = spans[position];
      if (span.begin > begin) rest(begin, span.begin);
      const int64_t until = std::min(end, span.end);
      row(span.phase).exposed += until - std::max(begin, span.begin);
      begin = until;
    }
  }

  const SpanRecorder& recorded_;
  PhaseTable table_;
  size_t next_communication_ = 0;
  size_t next_copy_ = 0;
};

void add_times(PhaseTimes& sum, const PhaseTimes& row) {
  sum.compute += row.compute;
  sum.exposed += row.exposed;
  sum.idle += row.idle;
  sum.communication += row.communication;
  sum.copies += row.copies;
  sum.operations += row.operations;
}

}  // namespace

PhaseTimes PhaseTable::sum() const {
  PhaseTimes sum;
  sum.phase = "step";
  for (const PhaseTimes& row : rows) add_times(sum, row);
  return sum;
}

void PhaseTable::add(const PhaseTable& other) {
  for (const PhaseTimes& row : other.rows) add_times(row_of(rows, row.phase), row);
  steps += other.steps;
  nanoseconds += other.nanoseconds;
  dropped += other.dropped;
}

PhaseTable phase_table(const SpanRecorder& recorded) {
  return Adder(recorded).add_up();
}

std::string format_phase_table(const PhaseTable& table) {
  const auto steps = static_cast<double>(std::max<int64_t>(table.steps, 1));
  const auto milliseconds = [&](int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-6 / steps; };
  const double whole = std::max(milliseconds(table.nanoseconds), 1e-12);
  std::string text = fmt::format("{:<30} {:>10} {:>7} {:>10} {:>10} {:>10} {:>14} {:>10} {:>10}\n", "phase", "total ms",
                                 "share", "compute", "exposed", "idle", "communication", "copies", "operations");
  const auto add_line = [&](const PhaseTimes& row) {
    text += fmt::format("{:<30} {:>10.3f} {:>6.1f}% {:>10.3f} {:>10.3f} {:>10.3f} {:>14.3f} {:>10.3f} {:>10.0f}\n",
                        row.phase, milliseconds(row.total()), 100.0 * milliseconds(row.total()) / whole,
                        milliseconds(row.compute), milliseconds(row.exposed), milliseconds(row.idle),
                        milliseconds(row.communication), milliseconds(row.copies),
                        static_cast<double>(row.operations) / steps);
  };
  for (const PhaseTimes& row : table.rows) add_line(row);
  add_line(table.sum());
  if (table.dropped > 0) {
    text += fmt::format("{} operations were too many to be recorded: these times are too small\n", table.dropped);
  }
  return text;
}

}  // namespace ithaca
