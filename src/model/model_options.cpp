#include "model/model_options.h"

#include <algorithm>

#include "base/error.h"

namespace ithaca {

std::string_view recompute_policy_name(RecomputePolicy policy) {
  switch (policy) {
    case RecomputePolicy::none:
      return "none";
    case RecomputePolicy::attention:
      return "attention";
    case RecomputePolicy::full:
      return "full";
  }
  throw ContractError("recompute_policy_name: unknown policy");
}

int64_t mlp_tile_tokens(const ModelOptions& options, int64_t tokens) {
  const int64_t tile = options.mlp_tile > 0 ? options.mlp_tile : 1024;
  return std::max<int64_t>(1, std::min(tile, tokens));
}

int64_t loss_tile_tokens(const ModelOptions& options, int64_t tokens, int64_t vocabulary) {
  constexpr int64_t kLogitBytes = int64_t{64} << 20;
  const int64_t chosen = std::clamp<int64_t>(kLogitBytes / (4 * std::max<int64_t>(vocabulary, 1)), 128, 4096);
  const int64_t tile = options.loss_tile > 0 ? options.loss_tile : chosen;
  return std::max<int64_t>(1, std::min(tile, tokens));
}

}  // namespace ithaca
