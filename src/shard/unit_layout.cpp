#include "shard/unit_layout.h"

#include "backend/arena.h"
#include "base/error.h"

namespace ithaca {

namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// What an arena takes for a block.
int64_t arena_bytes(int64_t elements, DType dtype) {
  return round_up(elements * element_size(dtype), Arena::kAlignment);
}

}  // namespace

std::vector<UnitLayout> unit_layouts(std::span<const ParameterSpec> specs, int shards) {
  require(shards >= 1, "units are cut into at least one slice");
  std::vector<UnitLayout> layouts;
  for (size_t index = 0; index < specs.size(); ++index) {
    const ParameterSpec& spec = specs[index];
    if (layouts.size() != static_cast<size_t>(spec.unit) + 1) {
      require(layouts.size() == static_cast<size_t>(spec.unit),
              "parameter specs must come in unit order: " + spec.name);
      layouts.push_back({static_cast<int64_t>(index), static_cast<int64_t>(index), {}, 0, 0});
    }
    UnitLayout& layout = layouts.back();
    require(!spec.joined_to_previous || !layout.offsets.empty(),
            "the first parameter of a unit cannot be joined: " + spec.name);
    if (!spec.joined_to_previous) layout.elements = round_up(layout.elements, kBlockAlignment);
    layout.offsets.push_back(layout.elements);
    layout.elements += spec.extents.product();
    ++layout.last_spec;
  }
  for (UnitLayout& layout : layouts) {
    layout.elements = round_up(layout.elements, kBlockAlignment * shards);
    layout.slice_elements = layout.elements / shards;
  }
  return layouts;
}

ParameterBytes parameter_bytes(std::span<const ParameterSpec> specs, DType compute_dtype, int shards) {
  ParameterBytes bytes;
  for (const UnitLayout& layout : unit_layouts(specs, shards)) {
    const int64_t slice = arena_bytes(layout.slice_elements, DType::float32);
    bytes.weights += arena_bytes(layout.elements, compute_dtype);
    if (compute_dtype != DType::float32) bytes.weights += slice;
    bytes.gradients += arena_bytes(layout.elements, DType::float32);
    bytes.slices += slice;
  }
  return bytes;
}

}  // namespace ithaca
