#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "base/error.h"
#include "checkpoint/hugging_face.h"
#include "data/test_files.h"

namespace ithaca {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string fixture(const std::string& name) {
  return std::string(ITHACA_TEST_DATA) + "/models/" + name;
}

// The tensors of a directory as parameters, in the order of the file.
std::vector<ParameterSpec> parameters_of(const std::string& directory) {
  const SafetensorsFile file(directory + "/model.safetensors");
  std::vector<ParameterSpec> specs;
  for (const SafetensorsFile::Entry& entry : file.entries()) {
    ParameterSpec spec;
    spec.name = entry.name;
    spec.extents = Extents(std::span<const int64_t>(entry.shape));
    specs.push_back(spec);
  }
  return specs;
}

// Gives the input's own values, a few at a time.
TensorSource values_of(const ModelDirectory& input) {
  return [&input](const ParameterSpec& parameter, const TensorSink& sink) {
    const int64_t count = parameter.extents.product();
    std::vector<float> piece;
    for (int64_t first = 0; first < count; first += 100) {
      piece.resize(static_cast<size_t>(std::min<int64_t>(100, count - first)));
      input.read_float32(parameter.name, first, piece);
      sink(piece);
    }
  };
}

std::set<std::string> names_in(const std::string& directory) {
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) names.insert(entry.path().filename());
  return names;
}

void expect_same_values(const std::string& left_path, const std::string& right_path) {
  const ModelDirectory left(left_path);
  const ModelDirectory right(right_path);
  ASSERT_EQ(left.tensor_names(), right.tensor_names());
  for (const ParameterSpec& parameter : parameters_of(left_path)) {
    std::vector<float> left_values(static_cast<size_t>(parameter.extents.product()));
    std::vector<float> right_values(left_values.size());
    left.read_float32(parameter.name, left_values);
    right.read_float32(parameter.name, right_values);
    EXPECT_EQ(left_values, right_values) << parameter.name;
  }
}

TEST(Export, RoundTripOfTheFixtures) {
  const TemporaryDirectory directory;
  for (const char* name : {"llama-plain", "llama3-rope", "qwen2", "qwen3"}) {
    const ModelDirectory input(fixture(name));
    ExportOptions options;
    options.directory = directory.file(name);
    export_model(input, parameters_of(input.path()), options, values_of(input));
    EXPECT_EQ(names_in(options.directory),
              (std::set<std::string>{"config.json", "generation_config.json", "model.safetensors"}));
    EXPECT_EQ(read_test_file(options.directory + "/config.json"), input.config_text());
    expect_same_values(input.path(), options.directory);
    ModelDirectory(options.directory).check(parameters_of(input.path()));
  }
}

TEST(Export, Shards) {
  const TemporaryDirectory directory;
  const ModelDirectory input(fixture("llama-plain"));
  ExportOptions options;
  options.directory = directory.file("out") + "/";
  options.max_shard_bytes = 25000;
  export_model(input, parameters_of(input.path()), options, values_of(input));
  const std::set<std::string> names = names_in(options.directory);
  EXPECT_EQ(names.count("model.safetensors"), 0u);
  EXPECT_EQ(names.count("model.safetensors.index.json"), 1u);
  EXPECT_EQ(names.count("model-00001-of-00006.safetensors"), 1u);
  expect_same_values(input.path(), options.directory);
  const std::string index = read_test_file(options.directory + "model.safetensors.index.json");
  EXPECT_THAT(index, HasSubstr("\"total_size\": " + std::to_string(4 * 30368)));
  for (const std::string& name : names) {
    if (name.starts_with("model-")) {
      EXPECT_LE(fs::file_size(fs::path(options.directory) / name), 25000u + 3000u);
    }
  }
}

TEST(Export, StoredTypeChangesWithTheConfig) {
  const TemporaryDirectory directory;
  const std::pair<const char*, const char*> spellings[] = {{"qwen2", "\"torch_dtype\": \"bfloat16\""},
                                                           {"qwen3", "\"dtype\": \"bfloat16\""}};
  for (const auto& [name, expected] : spellings) {
    const ModelDirectory input(fixture(name));
    ExportOptions options;
    options.directory = directory.file(name);
    options.dtype = DType::bfloat16;
    export_model(input, parameters_of(input.path()), options, values_of(input));
    const ModelDirectory output(options.directory);
    EXPECT_THAT(output.config_text(), HasSubstr(expected));
    EXPECT_EQ(output.description().weights_dtype, "bfloat16");
    EXPECT_EQ(output.description().rope.theta, input.description().rope.theta);
    EXPECT_EQ(output.stored_dtype("model.norm.weight"), DType::bfloat16);
    EXPECT_EQ(output.weight_bytes(), input.weight_bytes() / 2);

    // From bfloat16 back: each tensor keeps the type it has unless told otherwise.
    ExportOptions again;
    again.directory = directory.file(std::string(name) + "-again");
    export_model(output, parameters_of(input.path()), again, values_of(output));
    expect_same_values(options.directory, again.directory);
    EXPECT_EQ(ModelDirectory(again.directory).stored_dtype("model.norm.weight"), DType::bfloat16);
    EXPECT_EQ(read_test_file(again.directory + "/config.json"), output.config_text());
  }
}

