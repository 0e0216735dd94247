// Transformer: the whole model as the steps that a training step walks through. It owns no weights: it acquires each
// unit from the ParameterStore when the unit's turn comes and releases it afterwards, prefetching the next one.
// Thread-safety: the rank's own thread.
#pragma once

#include <vector>

#include "attention/schedule.h"
#include "backend/backend.h"
#include "model/decoder_layer.h"
#include "model/description.h"
#include "model/loss_head.h"
#include "model/parameter_store.h"
#include "model/saved_tensors.h"
#include "model/token_context.h"

namespace ithaca {

class Transformer {
 public:
  // Everything given must outlive the model.
  Transformer(const ModelDescription& model, const ModelOptions& options, Backend& backend, AttentionSchedule& schedule,
              ParameterStore& parameters);

  const ModelDescription& description() const { return model_; }

  Buffer embed(const TokenContext& context);
  // Layers in order. `saved` null: evaluation.
  Buffer layer_forward(int64_t layer, Buffer hidden, const TokenContext& context, SavedTensors* saved);
  // Adds to loss_sum [1] float64.
  void loss(const Buffer& hidden, const TokenContext& context, const Tensor& loss_sum);
  Buffer loss_and_gradient(const Buffer& hidden, const TokenContext& context, double gradient_scale,
                           const Tensor& loss_sum);
  // Layers in reverse order.
  Buffer layer_backward(int64_t layer, Buffer dhidden, const TokenContext& context, SavedTensors& saved);
  void embed_backward(const Buffer& dhidden, const TokenContext& context);

  // All of forward up to the logits [tokens, vocabulary], for inspection and tests of short sequences.
  Buffer logits(const TokenContext& context);

 private:
  HeadTensors head(const UnitTensors& head_unit, const UnitTensors& embedding_unit) const;
  // Acquires the head's unit, and the embedding's when the head is tied to it; calls use(head); releases.
  template <typename Use>
  auto with_head(Use use);

  const ModelDescription& model_;
  Backend& backend_;
  ParameterStore& parameters_;
  Stream& stream_;
  std::vector<DecoderLayer> layers_;
  LossHead loss_head_;
};

}  // namespace ithaca
