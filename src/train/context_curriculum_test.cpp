#include "train/context_curriculum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/hugging_face.h"
#include "train/run.h"
#include "train/verify.h"

namespace ithaca {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigurationError& error) {
    return error.what();
  }
  return "none";
}

TEST(ContextStages, AsRecipesWriteThem) {
  EXPECT_THAT(parse_context_stages({"8192"}), ElementsAre(ContextStage{0, 8192}));
  EXPECT_THAT(parse_context_stages({"4096@0, 32_768@1000", "1M@2_000"}),
              ElementsAre(ContextStage{0, 4096}, ContextStage{1000, 32768}, ContextStage{2000, 1048576}));
  EXPECT_THAT(parse_context_stages({"4K", " 2k @ 10 "}), ElementsAre(ContextStage{0, 4096}, ContextStage{10, 2048}));
}

TEST(ContextStages, WhatCannotBeReadIsNamed) {
  for (const char* text : {"", "0", "-1", "x", "4KB", "1.5K", "4096@", "4096@x", "4096@-1", "9999999999999", "1e6"}) {
    const std::string error = error_of([&] { parse_context_stages({text}); });
    EXPECT_THAT(error, HasSubstr("data.max_length")) << text;
    EXPECT_THAT(error, HasSubstr(text)) << text;
  }
  EXPECT_THAT(error_of([] { parse_context_stages({"4096@10"}); }), HasSubstr("first step"));
  EXPECT_THAT(error_of([] { parse_context_stages({}); }), HasSubstr("first step"));
  EXPECT_THAT(error_of([] { parse_context_stages({"4K@0", "8K@5", "16K@5"}); }), HasSubstr("steps must rise"));
}

ModelDescription small_model() {
  ModelDescription model;
  model.head_size = 16;
  model.max_positions = 4096;
  model.rope.theta = 1e4;
  return model;
}

TEST(RopeStages, ThetaAndScalingByStep) {
  const ModelDescription model = small_model();
  EXPECT_TRUE(parse_rope_stages({}, {}, model).empty());
  const std::vector<RopeStage> stages =
      parse_rope_stages({"5e5@100", "1e6@200"}, {"none@0", "yarn:8@150", "llama3:4:2K@300", "linear:2@400"}, model);
  ASSERT_EQ(stages.size(), 6u);
  EXPECT_EQ(rope_at(stages, 0)->theta, 1e4);
  EXPECT_EQ(rope_at(stages, 99)->kind, RopeKind::standard);
  EXPECT_EQ(rope_at(stages, 100)->theta, 5e5);
  EXPECT_EQ(rope_at(stages, 199)->theta, 5e5);
  EXPECT_EQ(rope_at(stages, 199)->kind, RopeKind::yarn);
  EXPECT_EQ(rope_at(stages, 199)->factor, 8.0);
  EXPECT_EQ(rope_at(stages, 199)->original_max_positions, 4096);
  EXPECT_EQ(rope_at(stages, 200)->theta, 1e6);
  EXPECT_EQ(rope_at(stages, 200)->kind, RopeKind::yarn);
  EXPECT_EQ(rope_at(stages, 300)->kind, RopeKind::llama3);
  EXPECT_EQ(rope_at(stages, 300)->original_max_positions, 2048);
  EXPECT_EQ(rope_at(stages, 1000)->kind, RopeKind::linear);
  EXPECT_FALSE(rope_at({{5, RopeDescription()}}, 4).has_value());

  // A model that is scaled already: what it was scaled from is known, and its own scaling holds where nothing is said.
  ModelDescription scaled = small_model();
  scaled.rope.kind = RopeKind::llama3;
  scaled.rope.factor = 8.0;
  scaled.rope.original_max_positions = 1000;
  EXPECT_EQ(parse_rope_stages({}, {"yarn:2"}, scaled).at(0).rope->original_max_positions, 1000);
  const RopeDescription only_theta = *parse_rope_stages({"7e5"}, {}, scaled).at(0).rope;
  EXPECT_EQ(only_theta.kind, RopeKind::llama3);
  EXPECT_EQ(only_theta.factor, 8.0);
  EXPECT_EQ(only_theta.theta, 7e5);
}

TEST(RopeStages, WhatCannotBeReadIsNamed) {
  const ModelDescription model = small_model();
  for (const char* text : {"yarn", "yarn:0.5", "yarn:x", "yarn:2:0", "yarn:2:3:4", "linear:2:4096", "spiral:2",
                           "none:1", "", "linear:1e9"}) {
    EXPECT_THAT(error_of([&] { parse_rope_stages({}, {text}, model); }), HasSubstr("model.rope_scaling")) << text;
  }
  for (const char* text : {"x", "1", "-5", "inf", "1e20", "5e5x"}) {
    EXPECT_THAT(error_of([&] { parse_rope_stages({text}, {}, model); }), HasSubstr("model.rope_theta")) << text;
  }
}

TEST(RopeStages, PositionsOfTheExport) {
  const ModelDescription model = small_model();
  RopeDescription rope;
  EXPECT_EQ(positions_with(rope, model, 100), 4096);
  EXPECT_EQ(positions_with(rope, model, 10000), 10000);
  rope.kind = RopeKind::yarn;
  rope.factor = 4.0;
  rope.original_max_positions = 4096;
  EXPECT_EQ(positions_with(rope, model, 10000), 16384);
  rope.kind = RopeKind::dynamic;
  EXPECT_EQ(positions_with(rope, model, 10000), 4096);
}

