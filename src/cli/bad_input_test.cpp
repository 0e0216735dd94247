// Bad input of every kind, given to the built program: it must end with the right status, say in one paragraph what is
// wrong and where, and leave nothing behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "checkpoint/hugging_face.h"
#include "cli/program_testing.h"
#include "model/parameters.h"

namespace ithaca {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kConfig = R"({
  "model_type": "llama",
  "vocab_size": 256, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
  "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_act": "silu", "rms_norm_eps": 1e-6,
  "max_position_embeddings": 4096, "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "float32"
})";

// A safetensors file in two halves.
struct Weights {
  Json header;
  std::string data;

  static Weights of(const std::string& bytes) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    return {Json::parse(bytes.substr(8, length)), bytes.substr(8 + length)};
  }
  std::string bytes() const {
    const std::string text = header.dump();
    const uint64_t length = text.size();
    std::string result(sizeof(length), '\0');
    std::memcpy(result.data(), &length, sizeof(length));
    return result + text + data;
  }
  void set_float(const std::string& tensor, size_t element, float value) {
    const auto begin = header.at(tensor).at("data_offsets").at(0).get<size_t>();
    std::memcpy(data.data() + begin + element * sizeof(float), &value, sizeof(float));
  }
};

// A folder with a tiny model, some data and a recipe that would train.
class BadInputTest : public testing::Test {
 protected:
  BadInputTest() {
    folder_.write("model/config.json", kConfig);
    const ModelDirectory described(folder_.path("model"));
    const std::vector<ParameterSpec> parameters = parameter_specs(described.description());
    ExportOptions options;
    options.directory = folder_.path("weights");
    export_model(described, parameters, options, [](const ParameterSpec& spec, const TensorSink& sink) {
      const std::vector<float> values(static_cast<size_t>(spec.extents.product()), 0.5f);
      sink(values);
    });
    fs::rename(folder_.path("weights/model.safetensors"), folder_.path("model/model.safetensors"));
    fs::remove_all(folder_.path("weights"));
    weights_ = folder_.read("model/model.safetensors");
    std::string lines;
    for (int line = 0; line < 6; ++line)
      lines += R"({"input_ids": [1, 2, 3, 4, 5, 6, 7, 8]})"
               "\n";
    folder_.write("data.jsonl", lines);
    write_recipe("");
  }

  void write_recipe(const std::string& more) {
    folder_.write("run.yaml",
                  "model:\n  path: model\ndata:\n  train: data.jsonl\n  format: tokens\n  max_length: 64\n"
                  "train:\n  max_steps: 2\n  output_dir: " +
                      folder_.path("run") + "\n" + more);
  }
  void write_weights(const std::function<void(Weights&)>& change) {
    Weights weights = Weights::of(weights_);
    change(weights);
    folder_.write("model/model.safetensors", weights.bytes());
  }

  std::set<std::string> everything() const {
    std::set<std::string> names;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder_.path())) {
      // A cache may stay: it is whole, and of use to the next run.
      if (entry.path().string().find(".token_cache") == std::string::npos) names.insert(entry.path().string());
    }
    return names;
  }

  ProgramOutcome train(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"train", folder_.path("run.yaml")});
    return run_ithaca(std::move(more));
  }

  // One paragraph on standard error, that status, and a folder that is as it was.
  void expect_refused(int status, const std::vector<std::string>& words, const std::vector<std::string>& more = {}) {
    const std::set<std::string> before = everything();
    const ProgramOutcome outcome = train(more);
    EXPECT_EQ(outcome.status, status) << outcome.err;
    EXPECT_THAT(outcome.err, StartsWith("ithaca: error: "));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    for (const std::string& word : words) EXPECT_THAT(outcome.err, HasSubstr(word));
    EXPECT_THAT(outcome.err, Not(HasSubstr("fault of ithaca")));
    EXPECT_EQ(everything(), before) << outcome.err;
  }
  void expect_bad_weights(const std::function<void(Weights&)>& change, const std::vector<std::string>& words) {
    write_weights(change);
    expect_refused(1, words);
    folder_.write("model/model.safetensors", weights_);
  }
  void expect_bad_data(const std::string& content, const std::vector<std::string>& words) {
    folder_.write("data.jsonl", content);
    std::vector<std::string> all = words;
    all.push_back("data.train: ");
    expect_refused(1, all);
  }

  TestFolder folder_;
  std::string weights_;
};

