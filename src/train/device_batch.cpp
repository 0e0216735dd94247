#include "train/device_batch.h"

#include <utility>

#include "backend/trace_scope.h"
#include "model/rope.h"

namespace ithaca {

DeviceBatch::DeviceBatch(const MicroBatch& batch, const ModelDescription& model, Backend& backend,
                         const AttentionSchedule& schedule) {
  const PhaseScope scope(backend, phase::kUpload);
  const int64_t tokens = batch.shard.size();
  require(static_cast<int64_t>(batch.token_ids.size()) == tokens &&
              static_cast<int64_t>(batch.position_ids.size()) == tokens &&
              static_cast<int64_t>(batch.shifted_labels.size()) == tokens,
          "a micro-batch's vectors must have one element per token of the shard");
  const auto ids = [&](const char* name, const std::vector<int64_t>& values) {
    return upload(name, DType::int64, {tokens}, std::as_bytes(std::span(values)), backend);
  };
  context_.tokens = tokens;
  context_.token_ids = ids("token ids", batch.token_ids);
  context_.labels = ids("labels", batch.shifted_labels);
  context_.host_labels = batch.shifted_labels;
  if (!batch.label_weights.empty()) {
    context_.label_weights =
        upload("label weights", DType::float32, {tokens}, std::as_bytes(std::span(batch.label_weights)), backend);
  }

  const RopeFrequencies frequencies = rope_frequencies(batch.rope.value_or(model.rope), model.head_size,
                                                       model.max_positions, batch.largest_position + 1);
  const auto half = static_cast<int64_t>(frequencies.inverse_frequencies.size());
  RopeTable table;
  table.position_ids = ids("position ids", batch.position_ids);
  table.inverse_frequencies = upload("inverse frequencies", DType::float32, {half},
                                     std::as_bytes(std::span(frequencies.inverse_frequencies)), backend);
  table.attention_factor = frequencies.attention_factor;
  table.cosine = upload("RoPE cosines", DType::float32, {tokens, half}, {}, backend);
  table.sine = upload("RoPE sines", DType::float32, {tokens, half}, {}, backend);
  backend.rope_table(backend.compute_stream(), table);
  context_.cosine = table.cosine;
  context_.sine = table.sine;

  for (const LayerDescription& layer : model.layers) {
    std::unique_ptr<AttentionPlan>& plan = plans_by_window_[layer.window];
    if (plan == nullptr) plan = schedule.plan(batch.documents, MaskRule{true, layer.window});
    require(plan->shard() == batch.shard, "the schedule's layout is not the one that the micro-batch was cut by");
    plan_of_layer_.push_back(plan.get());
  }
  context_.plans = plan_of_layer_;
}

Tensor DeviceBatch::upload(const char* name, DType dtype, const Extents& extents, std::span<const std::byte> bytes,
                           Backend& backend) {
  buffers_.push_back(
      backend.arena(Tier::device).allocate(name, MemoryClass::workspace, dtype, extents, backend.compute_stream()));
  const Tensor& tensor = buffers_.back().tensor();
  if (!bytes.empty()) backend.copy_from_host(backend.compute_stream(), bytes, tensor);
  return tensor;
}

}  // namespace ithaca
