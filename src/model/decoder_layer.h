// One decoder layer of the Llama kind, with hand-written forward and backward:
//
//   attention_input = x;                 mlp_input = x + o_proj(attention(rope(norm(q)), rope(norm(k)), v)),  q, k, v =
//   projections of rms_norm(x) y = mlp_input + down(silu(gate) * up),  gate, up = projections of rms_norm(mlp_input)
//
// Biases, head norms and windows as the ModelDescription says. The MLP runs over tiles of tokens. What forward keeps is
// the recompute policy's choice; backward computes the rest again, with the same operations on the same inputs, so
// every policy gives the same bits. Thread-safety: the rank's own thread.
#pragma once

#include <string_view>

#include "attention/schedule.h"
#include "backend/backend.h"
#include "model/description.h"
#include "model/model_options.h"
#include "model/parameter_store.h"
#include "model/parameters.h"
#include "model/saved_tensors.h"
#include "model/token_context.h"

namespace ithaca {

class DecoderLayer {
 public:
  // `model`, `backend` and `schedule` must outlive the layer.
  DecoderLayer(const ModelDescription& model, int32_t layer, const ModelOptions& options, Backend& backend,
               AttentionSchedule& schedule);

  // [tokens, hidden] -> [tokens, hidden]. `saved` null: evaluation, nothing is kept.
  Buffer forward(Buffer input, const TokenContext& context, const UnitTensors& parameters, SavedTensors* saved);
  // Gradient of the output -> gradient of the input; adds to the parameters' gradients.
  Buffer backward(Buffer doutput, const TokenContext& context, const UnitTensors& parameters,
                  const UnitTensors& gradients, SavedTensors& saved);

 private:
  // The attention's inputs and what its backward needs of how they came about.
  struct Projections {
    Buffer normed;       // [tokens, hidden]
    Buffer inverse_rms;  // [tokens]
    Buffer raw;      // [tokens, (query heads + 2 key heads) * head size]; rotated in place when there is no head norm
    Buffer rotated;  // [tokens, (query heads + key heads) * head size]; only with head norms
    Buffer query_inverse_rms;  // [tokens, query heads]; only with head norms
    Buffer key_inverse_rms;    // [tokens, key heads]
  };
  struct MlpTile {
    Tensor input;        // after the attention's residual
    Tensor normed;       // [tile, hidden]
    Tensor inverse_rms;  // [tile]
    Tensor gate_up;      // [tile, 2 * intermediate]
  };

  // `phase_name` is what traces call it, here and in attend(): forward, or computed again.
  Projections project(const Tensor& input, const TokenContext& context, const UnitTensors& parameters,
                      std::string_view phase_name);
  ShardedQkv attention_inputs(const Projections& projections) const;
  void attend(const Projections& projections, const TokenContext& context, const Tensor& output,
              const Tensor& log_sum_exp, std::string_view phase_name);
  // o_proj without the residual.
  Buffer project_output(const Tensor& attention_output, const UnitTensors& parameters);
  // input = delta + residual (written over delta), normed, gate_up.
  void mlp_inputs(const MlpTile& tile, const Tensor& residual, const UnitTensors& parameters);
  void mlp_projections(const MlpTile& tile, const UnitTensors& parameters);
  void mlp_backward(const MlpTile& tile, const Tensor& doutput, const UnitTensors& parameters,
                    const UnitTensors& gradients);
  void attention_backward(const Tensor& input, const Projections& projections, const Tensor& attention_output,
                          const Tensor& log_sum_exp, const Tensor& doutput, const TokenContext& context,
                          const UnitTensors& parameters, const UnitTensors& gradients);

  Buffer allocate(const char* name, MemoryClass memory_class, DType dtype, const Extents& extents);
  Buffer workspace(const char* name, const Extents& extents);
  // A row-major view [tokens, heads, head size] of columns of `wide`.
  Tensor heads(const Tensor& wide, int64_t first_head, int64_t count) const;
  Tensor optional(const UnitTensors& tensors, int first, int last) const;
  SavedKey key(SavedSlot slot) const { return {layer_, slot}; }

  const ModelDescription& model_;
  int32_t layer_;
  ModelOptions options_;
  Backend& backend_;
  AttentionSchedule& schedule_;
  Stream& stream_;
  LayerParameters index_;
};

}  // namespace ithaca
