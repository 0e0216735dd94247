#include "train/rank.h"

#include "backend/cpu/cpu_backend.h"
#include "model/parameters.h"

namespace ithaca {

TrainingRank::TrainingRank(ThreadRank& rank, const ModelDescription& model, const TrainingRankOptions& options)
    : options_(options) {
  CpuBackendOptions backend_options;
  backend_options.memory_limit_bytes = options.memory_limit_bytes;
  backend_ = make_cpu_backend(backend_options);
  mesh_ = std::make_unique<Mesh>(rank.connect(*backend_), options.mesh);

  HeadShape heads;
  heads.query_heads = model.query_heads;
  heads.key_heads = model.key_heads;
  heads.key_size = model.head_size;
  heads.value_size = model.head_size;
  heads.scale = attention_scale(model);
  schedule_ = make_schedule(options.schedule, options.layout, heads, *backend_, *mesh_);
  parameters_ = std::make_unique<ReplicatedParameters>(parameter_specs(model), *backend_, *mesh_);
  optimizer_ = std::make_unique<AdamWOptimizer>(options.optimizer, *parameters_, *backend_);
  transformer_ = std::make_unique<Transformer>(model, options.model, *backend_, *schedule_, *parameters_);
  step_ = std::make_unique<TrainingStep>(*transformer_, *parameters_, *optimizer_, *schedule_, *backend_, *mesh_);
}

BatchPosition TrainingRank::batch_position() const {
  const MeshCoordinates& at = mesh_->coordinates();
  return {mesh_->dp_rank(), at.ring, mesh_->sizes().ring, at.ulysses, mesh_->sizes().ulysses, options_.layout};
}

}  // namespace ithaca
