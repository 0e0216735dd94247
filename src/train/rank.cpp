#include "train/rank.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "backend/tracing_backend.h"
#include "model/parameters.h"

namespace ithaca {

std::string memory_advice(const TrainingRankOptions& options, const MemoryUsage& usage) {
  const auto used = [&](MemoryClass memory_class) { return usage.current_by_class[static_cast<size_t>(memory_class)]; };
  const int64_t state = used(MemoryClass::weights) + used(MemoryClass::gradients) + used(MemoryClass::optimizer);
  const int64_t of_tokens = used(MemoryClass::saved) + used(MemoryClass::workspace) + used(MemoryClass::communication);
  if (state > of_tokens) {
    if (options.zero == ZeroStage::replicated && shard_count(options.mesh, ZeroStage::optimizer_state) > 1) {
      return "parallel.zero: 1 leaves each rank a part of the optimizer state, instead of all of it";
    }
    if (options.zero != ZeroStage::replicated && options.backend.kind == BackendKind::cuda) {
      return "parallel.sp_size or parallel.dp_shard_size: more GPUs share the optimizer state; most of the memory is "
             "that, weights and gradients, which do not shrink with the sequence";
    }
    return "memory.limit_gib: more memory for each rank (or fewer ranks on this machine); most of it holds the model's "
           "weights, gradients and optimizer "
           "state, which do not shrink with the sequence";
  }
  if (used(MemoryClass::saved) >= used(MemoryClass::workspace) && options.model.recompute != RecomputePolicy::full) {
    return options.model.recompute == RecomputePolicy::none
               ? "memory.recompute: attention (or full) keeps less of every layer for backward"
               : "memory.recompute: full keeps only the input of every layer for backward";
  }
  return "parallel.sp_size: more ranks share the sequence; or a shorter data.max_length; or smaller tiles "
         "(memory.mlp_tile, memory.loss_tile)";
}

TrainingRank::TrainingRank(ThreadRank& rank, const ModelDescription& model, const TrainingRankOptions& options)
    : model_(model), options_(options) {
  backend_ = make_backend(options.backend, rank.rank(), rank.size(), options.memory_limit_bytes);
  if (options.traced && options.backend.kind == BackendKind::cpu) backend_ = make_tracing_backend(std::move(backend_));
  backend_->arena(Tier::device).advise([options](const MemoryUsage& usage) { return memory_advice(options, usage); });
  mesh_ = std::make_unique<Mesh>(rank.connect(*backend_), options.mesh);

  schedule_ = make_schedule(options.schedule, options.layout, attention_heads(model), *backend_, *mesh_);
  if (options.wrap_schedule) schedule_ = options.wrap_schedule(std::move(schedule_), *backend_);
  parameters_ = std::make_unique<ShardedParameters>(parameter_specs(model), *backend_, *mesh_, options.zero);
  optimizer_ = std::make_unique<AdamWOptimizer>(options.optimizer, *parameters_, *backend_);
  use_model_options(options.model);
}

void TrainingRank::use_model_options(const ModelOptions& options) {
  options_.model = options;
  step_.reset();
  transformer_ = std::make_unique<Transformer>(model_, options, *backend_, *schedule_, *parameters_);
  step_ = std::make_unique<TrainingStep>(*transformer_, *parameters_, *optimizer_, *schedule_, *backend_, *mesh_);
}

BatchPosition TrainingRank::batch_position() const {
  const MeshCoordinates& at = mesh_->coordinates();
  return {mesh_->dp_rank(), at.ring, mesh_->sizes().ring, at.ulysses, mesh_->sizes().ulysses, options_.layout};
}

GatheredPeak gather_peak(TrainingRank& rank, bool flag) {
  const MemoryUsage& own = rank.backend().arena(Tier::device).usage();
  std::vector<int64_t> values = {flag ? 1 : 0, own.peak};
  values.insert(values.end(), own.peak_by_class.begin(), own.peak_by_class.end());
  const std::vector<int64_t> all = gather_values(rank.mesh().world(), rank.backend(), values);
  GatheredPeak result;
  for (size_t first = 0; first < all.size(); first += values.size()) {
    result.any_flag = result.any_flag || all[first] != 0;
    if (all[first + 1] <= result.largest.peak) continue;
    result.largest.peak = all[first + 1];
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(first) + 2, kMemoryClasses,
                result.largest.peak_by_class.begin());
  }
  return result;
}

}  // namespace ithaca
