// The built program, called as people call it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "cli/program_testing.h"
#include "cli/test_folder.h"
#include "train/recipe_options.h"

namespace ithaca {
namespace {

// A folder with a recipe for a tiny random model on a short text.
class ProgramTest : public testing::Test {
 protected:
  ProgramTest() {
    folder_.write("model/config.json", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
      "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
      "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu", "rms_norm_eps": 1e-6,
      "max_position_embeddings": 4096, "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "float32"})");
    std::string text;
    for (int i = 0; i < 200; ++i) text += "Tell me, Muse, of the man of many turns. ";
    folder_.write("text.txt", text);
    recipe_ = folder_.write("run.yaml",
                            "model:\n  path: model\n  init: random\ndata:\n  train: text.txt\n  max_length: 512\n"
                            "parallel:\n  sp_size: 2\ntrain:\n  max_steps: 3\n  output_dir: " +
                                folder_.path("run") + "\noptim:\n  learning_rate: 1e-2\n");
  }

  ProgramOutcome train(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"train", recipe_});
    return run_ithaca(more);
  }

  TestFolder folder_;
  std::string recipe_;
};

TEST_F(ProgramTest, VersionAndHelp) {
  const ProgramOutcome version = run_ithaca({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_THAT(version.out, testing::MatchesRegex("ithaca [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  const ProgramOutcome help = run_ithaca({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.out, testing::AllOf(testing::HasSubstr("train"), testing::HasSubstr("inspect")));
  const ProgramOutcome train_help = run_ithaca({"train", "--help"});
  EXPECT_EQ(train_help.status, 0);
  EXPECT_THAT(train_help.out, testing::AllOf(testing::HasSubstr("--set OPTION"), testing::HasSubstr("parallel.sp_size"),
                                             testing::HasSubstr("Examples:")));
  EXPECT_EQ(run_ithaca({"help", "train"}).out, train_help.out);
}

TEST_F(ProgramTest, HelpOfACommandIsItsOwn) {
  const std::vector<std::vector<std::string>> commands = {{"train"},        {"inspect"},       {"inspect", "data"},
                                                          {"options"},      {"verify"},        {"tokenize"},
                                                          {"report"},       {"completion"},    {"man"},
                                                          {"bench"},        {"bench", "step"}, {"bench", "attention"},
                                                          {"bench", "gemm"}};
  for (std::vector<std::string> words : commands) {
    words.emplace_back("--help");
    const ProgramOutcome help = run_ithaca(words);
    EXPECT_EQ(help.status, 0);
    EXPECT_THAT(help.out, testing::Not(testing::HasSubstr("source <(ithaca completion bash) completion"))) << words[0];
    for (const char* type : {"TEXT", "INT", "FLOAT", "NONNEGATIVE", "POSITIVE"}) {
      EXPECT_THAT(help.out, testing::Not(testing::HasSubstr(type))) << words[0];
    }
  }
}

// A flag that other programs' names are told to use is one that there is.
TEST_F(ProgramTest, ForeignNamesPointToFlagsThatThereAre) {
  const ProgramOutcome help = run_ithaca({"train", "--help"});
  for (const ForeignOption& foreign : recipe_table().catalog().foreign()) {
    const std::string flag = foreign.ours.substr(0, foreign.ours.find(' '));
    if (!flag.starts_with("--")) continue;
    EXPECT_THAT(help.out, testing::HasSubstr("  " + flag + " ")) << foreign.name;
  }
}

TEST_F(ProgramTest, UsageErrorsEndWithTwo) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "subcommand is required"},
      {{"trian", "x"}, "there is no command \"trian\"; the commands are train, "},
      {{"inspct", "x"}, "of which \"inspect\" is nearest; see ithaca --help"},
      {{"train"}, "recipe is required"},
      {{"train", recipe_, "--rnaks", "2"}, "--rnaks"},
      {{"train", recipe_, "--ranks", "two"}, "two"},
      {{"train", recipe_, "--ranks=-2"}, "--ranks must be between 1 and 1024"},
      {{"train", recipe_, "--ranks", ""}, "--ranks: the value is empty; give one, or leave --ranks out"},
      {{"train", recipe_, "--trace", "trace.json", "--trace-steps", ""}, "--trace-steps: the value is empty"},
      {{"verify", recipe_, "--bound", ""}, "--bound: the value is empty"},
      {{"inspect", "data", recipe_, "--step", ""}, "--step: the value is empty"},
      {{"train", recipe_, "--ranks", "3"}, "sp_size 2 x dp_replicate_size 1 = 2 ranks, but --ranks 3"},
      {{"train", recipe_, "--backend", "tpu"},
       "--set train.backend=tpu: train.backend cannot be \"tpu\"; it is one of auto, cpu, cuda"},
      {{"train", recipe_, "--resume", "latest"}, "this version does not have it"},
      {{"train", recipe_, "--quiet", "--verbose"}, "exclude each other"},
      {{"train", recipe_, "--set", "optim.lr=1"}, "\"lr\" is optim.learning_rate here"},
      {{"train", recipe_, "--set", "train.max_steps=many"}, "must be an integer"},
      {{"plan", recipe_}, "this version does not have the command plan"},
      {{"options", "parallel.sp_sise"}, "did you mean \"sp_size\"?"},
      {{"options", "nope"}, "options nope: there is no section \"nope\""},
      {{"inspect", "data", recipe_, "--rank", "2"}, "there is no flag --rank; did you mean --ranks?"},
      {{"verify", recipe_, "--ranks", "2"}, "ithaca verify has no flag --ranks; see ithaca verify --help"},
      {{"inspect", "data", recipe_, "second", "third"},
       "what is too much: second third; see ithaca inspect data --help"},
      {{"inspect", "data", recipe_, "--samples", "-1"}, "--samples must be 0 or more"},
      {{"inspect", "data", recipe_, "--step", "0"}, "--step must be at least 1"},
      {{"bench", "step", "--phase"}, "did you mean --phases?"},
  };
  for (const auto& [arguments, message] : cases) {
    const ProgramOutcome outcome = run_ithaca(arguments);
    EXPECT_EQ(outcome.status, 2) << message;
    EXPECT_THAT(outcome.err, testing::StartsWith("ithaca: error: ")) << message;
    EXPECT_THAT(outcome.err, testing::HasSubstr(message));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "") << message;
  }
}