TEST_F(BadInputTest, TheInputBeforeItIsBrokenTrains) {
  const ProgramOutcome outcome = train();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(folder_.has("run/export/model.safetensors"));
}

TEST_F(BadInputTest, DamagedWeights) {
  const std::string file = folder_.path("model/model.safetensors");
  const auto with_bytes = [&](const std::string& bytes, const std::vector<std::string>& words) {
    folder_.write("model/model.safetensors", bytes);
    expect_refused(1, words);
  };
  with_bytes("", {file, "0 bytes are too few"});
  with_bytes(weights_.substr(0, 5), {file, "too few"});
  with_bytes(weights_.substr(0, 100), {file, "its header claims", "cut off"});
  with_bytes(weights_.substr(0, weights_.size() - 1), {file, "cut off"});
  with_bytes(std::string(8, '\xff') + weights_.substr(8), {file, "its header claims"});
  with_bytes(weights_ + "x", {file, "1 bytes after its last tensor"});
  std::string broken = weights_;
  broken[9] = '?';
  with_bytes(broken, {file, "not valid JSON", ":1:"});
  with_bytes("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", {file, "not a safetensors file"});
}

TEST_F(BadInputTest, WeightsThatDoNotFit) {
  const std::string norm = "model.norm.weight";
  expect_bad_weights(
      [&](Weights& w) {
        w.header[norm]["data_offsets"] = {0, 1 << 20};
      },
      {"tensor \"" + norm + "\"", "do not lie within"});
  expect_bad_weights([&](Weights& w) { w.header[norm]["data_offsets"] = {0, 64}; }, {"overlaps"});
  expect_bad_weights([&](Weights& w) { w.header[norm]["dtype"] = "F17"; }, {norm, "unknown dtype \"F17\""});
  expect_bad_weights([&](Weights& w) { w.header[norm]["dtype"] = "I32"; }, {norm, "stored as F32, BF16, F16 or F64"});
  expect_bad_weights(
      [&](Weights& w) {
        w.header[norm]["shape"] = {4, 4};
      },
      {norm + " is [4, 4] and should be [16]", "do not fit config.json"});
  expect_bad_weights(
      [&](Weights& w) {
        w.header["model.norm.weigth"] = w.header[norm];
        w.header.erase(norm);
      },
      {"missing tensors: " + norm, "no place for: model.norm.weigth"});
  expect_bad_weights(
      [&](Weights& w) {
        w.header["extra"] = {{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {w.data.size(), w.data.size() + 4}}};
        w.data += std::string(4, '\0');
      },
      {"no place for: extra"});
  expect_bad_weights([&](Weights& w) { w.header.erase(norm); }, {"belong to"});
}

TEST_F(BadInputTest, WeightsThatAreNotFinite) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    expect_bad_weights([&](Weights& w) { w.set_float("model.norm.weight", 3, value); },
                       {"tensor model.norm.weight holds ", "at element 3", "damaged or its training had diverged"});
  }
}

TEST_F(BadInputTest, Indexes) {
  fs::rename(folder_.path("model/model.safetensors"), folder_.path("model/model-00001-of-00002.safetensors"));
  const std::string index = "model/model.safetensors.index.json";
  folder_.write(index, R"({"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}})");
  expect_refused(1, {folder_.path(index), "model-00002-of-00002.safetensors", "not in the directory"});
  folder_.write(index, R"({"weight_map": {"nothing": "model-00001-of-00002.safetensors"}})");
  expect_refused(1, {folder_.path(index), "tensor \"nothing\""});
  folder_.write(index, "{\"weight_map\":\n  {\"a\": }}");
  expect_refused(1, {folder_.path(index) + ":2:9: not valid JSON"});
  folder_.write(index, R"({"weight_map": {"a": "../elsewhere.safetensors"}})");
  expect_refused(1, {folder_.path(index), "the name of a file in the same directory"});
  fs::remove(folder_.path(index));
  expect_refused(1, {"there is neither model.safetensors nor", "model.init: random"});
  folder_.write("model/pytorch_model.bin", "x");
  expect_refused(1, {"pytorch_model.bin, which cannot be read", "save the model as model.safetensors"});
}

