#include "model/description.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace ithaca {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kLargestSize = int64_t{1} << 24;  // of a hidden, intermediate or head dimension
constexpr int64_t kMostHeads = int64_t{1} << 16;    // and layers
constexpr int64_t kMostTokens = int64_t{1} << 31;   // ids: stored in 32 bits in many places of the ecosystem
constexpr int64_t kMostPositions = int64_t{1} << 40;

// Reads typed values of one JSON object; every complaint names the file, the key and the value.
class ObjectReader {
 public:
  ObjectReader(const Json& object, std::string where, std::string prefix = "")
      : object_(object), where_(std::move(where)), prefix_(std::move(prefix)) {}

  // Null counts as absent, as Hugging Face writes None.
  bool has(const std::string& key) const {
    const auto found = object_.find(key);
    return found != object_.end() && !found->is_null();
  }
  // Present, null or not.
  bool mentions(const std::string& key) const { return object_.contains(key); }
  const Json& raw(const std::string& key) const { return object_.at(key); }

  [[noreturn]] void complain(const std::string& key, const std::string& problem) const {
    const std::string value = mentions(key) ? " is " + shorten(raw(key).dump()) : "";
    throw InputError(fmt::format("{}: \"{}{}\"{}: {}", where_, prefix_, key, value, problem));
  }

  int64_t integer(const std::string& key, int64_t smallest, int64_t largest) const {
    if (!has(key)) complain(key, "this key is needed, as a whole number");
    return checked_integer(key, smallest, largest);
  }
  int64_t integer_or(const std::string& key, int64_t fallback, int64_t smallest, int64_t largest) const {
    return has(key) ? checked_integer(key, smallest, largest) : fallback;
  }
  double number(const std::string& key) const {
    if (!has(key)) complain(key, "this key is needed, as a number");
    if (!raw(key).is_number()) complain(key, "a number is needed");
    const auto value = raw(key).get<double>();
    if (!std::isfinite(value)) complain(key, "a finite number is needed");
    return value;
  }
  double number_or(const std::string& key, double fallback) const { return has(key) ? number(key) : fallback; }
  double positive(const std::string& key) const {
    const double value = number(key);
    if (value <= 0.0) complain(key, "a number above 0 is needed");
    return value;
  }
  bool flag_or(const std::string& key, bool fallback) const {
    if (!has(key)) return fallback;
    if (!raw(key).is_boolean()) complain(key, "true or false is needed");
    return raw(key).get<bool>();
  }
  std::string text_or(const std::string& key, const std::string& fallback) const {
    if (!has(key)) return fallback;
    if (!raw(key).is_string()) complain(key, "a string is needed");
    return raw(key).get<std::string>();
  }

 private:
  static std::string shorten(const std::string& text) { return text.size() > 80 ? text.substr(0, 77) + "..." : text; }

  int64_t checked_integer(const std::string& key, int64_t smallest, int64_t largest) const {
    const Json& value = raw(key);
    if (!value.is_number_integer()) complain(key, "a whole number is needed");
    const bool beyond_int64 = value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
    const int64_t result = beyond_int64 ? INT64_MAX : value.get<int64_t>();
    if (result < smallest || result > largest) {
      complain(key, fmt::format("a number from {} to {} is needed", smallest, largest));
    }
    return result;
  }

  const Json& object_;
  std::string where_;
  std::string prefix_;
};

// What the families differ in: defaults of keys that a config.json may leave out (those of the Hugging Face
// configuration classes), and which keys they know.
struct FamilyFacts {
  Family family;
  std::string_view name;
  int64_t default_key_heads;  // 0: as many as query heads
  int64_t default_head_size;  // 0: hidden size / query heads
  int64_t default_max_positions;
};

constexpr std::array<FamilyFacts, 4> kFamilies{{
    {Family::llama, "llama", 0, 0, 2048},
    {Family::qwen2, "qwen2", 32, 0, 32768},
    {Family::qwen3, "qwen3", 32, 128, 32768},
    {Family::mistral, "mistral", 8, 0, 131072},
}};
constexpr int64_t kDefaultWindow = 4096;      // qwen2, qwen3 and mistral
constexpr int64_t kDefaultWindowLayers = 28;  // qwen2, qwen3: max_window_layers

