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

namespace {

// `asked`, or tiles of nearly one size, none above `most`: a short last tile would run at a fraction of the speed.
int64_t tile_tokens(int64_t asked, int64_t most, int64_t tokens, int64_t multiple) {
  if (tokens <= 1) return 1;
  if (asked > 0) return std::min(asked, tokens);
  const int64_t tiles = (tokens - 1) / most + 1;
  const int64_t even = (tokens - 1) / tiles + 1;
  return std::min((even + multiple - 1) / multiple * multiple, tokens);
}

}  // namespace

int64_t mlp_tile_tokens(const ModelOptions& options, int64_t tokens, const Backend& backend) {
  return tile_tokens(options.mlp_tile, backend.preferred_tiles().mlp_tokens, tokens,
                     backend.preferred_length_multiple());
}

int64_t loss_tile_tokens(const ModelOptions& options, int64_t tokens, int64_t vocabulary, const Backend& backend) {
  const int64_t row_bytes = element_size(backend.compute_dtype()) * std::max<int64_t>(vocabulary, 1);
  const int64_t most = std::clamp<int64_t>(backend.preferred_tiles().logit_bytes / row_bytes, 128, 8192);
  return tile_tokens(options.loss_tile, most, tokens, backend.preferred_length_multiple());
}

}  // namespace ithaca
