#include "shard/replicated_parameters.h"

#include <fmt/format.h>

#include <utility>

#include "backend/trace_scope.h"

namespace ithaca {

namespace {

// Parameters start at multiples of this many elements inside their block (unless joined), which suits every vector
// width and copy engine.
constexpr int64_t kAlignment = 64;

struct UnitLayout {
  int64_t first_spec = 0;
  int64_t last_spec = 0;
  std::vector<int64_t> offsets;
  int64_t elements = 0;
};

std::vector<UnitLayout> unit_layouts(std::span<const ParameterSpec> specs) {
  std::vector<UnitLayout> layouts;
  for (size_t index = 0; index < specs.size(); ++index) {
    const ParameterSpec& spec = specs[index];
    if (layouts.size() != static_cast<size_t>(spec.unit) + 1) {
      require(layouts.size() == static_cast<size_t>(spec.unit),
              "parameter specs must come in unit order: " + spec.name);
      layouts.push_back({static_cast<int64_t>(index), static_cast<int64_t>(index), {}, 0});
    }
    UnitLayout& layout = layouts.back();
    require(!spec.joined_to_previous || !layout.offsets.empty(),
            "the first parameter of a unit cannot be joined: " + spec.name);
    if (!spec.joined_to_previous) layout.elements = (layout.elements + kAlignment - 1) / kAlignment * kAlignment;
    layout.offsets.push_back(layout.elements);
    layout.elements += spec.extents.product();
    ++layout.last_spec;
  }
  return layouts;
}

Tensor part(const Tensor& block, int64_t offset, const Extents& extents) {
  const int64_t count = extents.product();
  return block.slice(0, offset, offset + count).reshape(extents);
}

// What an arena takes for a block.
int64_t arena_bytes(int64_t bytes) {
  return (bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
}

}  // namespace

ReplicatedBytes replicated_parameter_bytes(std::span<const ParameterSpec> specs, DType compute_dtype) {
  ReplicatedBytes bytes;
  for (const UnitLayout& layout : unit_layouts(specs)) {
    bytes.weights += arena_bytes(layout.elements * 4);
    if (compute_dtype != DType::float32) bytes.weights += arena_bytes(layout.elements * element_size(compute_dtype));
    bytes.gradients += arena_bytes(layout.elements * 4);
  }
  return bytes;
}

ReplicatedParameters::ReplicatedParameters(std::vector<ParameterSpec> specs, Backend& backend, Mesh& mesh)
    : specs_(std::move(specs)), backend_(backend), mesh_(mesh) {
  Arena& arena = backend.arena(Tier::device);
  Stream& stream = backend.compute_stream();
  const DType compute = backend.compute_dtype();
  for (const UnitLayout& layout : unit_layouts(specs_)) {
    const auto name = [&](const char* what) { return fmt::format("{} of unit {}", what, units_.size()); };
    Unit unit;
    unit.first_spec = layout.first_spec;
    unit.last_spec = layout.last_spec;
    unit.master = arena.allocate(name("weights"), MemoryClass::weights, DType::float32, {layout.elements}, stream);
    unit.gradient =
        arena.allocate(name("gradients"), MemoryClass::gradients, DType::float32, {layout.elements}, stream);
    unit.block = {unit.master.tensor(), unit.gradient.tensor(), {}};
    // The gaps between parameters take part in flat operations: they must stay finite, and zero.
    backend.fill(stream, {unit.block.weights, 0.0});
    backend.fill(stream, {unit.block.gradients, 0.0});
    if (compute != DType::float32) {
      unit.compute = arena.allocate(name("compute weights"), MemoryClass::weights, compute, {layout.elements}, stream);
      unit.block.compute_weights = unit.compute.tensor();
      backend.fill(stream, {unit.block.compute_weights, 0.0});
    }
    for (int64_t spec = layout.first_spec; spec < layout.last_spec; ++spec) {
      const int64_t offset = layout.offsets[static_cast<size_t>(spec - layout.first_spec)];
      const Extents& extents = specs_[static_cast<size_t>(spec)].extents;
      masters_.push_back(part(unit.block.weights, offset, extents));
      gradient_views_.push_back(part(unit.block.gradients, offset, extents));
      compute_views_.push_back(compute == DType::float32 ? masters_.back()
                                                         : part(unit.block.compute_weights, offset, extents));
    }
    units_.push_back(std::move(unit));
  }
}

std::pair<int64_t, int64_t> ReplicatedParameters::unit_specs(UnitId unit) const {
  const Unit& entry = units_.at(static_cast<size_t>(unit));
  return {entry.first_spec, entry.last_spec};
}

void ReplicatedParameters::prefetch(UnitId) {}  // everything is here already

UnitTensors ReplicatedParameters::acquire(UnitId unit, Stream&) {
  const auto [first, last] = unit_specs(unit);
  return {
      std::span<const Tensor>(compute_views_).subspan(static_cast<size_t>(first), static_cast<size_t>(last - first))};
}

void ReplicatedParameters::release(UnitId, Stream&) {}

UnitTensors ReplicatedParameters::gradients(UnitId unit, Stream&) {
  const auto [first, last] = unit_specs(unit);
  return {
      std::span<const Tensor>(gradient_views_).subspan(static_cast<size_t>(first), static_cast<size_t>(last - first))};
}

void ReplicatedParameters::gradients_ready(UnitId unit, const Event& event) {
  if (!last_micro_batch_) return;
  Unit& entry = units_.at(static_cast<size_t>(unit));
  require(!entry.reduced, fmt::format("gradients of unit {} became ready twice in one micro-batch", unit));
  entry.reduced = true;
  if (mesh_.gradient().size() == 1) return;
  const PhaseScope scope(backend_, phase::kGradientReduction);
  Stream& communication = backend_.communication_stream();
  backend_.wait(communication, event);
  mesh_.gradient().all_reduce(communication, entry.block.gradients);
}

void ReplicatedParameters::begin_step() {
  last_micro_batch_ = false;
  for (Unit& unit : units_) {
    unit.reduced = false;
    backend_.fill(backend_.compute_stream(), {unit.block.gradients, 0.0});
  }
}

void ReplicatedParameters::begin_last_micro_batch() {
  last_micro_batch_ = true;
}

void ReplicatedParameters::finish_gradients() {
  for (const Unit& unit : units_) require(unit.reduced, "finish_gradients before every unit's gradients were ready");
  const PhaseScope scope(backend_, phase::kGradientReduction);
  backend_.wait(backend_.compute_stream(), backend_.record(backend_.communication_stream()));
}

void ReplicatedParameters::set_weights(int64_t spec, std::span<const float> values) {
  const Tensor& target = master(spec);
  require(static_cast<int64_t>(values.size()) == target.element_count(), "set_weights: wrong number of values");
  Stream& stream = backend_.compute_stream();
  backend_.copy_from_host(stream, std::as_bytes(values), target);
  const Tensor& compute = compute_views_[static_cast<size_t>(spec)];
  if (compute.dtype != DType::float32) backend_.copy(stream, {target, compute});
}

void ReplicatedParameters::get_weights(int64_t spec, std::span<float> values) const {
  const Tensor& source = master(spec);
  require(static_cast<int64_t>(values.size()) == source.element_count(), "get_weights: wrong number of values");
  backend_.copy_to_host(backend_.compute_stream(), source, std::as_writable_bytes(values));
  backend_.finish(backend_.record(backend_.compute_stream()));
}

}  // namespace ithaca