constexpr std::array<std::pair<RopeKind, std::string_view>, 5> kRopeKinds{{
    {RopeKind::standard, "default"},
    {RopeKind::linear, "linear"},
    {RopeKind::dynamic, "dynamic"},
    {RopeKind::llama3, "llama3"},
    {RopeKind::yarn, "yarn"},
}};

template <typename Table, typename Name>
std::string join_names(const Table& table, Name name) {
  std::string names;
  for (const auto& row : table) names += (names.empty() ? "" : ", ") + std::string(name(row));
  return names;
}

const FamilyFacts& read_family(const ObjectReader& config) {
  const std::string supported = join_names(kFamilies, [](const FamilyFacts& facts) { return facts.name; });
  if (!config.has("model_type")) config.complain("model_type", "this key is needed: one of " + supported);
  const std::string name = config.text_or("model_type", "");
  for (const FamilyFacts& facts : kFamilies) {
    if (facts.name == name) return facts;
  }
  config.complain("model_type", "this model family is not known; supported are " + supported);
}

// Things that would change the model's result and that the layers here do not do.
void refuse_unsupported(const Json& json, const ObjectReader& config) {
  const std::string activation = config.text_or("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    config.complain("hidden_act", "this activation is not known; supported is \"silu\"");
  }
  for (const auto& [key, value] : json.items()) {
    const bool is_dropout = key.find("dropout") != std::string::npos || key.find("pdrop") != std::string::npos;
    if (is_dropout && value.is_number() && value.get<double>() != 0.0) {
      config.complain(key, "dropout is not supported; set it to 0");
    }
  }
  if (config.has("pretraining_tp") && config.integer("pretraining_tp", 0, kMostHeads) != 1) {
    config.complain("pretraining_tp", "only 1 is supported (it changes rounding only: set it to 1)");
  }
  if (config.number_or("partial_rotary_factor", 1.0) != 1.0) {
    config.complain("partial_rotary_factor", "only 1 is supported: RoPE turns whole heads");
  }
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (config.has(key)) {
      config.complain(key, "quantized weights are not supported; export the model in float32, bfloat16 or float16");
    }
  }
}

RopeKind read_rope_kind(const ObjectReader& rope) {
  const std::string key = rope.has("rope_type") ? "rope_type" : "type";
  const std::string name = rope.text_or(key, "default");
  for (const auto& [kind, kind_name] : kRopeKinds) {
    if (kind_name == name) return kind;
  }
  rope.complain(key, "this RoPE type is not known; supported are " +
                         join_names(kRopeKinds, [](const auto& row) { return row.second; }));
}

void read_yarn(const ObjectReader& rope, int64_t max_positions, RopeDescription& result) {
  if (result.theta == 1.0) rope.complain("rope_theta", "yarn needs a base above 1");
  result.factor = rope.has("factor")
                      ? rope.positive("factor")
                      : static_cast<double>(max_positions) / static_cast<double>(result.original_max_positions);
  // Zero counts as unset for these four, as it does in Python's `or`.
  const auto unless_zero = [&rope](const char* key, double fallback) {
    const double value = rope.number_or(key, fallback);
    if (value < 0.0) rope.complain(key, "a number above 0 is needed");
    return value == 0.0 ? fallback : value;
  };
  result.beta_fast = unless_zero("beta_fast", 32.0);
  result.beta_slow = unless_zero("beta_slow", 1.0);
  if (result.beta_fast < result.beta_slow) {
    rope.complain("beta_fast", fmt::format("it must not be below beta_slow, which is {}", result.beta_slow));
  }
  if (const double scale = unless_zero("mscale", 0.0); scale != 0.0) result.mscale = scale;
  if (const double scale = unless_zero("mscale_all_dim", 0.0); scale != 0.0) result.mscale_all_dimensions = scale;
  if (rope.has("attention_factor")) result.attention_factor = rope.positive("attention_factor");
  result.truncate = rope.flag_or("truncate", true);
}

