#include "optim/adamw.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace ithaca {

namespace {

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

int64_t adamw_bytes(const ParameterBytes& parameters) {
  return 2 * parameters.slices + static_cast<int64_t>(kScalars.size()) * Arena::kAlignment;
}

AdamWOptimizer::AdamWOptimizer(const AdamWOptions& options, ShardedParameters& parameters, Backend& backend)
    : options_(options), parameters_(parameters), backend_(backend), stream_(backend.compute_stream()) {
  Arena& arena = backend.arena(Tier::device);
  for (UnitId unit = 0; unit < parameters.unit_count(); ++unit) {
    const Extents& extents = parameters.own_slice(unit).gradients.extents;
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

void AdamWOptimizer::sum_squares() {
  // In the order in which backward has finished the units.
  for (auto unit = static_cast<UnitId>(parameters_.unit_count()); unit-- > 0;) {
    parameters_.wait_for_gradients(unit);
    backend_.square_sum(stream_, {parameters_.own_slice(unit).gradients, scalars_.square_sum});
  }
  parameters_.sum_over_slices(scalars_.square_sum);
}

void AdamWOptimizer::step(double learning_rate, double label_weight_sum) {
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
  // In the order in which the next forward wants them.
  for (UnitId unit = 0; unit < parameters_.unit_count(); ++unit) {
    const OwnSlice& own = parameters_.own_slice(unit);
    const Moments& moments = moments_[static_cast<size_t>(unit)];
    for (const OwnRange& range : parameters_.own_ranges(unit)) {
      const auto piece = [&](const Tensor& slice) { return slice.slice(0, range.begin, range.end); };
      update.weights = piece(own.weights);
      update.gradients = piece(own.gradients);
      update.first_moment = piece(moments.first.tensor());
      update.second_moment = piece(moments.second.tensor());
      update.compute_weights = own.compute_weights.is_absent() ? Tensor{} : piece(own.compute_weights);
      const ParameterSpec& spec = parameters_.specs()[static_cast<size_t>(range.spec)];
      update.weight_decay = options_.decay_all || spec.is_matrix ? options_.weight_decay : 0.0;
      backend_.adamw(stream_, update);
    }
    parameters_.weights_updated(unit);
  }
}

}  // namespace ithaca
