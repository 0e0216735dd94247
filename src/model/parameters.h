// Which parameters a model has, in which unit and order, and where to find each of them inside its unit.
// Thread-safety: pure functions and values.
#pragma once

#include <vector>

#include "attention/schedule.h"
#include "attention/tasks.h"
#include "model/description.h"
#include "model/parameter_store.h"

namespace ithaca {

inline constexpr UnitId kEmbeddingUnit = 0;
inline UnitId layer_unit(int64_t layer) {
  return static_cast<UnitId>(1 + layer);
}
inline UnitId head_unit(const ModelDescription& model) {
  return static_cast<UnitId>(1 + model.layer_count());
}
inline int64_t unit_count(const ModelDescription& model) {
  return 2 + model.layer_count();
}

// Indices into UnitTensors of a decoder layer; -1 where the model has no such parameter. query/key/value weights are
// joined, so are their biases and gate/up (weights and biases).
struct LayerParameters {
  int attention_norm = -1;
  int query_weight = -1, value_weight = -1;  // joined: query .. value
  int query_bias = -1, value_bias = -1;      // joined
  int query_norm = -1, key_norm = -1;
  int output_weight = -1, output_bias = -1;
  int mlp_norm = -1;
  int gate_weight = -1, up_weight = -1;  // joined
  int gate_bias = -1, up_bias = -1;      // joined
  int down_weight = -1, down_bias = -1;
};

// Indices into UnitTensors of the head: the final norm, and lm_head unless it is tied to the embedding (index 0 of the
// embedding's unit).
struct HeadParameters {
  int norm = 0;
  int weight = -1;
};

// The heads of every attention layer; scores are multiplied with 1 / sqrt(head size) before the softmax.
HeadShape attention_heads(const ModelDescription& model);
// The mask of the layers that see most: without a window where there are such layers, or with the widest. They have
// nearly all of the attention's work.
MaskRule widest_mask(const ModelDescription& model);

// All parameters in unit order, Hugging Face names. With a tied head there is no lm_head.weight.
std::vector<ParameterSpec> parameter_specs(const ModelDescription& model);
LayerParameters layer_parameters(const ModelDescription& model);
HeadParameters head_parameters(const ModelDescription& model);

}  // namespace ithaca
