#include "backend/phase_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "base/random.h"

namespace ithaca {
namespace {

using ::testing::HasSubstr;

ScopeName phase_named(std::string_view name) {
  return {name, ScopeName::Kind::phase};
}

const PhaseTimes& row_named(const PhaseTable& table, std::string_view phase) {
  for (const PhaseTimes& row : table.rows) {
    if (row.phase == phase) return row;
  }
  throw ContractError("no row " + std::string(phase));
}

TEST(PhaseTable, GivesEveryMomentToOnePhase) {
  SpanRecorder recorder;
  recorder.begin(0);
  const int32_t attention = recorder.open_scope(phase_named(phase::kAttention), 0);
  const int32_t exchange = recorder.open_scope({"all_gather", ScopeName::Kind::exchange}, 0);
  recorder.close_scope(0);
  recorder.close_scope(0);
  const int32_t mlp = recorder.open_scope(phase_named(phase::kMlp), 0);
  recorder.close_scope(0);
  recorder.add(TraceTrack::compute, "b", mlp, 500, 600);
  recorder.add(TraceTrack::compute, "a", attention, 100, 300);
  recorder.add(TraceTrack::compute, "wait", mlp, 300, 440, SpanRecorder::Kind::wait);
  recorder.add(TraceTrack::communication, "", exchange, 250, 450);
  recorder.add(TraceTrack::copy, "copy", mlp, 430, 480);
  recorder.finish(1000);

  const PhaseTable table = phase_table(recorder);
  ASSERT_EQ(table.rows.size(), 3u);
  const PhaseTimes& first = row_named(table, phase::kAttention);
  EXPECT_EQ(first.idle, 100);
  EXPECT_EQ(first.compute, 200);
  EXPECT_EQ(first.exposed, 150) << "from the end of its work to the end of its exchange";
  EXPECT_EQ(first.communication, 200);
  EXPECT_EQ(first.copies, 0);
  EXPECT_EQ(first.operations, 1);
  const PhaseTimes& second = row_named(table, phase::kMlp);
  EXPECT_EQ(second.exposed, 30) << "the copy, where no exchange ran";
  EXPECT_EQ(second.idle, 20);
  EXPECT_EQ(second.compute, 100);
  EXPECT_EQ(second.copies, 50);
  const PhaseTimes& rest = row_named(table, kOtherPhase);
  EXPECT_EQ(rest.idle, 400);
  EXPECT_EQ(table.rows[2].phase, kOtherPhase);
  EXPECT_EQ(table.nanoseconds, 1000);
  EXPECT_EQ(table.sum().total(), 1000);
}

TEST(PhaseTable, CountsOverlappingWorkOnce) {
  SpanRecorder recorder;
  recorder.begin(0);
  recorder.add(TraceTrack::compute, "early", kNoScope, 0, 100);
  recorder.add(TraceTrack::compute, "overlapping", kNoScope, 50, 150);
  recorder.add(TraceTrack::compute, "inside", kNoScope, 60, 90);
  recorder.finish(150);
  const PhaseTable table = phase_table(recorder);
  EXPECT_EQ(table.sum().compute, 150);
  EXPECT_EQ(table.sum().operations, 3);
  EXPECT_EQ(table.sum().total(), 150);
}

TEST(PhaseTable, TakesTheInnermostPhase) {
  SpanRecorder recorder;
  recorder.begin(0);
  recorder.open_scope(phase_named(phase::kMlpBackward), 0);
  recorder.open_scope({.name = "layer", .index = 3}, 0);
  recorder.open_scope(phase_named(phase::kRecomputeMlp), 0);
  const int32_t part = recorder.open_scope({.name = "tile", .index = 0}, 0);
  recorder.add(TraceTrack::compute, "gemm", part, 0, 10);
  recorder.close_scope(0);
  recorder.close_scope(0);
  recorder.add(TraceTrack::compute, "gemm", recorder.current_scope(), 10, 30);
  recorder.finish(30);
  const PhaseTable table = phase_table(recorder);
  EXPECT_EQ(row_named(table, phase::kRecomputeMlp).compute, 10);
  EXPECT_EQ(row_named(table, phase::kMlpBackward).compute, 20);
}

TEST(PhaseTable, AddsUpWhateverTheSpans) {
  const RandomStream random(7, "spans");
  uint64_t number = 0;
  PhaseTable all;
  int64_t wall = 0;
  for (int step = 0; step < 20; ++step) {
    SpanRecorder recorder;
    recorder.begin(100);
    for (int span = 0; span < 60; ++span) {
      recorder.open_scope(phase_named(phase::kAll[random.bits(number++) % std::size(phase::kAll)]), 0);
      const auto begin = static_cast<int64_t>(random.bits(number++) % 1300);
      const auto length = static_cast<int64_t>(random.bits(number++) % 60);
      const auto track = static_cast<TraceTrack>(random.bits(number++) % 3);
      recorder.add(track, "x", recorder.current_scope(), begin, begin + length);
      recorder.close_scope(0);
    }
    recorder.finish(1200);
    const PhaseTable table = phase_table(recorder);
    EXPECT_EQ(table.nanoseconds, 1100);
    EXPECT_EQ(table.sum().total(), 1100);
    for (const PhaseTimes& row : table.rows) {
      EXPECT_GE(std::min({row.compute, row.exposed, row.idle, row.communication, row.copies}), 0) << row.phase;
    }
    EXPECT_LE(table.sum().exposed, table.sum().communication + table.sum().copies);
    wall += table.nanoseconds;
    all.add(table);
  }
  EXPECT_EQ(all.steps, 20);
  EXPECT_EQ(all.nanoseconds, wall);
  EXPECT_EQ(all.sum().total(), wall);
  for (size_t row = 1; row < all.rows.size(); ++row) {
    const auto place = [&](size_t index) {
      return std::find(std::begin(phase::kAll), std::end(phase::kAll), all.rows[index].phase);
    };
    EXPECT_LT(place(row - 1), place(row)) << "rows come in the order of a step";
  }
}

TEST(PhaseTable, SaysWhatIsMissing) {
  SpanRecorder recorder;
  recorder.begin(0);
  recorder.drop(3);
  recorder.finish(10);
  PhaseTable table = phase_table(recorder);
  table.add(table);
  EXPECT_EQ(table.dropped, 6);
  EXPECT_THAT(format_phase_table(table), HasSubstr("6 operations were too many to be recorded"));
}

TEST(PhaseTable, IsText) {
  SpanRecorder recorder;
  recorder.begin(0);
  recorder.open_scope(phase_named(phase::kAttention), 0);
  recorder.add(TraceTrack::compute, "a", recorder.current_scope(), 0, 7'000'000);
  recorder.finish(10'000'000);
  PhaseTable table = phase_table(recorder);
  table.add(phase_table(recorder));
  const std::string text = format_phase_table(table);
  EXPECT_THAT(text, HasSubstr("forward: attention                  7.000   70.0%      7.000"));
  EXPECT_THAT(text, HasSubstr("other                               3.000   30.0%"));
  EXPECT_THAT(text, HasSubstr("step                               10.000  100.0%"));
}

}  // namespace
}  // namespace ithaca
