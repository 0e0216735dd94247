// What the section `data` of a recipe means. Thread-safety: pure functions but for the files they read.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/open_data.h"
#include "model/description.h"
#include "train/recipe.h"

namespace ithaca {

// Options to open `files` with, which are data.train or data.eval. Evaluation has one max_length: the longest.
// Throws ConfigurationError.
DataOptions data_options(const Recipe& recipe, const std::vector<std::string>& files, const ModelDescription& model,
                         bool is_evaluation);

// Where token caches are kept: data.cache_dir, or the folder .token_cache beside train.output_dir, which all runs
// beside each other then share.
std::string cache_folder(const Recipe& recipe);

}  // namespace ithaca
