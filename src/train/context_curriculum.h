// Context curricula: options that change at steps, written VALUE@STEP.
//
// "4096@0, 32768@1000, 1M@2000" is 4096 from the first step on, 32768 from the step after 1,000 steps on, and so on. A
// value without @ holds from the first step. Numbers of tokens may be grouped (32_768) and take K and M (1024 and
// 1024 x 1024). Thread-safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "data/packed_dataset.h"
#include "data/step_loader.h"
#include "model/description.h"

namespace ithaca {

// data.max_length. Throws ConfigurationError naming the option, the entry and what would work: a number that cannot be
// read, steps that do not rise, nothing at step 0.
std::vector<ContextStage> parse_context_stages(const std::vector<std::string>& entries);

// model.rope_theta (numbers) and model.rope_scaling:
//   none                      not scaled
//   linear:F                  positions divided by F
//   dynamic:F                 theta grows with the length ("NTK-aware")
//   yarn:F[:L]  llama3:F[:L]  by F, for a model whose positions went up to L; without L what the model's config.json
//   says
// Where either has no entry yet, the model's own holds. Nothing when both are empty. Throws ConfigurationError.
std::vector<RopeStage> parse_rope_stages(const std::vector<std::string>& thetas,
                                         const std::vector<std::string>& scalings, const ModelDescription& model);

// max_position_embeddings of a model that was trained on sequences of up to `longest` tokens with `rope` in place of
// its own: what the scaling reaches, and at least what was trained. Where the RoPE goes by the model's own
// max_position_embeddings (dynamic), that.
int64_t positions_with(const RopeDescription& rope, const ModelDescription& model, int64_t longest);

}  // namespace ithaca