TEST_F(BadInputTest, ModelDescriptions) {
  const std::string file = folder_.path("model/config.json");
  const auto with_config = [&](const std::string& text, const std::vector<std::string>& words) {
    folder_.write("model/config.json", text);
    std::vector<std::string> all = words;
    all.push_back(file);
    expect_refused(1, all);
  };
  const auto changed = [](const std::string& key, const Json& value) {
    Json config = Json::parse(kConfig);
    config[key] = value;
    return config.dump();
  };
  with_config("{\n  \"model_type\": llama\n}", {file + ":2:17: not valid JSON"});
  with_config("", {"not valid JSON"});
  with_config("[1]", {"an object"});
  with_config(changed("model_type", "gpt2"), {"\"model_type\" is \"gpt2\"", "llama, qwen2, qwen3, mistral"});
  with_config(changed("hidden_size", -1), {"\"hidden_size\" is -1"});
  with_config(changed("hidden_size", 15), {"not a multiple of the 2 attention heads"});
  with_config(changed("hidden_size", 1.5), {"\"hidden_size\" is 1.5"});
  with_config(changed("vocab_size", uint64_t{1} << 63), {"vocab_size"});
  with_config(changed("num_key_value_heads", 3), {"cannot be shared evenly"});
  with_config(changed("quantization_config", Json::object()), {"quantized"});
  with_config(changed("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5.0}}),
              {"\"rope_theta\" is 10000.0"});
  with_config(changed("rope_scaling", {{"rope_type", "spiral"}}), {"\"spiral\""});
  Json both = Json::parse(kConfig);
  both["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  both["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  with_config(both.dump(), {"rope_parameters in the same file says something else"});
  std::string twice = kConfig;
  twice.insert(1, "\"model_type\": \"qwen2\",");
  with_config(twice, {"\"model_type\" appears twice"});
}

TEST_F(BadInputTest, PathsThatLeadNowhere) {
  const std::string nowhere = folder_.path("nowhere");
  expect_refused(2, {"--set model.path=" + nowhere + ": model.path: " + nowhere + ": there is no such folder"},
                 {"--set", "model.path=" + nowhere});
  expect_refused(2, {"model.path: ", "this is not a folder"}, {"--set", "model.path=" + folder_.path("data.jsonl")});
  expect_refused(2, {"--set data.eval=[" + nowhere + "]: data.eval: " + nowhere + ": there is no such file"},
                 {"--set", "data.eval=[" + nowhere + "]"});
  fs::remove(folder_.path("data.jsonl"));
  expect_refused(
      2, {folder_.path("run.yaml") + ":4:10: data.train: " + folder_.path("data.jsonl") + ": there is no such file"});
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"train", nowhere}, {"verify", nowhere}, {"inspect", nowhere}, {"train", folder_.path("model")}}) {
    const ProgramOutcome outcome = run_ithaca(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments[0] << ": " << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(arguments[1]));
  }
  fs::remove(folder_.path("model/config.json"));
  folder_.write("data.jsonl", "{}");
  expect_refused(1, {folder_.path("model"), "no config.json"});
}

