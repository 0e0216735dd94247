// Traces of whole training steps on CPU: what the file holds, and what the table adds up to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backend/span_recorder.h"
#include "base/error.h"
#include "model/description.h"
#include "model/parameters.h"
#include "train/run.h"
#include "train/trace_testing.h"

namespace ithaca {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using namespace testing_support;
using ::testing::HasSubstr;

class Trace : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              (std::string("ithaca_trace_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "model");
    std::ifstream original(std::string(ITHACA_TEST_DATA) + "/models/qwen3/config.json");
    json config = json::parse(original);
    config["vocab_size"] = 256;
    std::ofstream(folder_ / "model" / "config.json") << config.dump(1);
    std::ofstream text(folder_ / "text.txt");
    for (int line = 0; line < 100; ++line) text << "the quick brown fox jumps over the lazy dog " << line % 10 << '\n';
    text.close();
    recipe_.model.path = (folder_ / "model").string();
    recipe_.model.init = "random";
    recipe_.data.train = {(folder_ / "text.txt").string()};
    recipe_.data.max_length = {"256"};
    recipe_.train.max_steps = 4;
    recipe_.train.output_dir = (folder_ / "run").string();
    request_.path = (folder_ / "trace.json").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  RunResult run() {
    const auto start = std::chrono::steady_clock::now();
    RunResult result = run_training(recipe_, recorder_, stop_, request_);
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result;
  }

  nlohmann::json events() const { return trace_events(request_.path); }

  fs::path folder_;
  Recipe recipe_;
  TraceRequest request_;
  TracedRun recorder_;
  std::atomic<bool> stop_ = false;
  double seconds_ = 0.0;  // that the run took
};

constexpr int kHost = 0;
constexpr int kCompute = 1;
constexpr int kCommunication = 2;

TEST_F(Trace, HoldsEveryOperationOfOneStep) {
  run();
  const json all = events();
  const auto threads = slices_by_thread(all);
  for (const auto& [thread, thread_slices] : threads) expect_nested(thread_slices);

  // What a step with recompute `attention` does, in one tile of tokens, layer by layer.
  const ModelDescription& model = recorder_.plan->model;
  const int64_t layers = model.layer_count();
  const std::map<std::string, int64_t> expected = {
      {"copy_from_host", 4},  // token ids, labels, position ids, inverse frequencies
      {"rope_table", 1},
      {"embedding_forward", 1},
      {"rms_norm_forward", 2 * layers + 1 + 2 * layers},
      {"head_rope_forward", 2 * layers + 2 * layers},
      {"attention_forward", layers},
      {"swiglu_forward", layers + layers},
      {"cross_entropy", 1},
      // query-key-value, output, gate-up, down; the head with its two gradients; computed again: all but down;
      // gradients of four weights and of their four inputs.
      {"gemm", 4 * layers + 3 + 3 * layers + 8 * layers},
      {"rms_norm_backward", 2 * layers + 1},
      {"head_rope_backward", 2 * layers},
      {"attention_backward", layers},
      {"swiglu_backward", layers},
      {"embedding_backward", 1},
      {"square_sum", layers + 2},  // units
      {"step_numbers", 1},
      {"adamw", static_cast<int64_t>(parameter_specs(model).size())},
      {"copy_to_host", 4},
  };
  const std::vector<TraceSlice>& compute = threads.at({0, kCompute});
  for (const auto& [name, operations] : expected) EXPECT_EQ(count(compute, name), operations) << name;

  // Layers hold phases, which hold operations: two slices of each layer on every thread that works for it.
  for (int64_t layer = 0; layer < layers; ++layer) {
    EXPECT_EQ(count(compute, "layer " + std::to_string(layer)), 2);
    EXPECT_EQ(count(threads.at({0, kHost}), "layer " + std::to_string(layer)), 2);
  }
  EXPECT_EQ(count(compute, std::string(phase::kAttention)), layers);
  EXPECT_EQ(count(threads.at({0, kHost}), "step 3"), 1);
  std::set<std::string> names;
  for (const json& event : all) {
    if (event.at("ph") == "M") names.insert(event.at("args").value("name", ""));
  }
  for (const char* name : {"rank 0", "host", "compute stream", "communication stream", "copy stream"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
}

TEST_F(Trace, ComesWithATableThatAddsUp) {
  recipe_.memory.recompute = "full";
  run();
  ASSERT_TRUE(recorder_.trace.has_value());
  EXPECT_EQ(recorder_.trace->path, request_.path);
  EXPECT_EQ(recorder_.trace->first_step, 3);
  EXPECT_EQ(recorder_.trace->last_step, 3);
  const PhaseTable& table = recorder_.trace->phases;
  EXPECT_EQ(table.steps, 1);
  EXPECT_EQ(table.sum().total(), table.nanoseconds);
  // All that the rank did in the step, and no more than the run.
  EXPECT_LE(static_cast<double>(table.nanoseconds) * 1e-9, seconds_);
  const auto by_thread = slices_by_thread(events());
  EXPECT_GE(table.nanoseconds, step_duration(by_thread, 0, 3));
  for (const std::string_view phase : phase::kAll) {
    const bool is_there = std::any_of(table.rows.begin(), table.rows.end(),
                                      [&](const PhaseTimes& row) { return row.phase == phase && row.total() > 0; });
    EXPECT_TRUE(is_there) << phase;
  }
  const auto other = std::find_if(table.rows.begin(), table.rows.end(),
                                  [](const PhaseTimes& times) { return times.phase == kOtherPhase; });
  EXPECT_TRUE(other == table.rows.end() || other->operations == 0) << "all work belongs to a phase";
  // The table is what the file shows: the time of attention is that of its operations.
  int64_t attention = 0;
  for (const TraceSlice& slice : by_thread.at({0, kCompute})) {
    if (slice.name == "attention_backward") attention += slice.end - slice.begin;
  }
  const auto row = std::find_if(table.rows.begin(), table.rows.end(),
                                [](const PhaseTimes& times) { return times.phase == phase::kAttentionBackward; });
  EXPECT_GE(row->compute, attention);
}

TEST_F(Trace, ShowsWhatRanksGiveEachOther) {
  recipe_.parallel.sp_size = 2;
  recipe_.parallel.schedule = "ring";
  request_.first_step = 2;
  request_.last_step = 3;
  run();
  const json all = events();
  const auto threads = slices_by_thread(all);
  for (const auto& [thread, thread_slices] : threads) expect_nested(thread_slices);
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<TraceSlice>& exchanges = threads.at({rank, kCommunication});
    EXPECT_GE(count(exchanges, "send_receive"), 2 * recorder_.plan->model.layer_count());
    const int64_t units_of_two_steps = 2 * (recorder_.plan->model.layer_count() + 2);
    EXPECT_EQ(count(exchanges, "reduce_scatter"), units_of_two_steps) << "gradients";
    EXPECT_EQ(count(exchanges, std::string(phase::kGradientReduction)), units_of_two_steps);
    EXPECT_EQ(count(exchanges, "all_gather"), units_of_two_steps) << "weights";
    for (const char* step : {"step 2", "step 3"}) EXPECT_EQ(count(threads.at({rank, kHost}), step), 1);
  }

  // Every arrow has one end on each rank, inside an exchange, and does not point back in time.
  struct End {
    int rank;
    int64_t time;
  };
  std::map<std::string, End> starts;
  std::map<std::string, End> ends;
  for (const json& event : all) {
    if (event.at("ph") != "s" && event.at("ph") != "f") continue;
    const End end = {event.at("pid").get<int>(), trace_nanoseconds(event.at("ts"))};
    auto& side = event.at("ph") == "s" ? starts : ends;
    EXPECT_TRUE(side.emplace(event.at("id").get<std::string>(), end).second) << event.dump();
    const std::vector<TraceSlice>& around = threads.at({end.rank, event.at("tid").get<int>()});
    EXPECT_TRUE(std::any_of(around.begin(), around.end(), [&](const TraceSlice& slice) {
      return slice.category == "exchange" && slice.begin <= end.time && end.time <= slice.end;
    })) << event.dump();
  }
  EXPECT_GT(starts.size(), 10u);
  ASSERT_EQ(starts.size(), ends.size());
  for (const auto& [number, start] : starts) {
    ASSERT_EQ(ends.count(number), 1u);
    EXPECT_NE(start.rank, ends.at(number).rank);
    EXPECT_LE(start.time, ends.at(number).time);
  }
  EXPECT_EQ(recorder_.trace->phases.steps, 2);
  EXPECT_GT(recorder_.trace->phases.sum().communication, 0);
}

TEST_F(Trace, DoesNotChangeTheResults) {
  run();
  const std::vector<StepMetrics> traced = recorder_.steps;
  request_.path.clear();
  recorder_.steps.clear();
  recorder_.trace.reset();
  run();
  EXPECT_FALSE(recorder_.trace.has_value());
  for (size_t step = 0; step < traced.size(); ++step) {
    EXPECT_EQ(traced[step].loss, recorder_.steps[step].loss);
    EXPECT_EQ(traced[step].grad_norm, recorder_.steps[step].grad_norm);
  }
}

TEST_F(Trace, OfAShortRunIsItsLastStep) {
  recipe_.train.max_steps = 2;
  run();
  EXPECT_EQ(recorder_.trace->first_step, 2);
}

TEST_F(Trace, IsRefusedBeforeTheRunWhereItCannotBe) {
  request_.first_step = 4;
  request_.last_step = 5;
  try {
    run();
    FAIL();
  } catch (const ConfigurationError& error) {
    EXPECT_THAT(error.what(), HasSubstr("--trace-steps 4:5: the run has only 4 steps"));
  }
  request_.first_step = 0;
  request_.path = (folder_ / "no" / "such" / "folder" / "trace.json").string();
  try {
    run();
    FAIL();
  } catch (const ConfigurationError& error) {
    EXPECT_THAT(error.what(), HasSubstr("--trace: "));
    EXPECT_THAT(error.what(), HasSubstr("No such file"));
  }
  request_.path = folder_.string();
  EXPECT_THROW(run(), ConfigurationError) << "a folder";
  EXPECT_FALSE(recorder_.plan.has_value()) << "nothing was begun";
}

TEST_F(Trace, OfARunThatEndsEarlierIsNotLeftBehind) {
  recorder_.after_step = [&] { stop_ = true; };
  run();
  EXPECT_FALSE(recorder_.trace.has_value());
  ASSERT_EQ(recorder_.warnings.size(), 1u);
  EXPECT_THAT(recorder_.warnings[0], HasSubstr("ended before step 3"));
  for (const auto& entry : fs::directory_iterator(folder_)) {
    EXPECT_NE(entry.path().filename().string().rfind("trace.json", 0), 0u) << entry.path();
  }
}

TEST_F(Trace, FileIsWholeOrAbsentAndHoldsAnyName) {
  const std::string odd = "kernel<\"a\\b\", '\n\x01'> \xc3\xa9";
  SpanRecorder recorder;
  recorder.begin(1'000'000'007);
  const int32_t outer = recorder.open_scope({.name = "layer", .index = 1}, 1'000'000'010);
  const int32_t exchange =
      recorder.open_scope({"send_receive", ScopeName::Kind::exchange, -1, 12, 5, 6}, 1'000'000'011);
  recorder.close_scope(1'000'000'012);
  recorder.close_scope(1'000'000'020);
  // Out of order, overlapping, beyond the step, and of another scope in between.
  recorder.add(TraceTrack::compute, "last", outer, 1'000'000'200, 1'000'009'999);
  recorder.add(TraceTrack::compute, odd, outer, 1'000'000'100, 1'000'000'150);
  recorder.add(TraceTrack::compute, "overlaps", kNoScope, 1'000'000'140, 1'000'000'160);
  recorder.add(TraceTrack::communication, "", exchange, 1'000'000'100, 1'000'000'190);
  recorder.add(TraceTrack::copy, "", kNoScope, 1'000'000'100, 1'000'000'110);
  recorder.finish(1'000'000'300);
  {
    TraceFile file(request_.path);
    EXPECT_THROW(file.add(0, 1, recorder), ContractError) << "nothing has begun";
    file.begin_at(1'000'000'100);
    file.begin_at(recorder.begin_time());  // another rank was earlier
    file.add(4, 9, recorder);
    EXPECT_FALSE(fs::exists(request_.path));
    file.finish();
  }
  const json all = events();
  const auto threads = slices_by_thread(all);
  for (const auto& [thread, slices] : threads) expect_nested(slices);
  const std::vector<TraceSlice>& compute = threads.at({4, kCompute});
  ASSERT_EQ(compute.size(), 5u) << "the layer twice, around each of its two operations";
  EXPECT_EQ(compute[1].name, odd);
  EXPECT_EQ(compute[1].begin, 93);
  EXPECT_EQ(compute[2].name, "overlaps");
  EXPECT_EQ(compute[2].begin, compute[1].end);
  EXPECT_EQ(compute[4].end, 293) << "the end of the step";
  const std::vector<TraceSlice>& communication = threads.at({4, kCommunication});
  ASSERT_EQ(communication.size(), 2u) << "an exchange says itself what it is";
  EXPECT_EQ(communication[1].name, "send_receive");
  EXPECT_EQ(threads.at({4, 3})[0].name, "host work");
  EXPECT_EQ(threads.at({4, kHost})[0].name, "step 9");
  const auto sends = [](const json& event) { return event.at("ph") == "s" && event.at("id") == "0x6"; };
  EXPECT_EQ(std::count_if(all.begin(), all.end(), sends), 1);
}

TEST(TraceSteps, AreOneOrAFirstAndALast) {
  TraceRequest request;
  parse_trace_steps("7", request);
  EXPECT_EQ(request.first_step, 7);
  EXPECT_EQ(request.last_step, 7);
  parse_trace_steps("2:12", request);
  EXPECT_EQ(request.first_step, 2);
  EXPECT_EQ(request.last_step, 12);
  for (const char* wrong : {"", "0", "-1", "x", "3:", ":3", "3:2", "1:2:3", "2-3", "99999999999999999999"}) {
    EXPECT_THROW(parse_trace_steps(wrong, request), ConfigurationError) << wrong;
  }
}

TEST_F(Trace, ThatCannotBeWrittenIsNoReasonToLoseTheRun) {
  const fs::path doomed = folder_ / "doomed";
  fs::create_directories(doomed);
  request_.path = (doomed / "trace.json").string();
  request_.first_step = 1;
  request_.last_step = 2;
  recorder_.after_step = [&] { fs::remove_all(doomed); };
  const RunResult result = run();
  EXPECT_EQ(result.steps, 4);
  EXPECT_TRUE(fs::exists(fs::path(result.export_directory) / "model.safetensors"));
  EXPECT_THAT(result.trace_failure, HasSubstr(request_.path + ": cannot finish writing: "));
  ASSERT_EQ(recorder_.warnings.size(), 1u);
  EXPECT_EQ(recorder_.warnings[0], "--trace: " + result.trace_failure + "; training goes on without the trace");
  EXPECT_FALSE(recorder_.trace.has_value());
}

TEST_F(Trace, AFullDiskLeavesNothingOfIt) {
  const std::string path = (folder_ / "trace.json").string();
  TraceFile file(path);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit tight{50, before.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  SpanRecorder recorder;
  file.begin_at(recorder.begin_time());
  file.add(0, 1, recorder);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQ(file.failure(), path + ": cannot write: File too large");
  EXPECT_FALSE(fs::exists(path + ".partial"));
  file.add(1, 1, recorder);
  file.finish();
  EXPECT_FALSE(fs::exists(path));
}

}  // namespace
}  // namespace ithaca
