// How the model is computed: choices that change memory and time, never results.
#pragma once

#include <cstdint>
#include <string_view>

#include "backend/backend.h"

namespace ithaca {

// What a decoder layer keeps for backward.
enum class RecomputePolicy : uint8_t {
  none,       // everything
  attention,  // the layer's input, the attention's output and its log-sum-exp: projections and MLP are computed again,
              // attention is not
  full,       // the layer's input
};
std::string_view recompute_policy_name(RecomputePolicy policy);

struct ModelOptions {
  RecomputePolicy recompute = RecomputePolicy::attention;
  int64_t mlp_tile = 0;   // tokens that pass through the MLP at a time; 0: chosen by mlp_tile_tokens()
  int64_t loss_tile = 0;  // tokens whose logits exist at a time; 0: chosen by loss_tile_tokens()
};

// The tile for `tokens` tokens: as asked for, or what the backend prefers, evened out over the tiles.
int64_t mlp_tile_tokens(const ModelOptions& options, int64_t tokens, const Backend& backend);
// The tile: as asked for, or as many tokens as keep one tile of logits within the bytes that the backend prefers, at
// least 128 and at most 8,192, evened out over the tiles.
int64_t loss_tile_tokens(const ModelOptions& options, int64_t tokens, int64_t vocabulary, const Backend& backend);

}  // namespace ithaca
