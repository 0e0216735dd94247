// Test support: what tests of traces look at. For test sources only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/run.h"

namespace ithaca::testing_support {

// Remembers what a run told.
class TracedRun : public RunObserver {
 public:
  void on_plan(const RunPlan& given) override { plan = given; }
  void on_step(const StepMetrics& metrics) override {
    steps.push_back(metrics);
    if (after_step) after_step();
  }
  void on_warning(const std::string& text) override { warnings.push_back(text); }
  void on_trace(const TraceSummary& given) override { trace = given; }

  std::optional<RunPlan> plan;
  std::vector<StepMetrics> steps;
  std::vector<std::string> warnings;
  std::optional<TraceSummary> trace;
  std::function<void()> after_step;
};

// A slice of a trace, in nanoseconds.
struct TraceSlice {
  std::string name;
  std::string category;
  int64_t begin = 0;
  int64_t end = 0;
};

inline nlohmann::json trace_events(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file).at("traceEvents");
}

inline int64_t trace_nanoseconds(const nlohmann::json& microseconds) {
  return std::llround(microseconds.get<double>() * 1000.0);
}

// By (pid, tid), in the order of the file.
inline std::map<std::pair<int, int>, std::vector<TraceSlice>> slices_by_thread(const nlohmann::json& events) {
  std::map<std::pair<int, int>, std::vector<TraceSlice>> result;
  for (const nlohmann::json& event : events) {
    if (event.at("ph") != "X") continue;
    const int64_t begin = trace_nanoseconds(event.at("ts"));
    result[{event.at("pid").get<int>(), event.at("tid").get<int>()}].push_back(
        {event.at("name").get<std::string>(), event.at("cat").get<std::string>(), begin,
         begin + trace_nanoseconds(event.at("dur"))});
  }
  return result;
}

// How long the rank's thread was in the step.
inline int64_t step_duration(const std::map<std::pair<int, int>, std::vector<TraceSlice>>& threads, int rank,
                             int64_t step) {
  for (const TraceSlice& slice : threads.at({rank, 0})) {
    if (slice.category == "step" && slice.name == "step " + std::to_string(step)) return slice.end - slice.begin;
  }
  ADD_FAILURE() << "rank " << rank << " shows no step " << step;
  return 0;
}

// Slices of one thread are inside one another or apart, and an outer one comes before its inner ones.
inline void expect_nested(const std::vector<TraceSlice>& slices) {
  std::vector<TraceSlice> open;
  int64_t last_begin = 0;
  for (const TraceSlice& slice : slices) {
    ASSERT_GE(slice.begin, last_begin) << slice.name;
    last_begin = slice.begin;
    while (!open.empty() && open.back().end <= slice.begin && open.back().end < slice.end) open.pop_back();
    if (!open.empty()) {
      ASSERT_LE(slice.end, open.back().end) << slice.name << " reaches out of " << open.back().name;
    }
    open.push_back(slice);
  }
}

inline int64_t count(const std::vector<TraceSlice>& slices, const std::string& name) {
  return std::count_if(slices.begin(), slices.end(), [&](const TraceSlice& slice) { return slice.name == name; });
}

}  // namespace ithaca::testing_support
