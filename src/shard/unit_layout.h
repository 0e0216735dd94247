// UnitLayout: where the parameters of a unit lie in its flat blocks, and how the ranks of a shard group cut those.
//
// Weights, gradients and optimizer state of a unit have the same layout, so that one exchange moves all of a unit and
// one kernel works on a run of it. A block has as many slices of equal size as there are shards; slices begin at
// multiples of kBlockAlignment elements, wherever parameters do: a slice may hold parts of several parameters, a part
// of one, or padding alone. Padding is zero and stays so. Thread-safety: pure functions and values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/parameter_store.h"
#include "tensor/dtype.h"

namespace ithaca {

// Parameters (unless joined) and slices start at multiples of this many elements, which suits every vector width and
// copy engine.
inline constexpr int64_t kBlockAlignment = 64;

struct UnitLayout {
  int64_t first_spec = 0;
  int64_t last_spec = 0;         // specs [first_spec, last_spec)
  std::vector<int64_t> offsets;  // of each spec, in elements
  int64_t elements = 0;          // of a block: shards x slice_elements
  int64_t slice_elements = 0;
};

// `specs` in unit order; `shards` >= 1.
std::vector<UnitLayout> unit_layouts(std::span<const ParameterSpec> specs, int shards);

// Bytes of an arena that ShardedParameters takes on each rank, without building it.
struct ParameterBytes {
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t slices = 0;  // of one float32 value for each element of the own slices: what a moment of an optimizer takes
};
ParameterBytes parameter_bytes(std::span<const ParameterSpec> specs, DType compute_dtype, int shards);

}  // namespace ithaca