// What is written is read back as the same RoPE, in both spellings, whatever the input said.
TEST(Export, RopeOfTheEndOfARun) {
  const TemporaryDirectory directory;
  RopeDescription linear;
  linear.kind = RopeKind::linear;
  linear.theta = 123456.5;
  linear.factor = 4.0;
  RopeDescription yarn;
  yarn.kind = RopeKind::yarn;
  yarn.theta = 5e6;
  yarn.factor = 8.0;
  yarn.original_max_positions = 3000;
  yarn.beta_fast = 16.0;
  yarn.beta_slow = 2.0;
  yarn.mscale = 0.5;
  yarn.mscale_all_dimensions = 0.25;
  yarn.attention_factor = 1.5;
  yarn.truncate = false;
  RopeDescription llama3;
  llama3.kind = RopeKind::llama3;
  llama3.factor = 2.0;
  llama3.original_max_positions = 2048;
  llama3.low_frequency_factor = 1.5;
  llama3.high_frequency_factor = 3.0;
  int number = 0;
  for (const char* name : {"qwen2", "qwen3", "llama3-rope"}) {
    const ModelDirectory input(fixture(name));
    for (const RopeDescription& rope : {RopeDescription(), linear, yarn, llama3}) {
      ExportOptions options;
      options.directory = directory.file(std::to_string(number++));
      options.rope = rope;
      options.max_positions = 24000;
      export_model(input, parameters_of(input.path()), options, values_of(input));
      const ModelDescription output = ModelDirectory(options.directory).description();
      SCOPED_TRACE(std::string(name) + " " + std::string(rope_name(rope.kind)));
      EXPECT_EQ(output.max_positions, 24000);
      EXPECT_EQ(output.rope.kind, rope.kind);
      EXPECT_EQ(output.rope.theta, rope.theta);
      EXPECT_EQ(output.rope.factor, rope.factor);
      if (rope.original_max_positions > 0) {
        EXPECT_EQ(output.rope.original_max_positions, rope.original_max_positions);
      }
      if (rope.kind == RopeKind::llama3) {
        EXPECT_EQ(output.rope.low_frequency_factor, rope.low_frequency_factor);
        EXPECT_EQ(output.rope.high_frequency_factor, rope.high_frequency_factor);
      }
      EXPECT_EQ(output.rope.beta_fast, rope.beta_fast);
      EXPECT_EQ(output.rope.beta_slow, rope.beta_slow);
      EXPECT_EQ(output.rope.mscale, rope.mscale);
      EXPECT_EQ(output.rope.mscale_all_dimensions, rope.mscale_all_dimensions);
      EXPECT_EQ(output.rope.attention_factor, rope.attention_factor);
      EXPECT_EQ(output.rope.truncate, rope.truncate);
      EXPECT_EQ(output.layer_count(), input.description().layer_count());
    }
  }
}

TEST(Export, FromAConfigAlone) {
  const TemporaryDirectory directory;
  fs::create_directory(directory.file("in"));
  directory.write("in/config.json",
                  R"({"model_type": "llama", "vocab_size": 3, "hidden_size": 2, "intermediate_size": 2,
                     "num_attention_heads": 1, "num_hidden_layers": 1, "torch_dtype": "float16"})");
  directory.write("in/tokenizer.json", "{\"any\": 1}");
  directory.write("in/notes.txt", "not part of a model");
  const ModelDirectory input(directory.file("in"));
  std::vector<ParameterSpec> specs(1);
  specs[0].name = "model.norm.weight";
  specs[0].extents = {2};
  ExportOptions options;
  options.directory = directory.file("out");
  export_model(input, specs, options, [](const ParameterSpec&, const TensorSink& sink) {
    sink(std::vector<float>{1.5f, -2.0f});
  });
  EXPECT_EQ(names_in(options.directory), (std::set<std::string>{"config.json", "model.safetensors", "tokenizer.json"}));
  EXPECT_EQ(read_test_file(options.directory + "/tokenizer.json"), "{\"any\": 1}");
  EXPECT_EQ(ModelDirectory(options.directory).stored_dtype("model.norm.weight"), DType::float16);
}

TEST(Export, NothingIsLeftOfAFailedOne) {
  const TemporaryDirectory directory;
  const ModelDirectory input(fixture("qwen2"));
  ExportOptions options;
  options.directory = directory.file("out");
  int calls = 0;
  const TensorSource fails = [&](const ParameterSpec& parameter, const TensorSink& sink) {
    if (++calls == 3) throw FileError("the source is gone");
    values_of(input)(parameter, sink);
  };
  EXPECT_THROW(export_model(input, parameters_of(input.path()), options, fails), FileError);
  const TensorSource too_few = [](const ParameterSpec&, const TensorSink& sink) { sink(std::vector<float>(1)); };
  EXPECT_THROW(export_model(input, parameters_of(input.path()), options, too_few), ContractError);
  const TensorSource too_many = [](const ParameterSpec&, const TensorSink& sink) { sink(std::vector<float>(100000)); };
  EXPECT_THROW(export_model(input, parameters_of(input.path()), options, too_many), ContractError);
  EXPECT_TRUE(names_in(directory.path()).empty());
}

