#include "cli/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "cli/test_folder.h"
#include "train/plan_file.h"

namespace ithaca {
namespace {

const std::string kModels = ITHACA_TEST_DATA "/models/";

std::string text_of(const std::string& path, int expected_status = 0, const InspectOptions& options = {}) {
  std::ostringstream out;
  EXPECT_EQ(inspect_path(path, options, out), expected_status);
  return out.str();
}

TEST(Inspect, AModelDirectory) {
  const std::string text = text_of(kModels + "qwen3");
  EXPECT_THAT(text, testing::HasSubstr("family       qwen3\n"));
  EXPECT_THAT(text, testing::HasSubstr("the head is the embedding"));
  EXPECT_THAT(text, testing::HasSubstr("layers       2, hidden 32, intermediate 72\n"));
  EXPECT_THAT(text, testing::HasSubstr("attention    4 query heads, 2 key heads, head size 16; q/k norm\n"));
  EXPECT_THAT(text, testing::HasSubstr("RoPE         default, theta 1000000\n"));
  EXPECT_THAT(text, testing::HasSubstr("float32"));
  EXPECT_THAT(text, testing::HasSubstr("unsupported  nothing\n"));
}

TEST(Inspect, BothSpellingsAndRopeKinds) {
  EXPECT_THAT(text_of(kModels + "qwen2"), testing::HasSubstr("family       qwen2\n"));
  EXPECT_THAT(text_of(kModels + "llama3-rope"), testing::HasSubstr("RoPE         llama3, theta "));
}

TEST(Inspect, TensorsOnRequest) {
  const std::string text = text_of(kModels + "llama-plain", 0, {.tensors = true});
  EXPECT_THAT(text, testing::HasSubstr("model.safetensors\n"));
  EXPECT_THAT(text, testing::ContainsRegex("model.embed_tokens.weight +F32 +\\["));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("expected.safetensors")));
  EXPECT_THAT(text_of(kModels + "llama-plain/model.safetensors"), testing::HasSubstr("model.embed_tokens.weight"));
}

TEST(Inspect, AModelWithoutWeights) {
  const TestFolder folder;
  std::filesystem::copy(kModels + "llama-plain/config.json", folder.path());
  const std::string text = text_of(folder.path());
  EXPECT_THAT(text, testing::HasSubstr("weights      none; train it with model.init: random\n"));
}

TEST(Inspect, WhatIsUnsupportedIsSaid) {
  const TestFolder folder;
  folder.write("config.json", R"({"model_type": "mamba", "hidden_size": 8})");
  const std::string text = text_of(folder.path(), 1);
  EXPECT_THAT(text, testing::HasSubstr("family       mamba\n"));
  EXPECT_THAT(text, testing::HasSubstr("unsupported  "));
}

// Three steps that fall from 5 to 3, an evaluation, and the beginning of a fourth step.
std::string some_metrics() {
  std::string lines;
  for (int step = 1; step <= 3; ++step) {
    lines += "{\"step\": " + std::to_string(step) + ", \"loss\": " + std::to_string(6 - step) +
             ", \"tokens\": 1000, \"step_seconds\": 0.5, \"peak_memory_bytes\": {\"total\": 1048576, \"weights\": "
             "524288}}\n";
  }
  lines += "{\"step\": 3, \"eval_loss\": 2.5, \"eval_valid_tokens\": 10, \"eval_seconds\": 0.1}\n";
  return lines + "{\"step\": 4, \"lo";
}

TEST(Inspect, ARunFolder) {
  const TestFolder folder;
  folder.write("run/config.yaml", "model: {path: /m}\ndata: {train: /t.txt}\ntrain: {output_dir: /o}\n");
  folder.write("run/metrics.jsonl", some_metrics());
  folder.write("run/export/config.json", "{}");
  const std::string text = text_of(folder.path("run"));
  EXPECT_THAT(text, testing::HasSubstr("model        /m (pretrained)\n"));
  EXPECT_THAT(text,
              testing::HasSubstr("attention    schedule auto, layout auto, as the recipe says: there is no plan"));
  EXPECT_THAT(text, testing::HasSubstr("steps        3; the last line of metrics.jsonl is cut off\n"));
  EXPECT_THAT(text, testing::HasSubstr("tokens       3,000 in 1.5s, 2.00k tokens/s\n"));
  EXPECT_THAT(text, testing::HasSubstr("memory       1.00 MiB at most, on the rank that used most; its classes at "
                                       "their own peaks: weights 512.00 KiB\n"));
  EXPECT_THAT(text,
              testing::HasSubstr(
                  "loss         5.0000 at first, 3.0000 at last, lowest 3.0000 in step 3; 2.5000 on the evaluation "
                  "data\n"));
  EXPECT_THAT(text, testing::HasSubstr(" |*"));
  EXPECT_THAT(text, testing::HasSubstr("export       " + folder.path("run/export")));
  EXPECT_THAT(text, testing::HasSubstr("as a page    ithaca report " + folder.path("run") + "\n"));
}

