#include "cli/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "cli/test_folder.h"

namespace ithaca {
namespace {

RunPlan example_plan() {
  RunPlan plan;
  plan.model.family = Family::qwen3;
  plan.model.hidden_size = 64;
  plan.model.layers.resize(2);
  plan.parameters = 1234567;
  plan.mesh.ring = 4;
  plan.mesh.dp_replicate = 2;
  plan.state_shards = 4;
  plan.schedule = ScheduleKind::ring;
  plan.layout = Layout::zigzag;
  plan.schedule_reason = "ring over 4 ranks: 2 key heads are fewer than 4 ranks";
  plan.train_sequences = 10;
  plan.train_tokens = 81920;
  plan.longest_sequence = 8192;
  plan.steps = 5;
  plan.sequences_per_step = 2;
  plan.state_bytes_per_rank[static_cast<size_t>(MemoryClass::weights)] = 1 << 20;
  plan.state_bytes_per_rank[static_cast<size_t>(MemoryClass::optimizer)] = 2 << 20;
  plan.output_dir = "runs/x";
  plan.tokens_are_bytes = true;
  plan.notes = {"something unusual"};
  return plan;
}

StepMetrics step_metrics(int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 5.5 - static_cast<double>(step);
  metrics.grad_norm = 0.25;
  metrics.learning_rate = 1e-3;
  metrics.step_seconds = 2.0;
  metrics.tokens_per_second = 8192.0;
  metrics.memory.peak = 3 << 20;
  return metrics;
}

// A run's observer with its folder and what it printed.
class ProgressTest : public testing::Test {
 protected:
  ProgressTest() {
    recipe_.model.path = "m";
    recipe_.model.init = "random";
    recipe_.data.train = {"t.txt"};
    recipe_.train.output_dir = folder_.path("run");
    recipe_.train.logging_steps = 2;
  }

  // Prints a run of five steps.
  void run(Verbosity verbosity, const TerminalStyle& style) {
    RunFolder folder(recipe_.train.output_dir, false);
    Terminal terminal(out_, err_, style);
    RunProgress progress(recipe_, folder, terminal, verbosity);
    progress.on_plan(example_plan());
    for (int64_t step = 1; step <= 5; ++step) progress.on_step(step_metrics(step));
    progress.on_warning("odd");
    progress.on_warning("odd");
    progress.on_evaluation({5, 1.25, 100, 0.5});
    progress.on_export("runs/x/export");
    RunResult result;
    result.steps = 5;
    result.first_loss = 4.5;
    result.last_loss = 0.5;
    result.evaluation_loss = 1.25;
    result.training_seconds = 10.0;
    result.tokens = 81920;
    result.export_directory = "runs/x/export";
    result.metrics_file = "runs/x/metrics.jsonl";
    progress.finish(result, "");
  }

