// The table of recipe options, and how a recipe is read: YAML file, then `--set` overrides, then `--ranks`, then the
// rules between options. Everything that can be known to be wrong without opening a model or a data file is found here,
// and thrown as ConfigurationError with its place.
//
// Relative paths: model.path and data files are relative to where they are written, that is to the recipe's folder, or
// to the current folder when given with --set. train.output_dir is always relative to the current folder.
//
// Thread-safety: free functions without state; the table is immutable.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/option_table.h"
#include "train/recipe.h"

namespace ithaca {

const OptionTable<Recipe>& recipe_table();

// What the command line says about a recipe.
struct RecipeOverrides {
  std::vector<std::string> assignments;  // section.name=value; of several for one option the last one holds
  std::optional<int64_t> ranks;          // sp_size x dp sizes; sets sp_size where the recipe does not
  std::optional<std::string> backend;    // train.backend
};

// Reads and checks the recipe file `path`, that the model and the files that it names are there, and what the model and
// this machine say about it without the data (check_run in train/plan_run.h). Throws
// ConfigurationError, which says everything that is wrong: several mistakes are ConfigurationMistakes.
Recipe load_recipe(const std::string& path, const RecipeOverrides& overrides = {});

// The same for a text that is at hand, without a look at files: `file` names it in messages, `folder` is what its paths
// are relative to.
Recipe parse_recipe(const std::string& text, const std::string& file, const std::string& folder,
                    const RecipeOverrides& overrides = {});

// The recipe as YAML with absolute paths and the value of every option that has an effect: what a run folder keeps as
// config.yaml. Reading it gives the same recipe.
std::string resolved_recipe_text(const Recipe& recipe);

// The text of docs/config.md.
std::string recipe_reference_page();

}  // namespace ithaca
