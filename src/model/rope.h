// Inverse frequencies of rotary position embedding, rounded to float32 step by step as Hugging Face does.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "model/description.h"

namespace ithaca {

struct RopeFrequencies {
  std::vector<float> inverse_frequencies;  // head_size / 2 radians per position; dimension i pairs with i + head_size/2
  float attention_factor = 1.0f;           // cosines and sines are multiplied by it
};

// `max_positions` is max_position_embeddings of the model. `sequence_length` is the largest position id + 1: only
// RopeKind::dynamic depends on it. Throws ContractError for odd or non-positive sizes.
//
// Formulas: default, Su et al. 2021 (arXiv 2104.09864); linear, Chen et al. 2023 (arXiv 2306.15595); dynamic,
// "NTK-aware" scaling of theta by the length; yarn, Peng et al. 2023 (arXiv 2309.00071); llama3, the Llama 3.1 release.
RopeFrequencies rope_frequencies(const RopeDescription& rope, int64_t head_size, int64_t max_positions,
                                 int64_t sequence_length);

}  // namespace ithaca
