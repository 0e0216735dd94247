#include "checkpoint/hugging_face.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/test_files.h"

namespace ithaca {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kTiedConfig =
    R"({"model_type": "llama", "vocab_size": 3, "hidden_size": 2, "intermediate_size": 2, "num_attention_heads": 1,
        "num_hidden_layers": 1, "tie_word_embeddings": true})";

// The parameters of a model cut down to what the tests need.
std::vector<ParameterSpec> two_parameters() {
  std::vector<ParameterSpec> specs(2);
  specs[0].name = "model.embed_tokens.weight";
  specs[0].extents = {3, 2};
  specs[1].name = "model.norm.weight";
  specs[1].extents = {2};
  return specs;
}

void write_weights(const std::string& path, const std::vector<SafetensorsWriter::Spec>& tensors,
                   const std::vector<float>& values) {
  SafetensorsWriter writer(path, tensors);
  writer.write(values);
  writer.finish();
}

const SafetensorsWriter::Spec kEmbedding = {"model.embed_tokens.weight", DType::float32, {3, 2}};
const SafetensorsWriter::Spec kNorm = {"model.norm.weight", DType::float32, {2}};
const SafetensorsWriter::Spec kHead = {"lm_head.weight", DType::float32, {3, 2}};

TEST(ModelDirectory, TheFixturesLoad) {
  for (const char* name : {"llama-plain", "llama3-rope", "qwen2", "qwen3"}) {
    const ModelDirectory directory(std::string(ITHACA_TEST_DATA) + "/models/" + name);
    ASSERT_TRUE(directory.has_weights());
    EXPECT_EQ(directory.missing_weights_reason(), "");
    // Every fixture is float32, and its config.json counts its parameters.
    EXPECT_EQ(directory.weight_bytes(), 4 * directory.description().parameter_count()) << name;
    EXPECT_EQ(directory.stored_dtype("model.norm.weight"), DType::float32);
    std::vector<ParameterSpec> specs;
    for (const std::string& tensor : directory.tensor_names()) {
      ParameterSpec spec;
      spec.name = tensor;
      const SafetensorsFile file(directory.path() + "/model.safetensors");
      spec.extents = Extents(std::span<const int64_t>(file.find(tensor)->shape));
      specs.push_back(spec);
    }
    EXPECT_NO_THROW(directory.check(specs));
  }
}

TEST(ModelDirectory, MissingLeftOverAndMisshapenAreListed) {
  const TemporaryDirectory directory;
  directory.write("config.json", kTiedConfig);
  write_weights(directory.file("model.safetensors"),
                {{"model.embed_tokens.weight", DType::float32, {2, 3}}, {"model.layers.7.odd", DType::float32, {1}}},
                std::vector<float>(7));
  const ModelDirectory model(directory.path());
  EXPECT_THAT(message_of<InputError>([&] { model.check(two_parameters()); }),
              AllOf(HasSubstr(directory.path()), HasSubstr("missing tensors: model.norm.weight"),
                    HasSubstr("model.embed_tokens.weight is [2, 3] and should be [3, 2]"),
                    HasSubstr("no place for: model.layers.7.odd")));
  std::vector<float> norm(2);
  EXPECT_THAT(message_of<InputError>([&] { model.read_float32("model.norm.weight", norm); }),
              HasSubstr("no tensor \"model.norm.weight\""));
  EXPECT_THAT(message_of<InputError>([&] { model.read_float32("model.embed_tokens.weight", norm); }),
              HasSubstr("6 elements, but 2 are needed"));
}

TEST(ModelDirectory, StoredTypesThatAreNoWeightsAreListed) {
  const TemporaryDirectory directory;
  directory.write("config.json", kTiedConfig);
  const std::string header = R"({"model.embed_tokens.weight":{"dtype":"F8_E4M3","shape":[3,2],"data_offsets":[0,6]},)"
                             R"("model.norm.weight":{"dtype":"I32","shape":[2],"data_offsets":[6,14]}})";
  std::string length(8, '\0');
  for (size_t byte = 0; byte < 8; ++byte) length[byte] = static_cast<char>(header.size() >> (8 * byte) & 0xff);
  directory.write("model.safetensors", length + header + std::string(14, '\0'));
  EXPECT_THAT(message_of<InputError>([&] { ModelDirectory(directory.path()).check(two_parameters()); }),
              AllOf(HasSubstr("model.embed_tokens.weight is F8_E4M3"), HasSubstr("model.norm.weight is I32"),
                    HasSubstr("F32, BF16, F16 or F64")));
}