TEST_F(BadInputTest, TokenData) {
  const std::string file = folder_.path("data.jsonl");
  const std::string good = R"({"input_ids": [1, 2, 3, 4]})"
                           "\n";
  expect_bad_data(good + "{\"input_ids\": [1, 2,, 3]}\n", {file + ":2:", "not valid JSON"});
  expect_bad_data(good + good + "{\"input_ids\": [1, 2", {file + ":3:", "not valid JSON"});
  expect_bad_data(good + "[1, 2]\n", {file + ":2"});
  expect_bad_data(good + R"({"text": "words"})"
                         "\n",
                  {file + ":2", "input_ids"});
  expect_bad_data(good + R"({"input_ids": "1 2 3"})"
                         "\n",
                  {file + ":2", "input_ids"});
  expect_bad_data(good + R"({"input_ids": [1, 256, 3]})"
                         "\n",
                  {file + ":2", "256"});
  expect_bad_data(good + R"({"input_ids": [1, -1, 3]})"
                         "\n",
                  {file + ":2", "-1"});
  expect_bad_data(good + R"({"input_ids": [1, 2.5, 3]})"
                         "\n",
                  {file + ":2", "2.5"});
  expect_bad_data(good + R"({"input_ids": [1, 2, 3], "labels": [1, 2]})"
                         "\n",
                  {file + ":2", "labels"});
  expect_bad_data(good + R"({"input_ids": [1, 2, 3], "document_lengths": [1, 1]})"
                         "\n",
                  {file + ":2", "document_lengths"});
  expect_bad_data("", {file});
  expect_bad_data("\n\n", {file});
}

TEST_F(BadInputTest, TextData) {
  write_recipe("");
  folder_.write("run.yaml",
                "model: {path: model, init: random}\ndata: {train: text.jsonl, format: text, tokenizer: bytes}\n"
                "train: {max_steps: 1, output_dir: " +
                    folder_.path("run") + "}\n");
  const auto with_text = [&](const std::string& content, const std::vector<std::string>& words) {
    folder_.write("text.jsonl", content);
    expect_refused(1, words);
  };
  const std::string file = folder_.path("text.jsonl");
  with_text("{\"text\": \"fine\"}\n{\"text\": \"br\xff\xfeken\"}\n", {file + ":2", "UTF-8"});
  with_text("{\"text\": \"fine\"}\n{\"text\": \"no end}\n", {file + ":2"});
  with_text("{\"text\": 7}\n", {file + ":1", "text"});
  with_text("", {file});
  fs::remove(folder_.path("text.jsonl"));
  expect_refused(2, {"run.yaml:2:15: data.train: " + file + ": there is no such file"});
}

TEST_F(BadInputTest, Recipes) {
  const std::string file = folder_.path("run.yaml");
  const auto with_recipe = [&](const std::string& text, const std::vector<std::string>& words) {
    folder_.write("run.yaml", text);
    expect_refused(2, words);
  };
  const std::string rest = "model: {path: model}\ndata: {train: data.jsonl}\n";
  const std::string whole = rest + "train: {output_dir: " + folder_.path("run") + "}\n";
  with_recipe(rest, {file + ": train.output_dir is missing"});
  with_recipe("model: {path: model\n" + rest, {file + ":2:", "not valid YAML"});
  with_recipe(rest + "train:\n\toutput_dir: x\n", {file + ":4:", "Indent with spaces"});
  with_recipe("- model\n", {file + ":1:1", "map of sections"});
  with_recipe("\"\\x\"", {file + ":1:"});
  with_recipe(whole + "train: {seed: 1}\n", {file + ":4:1", "is there twice"});
  with_recipe(whole + "parallel: {sp_size: 3, dp_replicate_size: 0}\n", {file + ":4:43", "at least 1"});
  with_recipe(whole + "parallel: {schedul: ring}\n", {file + ":4:12", "did you mean \"schedule\"?"});
  with_recipe(whole + "parallel: {schedule: rings}\n", {file + ":4:22", "Did you mean \"ring\"?"});
  with_recipe(whole + "cp_size: 4\n", {file + ":4:1", "\"cp_size\" is parallel.sp_size here"});
  with_recipe(whole + "memory: {limit_gib: 0.00001}\n",
              {file + ":4:21: memory.limit_gib 1e-05 is not enough", "of optimizer state"});
  with_recipe(whole + "parallel: {sp_size: 5, schedule: ulysses}\n",
              {file + ":4:34: parallel.ulysses_size: 5 ulysses"});

  folder_.write("run.yaml", whole + "optim: {lr: 1, adam_beta1: 2}\nparallel:\n  ring_size: many\n");
  const std::set<std::string> before = everything();
  const ProgramOutcome several = train({"--set", "train.sed=1"});
  EXPECT_EQ(several.status, 2);
  EXPECT_THAT(several.err, AllOf(HasSubstr(file + ":4:9: \"lr\" is optim.learning_rate here\n"),
                                 HasSubstr(file + ":4:28: optim.adam_beta1 must be at least 0 and below 1"),
                                 HasSubstr(file + ":6:14: parallel.ring_size must be an integer"),
                                 HasSubstr("--set train.sed=1: section \"train\" has no option \"sed\""),
                                 HasSubstr("4 mistakes; nothing was started\n")));
  EXPECT_EQ(std::count(several.err.begin(), several.err.end(), '\n'), 5) << several.err;
  EXPECT_EQ(everything(), before);
}