TEST_F(ProgramTest, RecipeErrorsNameFileLineAndColumn) {
  const std::string path = folder_.write("bad.yaml",
                                         "model:\n  path: model\nparallel:\n  sp_sise: 4\n"
                                         "data: {train: text.txt}\ntrain: {output_dir: run}\n");
  const ProgramOutcome outcome = run_ithaca({"train", path});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err, "ithaca: error: " + path +
                             ":4:3: section \"parallel\" has no option \"sp_sise\"; did you mean \"sp_size\"?\n");
}

TEST_F(ProgramTest, FilesThatAreNotThereEndWithTwo) {
  EXPECT_EQ(run_ithaca({"train", folder_.path("missing.yaml")}).status, 2);
  const std::string missing = folder_.path("missing");
  const std::string page = folder_.path("missing/page.html");
  const std::vector<std::vector<std::string>> commands = {{"inspect", missing},
                                                          {"inspect", "data", missing},
                                                          {"report", missing},
                                                          {"report", folder_.path(), "--output", page},
                                                          {"verify", missing},
                                                          {"tokenize", "--model", missing},
                                                          {"bench", "gemm", "--model", missing},
                                                          {"options", "--migrating", missing},
                                                          {"train", recipe_, "--trace", page}};
  for (const std::vector<std::string>& command : commands) {
    const ProgramOutcome outcome = run_ithaca(command);
    EXPECT_EQ(outcome.status, 2) << command.front() << ": " << outcome.err;
    EXPECT_THAT(outcome.err, testing::HasSubstr(missing)) << command.front();
    EXPECT_THAT(outcome.err, testing::Not(testing::HasSubstr(".partial"))) << command.front();
  }
  const ProgramOutcome data = train({"--set", "data.train=" + folder_.path("missing.txt")});
  EXPECT_EQ(data.status, 2);
  EXPECT_THAT(data.err, testing::HasSubstr("missing.txt"));
  EXPECT_FALSE(folder_.has("run/export"));
}