TEST(Inspect, WhatAutoChoseIsSaid) {
  const TestFolder folder;
  folder.write(
      "run/config.yaml",
      "model: {path: /m}\ndata: {train: /t.txt}\ntrain: {output_dir: /o}\nparallel: {sp_size: 4, layout: zigzag}\n");
  folder.write("run/metrics.jsonl", some_metrics());
  RunPlan plan;
  plan.parameters = 1234567;
  plan.mesh.ring = 2;
  plan.mesh.ulysses = 2;
  plan.schedule = ScheduleKind::hybrid;
  plan.layout = Layout::zigzag;
  plan.schedule_reason = "two heads";
  plan.steps = 10;
  folder.write("run/plan.json", plan_json(plan));
  const std::string text = text_of(folder.path("run"));
  EXPECT_THAT(text, testing::HasSubstr("model        /m (pretrained; llama, 0 layers, 1,234,567 parameters)\n"));
  EXPECT_THAT(text, testing::HasSubstr("ranks        4 (ring 2 x ulysses 2), cpu, float32\n"));
  EXPECT_THAT(text, testing::HasSubstr("attention    hybrid, zigzag layout; auto chose the schedule: two heads\n"));
  EXPECT_THAT(text, testing::HasSubstr("steps        3 of 10: the run is still going on, or was killed; the last"));
  EXPECT_THAT(text, testing::HasSubstr("export       none: the run did not come to its end\n"));
  folder.write(
      "run/log.txt",
      "2026-11-30 03:25:40.123 info step 3/10\n2026-11-30 03:25:41.000 info Stopped by Ctrl-C (SIGINT) after 3 "
      "steps of 10; what was trained so far is kept.\n2026-11-30 03:25:41.000 info Trained 3 steps\n");
  EXPECT_THAT(text_of(folder.path("run")), testing::HasSubstr("steps        3 of 10: stopped by Ctrl-C (SIGINT); the"));
  folder.write("run/log.txt", "2026-11-30 03:25:41.000 error weights.bin: cannot write: No space left\n");
  EXPECT_THAT(text_of(folder.path("run")),
              testing::HasSubstr("export       none: ended by an error: weights.bin: cannot write: No space left\n"));
  folder.write("run/plan.json", "{\"mesh\": 3}");
  std::ostringstream out;
  EXPECT_THROW(inspect_path(folder.path("run"), {}, out), InputError);
}

TEST(Inspect, ARunWithoutAFiniteLoss) {
  const TestFolder folder;
  folder.write("run/config.yaml", "no_such_section: {a: 1}\n");
  folder.write("run/metrics.jsonl", "{\"step\": 1, \"loss\": null, \"skipped\": true}\n");
  const std::string text = text_of(folder.path("run"));
  EXPECT_THAT(text, testing::HasSubstr("config       " + folder.path("run/config.yaml") + ":1:1: "));
  EXPECT_THAT(text, testing::HasSubstr("steps        1, 1 of them skipped\n"));
  EXPECT_THAT(text, testing::HasSubstr("loss         not finite at first, not finite at last\n"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr(" |")));
}

TEST(Inspect, BrokenMetricsSayWhere) {
  const TestFolder folder;
  folder.write("metrics.jsonl", "{\"step\": 1, \"loss\": 1, \"tokens\": 1, \"step_seconds\": 1}\n{\"step\": oops}\n");
  std::ostringstream out;
  try {
    inspect_path(folder.path(), {}, out);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("metrics.jsonl:2:"));
  }
  folder.write("metrics.jsonl", "{\"step\": 1}\n");
  EXPECT_THROW(inspect_path(folder.path(), {}, out), InputError);
}

TEST(Inspect, WhatIsNeither) {
  const TestFolder folder;
  std::ostringstream out;
  EXPECT_THROW(inspect_path(folder.path(), {}, out), InputError);
  EXPECT_THROW(inspect_path(folder.path("missing"), {}, out), FileError);
  EXPECT_THROW(inspect_path(folder.write("a.txt", "x"), {}, out), InputError);
}

}  // namespace
}  // namespace ithaca
