#include "model/decoder_layer.h"

#include <algorithm>
#include <utility>

#include "backend/trace_scope.h"

namespace ithaca {

DecoderLayer::DecoderLayer(const ModelDescription& model, int32_t layer, const ModelOptions& options, Backend& backend,
                           AttentionSchedule& schedule)
    : model_(model),
      layer_(layer),
      options_(options),
      backend_(backend),
      schedule_(schedule),
      stream_(backend.compute_stream()),
      index_(layer_parameters(model)) {}

Buffer DecoderLayer::allocate(const char* name, MemoryClass memory_class, DType dtype, const Extents& extents) {
  return backend_.arena(Tier::device).allocate(name, memory_class, dtype, extents, stream_);
}

Buffer DecoderLayer::workspace(const char* name, const Extents& extents) {
  return allocate(name, MemoryClass::workspace, backend_.compute_dtype(), extents);
}

Tensor DecoderLayer::heads(const Tensor& wide, int64_t first_head, int64_t count) const {
  const int64_t size = model_.head_size;
  return wide.slice(1, first_head * size, (first_head + count) * size).split(1, count, size);
}

Tensor DecoderLayer::optional(const UnitTensors& tensors, int first, int last) const {
  return first < 0 ? Tensor{} : tensors.joined(first, last);
}

// ---- forward ----

DecoderLayer::Projections DecoderLayer::project(const Tensor& input, const TokenContext& context,
                                                const UnitTensors& parameters, std::string_view phase_name) {
  const PhaseScope scope(backend_, phase_name);
  const int64_t tokens = context.tokens;
  const int64_t query_heads = model_.query_heads;
  const int64_t key_heads = model_.key_heads;
  const int64_t width = (query_heads + 2 * key_heads) * model_.head_size;
  const bool head_norm = model_.query_key_norm;

  Projections result;
  result.normed = workspace("attention input after norm", {tokens, model_.hidden_size});
  result.inverse_rms = allocate("attention inverse rms", MemoryClass::workspace, DType::float32, {tokens});
  RmsNormForward norm;
  norm.input = input;
  norm.weight = parameters[index_.attention_norm];
  norm.output = result.normed.tensor();
  norm.inverse_rms = result.inverse_rms.tensor();
  norm.epsilon = static_cast<float>(model_.rms_norm_epsilon);
  backend_.rms_norm_forward(stream_, norm);

  result.raw = workspace("query, key, value", {tokens, width});
  Gemm projection;
  projection.a = result.normed.tensor();
  projection.b = parameters.joined(index_.query_weight, index_.value_weight);
  projection.transpose_b = true;
  projection.c = result.raw.tensor();
  projection.bias = optional(parameters, index_.query_bias, index_.value_bias);
  backend_.gemm(stream_, projection);

  if (head_norm) {
    result.rotated =
        workspace("query, key after head norm and RoPE", {tokens, (query_heads + key_heads) * model_.head_size});
    result.query_inverse_rms =
        allocate("query inverse rms", MemoryClass::workspace, DType::float32, {tokens, query_heads});
    result.key_inverse_rms = allocate("key inverse rms", MemoryClass::workspace, DType::float32, {tokens, key_heads});
  }
  const auto rotate = [&](int64_t first_head, int64_t count, int norm_weight, const Buffer& inverse_rms) {
    HeadRopeForward rope;
    rope.input = heads(result.raw.tensor(), first_head, count);
    rope.output = head_norm ? heads(result.rotated.tensor(), first_head, count) : rope.input;
    if (head_norm) {
      rope.norm_weight = parameters[norm_weight];
      rope.inverse_rms = inverse_rms.tensor();
    }
    rope.epsilon = static_cast<float>(model_.rms_norm_epsilon);
    rope.cosine = context.cosine;
    rope.sine = context.sine;
    backend_.head_rope_forward(stream_, rope);
  };
  rotate(0, query_heads, index_.query_norm, result.query_inverse_rms);
  rotate(query_heads, key_heads, index_.key_norm, result.key_inverse_rms);
  return result;
}

ShardedQkv DecoderLayer::attention_inputs(const Projections& projections) const {
  const Tensor& rotated = model_.query_key_norm ? projections.rotated.tensor() : projections.raw.tensor();
  return {heads(rotated, 0, model_.query_heads), heads(rotated, model_.query_heads, model_.key_heads),
          heads(projections.raw.tensor(), model_.query_heads + model_.key_heads, model_.key_heads)};
}

void DecoderLayer::attend(const Projections& projections, const TokenContext& context, const Tensor& output,
                          const Tensor& log_sum_exp, std::string_view phase_name) {
  const PhaseScope scope(backend_, phase_name);
  schedule_.forward(*context.plans[static_cast<size_t>(layer_)], attention_inputs(projections),
                    heads(output, 0, model_.query_heads), log_sum_exp);
}

Buffer DecoderLayer::project_output(const Tensor& attention_output, const UnitTensors& parameters) {
  Buffer result = workspace("MLP input", {attention_output.extent(0), model_.hidden_size});
  Gemm projection;
  projection.a = attention_output;
  projection.b = parameters[index_.output_weight];
  projection.transpose_b = true;
  projection.c = result.tensor();
  projection.bias = optional(parameters, index_.output_bias, index_.output_bias);
  backend_.gemm(stream_, projection);
  return result;
}

void DecoderLayer::mlp_inputs(const MlpTile& tile, const Tensor& residual, const UnitTensors& parameters) {
  RmsNormForward norm;
  norm.input = tile.input;
  norm.residual = residual;
  norm.sum = tile.input;
  norm.weight = parameters[index_.mlp_norm];
  norm.output = tile.normed;
  norm.inverse_rms = tile.inverse_rms;
  norm.epsilon = static_cast<float>(model_.rms_norm_epsilon);
  backend_.rms_norm_forward(stream_, norm);
  mlp_projections(tile, parameters);
}

void DecoderLayer::mlp_projections(const MlpTile& tile, const UnitTensors& parameters) {
  Gemm projection;
  projection.a = tile.normed;
  projection.b = parameters.joined(index_.gate_weight, index_.up_weight);
  projection.transpose_b = true;
  projection.c = tile.gate_up;
  projection.bias = optional(parameters, index_.gate_bias, index_.up_bias);
  backend_.gemm(stream_, projection);
}

Buffer DecoderLayer::forward(Buffer input, const TokenContext& context, const UnitTensors& parameters,
                             SavedTensors* saved) {
  const int64_t tokens = context.tokens;
  const int64_t hidden = model_.hidden_size;
  const int64_t intermediate = model_.intermediate_size;
  const bool keep_all = saved != nullptr && options_.recompute == RecomputePolicy::none;
  const bool keep_attention = saved != nullptr && options_.recompute != RecomputePolicy::full;

  Projections projections = project(input.tensor(), context, parameters, phase::kProjections);
  Buffer attention_output = workspace("attention output", {tokens, model_.query_heads * model_.head_size});
  Buffer log_sum_exp = allocate("attention log-sum-exp", MemoryClass::workspace, DType::float32,
                                context.plans[static_cast<size_t>(layer_)]->log_sum_exp_extents());
  attend(projections, context, attention_output.tensor(), log_sum_exp.tensor(), phase::kAttention);
  const PhaseScope rest(backend_, phase::kMlp);
  if (keep_all) {
    saved->save(key(SavedSlot::normed_attention_input), std::move(projections.normed), stream_);
    saved->save(key(SavedSlot::attention_inverse_rms), std::move(projections.inverse_rms), stream_);
    saved->save(key(SavedSlot::query_key_value), std::move(projections.raw), stream_);
    if (model_.query_key_norm) {
      saved->save(key(SavedSlot::rotated_query_key), std::move(projections.rotated), stream_);
      saved->save(key(SavedSlot::query_inverse_rms), std::move(projections.query_inverse_rms), stream_);
      saved->save(key(SavedSlot::key_inverse_rms), std::move(projections.key_inverse_rms), stream_);
    }
  } else {
    projections = {};
  }

  Buffer mlp_input = project_output(attention_output.tensor(), parameters);
  if (keep_attention) {
    saved->save(key(SavedSlot::attention_output), std::move(attention_output), stream_);
    saved->save(key(SavedSlot::log_sum_exp), std::move(log_sum_exp), stream_);
  } else {
    attention_output.release();
    log_sum_exp.release();
  }

  // With nothing to keep, a tile's buffers serve all tiles and the output is made in place of the MLP's input.
  const int64_t tile_tokens = mlp_tile_tokens(options_, tokens, backend_);
  const int64_t kept_tokens = keep_all ? tokens : tile_tokens;
  Buffer normed = workspace("MLP input after norm", {kept_tokens, hidden});
  Buffer inverse_rms = allocate("MLP inverse rms", MemoryClass::workspace, DType::float32, {kept_tokens});
  Buffer gate_up = workspace("gate, up", {kept_tokens, 2 * intermediate});
  Buffer activation = keep_all ? workspace("MLP activation", {tile_tokens, intermediate}) : Buffer();
  Buffer separate_output = keep_all ? workspace("layer output", {tokens, hidden}) : Buffer();
  const Tensor output = keep_all ? separate_output.tensor() : mlp_input.tensor();
  for (int64_t begin = 0; begin < tokens; begin += tile_tokens) {
    const int64_t end = std::min(begin + tile_tokens, tokens);
    const int64_t kept_begin = keep_all ? begin : 0;
    const int64_t kept_end = kept_begin + end - begin;
    MlpTile tile;
    tile.input = mlp_input.tensor().slice(0, begin, end);
    tile.normed = normed.tensor().slice(0, kept_begin, kept_end);
    tile.inverse_rms = inverse_rms.tensor().slice(0, kept_begin, kept_end);
    tile.gate_up = gate_up.tensor().slice(0, kept_begin, kept_end);
    mlp_inputs(tile, input.tensor().slice(0, begin, end), parameters);

    SwigluForward swiglu;
    swiglu.gate = tile.gate_up.slice(1, 0, intermediate);
    swiglu.up = tile.gate_up.slice(1, intermediate, 2 * intermediate);
    swiglu.output = keep_all ? activation.tensor().slice(0, 0, end - begin) : swiglu.gate;
    backend_.swiglu_forward(stream_, swiglu);

    const Tensor output_tile = output.slice(0, begin, end);
    if (keep_all) backend_.copy(stream_, {tile.input, output_tile});
    Gemm down;
    down.a = swiglu.output;
    down.b = parameters[index_.down_weight];
    down.transpose_b = true;
    down.c = output_tile;
    down.beta = 1.0f;
    down.bias = optional(parameters, index_.down_bias, index_.down_bias);
    backend_.gemm(stream_, down);
  }

  if (saved != nullptr) saved->save(key(SavedSlot::layer_input), std::move(input), stream_);
  if (!keep_all) return mlp_input;
  saved->save(key(SavedSlot::mlp_input), std::move(mlp_input), stream_);
  saved->save(key(SavedSlot::normed_mlp_input), std::move(normed), stream_);
  saved->save(key(SavedSlot::mlp_inverse_rms), std::move(inverse_rms), stream_);
  saved->save(key(SavedSlot::gate_up), std::move(gate_up), stream_);
  return separate_output;
}

// ---- backward ----

Buffer DecoderLayer::backward(Buffer doutput, const TokenContext& context, const UnitTensors& parameters,
                              const UnitTensors& gradients, SavedTensors& saved) {
  const int64_t tokens = context.tokens;
  const bool kept_all = options_.recompute == RecomputePolicy::none;

  const Buffer input = saved.take(key(SavedSlot::layer_input), stream_);
  Projections projections;
  if (kept_all) {
    projections.normed = saved.take(key(SavedSlot::normed_attention_input), stream_);
    projections.inverse_rms = saved.take(key(SavedSlot::attention_inverse_rms), stream_);
    projections.raw = saved.take(key(SavedSlot::query_key_value), stream_);
    if (model_.query_key_norm) {
      projections.rotated = saved.take(key(SavedSlot::rotated_query_key), stream_);
      projections.query_inverse_rms = saved.take(key(SavedSlot::query_inverse_rms), stream_);
      projections.key_inverse_rms = saved.take(key(SavedSlot::key_inverse_rms), stream_);
    }
  }

  Buffer attention_output;
  Buffer log_sum_exp;
  if (options_.recompute == RecomputePolicy::full) {
    projections = project(input.tensor(), context, parameters, phase::kRecomputeProjections);
    attention_output = workspace("attention output", {tokens, model_.query_heads * model_.head_size});
    log_sum_exp = allocate("attention log-sum-exp", MemoryClass::workspace, DType::float32,
                           context.plans[static_cast<size_t>(layer_)]->log_sum_exp_extents());
    attend(projections, context, attention_output.tensor(), log_sum_exp.tensor(), phase::kRecomputeAttention);
  } else {
    attention_output = saved.take(key(SavedSlot::attention_output), stream_);
    log_sum_exp = saved.take(key(SavedSlot::log_sum_exp), stream_);
  }

  // MLP, tile by tile: doutput becomes the gradient of the MLP's input, residual included.
  {
    const PhaseScope scope(backend_, phase::kMlpBackward);
    const int64_t tile_tokens = mlp_tile_tokens(options_, tokens, backend_);
    Buffer mlp_input;
    Buffer normed;
    Buffer inverse_rms;
    Buffer gate_up;
    if (kept_all) {
      mlp_input = saved.take(key(SavedSlot::mlp_input), stream_);
      normed = saved.take(key(SavedSlot::normed_mlp_input), stream_);
      inverse_rms = saved.take(key(SavedSlot::mlp_inverse_rms), stream_);
      gate_up = saved.take(key(SavedSlot::gate_up), stream_);
    } else {
      const PhaseScope again(backend_, phase::kRecomputeMlp);
      mlp_input = project_output(attention_output.tensor(), parameters);
      normed = workspace("MLP input after norm", {tile_tokens, model_.hidden_size});
      inverse_rms = allocate("MLP inverse rms", MemoryClass::workspace, DType::float32, {tile_tokens});
      gate_up = workspace("gate, up", {tile_tokens, 2 * model_.intermediate_size});
    }
    for (int64_t begin = 0; begin < tokens; begin += tile_tokens) {
      const int64_t end = std::min(begin + tile_tokens, tokens);
      const int64_t kept_begin = kept_all ? begin : 0;
      const int64_t kept_end = kept_begin + end - begin;
      MlpTile tile;
      tile.input = mlp_input.tensor().slice(0, begin, end);
      tile.normed = normed.tensor().slice(0, kept_begin, kept_end);
      tile.inverse_rms = inverse_rms.tensor().slice(0, kept_begin, kept_end);
      tile.gate_up = gate_up.tensor().slice(0, kept_begin, kept_end);
      if (!kept_all) {
        const PhaseScope again(backend_, phase::kRecomputeMlp);
        mlp_inputs(tile, input.tensor().slice(0, begin, end), parameters);
      }
      mlp_backward(tile, doutput.tensor().slice(0, begin, end), parameters, gradients);
    }
  }

  if (options_.recompute == RecomputePolicy::attention) {
    projections = project(input.tensor(), context, parameters, phase::kRecomputeProjections);
  }
  attention_backward(input.tensor(), projections, attention_output.tensor(), log_sum_exp.tensor(), doutput.tensor(),
                     context, parameters, gradients);
  return doutput;
}

void DecoderLayer::mlp_backward(const MlpTile& tile, const Tensor& doutput, const UnitTensors& parameters,
                                const UnitTensors& gradients) {
  const int64_t tokens = tile.input.extent(0);
  const int64_t intermediate = model_.intermediate_size;
  const Tensor gate = tile.gate_up.slice(1, 0, intermediate);
  const Tensor up = tile.gate_up.slice(1, intermediate, 2 * intermediate);

  {
    Buffer activation = workspace("MLP activation", {tokens, intermediate});
    backend_.swiglu_forward(stream_, {gate, up, activation.tensor()});
    Gemm weight_gradient;
    weight_gradient.a = doutput;
    weight_gradient.transpose_a = true;
    weight_gradient.b = activation.tensor();
    weight_gradient.c = gradients[index_.down_weight];
    weight_gradient.beta = 1.0f;
    backend_.gemm(stream_, weight_gradient);
    if (index_.down_bias >= 0) backend_.column_sum(stream_, {doutput, gradients[index_.down_bias]});

    // The activation is no longer needed: its gradient takes its place.
    Gemm dactivation;
    dactivation.a = doutput;
    dactivation.b = parameters[index_.down_weight];
    dactivation.c = activation.tensor();
    backend_.gemm(stream_, dactivation);
    backend_.swiglu_backward(stream_, {activation.tensor(), gate, up, gate, up});
  }

  Gemm weight_gradient;
  weight_gradient.a = tile.gate_up;
  weight_gradient.transpose_a = true;
  weight_gradient.b = tile.normed;
  weight_gradient.c = gradients.joined(index_.gate_weight, index_.up_weight);
  weight_gradient.beta = 1.0f;
  backend_.gemm(stream_, weight_gradient);
  if (index_.gate_bias >= 0)
    backend_.column_sum(stream_, {tile.gate_up, gradients.joined(index_.gate_bias, index_.up_bias)});

  Buffer dnormed = workspace("gradient of the normed MLP input", {tokens, model_.hidden_size});
  Gemm input_gradient;
  input_gradient.a = tile.gate_up;
  input_gradient.b = parameters.joined(index_.gate_weight, index_.up_weight);
  input_gradient.c = dnormed.tensor();
  backend_.gemm(stream_, input_gradient);

  RmsNormBackward norm;
  norm.doutput = dnormed.tensor();
  norm.input = tile.input;
  norm.weight = parameters[index_.mlp_norm];
  norm.inverse_rms = tile.inverse_rms;
  norm.dresidual = doutput;
  norm.dinput = doutput;
  norm.dweight = gradients[index_.mlp_norm];
  backend_.rms_norm_backward(stream_, norm);
}

void DecoderLayer::attention_backward(const Tensor& input, const Projections& projections,
                                      const Tensor& attention_output, const Tensor& log_sum_exp, const Tensor& doutput,
                                      const TokenContext& context, const UnitTensors& parameters,
                                      const UnitTensors& gradients) {
  const PhaseScope scope(backend_, phase::kProjectionsBackward);
  const int64_t tokens = context.tokens;
  const int64_t query_heads = model_.query_heads;
  const int64_t key_heads = model_.key_heads;
  const int64_t width = (query_heads + 2 * key_heads) * model_.head_size;

  Gemm output_weight_gradient;
  output_weight_gradient.a = doutput;
  output_weight_gradient.transpose_a = true;
  output_weight_gradient.b = attention_output;
  output_weight_gradient.c = gradients[index_.output_weight];
  output_weight_gradient.beta = 1.0f;
  backend_.gemm(stream_, output_weight_gradient);
  if (index_.output_bias >= 0) backend_.column_sum(stream_, {doutput, gradients[index_.output_bias]});

  Buffer gradient = workspace("gradient of query, key, value", {tokens, width});
  {
    Buffer dattention = workspace("gradient of the attention output", {tokens, query_heads * model_.head_size});
    Gemm output_gradient;
    output_gradient.a = doutput;
    output_gradient.b = parameters[index_.output_weight];
    output_gradient.c = dattention.tensor();
    backend_.gemm(stream_, output_gradient);
    const ShardedQkvGradient parts = {heads(gradient.tensor(), 0, query_heads),
                                      heads(gradient.tensor(), query_heads, key_heads),
                                      heads(gradient.tensor(), query_heads + key_heads, key_heads)};
    const PhaseScope attention(backend_, phase::kAttentionBackward);
    schedule_.backward(*context.plans[static_cast<size_t>(layer_)], attention_inputs(projections),
                       heads(attention_output, 0, query_heads), log_sum_exp, heads(dattention.tensor(), 0, query_heads),
                       parts);
  }

  // Back through RoPE and head norms, in place.
  const Tensor& projected = gradient.tensor();
  const auto rotate_back = [&](int64_t first_head, int64_t count, int norm_weight, const Buffer& inverse_rms) {
    HeadRopeBackward rope;
    rope.doutput = heads(projected, first_head, count);
    rope.dinput = heads(projected, first_head, count);
    if (model_.query_key_norm) {
      rope.input = heads(projections.raw.tensor(), first_head, count);
      rope.norm_weight = parameters[norm_weight];
      rope.inverse_rms = inverse_rms.tensor();
      rope.dnorm_weight = gradients[norm_weight];
    }
    rope.cosine = context.cosine;
    rope.sine = context.sine;
    backend_.head_rope_backward(stream_, rope);
  };
  rotate_back(0, query_heads, index_.query_norm, projections.query_inverse_rms);
  rotate_back(query_heads, key_heads, index_.key_norm, projections.key_inverse_rms);

  Gemm weight_gradient;
  weight_gradient.a = projected;
  weight_gradient.transpose_a = true;
  weight_gradient.b = projections.normed.tensor();
  weight_gradient.c = gradients.joined(index_.query_weight, index_.value_weight);
  weight_gradient.beta = 1.0f;
  backend_.gemm(stream_, weight_gradient);
  if (index_.query_bias >= 0) {
    backend_.column_sum(stream_, {projected, gradients.joined(index_.query_bias, index_.value_bias)});
  }

  Buffer dnormed = workspace("gradient of the normed attention input", {tokens, model_.hidden_size});
  Gemm input_gradient;
  input_gradient.a = projected;
  input_gradient.b = parameters.joined(index_.query_weight, index_.value_weight);
  input_gradient.c = dnormed.tensor();
  backend_.gemm(stream_, input_gradient);

  RmsNormBackward norm;
  norm.doutput = dnormed.tensor();
  norm.input = input;
  norm.weight = parameters[index_.attention_norm];
  norm.inverse_rms = projections.inverse_rms.tensor();
  norm.dresidual = doutput;
  norm.dinput = doutput;
  norm.dweight = gradients[index_.attention_norm];
  backend_.rms_norm_backward(stream_, norm);
}

}  // namespace ithaca
