#include "optim/adamw.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace ithaca {

namespace {

// The piece of a unit's block that belongs to one parameter.
Tensor piece(const Tensor& block, const Tensor& block_start, const Tensor& parameter) {
  const auto bytes = static_cast<const std::byte*>(parameter.data) - static_cast<const std::byte*>(block_start.data);
  const int64_t offset = bytes / element_size(parameter.dtype);
  return block.slice(0, offset, offset + parameter.element_count());
}

Tensor flat(const Tensor& tensor) {
  return tensor.reshape({tensor.element_count()});
}

struct ScalarDeclaration {
  Tensor StepScalars::*member;
  const char* name;
  DType dtype;
};

constexpr std::array<ScalarDeclaration, 6> kScalars{{{&StepScalars::loss_sum, "loss sum", DType::float64},
                                                     {&StepScalars::square_sum, "gradient square sum", DType::float64},
                                                     {&StepScalars::gradient_norm, "gradient norm", DType::float64},
                                                     {&StepScalars::clip_factor, "clip factor", DType::float32},
                                                     {&StepScalars::skipped, "skip flag", DType::int64},
                                                     {&StepScalars::applied_steps, "applied steps", DType::int64}}};

}  // namespace

int64_t adamw_bytes(const std::vector<ParameterSpec>& specs) {
  // A moment is as large as the gradients; each scalar is a block of its own.
  return 2 * replicated_parameter_bytes(specs, DType::float32).gradients +
         static_cast<int64_t>(kScalars.size()) * Arena::kAlignment;
}

AdamWOptimizer::AdamWOptimizer(const AdamWOptions& options, ReplicatedParameters& parameters, Backend& backend)
    : options_(options), parameters_(parameters), backend_(backend), stream_(backend.compute_stream()) {
  Arena& arena = backend.arena(Tier::device);
  for (UnitId unit = 0; unit < parameters.unit_count(); ++unit) {
    const Extents& extents = parameters.block(unit).gradients.extents;
    Moments moments;
    moments.first = arena.allocate(fmt::format("first moment of unit {}", unit), MemoryClass::optimizer, DType::float32,
                                   extents, stream_);
    moments.second = arena.allocate(fmt::format("second moment of unit {}", unit), MemoryClass::optimizer,
                                    DType::float32, extents, stream_);
    backend.fill(stream_, {moments.first.tensor(), 0.0});
    backend.fill(stream_, {moments.second.tensor(), 0.0});
    moments_.push_back(std::move(moments));
  }
  for (const ScalarDeclaration& scalar : kScalars) {
    scalar_buffers_.push_back(arena.allocate(scalar.name, MemoryClass::optimizer, scalar.dtype, {1}, stream_));
    scalars_.*scalar.member = scalar_buffers_.back().tensor();
    backend.fill(stream_, {scalars_.*scalar.member, 0.0});
  }
}

void AdamWOptimizer::begin_step() {
  backend_.fill(stream_, {scalars_.loss_sum, 0.0});
  backend_.fill(stream_, {scalars_.square_sum, 0.0});
}

void AdamWOptimizer::step(double learning_rate, double label_weight_sum) {
  for (UnitId unit = 0; unit < parameters_.unit_count(); ++unit) {
    backend_.square_sum(stream_, {parameters_.block(unit).gradients, scalars_.square_sum});
  }
  StepNumbers numbers;
  numbers.square_sum = scalars_.square_sum;
  numbers.loss_sum = scalars_.loss_sum;
  numbers.label_weight_sum = label_weight_sum;
  numbers.max_norm = options_.max_grad_norm;
  numbers.gradient_norm = scalars_.gradient_norm;
  numbers.clip_factor = scalars_.clip_factor;
  numbers.skipped = scalars_.skipped;
  numbers.applied_steps = scalars_.applied_steps;
  backend_.step_numbers(stream_, numbers);

  AdamW update;
  update.learning_rate = learning_rate;
  update.beta1 = options_.beta1;
  update.beta2 = options_.beta2;
  update.epsilon = options_.epsilon;
  update.clip_factor = scalars_.clip_factor;
  update.skipped = scalars_.skipped;
  update.applied_steps = scalars_.applied_steps;
  for (UnitId unit = 0; unit < parameters_.unit_count(); ++unit) {
    const UnitBlock& block = parameters_.block(unit);
    const Moments& moments = moments_[static_cast<size_t>(unit)];
    const auto [first, last] = parameters_.unit_specs(unit);
    for (int64_t spec = first; spec < last; ++spec) {
      const ParameterSpec& description = parameters_.specs()[static_cast<size_t>(spec)];
      const Tensor& master = parameters_.master(spec);
      update.weights = flat(master);
      update.gradients = flat(parameters_.gradient(spec));
      update.first_moment = piece(moments.first.tensor(), block.weights, master);
      update.second_moment = piece(moments.second.tensor(), block.weights, master);
      update.compute_weights =
          block.compute_weights.is_absent() ? Tensor{} : piece(block.compute_weights, block.weights, master);
      update.weight_decay = options_.decay_all || description.is_matrix ? options_.weight_decay : 0.0;
      backend_.adamw(stream_, update);
    }
  }
}

}  // namespace ithaca