  TestFolder folder_;
  Recipe recipe_;
  std::ostringstream out_;
  std::ostringstream err_;
};

TEST_F(ProgressTest, ThePlanSaysWhatWillHappen) {
  EXPECT_THAT(
      plan_lines(recipe_, example_plan()),
      testing::ElementsAre("model      qwen3, 2 layers, hidden 64, 1,234,567 parameters, random weights (seed 42): m",
                           "data       10 sequences of up to 8,192 tokens, 81,920 tokens in all",
                           "ranks      8 ranks (dp_replicate 2 x ring 4), CPU, float32",
                           "attention  ring over 4 ranks, zigzag layout",
                           "           auto chose ring over 4 ranks: 2 key heads are fewer than 4 ranks",
                           "shards     4 of every sequence, of up to 2,048 tokens each",
                           "steps      5 steps, 2 sequences of up to 8,192 tokens each",
                           "memory     3.00 MiB (weights 1.00 MiB, optimizer 2.00 MiB) per rank before the first step; "
                           "recompute attention",
                           "           optimizer state cut over 4 ranks (parallel.zero 1)", "output     runs/x",
                           "note       something unusual"));
}

TEST_F(ProgressTest, ThePlanSaysHowBytesMove) {
  RunPlan plan = example_plan();
  plan.backend.transport_reason = "peer: the GPUs read each other's memory";
  EXPECT_EQ(plan_lines(recipe_, plan).at(3),
            "           transport: auto chose peer: the GPUs read each other's memory");
  plan.backend.transport_reason.clear();
  plan.backend.transport = Transport::nccl;
  EXPECT_EQ(plan_lines(recipe_, plan).at(3), "           transport: nccl");
}

TEST_F(ProgressTest, PlainLinesComeEveryLoggingSteps) {
  run(Verbosity::normal, {});
  EXPECT_THAT(out_.str(), testing::Not(testing::HasSubstr("\x1b")));
  EXPECT_THAT(out_.str(), testing::Not(testing::HasSubstr("\r")));
  for (const char* step : {"step 1/5", "step 2/5", "step 4/5", "step 5/5"}) {
    EXPECT_THAT(out_.str(), testing::HasSubstr(step));
  }
  EXPECT_THAT(out_.str(), testing::Not(testing::HasSubstr("step 3/5")));
  EXPECT_THAT(out_.str(), testing::HasSubstr("step 1/5  loss 4.5000  grad norm 0.25  lr 1.00e-03  8.19k tokens/s  "
                                             "3.00 MiB  left 8.0s\n"));
  EXPECT_EQ(err_.str(), "ithaca: warning: odd\n");
}

TEST_F(ProgressTest, TheLastLinesSayWhatWasDone) {
  run(Verbosity::normal, {});
  EXPECT_THAT(out_.str(),
              testing::HasSubstr("evaluation after step 5: loss 1.2500 nats per byte over 100 bytes in 0.5s\n"
                                 "Trained 5 steps on 81,920 tokens in 10.0s, 8.19k tokens/s.\n"
                                 "The loss fell from 4.500 to 0.500 nats per byte; on the evaluation data "
                                 "it is 1.250.\n"
                                 "The model is a Hugging Face directory: runs/x/export\n"
                                 "Every step's numbers: runs/x/metrics.jsonl\n"));
}

TEST_F(ProgressTest, ATerminalHasOneLiveLine) {
  run(Verbosity::normal, {.live = true, .color = false, .width = 40});
  const std::string text = out_.str();
  EXPECT_THAT(text, testing::HasSubstr("\rstep 3/5  loss 2.5000"));
  for (size_t begin = text.find("\rstep"); begin != std::string::npos; begin = text.find("\rstep", begin + 1)) {
    EXPECT_LT(text.find("\x1b[K", begin) - begin, 41u);
  }
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("\x1b[1m")));
}

TEST_F(ProgressTest, TheTimeLeftFitsIntoAnOrdinaryTerminal) {
  run(Verbosity::normal, {.live = true, .color = false, .width = 80});
  EXPECT_THAT(out_.str(), testing::HasSubstr("3.00 MiB  left 6.0s\x1b[K"));
  EXPECT_THAT(out_.str(), testing::Not(testing::HasSubstr("lr 1.00e-03")));
}

TEST_F(ProgressTest, ColorIsOnlyForThoseWhoWantIt) {
  run(Verbosity::normal, {.live = true, .color = true, .width = 100});
  EXPECT_THAT(out_.str(), testing::HasSubstr("\x1b[1mTrained 5 steps"));
}

TEST_F(ProgressTest, QuietPrintsWarningsOnly) {
  run(Verbosity::quiet, {});
  EXPECT_EQ(out_.str(), "");
  EXPECT_EQ(err_.str(), "ithaca: warning: odd\n");
}

TEST_F(ProgressTest, VerbosePrintsEveryStep) {
  run(Verbosity::verbose, {});
  EXPECT_THAT(out_.str(), testing::HasSubstr("step 3/5"));
  EXPECT_THAT(out_.str(), testing::HasSubstr("waiting for others"));
}