// The two spellings of RoPE must say the same where a config.json has both: taking either would be a guess.
void refuse_contradicting_rope(const Json& json, const ObjectReader& config) {
  const auto normalized = [&](const char* key) {
    Json result = Json::object();
    for (const auto& [name, value] : json.at(key).items()) {
      if (value.is_null()) continue;
      // rope_type wins over the older type.
      if (name != "type" || !json.at(key).contains("rope_type")) result[name == "type" ? "rope_type" : name] = value;
    }
    if (!result.contains("rope_theta") && config.has("rope_theta")) result["rope_theta"] = json.at("rope_theta");
    return nlohmann::json(result);  // compared without the order of keys
  };
  const auto is_given = [&](const char* key) {
    return config.has(key) && json.at(key).is_object() && !json.at(key).empty();
  };
  if (is_given("rope_scaling") && is_given("rope_parameters") &&
      normalized("rope_scaling") != normalized("rope_parameters")) {
    config.complain("rope_scaling", "rope_parameters in the same file says something else, " +
                                        json.at("rope_parameters").dump() +
                                        "; keep the one that the model was trained "
                                        "with and remove the other");
  }
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!is_given(key) || !config.has("rope_theta")) continue;
    const Json& object = json.at(key);
    const auto theta = object.find("rope_theta");
    if (theta == object.end() || !theta->is_number() || !json.at("rope_theta").is_number()) continue;
    if (theta->get<double>() != json.at("rope_theta").get<double>()) {
      config.complain("rope_theta", fmt::format("{}.rope_theta in the same file is {}; keep the one that the model was "
                                                "trained with and remove the other",
                                                key, theta->dump()));
    }
  }
}

RopeDescription read_rope(const Json& json, const ObjectReader& config, const std::string& where,
                          int64_t max_positions) {
  // The newer spelling is one object rope_parameters; the older has rope_theta beside rope_scaling. Where both objects
  // are there and say the same, it does not matter which is read.
  static const Json nothing = Json::object();
  const Json* object = &nothing;
  std::string name = "rope_parameters";
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!config.has(key)) continue;
    if (!json.at(key).is_object()) config.complain(key, "an object with a key \"rope_type\" is needed");
    if (json.at(key).empty()) continue;
    object = &json.at(key);
    name = key;
    break;
  }
  refuse_contradicting_rope(json, config);
  const ObjectReader rope(*object, where, name + ".");
  for (const auto& [key, value] : object->items()) {
    if (value.is_object()) rope.complain(key, "RoPE that differs between layers is not supported");
  }
  if (rope.number_or("partial_rotary_factor", 1.0) != 1.0) {
    rope.complain("partial_rotary_factor", "only 1 is supported: RoPE turns whole heads");
  }

  RopeDescription result;
  result.kind = read_rope_kind(rope);
  if (rope.has("rope_theta")) {
    result.theta = rope.positive("rope_theta");
  } else if (config.has("rope_theta")) {
    result.theta = config.positive("rope_theta");
  }
  if (result.kind == RopeKind::standard) return result;
  if (result.kind != RopeKind::yarn) result.factor = rope.positive("factor");

  // dynamic goes by max_position_embeddings alone; elsewhere the top level wins over the object.
  result.original_max_positions = max_positions;
  if (result.kind == RopeKind::llama3 || result.kind == RopeKind::yarn) {
    const std::string key = "original_max_position_embeddings";
    const ObjectReader& holder = config.has(key) ? config : rope;
    result.original_max_positions = holder.integer_or(key, max_positions, 1, kMostPositions);
  }
  if (result.kind == RopeKind::llama3) {
    result.low_frequency_factor = rope.positive("low_freq_factor");
    result.high_frequency_factor = rope.positive("high_freq_factor");
    if (result.high_frequency_factor <= result.low_frequency_factor) {
      rope.complain("high_freq_factor",
                    fmt::format("it must be above low_freq_factor, which is {}", result.low_frequency_factor));
    }
  }
  if (result.kind == RopeKind::yarn) read_yarn(rope, max_positions, result);
  return result;
}

