// Whole runs, from a recipe to an exported directory, over thread ranks.
#include "train/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "checkpoint/hugging_face.h"
#include "train/plan_file.h"
#include "train/run_history.h"
#include "train/tensorboard.h"

namespace ithaca {
namespace {

namespace fs = std::filesystem;

class Recorder : public RunObserver {
 public:
  void on_plan(const RunPlan& given) override { plan = given; }
  void on_step(const StepMetrics& metrics) override {
    steps.push_back(metrics);
    if (after_step) after_step();
  }
  void on_evaluation(const EvaluationMetrics& metrics) override { evaluations.push_back(metrics); }
  void on_warning(const std::string& text) override { warnings.push_back(text); }
  void on_export(const std::string& directory) override { exported = directory; }

  RunPlan plan;
  std::vector<StepMetrics> steps;
  std::vector<EvaluationMetrics> evaluations;
  std::vector<std::string> warnings;
  std::string exported;
  std::function<void()> after_step;
};

class Run : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              (std::string("ithaca_run_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // A model that fits byte tokens, from a config.json alone.
  Recipe random_recipe() {
    std::ifstream original(std::string(ITHACA_TEST_DATA) + "/models/llama-plain/config.json");
    nlohmann::json config = nlohmann::json::parse(original);
    config["vocab_size"] = 256;
    fs::create_directories(folder_ / "model");
    std::ofstream(folder_ / "model" / "config.json") << config.dump(1);
    std::ofstream text(folder_ / "text.txt");
    for (int line = 0; line < 200; ++line) text << "the quick brown fox jumps over the lazy dog " << line % 10 << '\n';
    Recipe recipe;
    recipe.model.path = (folder_ / "model").string();
    recipe.model.init = "random";
    recipe.data.train = {(folder_ / "text.txt").string()};
    recipe.data.max_length = {"301"};
    recipe.parallel.sp_size = 2;
    recipe.optim.learning_rate = 3e-3;
    recipe.train.max_steps = 8;
    recipe.train.micro_batch_size = 2;
    recipe.train.output_dir = (folder_ / "run").string();
    return recipe;
  }

  std::vector<nlohmann::json> metrics_lines() {
    std::vector<nlohmann::json> lines;
    std::ifstream file(folder_ / "run" / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  fs::path folder_;
  std::atomic<bool> stop_ = false;
};

TEST_F(Run, TrainsEvaluatesExportsAndCanGoOnFromTheExport) {
  Recipe recipe = random_recipe();
  recipe.data.eval = recipe.data.train;
  recipe.train.eval_steps = 4;
  Recorder recorder;
  const RunResult result = run_training(recipe, recorder, stop_);
  EXPECT_EQ(result.steps, 8);
  EXPECT_FALSE(result.stopped_early);
  EXPECT_LT(result.last_loss, result.first_loss);
  EXPECT_NEAR(result.first_loss, std::log(256.0), 0.1);
  ASSERT_EQ(recorder.steps.size(), 8u);
  EXPECT_EQ(recorder.evaluations.size(), 2u);
  EXPECT_EQ(recorder.plan.mesh.ranks(), 2);
  EXPECT_EQ(recorder.plan.steps, 8);

  const std::vector<nlohmann::json> lines = metrics_lines();
  ASSERT_EQ(lines.size(), 10u);
  EXPECT_EQ(lines[0].at("step"), 1);
  EXPECT_EQ(lines[0].at("loss").get<double>(), result.first_loss);
  EXPECT_EQ(lines[4].at("eval_loss").get<double>(), recorder.evaluations[0].loss);
  for (const char* key :
       {"grad_norm", "learning_rate", "tokens", "valid_tokens", "step_seconds", "tokens_per_second"}) {
    EXPECT_GT(lines[3].at(key).get<double>(), 0.0) << key;
  }
  EXPECT_GT(lines[3].at("peak_memory_bytes").at("weights").get<int64_t>(), 0);
  EXPECT_GT(lines[3].at("bytes_sent").get<int64_t>(), 0);

  // The export is a model of its own: evaluating it gives the last evaluation's loss.
  EXPECT_EQ(recorder.exported, result.export_directory);
  Recipe next = recipe;
  next.model.path = result.export_directory;
  next.model.init = "pretrained";
  next.optim.learning_rate = 0.0;
  next.parallel.sp_size = 3;
  next.train.max_steps = 1;
  next.train.output_dir = (folder_ / "next").string();
  Recorder second;
  const RunResult continued = run_training(next, second, stop_);
  EXPECT_NEAR(continued.evaluation_loss.value() / result.evaluation_loss.value(), 1.0, 5e-6);
}

TEST_F(Run, LeavesWhatInspectAndReportsRead) {
  Recipe recipe = random_recipe();
  recipe.train.max_steps = 3;
  Recorder recorder;
  const RunResult result = run_training(recipe, recorder, stop_);
  const fs::path run = folder_ / "run";
  // The same throughput to the last bit as the run itself says.
  const RunHistory history = read_run_history((run / "metrics.jsonl").string());
  EXPECT_EQ(history.steps.size(), 3u);
  EXPECT_EQ(history.tokens(), result.tokens);
  EXPECT_EQ(history.seconds(), result.training_seconds);
  EXPECT_EQ(history.last_loss(), result.last_loss);
  // What auto chose.
  EXPECT_EQ(recipe.parallel.schedule, "auto");
  const SavedPlan plan = read_plan_file((run / kPlanFile).string()).value();
  EXPECT_EQ(plan.schedule, schedule_name(recorder.plan.schedule));
  EXPECT_EQ(plan.layout, layout_name(recorder.plan.layout));
  EXPECT_EQ(plan.reason, recorder.plan.schedule_reason);
  EXPECT_NE(plan.reason, "");
  EXPECT_EQ(plan.ranks, 2);
  EXPECT_EQ(plan.parameters, recorder.plan.parameters);
  EXPECT_EQ(plan.steps, 3);
  const auto event_files = [&] {
    return std::distance(fs::directory_iterator(run / kTensorboardFolder), fs::directory_iterator());
  };
  EXPECT_EQ(event_files(), 1);
  run_training(recipe, recorder, stop_);
  EXPECT_EQ(event_files(), 1);  // the other run's is gone
  recipe.train.tensorboard = false;
  run_training(recipe, recorder, stop_);
  EXPECT_FALSE(fs::exists(run / kTensorboardFolder));
}

TEST_F(Run, EveryMeshGivesTheSameCurve) {
  Recipe recipe = random_recipe();
  recipe.train.gradient_accumulation_steps = 2;
  std::vector<double> expected;
  std::vector<float> expected_norm;
  struct Ways {
    int sp_size, dp_replicate_size, dp_shard_size;
    const char* schedule;
    const char* layout;
    int zero;
  };
  for (const Ways& ways : std::vector<Ways>{{1, 1, 1, "auto", "auto", 1},
                                            {2, 1, 1, "ring", "zigzag", 1},
                                            {2, 1, 1, "ring", "zigzag", 0},
                                            {4, 1, 1, "ring", "contiguous", 1},
                                            {4, 1, 1, "ulysses", "auto", 0},
                                            {2, 2, 1, "auto", "auto", 1},
                                            {2, 1, 2, "auto", "auto", 1},
                                            {1, 2, 2, "auto", "auto", 1},
                                            {1, 4, 1, "auto", "auto", 0}}) {
    recipe.parallel.sp_size = ways.sp_size;
    recipe.parallel.dp_replicate_size = ways.dp_replicate_size;
    recipe.parallel.dp_shard_size = ways.dp_shard_size;
    recipe.parallel.schedule = ways.schedule;
    recipe.parallel.layout = ways.layout;
    recipe.parallel.zero = ways.zero;
    // The same sequences per step.
    recipe.train.micro_batch_size = 4 / (ways.dp_replicate_size * ways.dp_shard_size);
    Recorder recorder;
    run_training(recipe, recorder, stop_);
    std::vector<double> losses;
    for (const StepMetrics& step : recorder.steps) losses.push_back(step.loss);
    if (expected.empty()) expected = losses;
    ASSERT_EQ(losses.size(), expected.size());
    for (size_t step = 0; step < losses.size(); ++step) {
      EXPECT_NEAR(losses[step] / expected[step], 1.0, step == 0 ? 5e-6 : 3e-4)
          << ways.schedule << ' ' << recorder.plan.mesh.describe() << " step " << step;
    }
    const bool is_cut = ways.zero == 1;
    EXPECT_EQ(recorder.plan.state_shards, is_cut ? ways.sp_size * ways.dp_shard_size : 1);
    EXPECT_EQ(recorder.steps.back().memory.peak_by_class[static_cast<size_t>(MemoryClass::optimizer)],
              recorder.plan.state_bytes_per_rank[static_cast<size_t>(MemoryClass::optimizer)]);
    // What is exported is whole, whoever held it.
    const ModelDirectory exported((folder_ / "run" / "export").string());
    std::vector<float> norm(static_cast<size_t>(recorder.plan.model.hidden_size));
    exported.read_float32("model.norm.weight", norm);
    if (expected_norm.empty()) expected_norm = norm;
    for (size_t index = 0; index < norm.size(); ++index) EXPECT_NEAR(norm[index], expected_norm[index], 1e-3);
  }
}

TEST_F(Run, TheSameRecipeGivesTheSameBits) {
  const Recipe recipe = random_recipe();
  Recorder first;
  Recorder second;
  run_training(recipe, first, stop_);
  run_training(recipe, second, stop_);
  ASSERT_EQ(first.steps.size(), second.steps.size());
  for (size_t step = 0; step < first.steps.size(); ++step) {
    EXPECT_EQ(first.steps[step].loss, second.steps[step].loss);
    EXPECT_EQ(first.steps[step].grad_norm, second.steps[step].grad_norm);
  }
}

TEST_F(Run, AStopRequestEndsAfterTheStepAndExports) {
  const Recipe recipe = random_recipe();
  Recorder recorder;
  recorder.after_step = [&] { stop_ = recorder.steps.size() >= 3; };
  const RunResult result = run_training(recipe, recorder, stop_);
  EXPECT_TRUE(result.stopped_early);
  EXPECT_LT(result.steps, 8);
  EXPECT_GE(result.steps, 3);
  EXPECT_NO_THROW(ModelDirectory{result.export_directory});
}

TEST_F(Run, AStepWithoutLabelsIsSkippedAndCounted) {
  Recipe recipe = random_recipe();
  std::ofstream data(folder_ / "tokens.jsonl");
  data << R"({"input_ids": [1,2,3,4,5,6,7], "labels": [-100,-100,-100,-100,-100,-100,-100]})" << '\n';
  data << R"({"input_ids": [1,2,3,4,5,6,7]})" << '\n';
  data.close();
  recipe.data.train = {(folder_ / "tokens.jsonl").string()};
  recipe.data.format = "tokens";
  recipe.data.shuffle = false;
  recipe.train.micro_batch_size = 1;
  recipe.train.max_steps = 4;
  recipe.parallel.sp_size = 4;
  Recorder recorder;
  run_training(recipe, recorder, stop_);
  ASSERT_EQ(recorder.steps.size(), 4u);
  EXPECT_TRUE(recorder.steps[0].skipped);
  EXPECT_FALSE(recorder.steps[1].skipped);
  EXPECT_TRUE(recorder.steps[2].skipped);
  EXPECT_EQ(recorder.steps[3].skipped_steps, 2);
  EXPECT_EQ(recorder.warnings.size(), 2u);
  EXPECT_EQ(recorder.steps[0].loss, 0.0);
  EXPECT_GT(recorder.steps[1].loss, 1.0);
  EXPECT_TRUE(std::isfinite(recorder.steps[3].grad_norm));
}

TEST_F(Run, ARunThatDivergesForGoodEndsWithAnErrorThatSaysWhatMayHelp) {
  Recipe recipe = random_recipe();
  recipe.optim.learning_rate = 1e30;
  recipe.optim.max_grad_norm = 0.0;
  recipe.optim.lr_scheduler_type = "constant";
  recipe.train.max_steps = 500;
  Recorder recorder;
  try {
    run_training(recipe, recorder, stop_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("optim.learning_rate"), std::string::npos) << error.what();
  }
  EXPECT_LT(recorder.steps.size(), 60u);
  EXPECT_LT(recorder.warnings.size(), 12u);
  EXPECT_TRUE(recorder.steps.back().skipped);
}

// 0 / 0 for the embeddings of bytes that do not occur: the step itself does not notice, the next one does.
TEST_F(Run, WeightsThatAreNotFiniteAreNotExported) {
  for (const auto& [steps, found] :
       std::map<int64_t, std::string>{{1, "in the last step that was applied"}, {3, "step 2 was the first"}}) {
    Recipe recipe = random_recipe();
    recipe.optim.adam_epsilon = 0.0;
    recipe.train.max_steps = steps;
    Recorder recorder;
    try {
      run_training(recipe, recorder, stop_);
      ADD_FAILURE() << "it should have failed";
    } catch (const Error& error) {
      const std::string text = error.what();
      for (const std::string& part :
           {std::string("the model is not exported"), found, std::string("optim.learning_rate"),
            (folder_ / "run" / "metrics.jsonl").string()}) {
        EXPECT_NE(text.find(part), std::string::npos) << text;
      }
    }
    EXPECT_FALSE(fs::exists(folder_ / "run" / "export"));
    EXPECT_FALSE(fs::exists(folder_ / "run" / ".export.partial"));
  }
}

TEST_F(Run, StepsThatDivergeAreCounted) {
  Recipe recipe = random_recipe();
  recipe.optim.learning_rate = 1e3;
  recipe.optim.max_grad_norm = 0.0;
  Recorder recorder;
  const RunResult result = run_training(recipe, recorder, stop_);
  const auto skipped =
      std::count_if(recorder.steps.begin(), recorder.steps.end(), [](const StepMetrics& step) { return step.skipped; });
  EXPECT_GT(result.diverged_steps, 0);
  EXPECT_EQ(result.diverged_steps, skipped);
  EXPECT_EQ(result.skipped_steps, skipped);
}

// The slowest file system: the export takes longer than a rank may wait for another.
TEST_F(Run, HostWorkIsNoStall) {
  Recipe recipe = random_recipe();
  recipe.parallel.comm_timeout_seconds = 0.3;
  recipe.train.max_steps = 3;
  Recorder recorder;
  recorder.after_step = [] { std::this_thread::sleep_for(std::chrono::milliseconds(700)); };
  EXPECT_EQ(run_training(recipe, recorder, stop_).steps, 3);
}

TEST_F(Run, OutOfMemoryNamesTheTensorAndEndsAllRanks) {
  Recipe recipe = random_recipe();
  recipe.memory.limit_gib = 0.001;
  Recorder recorder;
  try {
    run_training(recipe, recorder, stop_);
    FAIL();
  } catch (const OutOfMemoryError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("rank "), std::string::npos) << text;
    EXPECT_NE(text.find("weights"), std::string::npos) << text;
    EXPECT_NE(text.find("memory."), std::string::npos) << "no option that would help: " << text;
  }
  EXPECT_FALSE(fs::exists(folder_ / "run" / "export"));
}

TEST_F(Run, AModelWithItsOwnTokenizerIsNotTrainedOnBytes) {
  Recipe recipe = random_recipe();
  Recorder recorder;
  const RunResult result = run_training(recipe, recorder, stop_);
  std::ofstream(fs::path(result.export_directory) / "tokenizer.json") << "{}";
  recipe.model.path = result.export_directory;
  recipe.model.init = "pretrained";
  recipe.data.tokenizer = "bytes";
  recipe.train.output_dir = (folder_ / "again").string();
  try {
    run_training(recipe, recorder, stop_);
    FAIL();
  } catch (const ConfigurationError& error) {
    EXPECT_NE(std::string(error.what()).find("data.tokenizer: auto"), std::string::npos) << error.what();
  }
}

TEST_F(Run, NotANumberInTheWeightsIsFoundBeforeTraining) {
  Recipe recipe = random_recipe();
  Recorder recorder;
  const RunResult result = run_training(recipe, recorder, stop_);
  // Write a NaN into the export's first tensor data.
  const fs::path weights = fs::path(result.export_directory) / "model.safetensors";
  std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
  uint64_t header = 0;
  file.read(reinterpret_cast<char*>(&header), 8);
  file.seekp(static_cast<std::streamoff>(8 + header));
  const float bad = std::numeric_limits<float>::quiet_NaN();
  file.write(reinterpret_cast<const char*>(&bad), 4);
  file.close();
  recipe.model.path = result.export_directory;
  recipe.model.init = "pretrained";
  recipe.train.output_dir = (folder_ / "again").string();
  try {
    run_training(recipe, recorder, stop_);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("nan"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ithaca
