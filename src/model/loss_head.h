// The end of the model: final norm, lm_head and cross-entropy, over tiles of tokens. Logits never exist for more than
// one tile, and the gradients are made in the same pass as the loss. Thread-safety: the rank's own thread.
#pragma once

#include "backend/backend.h"
#include "model/description.h"
#include "model/model_options.h"
#include "model/token_context.h"

namespace ithaca {

// The head's tensors; `weight` is the embedding table when the head is tied.
struct HeadTensors {
  Tensor norm;    // [hidden]
  Tensor weight;  // [vocabulary, hidden]
};

class LossHead {
 public:
  // `model` and `backend` must outlive it.
  LossHead(const ModelDescription& model, const ModelOptions& options, Backend& backend);

  // Adds sum(weight * token loss) to loss_sum [1] (float64). Tiles without a label are not computed.
  void loss(const Tensor& hidden, const TokenContext& context, const HeadTensors& parameters, const Tensor& loss_sum);
  // The same, and the gradient of gradient_scale * loss: returned for `hidden`, added to `gradients` for the
  // parameters.
  Buffer loss_and_gradient(const Tensor& hidden, const TokenContext& context, const HeadTensors& parameters,
                           const HeadTensors& gradients, double gradient_scale, const Tensor& loss_sum);
  // All logits [tokens, vocabulary] at once, float32 or compute dtype as `logits` says: for inspection and tests of
  // short sequences.
  void logits(const Tensor& hidden, const HeadTensors& parameters, const Tensor& logits);

 private:
  struct Tile {
    int64_t begin;
    int64_t end;
    Tensor normed;
    Tensor inverse_rms;
    Tensor logits;
  };
  void tile_logits(const Tensor& hidden, const Tile& tile, const HeadTensors& parameters);
  void tile_cross_entropy(const Tile& tile, const TokenContext& context, bool with_gradient, double gradient_scale,
                          const Tensor& loss_sum);

  const ModelDescription& model_;
  ModelOptions options_;
  Backend& backend_;
  Stream& stream_;
};

}  // namespace ithaca