TEST(ModelDirectory, TiedHeadsAndComputedBuffers) {
  const TemporaryDirectory directory;
  directory.write("config.json", kTiedConfig);
  const std::string weights = directory.file("model.safetensors");
  const std::vector<float> same = {1, 2, 3, 4, 5, 6, 0, 0, 1, 2, 3, 4, 5, 6};
  write_weights(weights, {kEmbedding, kNorm, kHead}, same);
  EXPECT_NO_THROW(ModelDirectory(directory.path()).check(two_parameters()));

  std::vector<float> other = same;
  other.back() = 7;
  write_weights(weights, {kEmbedding, kNorm, kHead}, other);
  EXPECT_THAT(message_of<InputError>([&] { ModelDirectory(directory.path()).check(two_parameters()); }),
              AllOf(HasSubstr("tie_word_embeddings"), HasSubstr("not equal")));

  write_weights(weights, {kEmbedding, kNorm, {"model.layers.0.self_attn.rotary_emb.inv_freq", DType::float32, {1}}},
                {1, 2, 3, 4, 5, 6, 0, 0, 1});
  EXPECT_NO_THROW(ModelDirectory(directory.path()).check(two_parameters()));
}

TEST(ModelDirectory, StoredTypesAreConverted) {
  const TemporaryDirectory directory;
  directory.write("config.json", kTiedConfig);
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::float64}) {
    write_weights(directory.file("model.safetensors"), {{"model.norm.weight", dtype, {3}}}, {0.5f, -1.25f, 384.0f});
    const ModelDirectory model(directory.path());
    EXPECT_EQ(model.stored_dtype("model.norm.weight"), dtype);
    std::vector<float> values(3);
    model.read_float32("model.norm.weight", values);
    EXPECT_THAT(values, ElementsAre(0.5f, -1.25f, 384.0f));
    model.read_float32("model.norm.weight", 1, std::span(values).first(2));
    EXPECT_THAT(values, ElementsAre(-1.25f, 384.0f, 384.0f));
  }
}

TEST(ModelDirectory, Shards) {
  const TemporaryDirectory directory;
  directory.write("config.json", kTiedConfig);
  write_weights(directory.file("model-00001-of-00002.safetensors"), {kEmbedding}, {1, 2, 3, 4, 5, 6});
  write_weights(directory.file("model-00002-of-00002.safetensors"), {kNorm}, {7, 8});
  const auto write_index = [&](const std::string& weight_map) {
    directory.write("model.safetensors.index.json",
                    R"({"metadata": {"total_size": 32}, "weight_map": )" + weight_map + "}");
  };
  write_index(R"({"model.embed_tokens.weight": "model-00001-of-00002.safetensors",
                  "model.norm.weight": "model-00002-of-00002.safetensors"})");
  const ModelDirectory model(directory.path());
  EXPECT_NO_THROW(model.check(two_parameters()));
  std::vector<float> norm(2);
  model.read_float32("model.norm.weight", norm);
  EXPECT_THAT(norm, ElementsAre(7.0f, 8.0f));

  const auto complaint = [&] { return message_of<InputError>([&] { const ModelDirectory broken(directory.path()); }); };
  write_index(R"({"model.norm.weight": "model-00003-of-00002.safetensors"})");
  EXPECT_THAT(complaint(), AllOf(HasSubstr("index.json"), HasSubstr("model-00003-of-00002.safetensors")));
  write_index(R"({"model.norm.weight": "model-00001-of-00002.safetensors"})");
  EXPECT_THAT(complaint(), HasSubstr("\"model.norm.weight\" is said to be in model-00001-of-00002.safetensors"));
  write_index(R"({"model.norm.weight": "../model-00002-of-00002.safetensors"})");
  EXPECT_THAT(complaint(), HasSubstr("same directory"));
  write_index(R"({"model.norm.weight": 2})");
  EXPECT_THAT(complaint(), HasSubstr("weight_map"));
  write_index("{}");
  EXPECT_THAT(complaint(), HasSubstr("names no tensor"));
  write_index("[");
  EXPECT_THAT(complaint(), HasSubstr("not valid JSON"));
}

TEST(ModelDirectory, WithoutWeights) {
  const TemporaryDirectory directory;
  EXPECT_THAT(message_of<FileError>([&] { const ModelDirectory model(directory.path()); }),
              HasSubstr("no config.json"));
  EXPECT_THAT(message_of<FileError>([&] { const ModelDirectory model(directory.file("absent")); }),
              HasSubstr("no such directory"));
  directory.write("config.json", kTiedConfig);
  const ModelDirectory model(directory.path());
  EXPECT_FALSE(model.has_weights());
  EXPECT_THAT(message_of<InputError>([&] { model.check(two_parameters()); }), HasSubstr("model.init: random"));
  directory.write("pytorch_model.bin", "");
  EXPECT_THAT(model.missing_weights_reason(), HasSubstr("pytorch_model.bin"));
  EXPECT_THAT(model.missing_weights_reason(), Not(HasSubstr("random")));
}

TEST(ModelDirectory, TruncatedWeightsAreInputErrors) {
  const TemporaryDirectory directory;
  directory.write("config.json", kTiedConfig);
  const std::string weights = directory.file("model.safetensors");
  write_weights(weights, {kEmbedding, kNorm}, {1, 2, 3, 4, 5, 6, 7, 8});
  const std::string whole = read_test_file(weights);
  for (size_t length = 0; length < whole.size(); ++length) {
    directory.write("model.safetensors", whole.substr(0, length));
    EXPECT_THROW(ModelDirectory(directory.path()), InputError) << length;
  }
}

}  // namespace
}  // namespace ithaca