TEST(Export, ValuesThatAreNotFiniteAsStored) {
  const TemporaryDirectory directory;
  const ModelDirectory input(fixture("llama-plain"));
  const auto error_of = [&](DType dtype, float value) -> std::string {
    ExportOptions options;
    options.directory = directory.file("out");
    options.replace_existing = true;
    options.dtype = dtype;
    options.if_not_finite = "step 7 was the first";
    try {
      export_model(input, parameters_of(input.path()), options,
                   [&](const ParameterSpec& parameter, const TensorSink& sink) {
                     std::vector<float> values(static_cast<size_t>(parameter.extents.product()), 1.0f);
                     values.back() = value;
                     sink(std::span<const float>(values).first(5));
                     sink(std::span<const float>(values).subspan(5));
                   });
    } catch (const Error& error) {
      EXPECT_TRUE(names_in(directory.file("")).empty());
      return error.what();
    }
    fs::remove_all(options.directory);
    return "";
  };
  const float infinity = std::numeric_limits<float>::infinity();
  const float largest = std::numeric_limits<float>::max();
  const std::string name = parameters_of(input.path()).front().name;
  const int64_t last = parameters_of(input.path()).front().extents.product() - 1;
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::float64}) {
    EXPECT_THAT(error_of(dtype, std::numeric_limits<float>::quiet_NaN()), HasSubstr("nan"));
    EXPECT_THAT(error_of(dtype, -infinity),
                testing::AllOf(HasSubstr("the model is not exported: \"" + name + "\""),
                               HasSubstr("holds -inf at element " + std::to_string(last) + "; step 7 was the first")));
    EXPECT_EQ(error_of(dtype, -65504.0f), "");
  }
  EXPECT_EQ(error_of(DType::float32, largest), "");
  EXPECT_EQ(error_of(DType::float64, -largest), "");
  EXPECT_THAT(error_of(DType::bfloat16, largest), HasSubstr("which is more than it can store"));
  EXPECT_EQ(error_of(DType::bfloat16, 3.389e38f), "");
  EXPECT_THAT(error_of(DType::float16, -65520.0f), HasSubstr("holds -65520"));
  EXPECT_EQ(error_of(DType::float16, 65519.0f), "");
}

TEST(Export, WhatMayBeReplaced) {
  const TemporaryDirectory directory;
  const ModelDirectory input(fixture("qwen2"));
  const std::vector<ParameterSpec> specs = parameters_of(input.path());
  ExportOptions options;
  options.directory = directory.file("out");
  const auto attempt = [&] { export_model(input, specs, options, values_of(input)); };

  fs::create_directory(options.directory);  // an empty one is as good as none
  attempt();
  EXPECT_THAT(message_of<ConfigurationError>(attempt), HasSubstr("exists already"));
  options.replace_existing = true;
  directory.write("out/tokenizer.json", "of the earlier export");
  attempt();
  EXPECT_EQ(names_in(options.directory),
            (std::set<std::string>{"config.json", "generation_config.json", "model.safetensors"}));
  EXPECT_EQ(names_in(directory.path()), (std::set<std::string>{"out"}));

  fs::create_directory(directory.file("out/photos"));
  EXPECT_THAT(message_of<ConfigurationError>(attempt), HasSubstr("does not look like an earlier export"));
  EXPECT_TRUE(fs::exists(directory.file("out/photos")));
  options.directory = fixture("qwen2");
  EXPECT_THAT(message_of<ConfigurationError>(attempt), HasSubstr("replace the model it comes from"));
  // An empty folder that a link names, on a larger disk say, is filled; the link stays.
  fs::create_directory(directory.file("large"));
  fs::create_directory_symlink("large", directory.file("link"));
  options.directory = directory.file("link");
  attempt();
  EXPECT_TRUE(fs::is_symlink(directory.file("link")));
  EXPECT_TRUE(fs::exists(directory.file("large/config.json")));
  options.directory = directory.file("no/such/parent");
  EXPECT_THROW(attempt(), FileError);
}

// What a killed export leaves is cleared away by the next one.
TEST(Export, LeftoversAreCleared) {
  const TemporaryDirectory directory;
  const ModelDirectory input(fixture("qwen2"));
  fs::create_directory(directory.file(".out.partial"));
  directory.write(".out.partial/model.safetensors", "half");
  ExportOptions options;
  options.directory = directory.file("out");
  export_model(input, parameters_of(input.path()), options, values_of(input));
  EXPECT_EQ(names_in(directory.path()), (std::set<std::string>{"out"}));
}

}  // namespace
}  // namespace ithaca