TEST_F(BadInputTest, CommandLines) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"data", "x"}, "it is a section of a recipe: see ithaca options data"},
      {{"parallel.sp_size=4"}, "it is an option of a recipe: see ithaca options parallel.sp_size"},
      {{"run.yaml"}, "to train as a recipe says: ithaca train run.yaml"},
      {{"train", folder_.path("run.yaml"), "--learning_rate", "1e-5"},
       "there is no flag --learning_rate; \"learning_rate\" belongs into a section: optim.learning_rate. Options"},
      {{"train", folder_.path("run.yaml"), "--cp_size=4"},
       "there is no flag --cp_size; \"cp_size\" is parallel.sp_size"},
      {{"train", folder_.path("run.yaml"), "--rnaks", "2"}, "there is no flag --rnaks; did you mean --ranks?"},
      {{"train", folder_.path("run.yaml"), "--flash-attn"}, "\"flash-attn\" has no counterpart here"},
      {{"completion", "tcsh"}, "there are bash, zsh and fish"},
      {{"train", folder_.path("run.yaml"), "--ranks", "0"}, "--ranks must be between 1 and 1024"},
      {{"train", folder_.path("run.yaml"), "--set", "parallel.sp_size=3", "--set", "parallel.dp_replicate_size=5",
        "--ranks", "8"},
       "sp_size 3 x dp_replicate_size 5 = 15 ranks, but --ranks 8; --ranks 15 would fit, or sp_size 4 with "
       "dp_replicate_size 2"},
  };
  for (const auto& [arguments, words] : cases) {
    const ProgramOutcome outcome = run_ithaca(arguments);
    EXPECT_EQ(outcome.status, 2) << words;
    EXPECT_THAT(outcome.err, AllOf(StartsWith("ithaca: error: "), HasSubstr(words)));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
  const ProgramOutcome help = run_ithaca({"data", "--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.out, HasSubstr("data.train"));
}

TEST_F(BadInputTest, OutputFolders) {
  const auto output = [](const std::string& path) {
    return std::vector<std::string>{"--set", "train.output_dir=" + path};
  };
  expect_refused(2, {"train.output_dir: ", "is a file, but a run needs a folder"}, output(folder_.path("data.jsonl")));
  expect_refused(2, {"train.output_dir: ", "cannot be written to"}, output(folder_.path("data.jsonl/run")));
  expect_refused(2, {"train.output_dir: /proc/ithaca/run cannot be written to"}, output("/proc/ithaca/run"));

  folder_.write("other/metrics.jsonl", "{}\n");
  expect_refused(2, {"holds another run (metrics.jsonl is there)", "--overwrite"}, output(folder_.path("other")));

  folder_.write("thesis/export/chapter.tex", "words");
  std::vector<std::string> overwrite = output(folder_.path("thesis"));
  overwrite.push_back("--overwrite");
  expect_refused(2, {"is there but is not the export of a run"}, overwrite);
}

TEST_F(BadInputTest, OverwriteKeepsTheEarlierRunUntilTheNewOneHasAStep) {
  ASSERT_EQ(train().status, 0);
  const std::string metrics = folder_.read("run/metrics.jsonl");
  const std::string exported = folder_.read("run/export/model.safetensors");
  write_weights([](Weights& w) { w.set_float("model.norm.weight", 0, std::numeric_limits<float>::quiet_NaN()); });
  expect_refused(1, {"model.norm.weight"}, {"--overwrite"});
  // Room for the state, and for nothing else.
  expect_refused(1, {"memory.limit_gib"},
                 {"--overwrite", "--set", "model.init=random", "--set", "memory.limit_gib=0.00021"});
  EXPECT_EQ(folder_.read("run/metrics.jsonl"), metrics);
  EXPECT_EQ(folder_.read("run/export/model.safetensors"), exported);
  EXPECT_FALSE(folder_.has("run/.earlier-run"));
  folder_.write("model/model.safetensors", weights_);
  EXPECT_EQ(train({"--overwrite", "--set", "train.max_steps=1"}).status, 0);
  EXPECT_NE(folder_.read("run/metrics.jsonl"), metrics);
  EXPECT_FALSE(folder_.has("run/.earlier-run"));
}

TEST_F(BadInputTest, ARunThatWasKilledBeforeItsFirstStepGivesTheEarlierOneBack) {
  folder_.write("run/config.yaml", "of the killed run");
  folder_.write("run/.earlier-run/metrics.jsonl", "of the earlier run");
  folder_.write("run/.earlier-run/config.yaml", "of the earlier run");
  write_weights([](Weights& w) { w.set_float("model.norm.weight", 0, std::numeric_limits<float>::quiet_NaN()); });
  EXPECT_EQ(train({"--overwrite"}).status, 1);
  EXPECT_EQ(folder_.read("run/config.yaml"), "of the earlier run");
  EXPECT_EQ(folder_.read("run/metrics.jsonl"), "of the earlier run");
  EXPECT_FALSE(folder_.has("run/.earlier-run"));
}

TEST_F(BadInputTest, ARunThatWasKilledIsNoReasonToLoseTheEarlierOne) {
  folder_.write("run/config.yaml", "of the killed run");
  folder_.write("run/.earlier-run/metrics.jsonl", "");
  folder_.write("run/.earlier-run/config.yaml", "of the earlier run");
  const ProgramOutcome inspected = run_ithaca({"inspect", folder_.path("run")});
  EXPECT_THAT(inspected.out, HasSubstr("earlier run  in " + folder_.path("run/.earlier-run") + " until"));
  const ProgramOutcome refused = train();
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("holds another run (config.yaml is there, put back just now: "));
  EXPECT_EQ(folder_.read("run/config.yaml"), "of the earlier run");
  EXPECT_THAT(run_ithaca({"inspect", folder_.path("run")}).out, Not(HasSubstr("earlier run ")));
}

TEST_F(BadInputTest, WhatARunReadsItDoesNotReplace) {
  ASSERT_EQ(train().status, 0);
  const std::string exported = folder_.path("run/export");
  expect_refused(2, {"model.path: " + exported + " belongs to the run in " + folder_.path("run"), "output_dir=..."},
                 {"--overwrite", "--set", "model.path=" + exported});
  folder_.write("run/export/data.jsonl", folder_.read("data.jsonl"));
  expect_refused(2, {"data.train: " + exported + "/data.jsonl belongs to the run"},
                 {"--overwrite", "--set", "data.train=" + exported + "/data.jsonl"});
  for (const char* name : {"run/metrics.jsonl", "run/plan.json", "run/export/report.html", "data.jsonl"}) {
    const std::string before = folder_.read(name);
    const ProgramOutcome page = run_ithaca({"report", folder_.path("run"), "--output", folder_.path(name)});
    EXPECT_EQ(page.status, 2) << page.err;
    EXPECT_THAT(page.err, HasSubstr("--output " + folder_.path(name) + ": "));
    EXPECT_EQ(folder_.read(name), before);
  }
}

// A file that may not grow is what a full disk is to a program.
TEST_F(BadInputTest, ADiskThatIsFull) {
  const auto limited = [&](int blocks, const std::vector<std::string>& more) {
    // What it says goes through a pipe, which has no limit.
    std::string command =
        "(ulimit -f " + std::to_string(blocks) + "; exec '" ITHACA_PROGRAM "' train '" + folder_.path("run.yaml") + "'";
    for (const std::string& word : more) command += " " + word;
    command += " 2>&1 >/dev/null) | cat >&2; exit ${PIPESTATUS[0]}";
    return StartedProgram({"bash", "-c", command}).finish();
  };
  const ProgramOutcome no_cache = limited(0, {});
  EXPECT_EQ(no_cache.status, 1);
  EXPECT_THAT(no_cache.err,
              AllOf(StartsWith("ithaca: error: data.train: "), HasSubstr("cannot write"), HasSubstr("data.cache_dir")));
  EXPECT_FALSE(folder_.has("run"));
  if (folder_.has(".token_cache")) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_.path(".token_cache"))) {
      ADD_FAILURE() << entry.path() << " was left half-written";
    }
  }

  // With the data tokenized already it is the run's own files that have no room.
  ASSERT_EQ(train({"--set", "train.output_dir=" + folder_.path("first")}).status, 0);
  const ProgramOutcome nothing = limited(0, {});
  EXPECT_EQ(nothing.status, 1);
  EXPECT_THAT(nothing.err, AllOf(StartsWith("ithaca: error: "), HasSubstr("config.yaml")));
  EXPECT_FALSE(folder_.has("run")) << "no step was made, so nothing stays";

  // Room for all but the weights: about 45 KiB in float32.
  const ProgramOutcome no_export = limited(16, {});
  EXPECT_EQ(no_export.status, 1) << no_export.err;
  EXPECT_THAT(no_export.err, AllOf(HasSubstr("model.safetensors"), HasSubstr("cannot write")));
  EXPECT_TRUE(folder_.has("run/metrics.jsonl"));
  EXPECT_FALSE(folder_.has("run/export"));
  for (const std::string& name : everything()) EXPECT_THAT(name, Not(HasSubstr(".partial")));
}

