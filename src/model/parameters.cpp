#include "model/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace ithaca {

Tensor UnitTensors::joined(int first, int last) const {
  Tensor whole = (*this)[first];
  for (int index = first + 1; index <= last; ++index) {
    const Tensor& next = (*this)[index];
    const auto* expected = static_cast<const std::byte*>(whole.data) + whole.byte_count();
    require(whole.data == nullptr || next.data == expected,
            "parameters that should be joined are not adjacent: " + next.describe());
    whole.extents[0] += next.extents[0];
  }
  return whole;
}

namespace {

// Lists the parameters of one decoder layer and, at the same time, where each of them is: one description, so that both
// can never disagree.
class LayerList {
 public:
  LayerList(const ModelDescription& model, int64_t layer)
      : prefix_(fmt::format("model.layers.{}.", layer)), unit_(layer_unit(layer)) {
    const int64_t hidden = model.hidden_size;
    const int64_t query_width = model.query_heads * model.head_size;
    const int64_t key_width = model.key_heads * model.head_size;
    const auto norm = [](int64_t size) { return Extents{size}; };

    index.attention_norm = add("input_layernorm.weight", norm(hidden), Initialization::ones);
    index.query_weight = add("self_attn.q_proj.weight", {query_width, hidden}, Initialization::normal);
    add_joined("self_attn.k_proj.weight", {key_width, hidden}, Initialization::normal);
    index.value_weight = add_joined("self_attn.v_proj.weight", {key_width, hidden}, Initialization::normal);
    if (model.query_key_value_bias) {
      index.query_bias = add("self_attn.q_proj.bias", {query_width}, Initialization::zeros);
      add_joined("self_attn.k_proj.bias", {key_width}, Initialization::zeros);
      index.value_bias = add_joined("self_attn.v_proj.bias", {key_width}, Initialization::zeros);
    }
    if (model.query_key_norm) {
      index.query_norm = add("self_attn.q_norm.weight", norm(model.head_size), Initialization::ones);
      index.key_norm = add("self_attn.k_norm.weight", norm(model.head_size), Initialization::ones);
    }
    index.output_weight = add("self_attn.o_proj.weight", {hidden, query_width}, Initialization::normal);
    if (model.output_bias) index.output_bias = add("self_attn.o_proj.bias", {hidden}, Initialization::zeros);
    index.mlp_norm = add("post_attention_layernorm.weight", norm(hidden), Initialization::ones);
    index.gate_weight = add("mlp.gate_proj.weight", {model.intermediate_size, hidden}, Initialization::normal);
    index.up_weight = add_joined("mlp.up_proj.weight", {model.intermediate_size, hidden}, Initialization::normal);
    if (model.mlp_bias) {
      index.gate_bias = add("mlp.gate_proj.bias", {model.intermediate_size}, Initialization::zeros);
      index.up_bias = add_joined("mlp.up_proj.bias", {model.intermediate_size}, Initialization::zeros);
    }
    index.down_weight = add("mlp.down_proj.weight", {hidden, model.intermediate_size}, Initialization::normal);
    if (model.mlp_bias) index.down_bias = add("mlp.down_proj.bias", {hidden}, Initialization::zeros);
  }

  std::vector<ParameterSpec> specs;
  LayerParameters index;

 private:
  int add(const char* name, const Extents& extents, Initialization initialization) {
    ParameterSpec spec;
    spec.name = prefix_ + name;
    spec.extents = extents;
    spec.unit = unit_;
    spec.is_matrix = extents.rank() == 2;
    spec.initialization = initialization;
    specs.push_back(std::move(spec));
    return static_cast<int>(specs.size()) - 1;
  }
  int add_joined(const char* name, const Extents& extents, Initialization initialization) {
    const int position = add(name, extents, initialization);
    specs.back().joined_to_previous = true;
    return position;
  }

  std::string prefix_;
  UnitId unit_;
};

ParameterSpec single(const char* name, const Extents& extents, UnitId unit, Initialization initialization) {
  ParameterSpec spec;
  spec.name = name;
  spec.extents = extents;
  spec.unit = unit;
  spec.is_matrix = extents.rank() == 2;
  spec.initialization = initialization;
  return spec;
}

}  // namespace

HeadShape attention_heads(const ModelDescription& model) {
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(model.head_size)));
  return {model.query_heads, model.key_heads, model.head_size, model.head_size, scale};
}

MaskRule widest_mask(const ModelDescription& model) {
  const auto widest = std::min_element(model.layers.begin(), model.layers.end(), [](const auto& a, const auto& b) {
    return a.window == 0 ? b.window != 0 : b.window != 0 && a.window > b.window;
  });
  MaskRule mask;
  if (widest != model.layers.end()) mask.window = widest->window;
  return mask;
}

std::vector<ParameterSpec> parameter_specs(const ModelDescription& model) {
  std::vector<ParameterSpec> specs;
  specs.push_back(single("model.embed_tokens.weight", {model.vocabulary, model.hidden_size}, kEmbeddingUnit,
                         Initialization::normal));
  for (int64_t layer = 0; layer < model.layer_count(); ++layer) {
    LayerList list(model, layer);
    for (ParameterSpec& spec : list.specs) specs.push_back(std::move(spec));
  }
  specs.push_back(single("model.norm.weight", {model.hidden_size}, head_unit(model), Initialization::ones));
  if (!model.tied_head) {
    specs.push_back(
        single("lm_head.weight", {model.vocabulary, model.hidden_size}, head_unit(model), Initialization::normal));
  }
  return specs;
}

LayerParameters layer_parameters(const ModelDescription& model) {
  return LayerList(model, 0).index;
}

HeadParameters head_parameters(const ModelDescription& model) {
  HeadParameters head;
  if (!model.tied_head) head.weight = 1;
  return head;
}

}  // namespace ithaca