// layer_types of a config, checked: true where the layer slides. Empty when the key is not there.
std::vector<bool> read_layer_types(const ObjectReader& config, int64_t layers) {
  if (!config.has("layer_types")) return {};
  const Json& types = config.raw("layer_types");
  if (!types.is_array() || static_cast<int64_t>(types.size()) != layers) {
    config.complain("layer_types", fmt::format("a list of {} strings is needed, one for each layer", layers));
  }
  std::vector<bool> slides;
  for (const Json& type : types) {
    if (type != "full_attention" && type != "sliding_attention") {
      config.complain("layer_types",
                      "each entry must be \"full_attention\" or \"sliding_attention\", not " + type.dump());
    }
    slides.push_back(type == "sliding_attention");
  }
  return slides;
}

std::vector<LayerDescription> read_layers(const ObjectReader& config, Family family) {
  const int64_t count = config.integer("num_hidden_layers", 1, kMostHeads);
  std::vector<LayerDescription> layers(static_cast<size_t>(count));
  const std::vector<bool> types = read_layer_types(config, count);
  const bool by_layer = family == Family::qwen2 || family == Family::qwen3;

  // A null window is none; a missing key is the family's default.
  int64_t window = 0;
  const bool wants_window = family == Family::mistral || (by_layer && config.flag_or("use_sliding_window", false));
  if (wants_window) {
    window = kDefaultWindow;
    if (config.mentions("sliding_window")) window = config.integer_or("sliding_window", 0, 1, kMostPositions);
  }
  const int64_t first_sliding = config.integer_or("max_window_layers", kDefaultWindowLayers, 0, kMostHeads);
  for (int64_t layer = 0; layer < count; ++layer) {
    const auto index = static_cast<size_t>(layer);
    // Mistral's window holds for every layer, llama has none: layer_types may only agree.
    bool slides = window > 0 && (!by_layer || layer >= first_sliding);
    if (!types.empty() && by_layer) slides = types[index];
    if (slides && window == 0) {
      config.complain("layer_types",
                      "layers slide, but there is no window: set use_sliding_window to true and "
                      "sliding_window to a number of tokens");
    }
    if (!types.empty() && types[index] != slides) {
      config.complain("layer_types", fmt::format("layer {} disagrees with what this family does; all layers {}", layer,
                                                 slides ? "slide" : "attend to everything"));
    }
    layers[index].window = slides ? window : 0;
  }
  return layers;
}

std::string read_dtype(const ObjectReader& config) {
  const std::string key = config.has("dtype") ? "dtype" : "torch_dtype";
  std::string name = config.text_or(key, "float32");
  if (name.starts_with("torch.")) name = name.substr(6);
  for (const char* known : {"float32", "bfloat16", "float16", "float64"}) {
    if (name == known) return name;
  }
  config.complain(key, "this element type is not supported; supported are float32, bfloat16, float16, float64");
}

void read_heads(const ObjectReader& config, const FamilyFacts& facts, ModelDescription& model) {
  model.query_heads = config.integer("num_attention_heads", 1, kMostHeads);
  model.key_heads = model.query_heads;
  if (config.has("num_key_value_heads")) {
    model.key_heads = config.integer("num_key_value_heads", 1, kMostHeads);
  } else if (!config.mentions("num_key_value_heads") && facts.default_key_heads > 0) {
    model.key_heads = facts.default_key_heads;
  }
  if (model.query_heads % model.key_heads != 0) {
    config.complain("num_key_value_heads",
                    fmt::format("{} query heads cannot be shared evenly by {} key heads; a divisor of {} is needed",
                                model.query_heads, model.key_heads, model.query_heads));
  }
  if (config.has("head_dim")) {
    model.head_size = config.integer("head_dim", 2, kLargestSize);
  } else if (facts.default_head_size > 0) {
    model.head_size = facts.default_head_size;
  } else {
    if (model.hidden_size % model.query_heads != 0) {
      config.complain("hidden_size", fmt::format("it is not a multiple of the {} attention heads; a multiple, or "
                                                 "\"head_dim\", is needed",
                                                 model.query_heads));
    }
    model.head_size = model.hidden_size / model.query_heads;
  }
  if (model.head_size % 2 != 0) {
    config.complain("head_dim", fmt::format("the head size is {}; RoPE needs an even one", model.head_size));
  }
}

}  // namespace

