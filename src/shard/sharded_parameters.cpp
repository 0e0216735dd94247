#include "shard/sharded_parameters.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/trace_scope.h"
#include "base/error.h"

namespace ithaca {

namespace {

Communicator* unless_alone(Communicator& group) {
  return group.size() > 1 ? &group : nullptr;
}

}  // namespace

ShardedParameters::ShardedParameters(std::vector<ParameterSpec> specs, Backend& backend, Mesh& mesh, ZeroStage stage)
    : specs_(std::move(specs)), backend_(backend), stream_(backend.compute_stream()) {
  if (stage == ZeroStage::replicated) {
    replica_group_ = unless_alone(mesh.gradient());
  } else {
    shard_group_ = unless_alone(mesh.shard());
    replica_group_ = unless_alone(mesh.replicate());
  }
  shards_ = shard_group_ == nullptr ? 1 : shard_group_->size();
  shard_ = shard_group_ == nullptr ? 0 : shard_group_->rank();

  Arena& arena = backend.arena(Tier::device);
  const DType compute = backend.compute_dtype();
  for (UnitLayout& layout : unit_layouts(specs_, shards_)) {
    const auto allocate = [&](const char* what, MemoryClass memory_class, DType dtype, int64_t elements) {
      Buffer buffer =
          arena.allocate(fmt::format("{} of unit {}", what, units_.size()), memory_class, dtype, {elements}, stream_);
      // Padding takes part in flat operations: it must be finite, and zero.
      backend.fill(stream_, {buffer.tensor(), 0.0});
      return buffer;
    };
    Unit unit;
    unit.weights = allocate("weights", MemoryClass::weights, compute, layout.elements);
    unit.gradients = allocate("gradients", MemoryClass::gradients, DType::float32, layout.elements);
    unit.own.weights = slice_of(unit.weights.tensor(), layout, shard_);
    unit.own.gradients = slice_of(unit.gradients.tensor(), layout, shard_);
    if (compute != DType::float32) {
      unit.masters = allocate("master weights", MemoryClass::weights, DType::float32, layout.slice_elements);
      unit.own.compute_weights = unit.own.weights;
      unit.own.weights = unit.masters.tensor();
    }
    for (int64_t spec = layout.first_spec; spec < layout.last_spec; ++spec) {
      const Extents& extents = specs_[static_cast<size_t>(spec)].extents;
      const int64_t begin = layout.offsets[static_cast<size_t>(spec - layout.first_spec)];
      const int64_t end = begin + extents.product();
      places_.push_back({units_.size(), begin, end});
      weight_views_.push_back(unit.weights.tensor().slice(0, begin, end).reshape(extents));
      gradient_views_.push_back(unit.gradients.tensor().slice(0, begin, end).reshape(extents));
      const auto [own_begin, own_end] = owned(layout, shard_, begin, end);
      const int64_t slice_begin = shard_ * layout.slice_elements;
      if (own_begin < own_end) unit.own_ranges.push_back({spec, own_begin - slice_begin, own_end - slice_begin});
    }
    unit.layout = std::move(layout);
    units_.push_back(std::move(unit));
  }
}

Tensor ShardedParameters::slice_of(const Tensor& block, const UnitLayout& layout, int shard) {
  return block.slice(0, shard * layout.slice_elements, (shard + 1) * layout.slice_elements);
}

std::vector<Tensor> ShardedParameters::slices_of(const Tensor& block, const UnitLayout& layout) const {
  std::vector<Tensor> slices;
  for (int shard = 0; shard < shards_; ++shard) slices.push_back(slice_of(block, layout, shard));
  return slices;
}

std::span<const Tensor> ShardedParameters::of_unit(const std::vector<Tensor>& views, UnitId unit) const {
  const UnitLayout& layout = units_.at(static_cast<size_t>(unit)).layout;
  return std::span(views).subspan(static_cast<size_t>(layout.first_spec),
                                  static_cast<size_t>(layout.last_spec - layout.first_spec));
}

std::pair<int64_t, int64_t> ShardedParameters::owned(const UnitLayout& layout, int shard, int64_t begin, int64_t end) {
  const int64_t slice_begin = shard * layout.slice_elements;
  const int64_t own_begin = std::clamp(slice_begin, begin, end);
  return {own_begin, std::clamp(slice_begin + layout.slice_elements, own_begin, end)};
}

void ShardedParameters::prefetch(UnitId) {}  // everything is here already, or on its way

UnitTensors ShardedParameters::acquire(UnitId unit, Stream& stream) {
  Unit& entry = units_.at(static_cast<size_t>(unit));
  if (!entry.gathered.is_empty()) {
    backend_.wait(stream, entry.gathered);
    entry.weights.last_used_on(stream);
  }
  return {of_unit(weight_views_, unit)};
}

void ShardedParameters::release(UnitId, Stream&) {}

UnitTensors ShardedParameters::gradients(UnitId unit, Stream&) {
  return {of_unit(gradient_views_, unit)};
}

void ShardedParameters::gradients_ready(UnitId unit, const Event& event) {
  if (!last_micro_batch_) return;
  Unit& entry = units_.at(static_cast<size_t>(unit));
  require(!entry.is_final, fmt::format("gradients of unit {} became ready twice in one micro-batch", unit));
  entry.is_final = true;
  if (shard_group_ == nullptr && replica_group_ == nullptr) return;
  const PhaseScope scope(backend_, phase::kGradientReduction);
  Stream& communication = backend_.communication_stream();
  backend_.wait(communication, event);
  entry.gradients.last_used_on(communication);
  if (shard_group_ != nullptr) {
    shard_group_->reduce_scatter(communication, slices_of(entry.gradients.tensor(), entry.layout), entry.own.gradients);
  }
  if (replica_group_ != nullptr) replica_group_->all_reduce(communication, entry.own.gradients);
  entry.summed = backend_.record(communication);
}

void ShardedParameters::begin_step() {
  last_micro_batch_ = false;
  for (Unit& unit : units_) {
    // Of a step that was given up, other ranks may still read.
    if (!unit.summed.is_empty()) backend_.wait(stream_, unit.summed);
    unit.gradients.last_used_on(stream_);
    unit.is_final = false;
    unit.summed = {};
    backend_.fill(stream_, {unit.gradients.tensor(), 0.0});
  }
}

void ShardedParameters::begin_last_micro_batch() {
  last_micro_batch_ = true;
}

void ShardedParameters::wait_for_gradients(UnitId unit) {
  Unit& entry = units_.at(static_cast<size_t>(unit));
  require(entry.is_final, fmt::format("gradients of unit {} are wanted before they are ready", unit));
  if (entry.summed.is_empty()) return;
  const PhaseScope scope(backend_, phase::kGradientReduction);
  backend_.wait(stream_, entry.summed);
  entry.gradients.last_used_on(stream_);
}

void ShardedParameters::sum_over_slices(const Tensor& number) {
  if (shard_group_ != nullptr) shard_group_->all_reduce(stream_, number);
}

void ShardedParameters::weights_updated(UnitId unit) {
  if (shard_group_ == nullptr) return;
  Unit& entry = units_.at(static_cast<size_t>(unit));
  Stream& communication = backend_.communication_stream();
  backend_.wait(communication, backend_.record(stream_));
  entry.weights.last_used_on(communication);
  const std::vector<Tensor> slices = slices_of(entry.weights.tensor(), entry.layout);
  shard_group_->all_gather(communication, slices[static_cast<size_t>(shard_)], slices);
  entry.gathered = backend_.record(communication);
}

void ShardedParameters::set_weights(int64_t spec, std::span<const float> values) {
  const Place& place = places_.at(static_cast<size_t>(spec));
  require(static_cast<int64_t>(values.size()) == place.end - place.begin, "set_weights: wrong number of values");
  static_cast<void>(acquire(static_cast<UnitId>(place.unit), stream_));  // not while they are being gathered
  const Unit& unit = units_[place.unit];
  const Tensor& weights = unit.weights.tensor();
  if (weights.dtype == DType::float32) {
    backend_.copy_from_host(stream_, std::as_bytes(values), weights.slice(0, place.begin, place.end));
    return;
  }
  const int64_t slice_begin = shard_ * unit.layout.slice_elements;
  const Buffer staging = backend_.arena(Tier::device)
                             .allocate("weights from the host", MemoryClass::workspace, DType::float32,
                                       {std::min(place.end - place.begin, kTransferElements)}, stream_);
  for (int64_t begin = place.begin; begin < place.end; begin += kTransferElements) {
    const int64_t end = std::min(place.end, begin + kTransferElements);
    const Tensor piece = staging.tensor().slice(0, 0, end - begin);
    const auto first = static_cast<size_t>(begin - place.begin);
    backend_.copy_from_host(stream_, std::as_bytes(values.subspan(first, static_cast<size_t>(end - begin))), piece);
    backend_.copy(stream_, {piece, weights.slice(0, begin, end)});
    const auto [own_begin, own_end] = owned(unit.layout, shard_, begin, end);
    if (own_begin == own_end) continue;
    backend_.copy(stream_, {piece.slice(0, own_begin - begin, own_end - begin),
                            unit.own.weights.slice(0, own_begin - slice_begin, own_end - slice_begin)});
  }
}

void ShardedParameters::get_whole(int64_t spec, Tensor OwnSlice::*part, std::span<float> values) {
  const Place& place = places_.at(static_cast<size_t>(spec));
  const Unit& unit = units_[place.unit];
  const Tensor& own = unit.own.*part;
  require(values.empty() || static_cast<int64_t>(values.size()) == place.end - place.begin,
          "a whole parameter has another number of values");
  if (shard_group_ == nullptr) {
    if (values.empty()) return;
    backend_.copy_to_host(stream_, own.slice(0, place.begin, place.end), std::as_writable_bytes(values));
    backend_.finish(backend_.record(stream_));
    return;
  }
  const int64_t slice_begin = shard_ * unit.layout.slice_elements;
  const Buffer staging = backend_.arena(Tier::device)
                             .allocate("parameter for the host", MemoryClass::communication, DType::float32,
                                       {std::min(place.end - place.begin, kTransferElements)}, stream_);
  for (int64_t begin = place.begin; begin < place.end; begin += kTransferElements) {
    const int64_t end = std::min(place.end, begin + kTransferElements);
    std::vector<Tensor> pieces;
    for (int shard = 0; shard < shards_; ++shard) {
      const auto [from, to] = owned(unit.layout, shard, begin, end);
      pieces.push_back(staging.tensor().slice(0, from - begin, to - begin));
    }
    const auto [own_begin, own_end] = owned(unit.layout, shard_, begin, end);
    // A rank that owns nothing of it has no place in its slice where that would lie.
    const Tensor send = own_begin == own_end ? pieces[static_cast<size_t>(shard_)]
                                             : own.slice(0, own_begin - slice_begin, own_end - slice_begin);
    shard_group_->all_gather(stream_, send, pieces);
    if (values.empty()) continue;
    const auto first = static_cast<size_t>(begin - place.begin);
    backend_.copy_to_host(stream_, staging.tensor().slice(0, 0, end - begin),
                          std::as_writable_bytes(values.subspan(first, static_cast<size_t>(end - begin))));
  }
  backend_.finish(backend_.record(stream_));
}

void ShardedParameters::get_weights(int64_t spec, std::span<float> values) {
  get_whole(spec, &OwnSlice::weights, values);
}

void ShardedParameters::get_gradients(int64_t spec, std::span<float> values) {
  wait_for_gradients(static_cast<UnitId>(places_.at(static_cast<size_t>(spec)).unit));
  get_whole(spec, &OwnSlice::gradients, values);
}

}  // namespace ithaca