TEST_F(BadInputTest, TwoRunsAtOnceInOneFolder) {
  StartedProgram first({ITHACA_PROGRAM, "train", folder_.path("run.yaml"), "--set", "train.max_steps=1000000000"});
  for (int i = 0; i < 600 && folder_.read("run/metrics.jsonl").empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const ProgramOutcome second = train({"--overwrite"});
  EXPECT_EQ(second.status, 2) << second.err;
  EXPECT_THAT(second.err, HasSubstr("another run is writing to "));
  EXPECT_FALSE(folder_.read("run/metrics.jsonl").empty()) << "the first run is untouched";
  first.signal(SIGINT);
  EXPECT_EQ(first.finish().status, 3);
  EXPECT_TRUE(folder_.has("run/export/model.safetensors"));
}

TEST_F(BadInputTest, TheSecondSignalEndsAtOnceAndSaysWhatIsLeft) {
  // One sequence that takes long: the signals come in the middle of a step, after more work than there is before one.
  std::string line = "{\"input_ids\": [1";
  for (int i = 1; i < 60000; ++i) line += ",1";
  folder_.write("data.jsonl", line + "]}\n");
  StartedProgram running({ITHACA_PROGRAM, "train", folder_.path("run.yaml"), "--set", "data.max_length=60000"});
  const double seconds_before = [&] {
    for (int i = 0; i < 3000 && running.out_so_far().find("output ") == std::string::npos; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return running.cpu_seconds();
  }();
  for (int i = 0; i < 3000 && running.cpu_seconds() < seconds_before + 1.0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  running.signal(SIGINT);
  for (int i = 0; i < 600 && running.err_so_far().empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const std::string said = running.err_so_far();
  EXPECT_THAT(said, AllOf(HasSubstr("stopping"), HasSubstr("once more to end at once")));
  const auto before = std::chrono::steady_clock::now();
  running.signal(SIGINT);
  const ProgramOutcome outcome = running.finish();
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5));
  EXPECT_EQ(outcome.status, 3);
  EXPECT_THAT(outcome.err, HasSubstr("ended at once. " + folder_.path("run") + " has no step yet"));
}

}  // namespace
}  // namespace ithaca