std::string_view family_name(Family family) {
  for (const FamilyFacts& facts : kFamilies) {
    if (facts.family == family) return facts.name;
  }
  throw ContractError("unknown model family");
}

std::string_view rope_name(RopeKind kind) {
  for (const auto& [known, name] : kRopeKinds) {
    if (known == kind) return name;
  }
  throw ContractError("unknown kind of RoPE");
}

int64_t ModelDescription::parameter_count() const {
  const int64_t query_width = query_heads * head_size;
  const int64_t key_width = key_heads * head_size;
  int64_t layer = 2 * hidden_size;                           // the two norms
  layer += hidden_size * (2 * query_width + 2 * key_width);  // q, o; k, v
  layer += 3 * hidden_size * intermediate_size;              // gate, up, down
  if (query_key_value_bias) layer += query_width + 2 * key_width;
  if (output_bias) layer += hidden_size;
  if (mlp_bias) layer += 2 * intermediate_size + hidden_size;
  if (query_key_norm) layer += 2 * head_size;
  const int64_t matrices_of_vocabulary = tied_head ? 1 : 2;
  return matrices_of_vocabulary * vocabulary * hidden_size + layer_count() * layer + hidden_size;
}

ModelDescription parse_model_description(std::string_view json_text, const std::string& where) {
  const Json json = parse_json_unique(json_text, where);
  if (!json.is_object()) throw InputError(where + ": an object { ... } is needed at the top");
  const ObjectReader config(json, where);
  const FamilyFacts& facts = read_family(config);
  refuse_unsupported(json, config);

  ModelDescription model;
  model.family = facts.family;
  model.vocabulary = config.integer("vocab_size", 1, kMostTokens);
  model.hidden_size = config.integer("hidden_size", 1, kLargestSize);
  model.intermediate_size = config.integer("intermediate_size", 1, kLargestSize);
  read_heads(config, facts, model);
  model.rms_norm_epsilon = config.number_or("rms_norm_eps", 1e-6);
  if (model.rms_norm_epsilon < 0.0) config.complain("rms_norm_eps", "it must not be negative");
  model.initializer_range = config.number_or("initializer_range", 0.02);
  if (model.initializer_range < 0.0) config.complain("initializer_range", "it must not be negative");
  model.tied_head = config.flag_or("tie_word_embeddings", false);
  model.max_positions = config.integer_or("max_position_embeddings", facts.default_max_positions, 1, kMostPositions);
  model.weights_dtype = read_dtype(config);

  // Biases: llama's attention_bias covers all four projections, qwen3's too; qwen2 always has q, k, v and never o.
  const bool reads_attention_bias = model.family == Family::llama || model.family == Family::qwen3;
  const bool attention_bias = reads_attention_bias && config.flag_or("attention_bias", false);
  model.query_key_value_bias = attention_bias || model.family == Family::qwen2;
  model.output_bias = attention_bias;
  model.mlp_bias = model.family == Family::llama && config.flag_or("mlp_bias", false);
  model.query_key_norm = model.family == Family::qwen3;

  model.rope = read_rope(json, config, where, model.max_positions);
  if (model.rope.kind == RopeKind::dynamic && model.head_size <= 2) {
    config.complain("head_dim", "dynamic RoPE needs heads of more than 2 dimensions");
  }
  model.layers = read_layers(config, model.family);
  return model;
}

}  // namespace ithaca
