#include "model/description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>

#include "base/error.h"

namespace ithaca {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string read_text(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream) << path;
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

ModelDescription fixture(const std::string& name) {
  const std::string path = std::string(ITHACA_TEST_DATA) + "/models/" + name + "/config.json";
  return parse_model_description(read_text(path), path);
}

// A small config of the family, with keys replaced or added; an empty value removes the key.
std::string config_of(const std::string& family, const std::map<std::string, std::string>& changes = {}) {
  std::map<std::string, std::string> keys = {
      {"model_type", '"' + family + '"'}, {"vocab_size", "160"},        {"hidden_size", "32"},
      {"intermediate_size", "72"},        {"num_attention_heads", "4"}, {"num_key_value_heads", "2"},
      {"num_hidden_layers", "2"}};
  for (const auto& [key, value] : changes) keys[key] = value;
  std::string text = "{";
  for (const auto& [key, value] : keys) {
    if (value.empty()) continue;
    text += text.size() > 1 ? ",\n \"" : "\n \"";
    text.append(key).append("\": ").append(value);
  }
  return text + "\n}";
}

ModelDescription parse(const std::string& family, const std::map<std::string, std::string>& changes = {}) {
  return parse_model_description(config_of(family, changes), "here/config.json");
}

std::string complaint(const std::string& text) {
  try {
    parse_model_description(text, "here/config.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "(accepted)";
}

std::string complaint(const std::string& family, const std::map<std::string, std::string>& changes) {
  return complaint(config_of(family, changes));
}

TEST(Description, FixtureOfTheNewerSpelling) {
  const ModelDescription model = fixture("llama3-rope");
  EXPECT_EQ(model.family, Family::llama);
  EXPECT_EQ(model.vocabulary, 160);
  EXPECT_EQ(model.hidden_size, 32);
  EXPECT_EQ(model.intermediate_size, 72);
  EXPECT_EQ(model.query_heads, 4);
  EXPECT_EQ(model.key_heads, 2);
  EXPECT_EQ(model.head_size, 8);
  EXPECT_EQ(model.rms_norm_epsilon, 1e-6);
  EXPECT_TRUE(model.tied_head);
  EXPECT_FALSE(model.query_key_value_bias);
  EXPECT_FALSE(model.output_bias);
  EXPECT_FALSE(model.query_key_norm);
  EXPECT_EQ(model.max_positions, 4096);
  EXPECT_EQ(model.layer_count(), 2);
  EXPECT_EQ(model.weights_dtype, "float32");
  EXPECT_EQ(model.rope.kind, RopeKind::llama3);
  EXPECT_EQ(model.rope.theta, 500000.0);
  EXPECT_EQ(model.rope.factor, 8.0);
  EXPECT_EQ(model.rope.original_max_positions, 64);
  EXPECT_EQ(model.rope.low_frequency_factor, 1.0);
  EXPECT_EQ(model.rope.high_frequency_factor, 4.0);
}

TEST(Description, FixtureOfTheOlderSpelling) {
  const ModelDescription model = fixture("qwen2");
  EXPECT_EQ(model.family, Family::qwen2);
  EXPECT_EQ(model.rope.kind, RopeKind::standard);
  EXPECT_EQ(model.rope.theta, 1e6);
  EXPECT_TRUE(model.query_key_value_bias);
  EXPECT_FALSE(model.output_bias);
  EXPECT_TRUE(model.tied_head);
  for (const LayerDescription& layer : model.layers) EXPECT_EQ(layer.window, 0);
}

TEST(Description, FixtureWithHeadNormAndFreeHeadSize) {
  const ModelDescription model = fixture("qwen3");
  EXPECT_EQ(model.head_size, 16);
  EXPECT_TRUE(model.query_key_norm);
  EXPECT_FALSE(model.query_key_value_bias);
}

// Element counts of the four checkpoints, read off their safetensors headers.
TEST(Description, ParameterCounts) {
  EXPECT_EQ(fixture("llama-plain").parameter_count(), 30368);
  EXPECT_EQ(fixture("llama3-rope").parameter_count(), 25248);
  EXPECT_EQ(fixture("qwen2").parameter_count(), 25376);
  EXPECT_EQ(fixture("qwen3").parameter_count(), 31456);
}

// Llama 3.1 8B as published: 8,030,261,248 parameters; Qwen2.5 0.5B: 494,032,768.
TEST(Description, ParameterCountsOfPublishedModels) {
  const ModelDescription llama = parse("llama", {{"vocab_size", "128256"},
                                                 {"hidden_size", "4096"},
                                                 {"intermediate_size", "14336"},
                                                 {"num_attention_heads", "32"},
                                                 {"num_key_value_heads", "8"},
                                                 {"num_hidden_layers", "32"}});
  EXPECT_EQ(llama.parameter_count(), 8030261248);
  const ModelDescription qwen = parse("qwen2", {{"vocab_size", "151936"},
                                                {"hidden_size", "896"},
                                                {"intermediate_size", "4864"},
                                                {"num_attention_heads", "14"},
                                                {"num_key_value_heads", "2"},
                                                {"num_hidden_layers", "24"},
                                                {"tie_word_embeddings", "true"}});
  EXPECT_EQ(qwen.parameter_count(), 494032768);
}

TEST(Description, DefaultsOfTheFamilies) {
  const ModelDescription llama = parse("llama", {{"num_key_value_heads", ""}});
  EXPECT_EQ(llama.key_heads, 4);
  EXPECT_EQ(llama.head_size, 8);
  EXPECT_EQ(llama.max_positions, 2048);
  EXPECT_EQ(llama.rms_norm_epsilon, 1e-6);
  EXPECT_EQ(llama.rope.theta, 10000.0);
  EXPECT_EQ(llama.initializer_range, 0.02);
  EXPECT_FALSE(llama.tied_head);
  EXPECT_EQ(llama.weights_dtype, "float32");

  const ModelDescription mistral = parse("mistral", {{"num_attention_heads", "16"}, {"num_key_value_heads", ""}});
  EXPECT_EQ(mistral.key_heads, 8);
  EXPECT_EQ(mistral.max_positions, 131072);
  EXPECT_EQ(mistral.layers[0].window, 4096);
  EXPECT_EQ(parse("mistral", {{"num_key_value_heads", "null"}}).key_heads, 4);

  EXPECT_EQ(parse("qwen3").head_size, 128);
  EXPECT_EQ(parse("qwen2").head_size, 8);
  EXPECT_EQ(parse("qwen2").max_positions, 32768);
}

TEST(Description, Biases) {
  const ModelDescription llama = parse("llama", {{"attention_bias", "true"}, {"mlp_bias", "true"}});
  EXPECT_TRUE(llama.query_key_value_bias);
  EXPECT_TRUE(llama.output_bias);
  EXPECT_TRUE(llama.mlp_bias);
  // q, k, v, o: 32 + 16 + 16 + 32; gate, up, down: 72 + 72 + 32; two layers.
  EXPECT_EQ(llama.parameter_count() - parse("llama").parameter_count(), 2 * (96 + 176));
  const ModelDescription qwen3 = parse("qwen3", {{"attention_bias", "true"}});
  EXPECT_TRUE(qwen3.query_key_value_bias);
  EXPECT_TRUE(qwen3.output_bias);
  EXPECT_FALSE(parse("qwen2", {{"attention_bias", "true"}}).output_bias);
  EXPECT_FALSE(parse("mistral", {{"attention_bias", "true"}}).query_key_value_bias);
}

std::vector<int64_t> windows(const ModelDescription& model) {
  std::vector<int64_t> result;
  for (const LayerDescription& layer : model.layers) result.push_back(layer.window);
  return result;
}

TEST(Description, SlidingWindows) {
  EXPECT_EQ(windows(parse("mistral", {{"sliding_window", "100"}})), (std::vector<int64_t>{100, 100}));
  EXPECT_EQ(windows(parse("mistral", {{"sliding_window", "null"}})), (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(windows(parse("llama", {{"sliding_window", "100"}})), (std::vector<int64_t>{0, 0}));
  for (const char* family : {"qwen2", "qwen3"}) {
    EXPECT_EQ(windows(parse(family, {{"sliding_window", "7"}, {"max_window_layers", "1"}})),
              (std::vector<int64_t>{0, 0}));
    EXPECT_EQ(windows(parse(family, {{"use_sliding_window", "true"},
                                     {"sliding_window", "7"},
                                     {"max_window_layers", "1"},
                                     {"num_hidden_layers", "3"}})),
              (std::vector<int64_t>{0, 7, 7}));
    EXPECT_EQ(windows(parse(family, {{"use_sliding_window", "true"}, {"max_window_layers", "1"}})),
              (std::vector<int64_t>{0, 4096}));
    EXPECT_EQ(windows(parse(family, {{"use_sliding_window", "true"}, {"sliding_window", "null"}})),
              (std::vector<int64_t>{0, 0}));
    EXPECT_EQ(windows(parse(family, {{"use_sliding_window", "true"},
                                     {"sliding_window", "9"},
                                     {"layer_types", R"(["sliding_attention", "full_attention"])"}})),
              (std::vector<int64_t>{9, 0}));
  }
  EXPECT_EQ(windows(parse("mistral",
                          {{"sliding_window", "5"}, {"layer_types", R"(["sliding_attention", "sliding_attention"])"}})),
            (std::vector<int64_t>{5, 5}));
  EXPECT_THAT(complaint("mistral", {{"layer_types", R"(["sliding_attention", "full_attention"])"}}),
              AllOf(HasSubstr("layer_types"), HasSubstr("layer 1"), HasSubstr("all layers slide")));
  EXPECT_THAT(complaint("qwen3", {{"layer_types", R"(["sliding_attention", "full_attention"])"}}),
              HasSubstr("set use_sliding_window to true"));
  EXPECT_THAT(complaint("qwen3", {{"layer_types", R"(["full_attention"])"}}), HasSubstr("a list of 2 strings"));
  EXPECT_THAT(complaint("qwen3", {{"layer_types", R"(["full_attention", "chunked_attention"])"}}),
              HasSubstr("\"chunked_attention\""));
}

TEST(Description, RopeSpellings) {
  const ModelDescription old_type =
      parse("llama", {{"rope_theta", "5e5"}, {"rope_scaling", R"({"type": "linear", "factor": 4})"}});
  EXPECT_EQ(old_type.rope.kind, RopeKind::linear);
  EXPECT_EQ(old_type.rope.factor, 4.0);
  EXPECT_EQ(old_type.rope.theta, 5e5);
  const ModelDescription both = parse("llama", {{"rope_theta", "77"},
                                                {"rope_parameters", R"({"rope_type": "default", "rope_theta": 77.0})"},
                                                {"rope_scaling", "null"}});
  EXPECT_EQ(both.rope.theta, 77.0);
  EXPECT_EQ(both.rope.kind, RopeKind::standard);
  EXPECT_EQ(
      parse("llama", {{"rope_scaling", R"({"rope_type": "linear", "type": "dynamic", "factor": 2.0})"}}).rope.kind,
      RopeKind::linear);
  EXPECT_EQ(parse("llama", {{"torch_dtype", "\"bfloat16\""}}).weights_dtype, "bfloat16");
  EXPECT_EQ(parse("llama", {{"dtype", "\"float16\""}}).weights_dtype, "float16");
}

TEST(Description, RopeLengths) {
  // dynamic goes by max_position_embeddings, whatever else is written.
  const ModelDescription dynamic =
      parse("llama", {{"max_position_embeddings", "512"},
                      {"rope_scaling", R"({"type": "dynamic", "factor": 2, "original_max_position_embeddings": 64})"}});
  EXPECT_EQ(dynamic.rope.original_max_positions, 512);
  const std::string yarn = R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128})";
  EXPECT_EQ(parse("qwen2", {{"rope_scaling", yarn}}).rope.original_max_positions, 128);
  EXPECT_EQ(
      parse("qwen2", {{"rope_scaling", yarn}, {"original_max_position_embeddings", "256"}}).rope.original_max_positions,
      256);
  EXPECT_EQ(parse("qwen2", {{"rope_scaling", R"({"rope_type": "yarn", "factor": 4.0})"}}).rope.original_max_positions,
            32768);
}

TEST(Description, YarnParameters) {
  const RopeDescription plain = parse("qwen2", {{"rope_scaling", R"({"type": "yarn", "factor": 4.0})"}}).rope;
  EXPECT_EQ(plain.beta_fast, 32.0);
  EXPECT_EQ(plain.beta_slow, 1.0);
  EXPECT_TRUE(plain.truncate);
  EXPECT_FALSE(plain.attention_factor.has_value());
  EXPECT_FALSE(plain.mscale.has_value());
  const RopeDescription full =
      parse("qwen2", {{"max_position_embeddings", "1024"},
                      {"rope_parameters", R"({"rope_type": "yarn", "factor": null, "rope_theta": 1e6,
                        "original_max_position_embeddings": 128, "beta_fast": 16, "beta_slow": 0, "mscale": 0.707,
                        "mscale_all_dim": 1, "truncate": false, "attention_factor": 1.5})"}})
          .rope;
  EXPECT_EQ(full.factor, 8.0);
  EXPECT_EQ(full.beta_fast, 16.0);
  EXPECT_EQ(full.beta_slow, 1.0);
  EXPECT_EQ(full.mscale, 0.707);
  EXPECT_EQ(full.mscale_all_dimensions, 1.0);
  EXPECT_EQ(full.attention_factor, 1.5);
  EXPECT_FALSE(full.truncate);
}

TEST(Description, RopeThatIsRefused) {
  EXPECT_THAT(complaint("llama", {{"rope_scaling", R"({"rope_type": "longrope"})"}}),
              AllOf(HasSubstr("here/config.json"), HasSubstr("\"rope_scaling.rope_type\" is \"longrope\""),
                    HasSubstr("default, linear, dynamic, llama3, yarn")));
  EXPECT_THAT(complaint("llama", {{"rope_scaling", R"({"type": "linear"})"}}), HasSubstr("\"rope_scaling.factor\""));
  EXPECT_THAT(complaint("llama", {{"rope_scaling", R"({"type": "linear", "factor": -1})"}}), HasSubstr("is -1"));
  EXPECT_THAT(complaint("llama", {{"rope_scaling", R"({"type": "llama3", "factor": 8.0})"}}),
              HasSubstr("low_freq_factor"));
  EXPECT_THAT(complaint("llama", {{"rope_scaling", "7"}}), HasSubstr("an object"));
  EXPECT_THAT(complaint("llama", {{"rope_theta", "0"}}), HasSubstr("\"rope_theta\" is 0"));
  EXPECT_THAT(complaint("llama", {{"rope_parameters", R"({"full_attention": {"rope_type": "default"}})"}}),
              HasSubstr("differs between layers"));
  EXPECT_THAT(complaint("llama", {{"rope_parameters", R"({"rope_type": "default", "partial_rotary_factor": 0.5})"}}),
              HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(complaint("llama", {{"rope_scaling", R"({"type":"yarn","factor":2.0,"beta_fast":1,"beta_slow":9})"}}),
              HasSubstr("beta_fast"));
}

TEST(Description, ContradictionsAboutRopeAreRefused) {
  EXPECT_THAT(complaint("llama", {{"rope_scaling", R"({"type": "linear", "factor": 4.0})"},
                                  {"rope_parameters", R"({"rope_type": "linear", "factor": 8.0})"}}),
              AllOf(HasSubstr("\"rope_scaling\" is "),
                    HasSubstr("rope_parameters in the same file says something else"), HasSubstr("\"factor\":8.0")));
  EXPECT_THAT(complaint("qwen2", {{"rope_scaling", R"({"type": "yarn", "factor": 4.0})"},
                                  {"rope_parameters", R"({"rope_type": "default", "rope_theta": 1e6})"}}),
              HasSubstr("something else"));
  EXPECT_THAT(complaint("llama",
                        {{"rope_theta", "1e6"}, {"rope_parameters", R"({"rope_type": "default", "rope_theta": 1e4})"}}),
              HasSubstr("\"rope_theta\" is 1000000.0: rope_parameters.rope_theta in the same file is 10000.0"));
  // Both spellings of the same thing are one thing.
  const ModelDescription same =
      parse("llama", {{"rope_theta", "5e5"},
                      {"rope_scaling", R"({"factor": 4.0, "type": "linear"})"},
                      {"rope_parameters", R"({"rope_type": "linear", "rope_theta": 5e5, "factor": 4})"}});
  EXPECT_EQ(same.rope.factor, 4.0);
  EXPECT_EQ(same.rope.theta, 5e5);
}

TEST(Description, ModelsThatAreRefused) {
  EXPECT_THAT(complaint("gpt2", {}), AllOf(HasSubstr("here/config.json"), HasSubstr("\"model_type\" is \"gpt2\""),
                                           HasSubstr("llama, qwen2, qwen3, mistral")));
  EXPECT_THAT(complaint("llama", {{"model_type", ""}}), HasSubstr("\"model_type\": this key is needed"));
  EXPECT_THAT(complaint("llama", {{"hidden_act", "\"gelu\""}}), HasSubstr("\"hidden_act\" is \"gelu\""));
  EXPECT_THAT(complaint("llama", {{"attention_dropout", "0.1"}}), HasSubstr("\"attention_dropout\" is 0.1"));
  EXPECT_THAT(complaint("llama", {{"resid_pdrop", "0.1"}}), HasSubstr("resid_pdrop"));
  EXPECT_THAT(complaint("llama", {{"pretraining_tp", "2"}}), HasSubstr("\"pretraining_tp\" is 2"));
  EXPECT_THAT(complaint("llama", {{"partial_rotary_factor", "0.5"}}), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(complaint("llama", {{"quantization_config", R"({"bits": 4})"}}), HasSubstr("quantized"));
  EXPECT_THAT(complaint("llama", {{"dtype", "\"float8_e4m3fn\""}}), HasSubstr("float8_e4m3fn"));
  EXPECT_EQ(complaint("llama", {{"quantization_config", "null"}, {"attention_dropout", "0"}}), "(accepted)");
}

TEST(Description, SizesThatAreRefused) {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    EXPECT_THAT(complaint("llama", {{key, ""}}), AllOf(HasSubstr(key), HasSubstr("is needed")));
    EXPECT_THAT(complaint("llama", {{key, "null"}}), HasSubstr(key));
    EXPECT_THAT(complaint("llama", {{key, "0"}}), HasSubstr(std::string(key) + "\" is 0"));
    EXPECT_THAT(complaint("llama", {{key, "-4"}}), HasSubstr("is -4"));
    EXPECT_THAT(complaint("llama", {{key, "\"4\""}}), HasSubstr("a whole number is needed"));
    EXPECT_THAT(complaint("llama", {{key, "4.5"}}), HasSubstr("a whole number is needed"));
    EXPECT_THAT(complaint("llama", {{key, "99999999999999999999"}}), HasSubstr(key));
    EXPECT_THAT(complaint("llama", {{key, "18446744073709551615"}}), HasSubstr(key));
  }
  EXPECT_THAT(complaint("llama", {{"num_key_value_heads", "3"}}),
              AllOf(HasSubstr("num_key_value_heads"), HasSubstr("4 query heads"), HasSubstr("a divisor of 4")));
  EXPECT_THAT(complaint("llama", {{"num_attention_heads", "6"}}), HasSubstr("not a multiple of the 6"));
  EXPECT_THAT(complaint("llama", {{"head_dim", "7"}}), HasSubstr("even"));
  EXPECT_THAT(complaint("llama", {{"rms_norm_eps", "-1e-6"}}), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(complaint("llama", {{"tie_word_embeddings", "1"}}), HasSubstr("true or false"));
  EXPECT_THAT(complaint("mistral", {{"sliding_window", "0"}}), HasSubstr("sliding_window"));
}

TEST(Description, BrokenJsonNamesThePlace) {
  EXPECT_THAT(complaint("{\n  \"model_type\": \"llama\",\n  \"vocab_size\": ,\n}"),
              AllOf(HasSubstr("here/config.json:3:17"), HasSubstr("not valid JSON")));
  EXPECT_THAT(complaint(""), HasSubstr("here/config.json:1:1"));
  EXPECT_THAT(complaint("[]"), HasSubstr("an object"));
  EXPECT_THAT(complaint("{\"model_type\": \"llama\", \"vocab_size\": 1, \"vocab_size\": 2}"),
              HasSubstr("\"vocab_size\" appears twice"));
}

// Every beginning of a config is an error, never a crash.
TEST(Description, TruncatedConfigs) {
  const std::string text = config_of("llama");
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_THROW(parse_model_description(text.substr(0, length), "x"), InputError) << length;
  }
}

TEST(Description, Names) {
  EXPECT_EQ(family_name(Family::mistral), "mistral");
  EXPECT_EQ(rope_name(RopeKind::standard), "default");
}

}  // namespace
}  // namespace ithaca
