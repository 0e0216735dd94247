// ithaca train --trace, as people call it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/program_testing.h"

namespace ithaca {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TraceOption : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream original(std::string(ITHACA_TEST_DATA) + "/models/qwen3/config.json");
    nlohmann::json config = nlohmann::json::parse(original);
    config["vocab_size"] = 256;
    folder_.write("model/config.json", config.dump(1));
    std::string text;
    for (int line = 0; line < 60; ++line) text += "the quick brown fox jumps over the lazy dog\n";
    recipe_ = folder_.write("run.yaml", "model: {path: " + folder_.path("model") +
                                            ", init: random}\n"
                                            "data: {train: " +
                                            folder_.write("text.txt", text) +
                                            ", format: text, tokenizer: bytes, max_length: 128}\n"
                                            "train: {max_steps: 3, backend: cpu, output_dir: " +
                                            folder_.path("run") + "}\n");
  }

  TestFolder folder_;
  std::string recipe_;
};

TEST_F(TraceOption, WritesAFileAndSaysWhere) {
  const std::string file = folder_.path("trace.json");
  const ProgramOutcome outcome = run_ithaca({"train", recipe_, "--trace", file, "--trace-steps", "2:3", "--verbose"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("trace of steps 2 to 3: " + file + " (open it in ui.perfetto.dev)"));
  EXPECT_THAT(outcome.out, HasSubstr("    backward: attention  "));
  EXPECT_THAT(folder_.read("run/log.txt"), HasSubstr("forward: attention  "));
  const nlohmann::json trace = nlohmann::json::parse(folder_.read("trace.json"));
  EXPECT_GT(trace.at("traceEvents").size(), 100u);
}

TEST_F(TraceOption, KeepsTheTableOutOfAQuieterTerminal) {
  const ProgramOutcome outcome = run_ithaca({"train", recipe_, "--trace", folder_.path("trace.json")});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("trace of step 3: "));
  EXPECT_THAT(outcome.out, Not(HasSubstr("backward: attention")));
}

TEST_F(TraceOption, IsCheckedBeforeTraining) {
  const std::string file = folder_.path("trace.json");
  ProgramOutcome outcome = run_ithaca({"train", recipe_, "--trace-steps", "2"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--trace-steps requires --trace"));
  outcome = run_ithaca({"train", recipe_, "--trace", file, "--trace-steps", "first"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--trace-steps first: give one step (3), or the first and the last one (2:3)"));
  outcome = run_ithaca({"train", recipe_, "--trace", file, "--trace-steps", "3:4"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("the run has only 3 steps"));
  outcome = run_ithaca({"train", recipe_, "--trace", folder_.path("absent/trace.json")});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--trace " + folder_.path("absent/trace.json") + ": there is no folder"));
  outcome = run_ithaca({"train", recipe_, "--trace", folder_.path("model")});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr(" is a folder; name a file in it"));
  outcome = run_ithaca({"train", recipe_, "--trace", ""});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--trace: the value is empty"));
  EXPECT_FALSE(folder_.has("run/metrics.jsonl")) << "no step was taken";
  EXPECT_FALSE(folder_.has("trace.json"));
}

TEST_F(TraceOption, LeavesWhatIsNoTraceAlone) {
  const std::string recipe = folder_.read("run.yaml");
  const std::string text = folder_.read("text.txt");
  for (const std::string name : {"run.yaml", "text.txt", "model/config.json", "run/metrics.jsonl", "run/export/x"}) {
    const ProgramOutcome outcome = run_ithaca({"train", recipe_, "--overwrite", "--trace", folder_.path(name)});
    EXPECT_EQ(outcome.status, 2) << name;
    EXPECT_THAT(outcome.err, HasSubstr("--trace " + folder_.path(name) + ": "));
    EXPECT_EQ(outcome.out, "");
  }
  EXPECT_EQ(folder_.read("run.yaml"), recipe);
  EXPECT_EQ(folder_.read("text.txt"), text);
  EXPECT_FALSE(folder_.has("run"));
}

// A file that may not grow is what a full disk is to a program.
TEST_F(TraceOption, WhatCannotBeWrittenCostsTheTraceAndNotTheRun) {
  // In the folder that the run makes. The model has room, all steps of two ranks have not.
  const std::string file = folder_.path("run/trace.json");
  const std::string command =
      "(ulimit -f 250; exec '" ITHACA_PROGRAM "' train '" + recipe_ + "' --trace '" + file +
      "' --trace-steps 1:30 --set train.max_steps=30 --set parallel.sp_size=2 2>&1 >/dev/null) | cat >&2; exit "
      "${PIPESTATUS[0]}";
  const ProgramOutcome outcome = StartedProgram({"bash", "-c", command}).finish();
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("ithaca: warning: --trace: " + file +
                                     ": cannot write: File too large; training goes on without the trace\n"));
  EXPECT_THAT(outcome.err, HasSubstr("ithaca: error: --trace: " + file +
                                     ": cannot write: File too large; there is no trace, but the run came to its end"));
  EXPECT_TRUE(folder_.has("run/export/model.safetensors"));
  EXPECT_FALSE(folder_.has("run/trace.json"));
  EXPECT_FALSE(folder_.has("run/trace.json.partial"));
}

}  // namespace
}  // namespace ithaca