TEST_F(ProgramTest, ARunEndsWithAnExportThatInspectReads) {
  const ProgramOutcome outcome = train();
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, testing::HasSubstr("step 3/3"));
  EXPECT_THAT(outcome.out, testing::HasSubstr("Trained 3 steps"));
  for (const char* name : {"run/config.yaml", "run/log.txt", "run/metrics.jsonl", "run/export/config.json",
                           "run/export/model.safetensors"}) {
    EXPECT_TRUE(folder_.has(name)) << name;
  }
  const ProgramOutcome model = run_ithaca({"inspect", folder_.path("run/export")});
  EXPECT_EQ(model.status, 0);
  EXPECT_THAT(model.out, testing::HasSubstr("family       llama"));
  EXPECT_THAT(model.out, testing::HasSubstr("unsupported  nothing"));
  const ProgramOutcome run = run_ithaca({"inspect", folder_.path("run")});
  EXPECT_EQ(run.status, 0);
  EXPECT_THAT(run.out, testing::HasSubstr("steps        3\n"));

  const ProgramOutcome again = train();
  EXPECT_EQ(again.status, 2);
  EXPECT_THAT(again.err, testing::HasSubstr("holds another run"));
  EXPECT_EQ(train({"--overwrite", "--quiet"}).out, "");

  // The resolved configuration is a recipe of the same run.
  const std::string metrics = folder_.read("run/metrics.jsonl");
  const ProgramOutcome repeated =
      run_ithaca({"train", folder_.path("run/config.yaml"), "--set", "train.output_dir=" + folder_.path("second")});
  EXPECT_EQ(repeated.status, 0) << repeated.err;
  const auto first_loss = [](const std::string& text) { return text.substr(0, text.find("learning_rate")); };
  EXPECT_EQ(first_loss(folder_.read("second/metrics.jsonl")), first_loss(metrics));
}

