// ZeroStage: the stages of ZeRO (Rajbhandari et al. 2020), what is cut over the dp_shard x cp ranks of a mesh instead
// of being held by each of them. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "comm/mesh.h"

namespace ithaca {

enum class ZeroStage : uint8_t {
  replicated = 0,
  optimizer_state = 1  // and the float32 master weights, where the compute dtype is another
};

// "0", "1".
std::string_view zero_stage_name(ZeroStage stage);
// Into how many slices, one for each rank, units are cut.
int shard_count(const MeshSizes& sizes, ZeroStage stage);

}  // namespace ithaca
