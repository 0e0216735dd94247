#include "model/loss_head.h"

#include <algorithm>

namespace ithaca {

namespace {

bool has_label(std::span<const int64_t> labels, int64_t begin, int64_t end) {
  const auto tile = labels.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  return std::any_of(tile.begin(), tile.end(), [](int64_t label) { return label >= 0; });
}

}  // namespace

LossHead::LossHead(const ModelDescription& model, const ModelOptions& options, Backend& backend)
    : model_(model), options_(options), backend_(backend), stream_(backend.compute_stream()) {}

void LossHead::tile_logits(const Tensor& hidden, const Tile& tile, const HeadTensors& parameters) {
  RmsNormForward norm;
  norm.input = hidden.slice(0, tile.begin, tile.end);
  norm.weight = parameters.norm;
  norm.output = tile.normed;
  norm.inverse_rms = tile.inverse_rms;
  norm.epsilon = static_cast<float>(model_.rms_norm_epsilon);
  backend_.rms_norm_forward(stream_, norm);
  Gemm projection;
  projection.a = tile.normed;
  projection.b = parameters.weight;
  projection.transpose_b = true;
  projection.c = tile.logits;
  backend_.gemm(stream_, projection);
}

void LossHead::tile_cross_entropy(const Tile& tile, const TokenContext& context, bool with_gradient,
                                  double gradient_scale, const Tensor& loss_sum) {
  CrossEntropy loss;
  loss.logits = tile.logits;
  loss.labels = context.labels.slice(0, tile.begin, tile.end);
  if (!context.label_weights.is_absent()) loss.weights = context.label_weights.slice(0, tile.begin, tile.end);
  loss.with_gradient = with_gradient;
  loss.gradient_scale = gradient_scale;
  loss.loss_sum = loss_sum;
  backend_.cross_entropy(stream_, loss);
}

void LossHead::loss(const Tensor& hidden, const TokenContext& context, const HeadTensors& parameters,
                    const Tensor& loss_sum) {
  const int64_t tile_tokens = loss_tile_tokens(options_, context.tokens, model_.vocabulary, backend_);
  Arena& arena = backend_.arena(Tier::device);
  const Buffer normed = arena.allocate("final norm", MemoryClass::workspace, backend_.compute_dtype(),
                                       {tile_tokens, model_.hidden_size}, stream_);
  const Buffer logits = arena.allocate("logits of one tile", MemoryClass::workspace, backend_.compute_dtype(),
                                       {tile_tokens, model_.vocabulary}, stream_);
  for (int64_t begin = 0; begin < context.tokens; begin += tile_tokens) {
    const int64_t end = std::min(begin + tile_tokens, context.tokens);
    if (!has_label(context.host_labels, begin, end)) continue;
    const Tile tile = {
        begin, end, normed.tensor().slice(0, 0, end - begin), {}, logits.tensor().slice(0, 0, end - begin)};
    tile_logits(hidden, tile, parameters);
    tile_cross_entropy(tile, context, false, 0.0, loss_sum);
  }
}

Buffer LossHead::loss_and_gradient(const Tensor& hidden, const TokenContext& context, const HeadTensors& parameters,
                                   const HeadTensors& gradients, double gradient_scale, const Tensor& loss_sum) {
  const int64_t tile_tokens = loss_tile_tokens(options_, context.tokens, model_.vocabulary, backend_);
  const DType compute = backend_.compute_dtype();
  Arena& arena = backend_.arena(Tier::device);
  Buffer dhidden =
      arena.allocate("gradient of the last layer", MemoryClass::workspace, compute, hidden.extents, stream_);
  const Buffer normed =
      arena.allocate("final norm", MemoryClass::workspace, compute, {tile_tokens, model_.hidden_size}, stream_);
  const Buffer dnormed = arena.allocate("gradient of the final norm", MemoryClass::workspace, compute,
                                        {tile_tokens, model_.hidden_size}, stream_);
  const Buffer inverse_rms =
      arena.allocate("final norm inverse rms", MemoryClass::workspace, DType::float32, {tile_tokens}, stream_);
  const Buffer logits =
      arena.allocate("logits of one tile", MemoryClass::workspace, compute, {tile_tokens, model_.vocabulary}, stream_);
  for (int64_t begin = 0; begin < context.tokens; begin += tile_tokens) {
    const int64_t end = std::min(begin + tile_tokens, context.tokens);
    const Tensor dhidden_tile = dhidden.tensor().slice(0, begin, end);
    if (!has_label(context.host_labels, begin, end)) {
      backend_.fill(stream_, {dhidden_tile, 0.0});
      continue;
    }
    const Tile tile = {begin, end, normed.tensor().slice(0, 0, end - begin),
                       inverse_rms.tensor().slice(0, 0, end - begin), logits.tensor().slice(0, 0, end - begin)};
    tile_logits(hidden, tile, parameters);
    tile_cross_entropy(tile, context, true, gradient_scale, loss_sum);  // the logits are their gradient now

    Gemm weight_gradient;
    weight_gradient.a = tile.logits;
    weight_gradient.transpose_a = true;
    weight_gradient.b = tile.normed;
    weight_gradient.c = gradients.weight;
    weight_gradient.beta = 1.0f;
    backend_.gemm(stream_, weight_gradient);
    Gemm input_gradient;
    input_gradient.a = tile.logits;
    input_gradient.b = parameters.weight;
    input_gradient.c = dnormed.tensor().slice(0, 0, end - begin);
    backend_.gemm(stream_, input_gradient);

    RmsNormBackward norm;
    norm.doutput = input_gradient.c;
    norm.input = hidden.slice(0, begin, end);
    norm.weight = parameters.norm;
    norm.inverse_rms = tile.inverse_rms;
    norm.dinput = dhidden_tile;
    norm.dweight = gradients.norm;
    backend_.rms_norm_backward(stream_, norm);
  }
  return dhidden;
}

void LossHead::logits(const Tensor& hidden, const HeadTensors& parameters, const Tensor& logits) {
  const Buffer normed =
      backend_.arena(Tier::device)
          .allocate("final norm", MemoryClass::workspace, backend_.compute_dtype(), hidden.extents, stream_);
  tile_logits(hidden, {0, hidden.extent(0), normed.tensor(), {}, logits}, parameters);
}

}  // namespace ithaca