TEST_F(ProgramTest, SigtermStopsAfterTheStepAndEndsWithThree) {
  StartedProgram running({ITHACA_PROGRAM, "train", recipe_, "--set", "train.max_steps=1000000"});
  for (int i = 0; i < 600 && folder_.read("run/metrics.jsonl").empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  running.signal(SIGTERM);
  const ProgramOutcome outcome = running.finish();
  EXPECT_EQ(outcome.status, 3) << outcome.err;
  EXPECT_THAT(outcome.out, testing::HasSubstr("Stopped by SIGTERM after "));
  EXPECT_TRUE(folder_.has("run/export/model.safetensors"));
  const ProgramOutcome inspected = run_ithaca({"inspect", folder_.path("run")});
  EXPECT_THAT(inspected.out, testing::HasSubstr(" of 1,000,000: stopped by SIGTERM\n"));
}

// What the plan says before the first step is what the run takes: to the byte.
TEST_F(ProgramTest, ThePlanKnowsTheMemoryOfTheState) {
  ASSERT_EQ(train().status, 0);
  const std::string metrics = folder_.read("run/metrics.jsonl");
  const nlohmann::json plan = nlohmann::json::parse(folder_.read("run/plan.json"));
  const nlohmann::json step = nlohmann::json::parse(metrics.substr(0, metrics.find('\n')));
  for (const char* memory_class : {"weights", "gradients", "optimizer"}) {
    EXPECT_EQ(step.at("peak_memory_bytes").at(memory_class), plan.at("state_bytes_per_rank").at(memory_class))
        << memory_class;
  }
}

// Mistakes come before the table, not below its head.
TEST_F(ProgramTest, VerifyChecksEverythingBeforeItsTable) {
  const std::vector<std::tuple<std::vector<std::string>, int, std::string>> cases = {
      {{"--steps", "0"}, 2, "--steps: 0 is not a number of steps"},
      {{"--steps", "99999999999999999999"}, 2, "--steps: 99999999999999999999 is out of range"},
      {{"--bound", "0"}, 2, "--bound: 0 is not a bound"},
      {{"--bound", "1e309"}, 2, "--bound: 1e309 is not a finite number"},
      {{"--bound", "inf"}, 2, "--bound: inf is not a finite number"},
      {{"--meshes", "1,ulysses:9"}, 2, "--meshes: 'ulysses:9'"},
      {{"--set", "parallel.transport=nccl"}, 2, "--set parallel.transport=nccl: parallel.transport nccl"},
      {{"--set", "memory.limit_gib=0.0004"}, 1, "--meshes: '1': rank 0: out of device memory"},
  };
  for (const auto& [more, status, words] : cases) {
    std::vector<std::string> arguments = {"verify", recipe_, "--backend", "cpu"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramOutcome outcome = run_ithaca(arguments);
    EXPECT_EQ(outcome.status, status) << outcome.err;
    EXPECT_EQ(outcome.out, "") << words;
    EXPECT_THAT(outcome.err, testing::HasSubstr(words));
  }
  const ProgramOutcome diverged =
      run_ithaca({"verify", recipe_, "--backend", "cpu", "--meshes", "1", "--set", "optim.learning_rate=1000", "--set",
                  "optim.max_grad_norm=0", "--set", "train.max_steps=4", "--steps", "4"});
  EXPECT_EQ(diverged.status, 1) << diverged.out << diverged.err;
  EXPECT_THAT(diverged.out,
              testing::AllOf(testing::HasSubstr("\n1: the loss, the gradient norm or a gradient is not a"),
                             testing::Not(testing::HasSubstr("is none"))));
}

TEST_F(ProgramTest, OptionsWithoutAnEffectAreNotesOrErrors) {
  const ProgramOutcome note = train({"--set", "parallel.schedule=ring", "--set", "parallel.sp_size=1"});
  EXPECT_EQ(note.status, 0) << note.err;
  EXPECT_THAT(note.out + note.err, testing::HasSubstr("parallel.schedule ring has no effect here"));
  const ProgramOutcome plain = train({"--overwrite", "--set", "parallel.schedule=ring"});
  EXPECT_THAT(plain.out + plain.err, testing::Not(testing::HasSubstr("has no effect")));
  folder_.write("ids.jsonl", "{\"input_ids\": [1, 2, 3, 4]}\n");
  for (const std::string option : {"data.append_eos=always", "data.tokenizer=bytes"}) {
    const ProgramOutcome ids =
        train({"--overwrite", "--set", "data.train=" + folder_.path("ids.jsonl"), "--set", option});
    EXPECT_EQ(ids.status, 2);
    EXPECT_THAT(ids.err, testing::AllOf(testing::HasSubstr("--set " + option + ": data."),
                                        testing::HasSubstr("ready token ids")));
  }
  const ProgramOutcome whole = train({"--overwrite", "--set", "train.gradient_accumulation_steps=1000"});
  EXPECT_EQ(whole.status, 0) << whole.err;
  EXPECT_THAT(whole.out + whole.err, testing::AllOf(testing::HasSubstr("every step is a whole epoch"),
                                                    testing::Not(testing::HasSubstr("1,000 sequences of"))));
  const ProgramOutcome short_ones =
      train({"--overwrite", "--set", "data.max_length=1", "--set", "data.overlong=truncate"});
  EXPECT_EQ(short_ones.status, 1);
  EXPECT_THAT(short_ones.err, testing::HasSubstr("the only document holds no label; "));
  EXPECT_THAT(short_ones.err, testing::HasSubstr("data.max_length 1 leaves no token beside another"));
}

TEST_F(ProgramTest, AStateThatDoesNotFitSaysWhatWouldTakeLess) {
  for (const char* stage : {"0", "1"}) {
    const ProgramOutcome outcome = run_ithaca(
        {"train", recipe_, "--set", "memory.limit_gib=0.00001", "--set", "parallel.zero=" + std::string(stage)});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, testing::HasSubstr("is not enough for the state of this model"));
    const auto advice = testing::HasSubstr("parallel.zero: 1 leaves each rank a part of the optimizer state");
    if (std::string(stage) == "0") {
      EXPECT_THAT(outcome.err, advice);
    } else {
      EXPECT_THAT(outcome.err, testing::Not(advice));
    }
  }
}

}  // namespace
}  // namespace ithaca
