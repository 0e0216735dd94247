#include "train/step.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "backend/trace_scope.h"
#include "train/device_batch.h"

namespace ithaca {

namespace {

template <typename T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span<T>(&value, 1));
}

}  // namespace

TrainingStep::TrainingStep(Transformer& model, ShardedParameters& parameters, AdamWOptimizer& optimizer,
                           const AttentionSchedule& schedule, Backend& backend, Mesh& mesh)
    : model_(model),
      parameters_(parameters),
      optimizer_(optimizer),
      schedule_(schedule),
      backend_(backend),
      mesh_(mesh) {}

StepResult TrainingStep::run(const StepBatch& batch, double learning_rate) {
  // The ranks' hashes come with the step's one host read: nothing waits for them, and a step on different batches has
  // changed nothing that outlives the error.
  const std::optional<GatheredValues> hashes = gather_hashes(batch.content_hash);
  accumulate_gradients(batch);
  const StepResult result = update(batch, learning_rate);
  if (hashes) check_same_batch(hashes->values());
  return result;
}

void TrainingStep::accumulate_gradients(const StepBatch& batch) {
  require(!batch.micro_batches.empty(), "a step needs at least one micro-batch, which may be empty");
  // Tokens are the denominator, over every rank and micro-batch: gradients only have to be summed.
  const double gradient_scale = batch.label_weight_sum > 0.0 ? 1.0 / batch.label_weight_sum : 0.0;
  {
    const PhaseScope scope(backend_, phase::kOptimizer);
    optimizer_.begin_step();
    parameters_.begin_step();
  }
  for (size_t index = 0; index < batch.micro_batches.size(); ++index) {
    if (index + 1 == batch.micro_batches.size()) parameters_.begin_last_micro_batch();
    forward_backward(batch.micro_batches[index], gradient_scale);
  }
}

void TrainingStep::forward_backward(const MicroBatch& micro_batch, double gradient_scale) {
  const int64_t layers = model_.description().layer_count();
  const DeviceBatch batch(micro_batch, model_.description(), backend_, schedule_);
  const TokenContext& context = batch.context();

  Buffer hidden = model_.embed(context);
  for (int64_t layer = 0; layer < layers; ++layer)
    hidden = model_.layer_forward(layer, std::move(hidden), context, &saved_);

  Buffer dhidden = model_.loss_and_gradient(hidden, context, gradient_scale, optimizer_.scalars().loss_sum);
  hidden.release();

  for (int64_t layer = layers - 1; layer >= 0; --layer)
    dhidden = model_.layer_backward(layer, std::move(dhidden), context, saved_);
  model_.embed_backward(dhidden, context);
}

StepResult TrainingStep::update(const StepBatch& batch, double learning_rate) {
  const PhaseScope scope(backend_, phase::kOptimizer);
  Stream& stream = backend_.compute_stream();
  const StepScalars& scalars = optimizer_.scalars();
  optimizer_.sum_squares();
  {
    const PhaseScope reduction(backend_, phase::kGradientReduction);
    mesh_.gradient().all_reduce(stream, scalars.loss_sum);
  }
  optimizer_.step(learning_rate, batch.label_weight_sum);

  // The step's one host read. New weights may still be on their way to other ranks.
  StepResult result;
  double loss_sum = 0.0;
  int64_t skipped = 0;
  backend_.copy_to_host(stream, scalars.loss_sum, bytes_of(loss_sum));
  backend_.copy_to_host(stream, scalars.gradient_norm, bytes_of(result.grad_norm));
  backend_.copy_to_host(stream, scalars.skipped, bytes_of(skipped));
  backend_.copy_to_host(stream, scalars.applied_steps, bytes_of(result.applied_steps));
  backend_.finish(backend_.record(stream));
  result.loss = batch.label_weight_sum > 0.0 ? loss_sum / batch.label_weight_sum : 0.0;
  result.skipped = skipped != 0;
  return result;
}

std::optional<double> TrainingStep::evaluate(const std::vector<MicroBatch>& micro_batches, double label_weight_sum) {
  Stream& stream = backend_.compute_stream();
  const Buffer loss_sum =
      backend_.arena(Tier::device).allocate("evaluation loss sum", MemoryClass::workspace, DType::float64, {1}, stream);
  backend_.fill(stream, {loss_sum.tensor(), 0.0});
  for (const MicroBatch& micro_batch : micro_batches) {
    const DeviceBatch batch(micro_batch, model_.description(), backend_, schedule_);
    Buffer hidden = model_.embed(batch.context());
    for (int64_t layer = 0; layer < model_.description().layer_count(); ++layer) {
      hidden = model_.layer_forward(layer, std::move(hidden), batch.context(), nullptr);
    }
    model_.loss(hidden, batch.context(), loss_sum.tensor());
  }
  mesh_.gradient().all_reduce(stream, loss_sum.tensor());
  double sum = 0.0;
  backend_.copy_to_host(stream, loss_sum.tensor(), bytes_of(sum));
  backend_.finish(backend_.record(stream));
  if (label_weight_sum <= 0.0) return std::nullopt;
  return sum / label_weight_sum;
}

std::optional<GatheredValues> TrainingStep::gather_hashes(uint64_t content_hash) {
  if (mesh_.cp().size() == 1) return std::nullopt;
  const PhaseScope scope(backend_, phase::kUpload);
  const auto own = std::bit_cast<int64_t>(content_hash);
  return std::make_optional<GatheredValues>(mesh_.cp(), backend_, std::span(&own, 1));
}

void TrainingStep::check_same_batch(std::span<const int64_t> hashes) {
  for (size_t rank = 0; rank < hashes.size(); ++rank) {
    if (hashes[rank] == hashes[0]) continue;
    throw InputError(
        fmt::format("sequence ranks 0 and {} of one group were given different batches (content hashes {:016x} and "
                    "{:016x}): every rank must read "
                    "the same data with the same seed",
                    rank, std::bit_cast<uint64_t>(hashes[0]), std::bit_cast<uint64_t>(hashes[rank])));
  }
}

GatheredValues::GatheredValues(Communicator& group, Backend& backend, std::span<const int64_t> values) {
  Stream& stream = backend.compute_stream();
  const auto count = static_cast<int64_t>(values.size());
  const Buffer all =
      backend.arena(Tier::device)
          .allocate("gathered values", MemoryClass::communication, DType::int64, {group.size(), count}, stream);
  std::vector<Tensor> blocks;
  for (int rank = 0; rank < group.size(); ++rank) blocks.push_back(all.tensor().select(0, rank));
  const Tensor& own = blocks[static_cast<size_t>(group.rank())];
  backend.copy_from_host(stream, std::as_bytes(values), own);
  group.all_gather(stream, own, blocks);
  values_.resize(static_cast<size_t>(all.tensor().element_count()));
  backend.copy_to_host(stream, all.tensor(), std::as_writable_bytes(std::span(values_)));
}

std::vector<int64_t> gather_values(Communicator& group, Backend& backend, std::span<const int64_t> values) {
  const GatheredValues gathered(group, backend, values);
  backend.finish(backend.record(backend.compute_stream()));
  return gathered.values();
}

}  // namespace ithaca
