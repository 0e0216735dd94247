// ModelDescription: what a config.json says, in one form for all families.
//
// One table-driven decoder layer serves llama, qwen2, qwen3 and mistral: they differ only in the fields below.
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ithaca {

enum class Family : uint8_t { llama, qwen2, qwen3, mistral };
std::string_view family_name(Family family);

enum class RopeKind : uint8_t { standard, linear, dynamic, llama3, yarn };
std::string_view rope_name(RopeKind kind);  // as in config.json: "default", "linear", ...

// Rotary position embedding (Su et al. 2021) and its extensions, with Hugging Face's parameters and defaults.
struct RopeDescription {
  RopeKind kind = RopeKind::standard;
  double theta = 10000.0;
  double factor = 1.0;                                  // linear, dynamic, llama3, yarn
  int64_t original_max_positions = 0;                   // dynamic, llama3, yarn
  double low_frequency_factor = 1.0;                    // llama3
  double high_frequency_factor = 4.0;                   // llama3
  double beta_fast = 32.0;                              // yarn
  double beta_slow = 1.0;                               // yarn
  std::optional<double> attention_factor;               // yarn; otherwise computed from factor and mscale
  std::optional<double> mscale, mscale_all_dimensions;  // yarn
  bool truncate = true;                                 // yarn: round the correction range to whole dimensions
};

struct LayerDescription {
  int64_t window = 0;  // sliding window: a token sees exactly this many keys, its own included; 0 = all
};

struct ModelDescription {
  Family family = Family::llama;
  int64_t vocabulary = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t query_heads = 0;
  int64_t key_heads = 0;
  int64_t head_size = 0;
  double rms_norm_epsilon = 1e-6;
  bool tied_head = false;             // lm_head.weight is embed_tokens.weight
  bool query_key_value_bias = false;  // q_proj, k_proj, v_proj have biases
  bool output_bias = false;           // o_proj has one
  bool mlp_bias = false;              // gate_proj, up_proj, down_proj have them
  bool query_key_norm = false;        // RMS norm of every query and key head before RoPE
  RopeDescription rope;
  double initializer_range = 0.02;
  int64_t max_positions = 0;  // max_position_embeddings
  std::vector<LayerDescription> layers;
  std::string weights_dtype = "float32";  // of the checkpoint, as config.json names it

  int64_t layer_count() const { return static_cast<int64_t>(layers.size()); }
  // Trainable parameters, the tied head counted once.
  int64_t parameter_count() const;
};

// Parses the text of a config.json; both spellings (rope_theta/rope_scaling/torch_dtype and rope_parameters/dtype) are
// understood. `where` names the file in errors. Throws InputError for what cannot be honoured: unknown family or
// activation, dropout other than 0, a missing or inconsistent key, an unknown RoPE type.
ModelDescription parse_model_description(std::string_view json_text, const std::string& where);

}  // namespace ithaca
