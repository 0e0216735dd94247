#include "model/transformer.h"

#include <utility>

#include "backend/trace_scope.h"

namespace ithaca {

namespace {

// One unit's tensors, released when the work that uses them has been enqueued.
class AcquiredUnit {
 public:
  AcquiredUnit(ParameterStore& store, UnitId unit, Stream& stream)
      : store_(store), unit_(unit), stream_(stream), tensors_(store.acquire(unit, stream)) {}
  AcquiredUnit(const AcquiredUnit&) = delete;
  AcquiredUnit& operator=(const AcquiredUnit&) = delete;
  ~AcquiredUnit() { store_.release(unit_, stream_); }
  const UnitTensors& tensors() const { return tensors_; }

 private:
  ParameterStore& store_;
  UnitId unit_;
  Stream& stream_;
  UnitTensors tensors_;
};

}  // namespace

Transformer::Transformer(const ModelDescription& model, const ModelOptions& options, Backend& backend,
                         AttentionSchedule& schedule, ParameterStore& parameters)
    : model_(model),
      backend_(backend),
      parameters_(parameters),
      stream_(backend.compute_stream()),
      loss_head_(model, options, backend) {
  for (int64_t layer = 0; layer < model.layer_count(); ++layer) {
    layers_.emplace_back(model, static_cast<int32_t>(layer), options, backend, schedule);
  }
}

Buffer Transformer::embed(const TokenContext& context) {
  const PhaseScope scope(backend_, phase::kEmbedding);
  parameters_.prefetch(layer_unit(0));
  const AcquiredUnit unit(parameters_, kEmbeddingUnit, stream_);
  Buffer hidden = backend_.arena(Tier::device)
                      .allocate("embedded tokens", MemoryClass::workspace, backend_.compute_dtype(),
                                {context.tokens, model_.hidden_size}, stream_);
  backend_.embedding_forward(stream_, {unit.tensors()[0], context.token_ids, hidden.tensor()});
  return hidden;
}

Buffer Transformer::layer_forward(int64_t layer, Buffer hidden, const TokenContext& context, SavedTensors* saved) {
  const TraceScope scope(backend_, {.name = "layer", .index = layer});
  parameters_.prefetch(layer_unit(layer) + 1);
  const AcquiredUnit unit(parameters_, layer_unit(layer), stream_);
  return layers_[static_cast<size_t>(layer)].forward(std::move(hidden), context, unit.tensors(), saved);
}

HeadTensors Transformer::head(const UnitTensors& head_unit, const UnitTensors& embedding_unit) const {
  const HeadParameters index = head_parameters(model_);
  return {head_unit[index.norm], index.weight >= 0 ? head_unit[index.weight] : embedding_unit[0]};
}

template <typename Use>
auto Transformer::with_head(Use use) {
  const AcquiredUnit unit(parameters_, head_unit(model_), stream_);
  if (!model_.tied_head) return use(head(unit.tensors(), {}));
  const AcquiredUnit embedding(parameters_, kEmbeddingUnit, stream_);
  return use(head(unit.tensors(), embedding.tensors()));
}

void Transformer::loss(const Buffer& hidden, const TokenContext& context, const Tensor& loss_sum) {
  const PhaseScope scope(backend_, phase::kLossHead);
  with_head([&](const HeadTensors& tensors) { loss_head_.loss(hidden.tensor(), context, tensors, loss_sum); });
}

Buffer Transformer::loss_and_gradient(const Buffer& hidden, const TokenContext& context, double gradient_scale,
                                      const Tensor& loss_sum) {
  const PhaseScope scope(backend_, phase::kLossHead);
  const UnitTensors head_gradients = parameters_.gradients(head_unit(model_), stream_);
  const UnitTensors embedding_gradients =
      model_.tied_head ? parameters_.gradients(kEmbeddingUnit, stream_) : UnitTensors{};
  Buffer dhidden = with_head([&](const HeadTensors& tensors) {
    return loss_head_.loss_and_gradient(hidden.tensor(), context, tensors, head(head_gradients, embedding_gradients),
                                        gradient_scale, loss_sum);
  });
  parameters_.gradients_ready(head_unit(model_), backend_.record(stream_));
  return dhidden;
}

Buffer Transformer::layer_backward(int64_t layer, Buffer dhidden, const TokenContext& context, SavedTensors& saved) {
  const TraceScope scope(backend_, {.name = "layer", .index = layer});
  const UnitId unit = layer_unit(layer);
  if (layer > 0) {
    parameters_.prefetch(unit - 1);
    saved.prefetch({static_cast<int32_t>(layer - 1), SavedSlot::layer_input});
  }
  Buffer result;
  {
    const AcquiredUnit acquired(parameters_, unit, stream_);
    result = layers_[static_cast<size_t>(layer)].backward(std::move(dhidden), context, acquired.tensors(),
                                                          parameters_.gradients(unit, stream_), saved);
  }
  parameters_.gradients_ready(unit, backend_.record(stream_));
  return result;
}

void Transformer::embed_backward(const Buffer& dhidden, const TokenContext& context) {
  const PhaseScope scope(backend_, phase::kEmbeddingBackward);
  const UnitTensors gradients = parameters_.gradients(kEmbeddingUnit, stream_);
  backend_.embedding_backward(stream_, {dhidden.tensor(), context.token_ids, gradients[0]});
  parameters_.gradients_ready(kEmbeddingUnit, backend_.record(stream_));
}

Buffer Transformer::logits(const TokenContext& context) {
  Buffer hidden = embed(context);
  for (int64_t layer = 0; layer < model_.layer_count(); ++layer)
    hidden = layer_forward(layer, std::move(hidden), context, nullptr);
  Buffer result = backend_.arena(Tier::device)
                      .allocate("logits", MemoryClass::workspace, backend_.compute_dtype(),
                                {context.tokens, model_.vocabulary}, stream_);
  with_head([&](const HeadTensors& tensors) { loss_head_.logits(hidden.tensor(), tensors, result.tensor()); });
  return result;
}

}  // namespace ithaca