TEST_F(ProgressTest, TheFolderKeepsConfigurationAndLog) {
  run(Verbosity::quiet, {});
  const std::string log = folder_.read("run/log.txt");
  EXPECT_THAT(log, testing::HasSubstr("info step 4/5"));
  EXPECT_THAT(log, testing::HasSubstr("warning odd"));
  EXPECT_THAT(folder_.read("run/config.yaml"), testing::HasSubstr("logging_steps: 2"));
}

TEST_F(ProgressTest, SkippedStepsAreSaidAtTheEnd) {
  RunFolder folder(recipe_.train.output_dir, false);
  Terminal terminal(out_, err_, {});
  RunProgress progress(recipe_, folder, terminal, Verbosity::normal);
  progress.on_plan(example_plan());
  RunResult result;
  result.steps = 5;
  result.skipped_steps = 3;
  progress.finish(result, "");
  EXPECT_THAT(out_.str(), testing::HasSubstr("3 of them were skipped and changed nothing; log.txt says why.\n"));
}

TEST_F(ProgressTest, WhatHasNoRoomIsLeftOutFromTheMiddle) {
  run(Verbosity::normal, {.live = true, .color = false, .width = 60});
  EXPECT_THAT(out_.str(), testing::HasSubstr("\rstep 3/5  loss 2.5000  8.19k tokens/s  left 4.0s\x1b[K"));
}

TEST_F(ProgressTest, LossesAreComparedOverWindows) {
  RunFolder folder(recipe_.train.output_dir, false);
  Terminal terminal(out_, err_, {});
  RunProgress progress(recipe_, folder, terminal, Verbosity::normal);
  RunPlan plan = example_plan();
  plan.steps = 40;
  progress.on_plan(plan);
  // A falling loss whose last step happens to be the worst of all.
  for (int64_t step = 1; step <= 40; ++step) {
    StepMetrics metrics = step_metrics(step);
    metrics.loss = step == 40 ? 9.0 : 5.0 - 0.1 * static_cast<double>(step);
    metrics.skipped = step == 2;
    progress.on_step(metrics);
  }
  RunResult result;
  result.steps = 40;
  progress.finish(result, "");
  // 39 losses: windows of 9. 5.0 - 0.1 * mean(1, 3..10) and (8 * 5.0 - 0.1 * sum(32..39) + 9) / 9.
  EXPECT_THAT(out_.str(), testing::HasSubstr("The loss fell from 4.411 to 2.289 nats per byte (means of the first and "
                                             "the last 9 steps).\n"));
}

TEST_F(ProgressTest, ARunThatWasStoppedBeforeItsFirstStepLeavesNothing) {
  const auto stop_before_first_step = [&](bool overwrite) {
    RunFolder folder(recipe_.train.output_dir, overwrite);
    Terminal terminal(out_, err_, {});
    RunProgress progress(recipe_, folder, terminal, Verbosity::normal);
    progress.on_plan(example_plan());
    RunResult result;
    result.stopped_early = true;
    progress.finish(result, "Ctrl-C (SIGINT)");
  };
  stop_before_first_step(false);
  EXPECT_THAT(out_.str(), testing::HasSubstr("Stopped by Ctrl-C (SIGINT) before the first step was done; nothing was "
                                             "trained, and nothing of it is left in runs/x.\n"));
  EXPECT_FALSE(folder_.has("run"));
  folder_.write("run/config.yaml", "earlier");
  stop_before_first_step(true);
  EXPECT_THAT(out_.str(), testing::HasSubstr("trained, and the earlier run is put back in runs/x.\n"));
  EXPECT_EQ(folder_.read("run/config.yaml"), "earlier");
}

TEST_F(ProgressTest, AStoppedRunSaysWhatStoppedIt) {
  RunFolder folder(recipe_.train.output_dir, false);
  Terminal terminal(out_, err_, {});
  RunProgress progress(recipe_, folder, terminal, Verbosity::normal);
  progress.on_plan(example_plan());
  RunResult result;
  result.stopped_early = true;
  result.steps = 1;
  progress.finish(result, "SIGTERM");
  EXPECT_THAT(out_.str(), testing::HasSubstr("Stopped by SIGTERM after 1 step of 5; what was trained so far is kept."));
}

}  // namespace
}  // namespace ithaca