// A whole run whose sequences grow while its RoPE is stretched.
class CurriculumRun : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              (std::string("ithaca_curriculum_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "model");
    std::ifstream original(std::string(ITHACA_TEST_DATA) + "/models/llama-plain/config.json");
    nlohmann::json config = nlohmann::json::parse(original);
    config["vocab_size"] = 256;
    config["max_position_embeddings"] = 128;
    std::ofstream(folder_ / "model" / "config.json") << config.dump(1);
    std::ofstream text(folder_ / "text.txt");
    for (int line = 0; line < 400; ++line) text << "the quick brown fox jumps over the lazy dog " << line % 10 << '\n';
  }
  void TearDown() override { fs::remove_all(folder_); }

  Recipe recipe() const {
    Recipe recipe;
    recipe.model.path = (folder_ / "model").string();
    recipe.model.init = "random";
    recipe.model.rope_theta = {"5e5@4"};
    recipe.model.rope_scaling = {"none@0", "yarn:4@4"};
    recipe.data.train = {(folder_ / "text.txt").string()};
    recipe.data.max_length = {"64@0", "200@2", "500@4"};
    recipe.optim.learning_rate = 1e-3;
    recipe.train.max_steps = 6;
    recipe.train.micro_batch_size = 2;
    recipe.train.output_dir = (folder_ / "run").string();
    return recipe;
  }

  fs::path folder_;
  std::atomic<bool> stop_{false};
};

class StepRecorder : public RunObserver {
 public:
  void on_plan(const RunPlan& given) override { plan = given; }
  void on_step(const StepMetrics& metrics) override { steps.push_back(metrics); }
  RunPlan plan;
  std::vector<StepMetrics> steps;
};

TEST_F(CurriculumRun, LengthsAndRopeSwitchAtTheirSteps) {
  StepRecorder recorder;
  const RunResult result = run_training(recipe(), recorder, stop_);
  ASSERT_EQ(recorder.steps.size(), 6u);
  const std::vector<int64_t> tokens = {128, 128, 400, 400, 1000, 1000};
  for (size_t step = 0; step < 6; ++step) {
    // The last window of a text may be shorter.
    EXPECT_LE(recorder.steps[step].tokens, tokens[step]) << step;
    EXPECT_GT(recorder.steps[step].tokens, tokens[step] / 2) << step;
    EXPECT_TRUE(std::isfinite(recorder.steps[step].loss));
    EXPECT_GT(recorder.steps[step].grad_norm, 0.0);
    EXPECT_FALSE(recorder.steps[step].skipped);
  }
  ASSERT_EQ(recorder.plan.stages.size(), 3u);
  EXPECT_EQ(recorder.plan.stages[1].first_step, 2);
  EXPECT_THAT(recorder.plan.notes, testing::Contains(HasSubstr("RoPE after 4 steps: theta 500000, yarn by 4")));
  const ModelDescription exported = ModelDirectory(result.export_directory).description();
  EXPECT_EQ(exported.rope.kind, RopeKind::yarn);
  EXPECT_EQ(exported.rope.theta, 5e5);
  EXPECT_EQ(exported.rope.original_max_positions, 128);
  EXPECT_EQ(exported.max_positions, 512);
}

// The schedule is that of the longest sequences, whichever stage they come in.
TEST_F(CurriculumRun, AutoLooksAtTheLongestStage) {
  const auto reason = [&](const std::vector<std::string>& lengths) {
    Recipe each = recipe();
    each.data.max_length = lengths;
    each.parallel.sp_size = 2;
    StepRecorder recorder;
    run_training(each, recorder, stop_);
    fs::remove_all(folder_ / "run");
    return recorder.plan.schedule_reason;
  };
  const std::string of_long = reason({"500"});
  EXPECT_NE(of_long, reason({"64"}));
  EXPECT_EQ(reason({"500@0", "64@2"}), of_long);
}

TEST_F(CurriculumRun, IsTheSameOnEveryMesh) {
  VerifyOptions options;
  options.meshes = parse_verify_meshes("1,ring:3:zigzag,ulysses:2,ring:2:striped");
  options.steps = 6;
  options.bound = kVerifyBound;
  for (const VerifyRow& row : verify_recipe(
           recipe(), options, [](const VerifyRow&) {}, stop_)) {
    EXPECT_EQ(row.losses.size(), 6u);
    EXPECT_TRUE(row.agrees) << row.mesh.text << ": loss " << row.loss_difference << ", later " << row.later_difference;
  }
}

// What the steps are trained with matters: the same run without the stretching has other losses from step 5 on.
TEST_F(CurriculumRun, TheRopeOfAStageIsUsed) {
  StepRecorder stretched;
  run_training(recipe(), stretched, stop_);
  Recipe plain = recipe();
  plain.model.rope_theta.clear();
  plain.model.rope_scaling.clear();
  plain.train.output_dir = (folder_ / "plain").string();
  StepRecorder recorder;
  const RunResult result = run_training(plain, recorder, stop_);
  for (size_t step = 0; step < 4; ++step) EXPECT_EQ(recorder.steps[step].loss, stretched.steps[step].loss);
  EXPECT_NE(recorder.steps[4].loss, stretched.steps[4].loss);
  EXPECT_THAT(recorder.plan.notes, testing::Contains(HasSubstr("model.rope_scaling, for example yarn:2")));
  EXPECT_EQ(ModelDirectory(result.export_directory).description().max_positions, 128);
}

}  // namespace
}  // namespace ithaca
