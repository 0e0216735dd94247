// First weights: from a checkpoint, or random from a seed. The same on every rank and mesh.
#pragma once

#include <atomic>
#include <cstdint>

#include "checkpoint/hugging_face.h"
#include "model/description.h"
#include "shard/sharded_parameters.h"
#include "train/recipe.h"

namespace ithaca {

// Reads every parameter from the directory (ModelDirectory::check has passed) and checks that all values are finite:
// InputError names the tensor. Where `stop` is set it ends early, with weights that are worth nothing.
void load_weights(const ModelDirectory& directory, ShardedParameters& parameters,
                  const std::atomic<bool>* stop = nullptr);

// Normal(0, initializer_range) for matrices, ones for norms, zeros for biases; each value a function of (seed,
// parameter name, index) alone.
void initialize_weights(const ModelDescription& model, int64_t seed, ShardedParameters& parameters,
                        const std::atomic<bool>* stop = nullptr);

// The one of the two that model.init asks for.
void give_first_weights(const Recipe& recipe, const ModelDirectory& directory, ShardedParameters& parameters,
                        const std::atomic<bool>* stop = nullptr);

}  // namespace ithaca
