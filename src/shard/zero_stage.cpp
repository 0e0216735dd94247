#include "shard/zero_stage.h"

namespace ithaca {

std::string_view zero_stage_name(ZeroStage stage) {
  return stage == ZeroStage::replicated ? "0" : "1";
}

int shard_count(const MeshSizes& sizes, ZeroStage stage) {
  return stage == ZeroStage::replicated ? 1 : sizes.dp_shard * sizes.cp();
}

}  // namespace ithaca
