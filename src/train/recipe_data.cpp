#include "train/recipe_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/choice.h"
#include "base/error.h"
#include "train/context_curriculum.h"

namespace ithaca {

namespace {

// Bytes are not the ids that a model with a tokenizer of its own was trained on.
void refuse_foreign_bytes(const Recipe& recipe) {
  if (recipe.data.tokenizer != "bytes" || recipe.model.init == "random" || !has_tokenizer(recipe.model.path)) return;
  if (!needs_tokenizer(recipe.data.format)) return;
  throw ConfigurationError(
      fmt::format("data.tokenizer bytes: {} has a tokenizer of its own, and its weights know the ids of that one; set "
                  "data.tokenizer: auto, or start from random weights with model.init: random",
                  recipe.model.path));
}

}  // namespace

DataOptions data_options(const Recipe& recipe, const std::vector<std::string>& files, const ModelDescription& model,
                         bool is_evaluation) {
  refuse_foreign_bytes(recipe);
  DataOptions options;
  options.paths = files;
  options.format = recipe.data.format;
  options.tokenizer = recipe.data.tokenizer;
  options.model_directory = recipe.model.path;
  options.train_on = recipe.data.train_on;
  options.append_eos = recipe.data.append_eos;
  options.packing = parse_choice("data.packing", recipe.data.packing,
                                 {PackingKind::none, PackingKind::wrapped, PackingKind::best_fit}, packing_name);
  options.overlong = parse_choice("data.overlong", recipe.data.overlong,
                                  {Overlong::split, Overlong::truncate, Overlong::drop}, overlong_name);
  options.stages = parse_context_stages(recipe.data.max_length);
  if (is_evaluation) {
    const auto longest =
        std::max_element(options.stages.begin(), options.stages.end(),
                         [](const ContextStage& a, const ContextStage& b) { return a.max_length < b.max_length; });
    options.stages = {{0, longest->max_length}};
  }
  options.skip_bad_records = recipe.data.on_error == "skip";
  options.cache_dir = cache_folder(recipe);
  options.vocabulary = model.vocabulary;
  return options;
}

std::string cache_folder(const Recipe& recipe) {
  if (!recipe.data.cache_dir.empty()) return recipe.data.cache_dir;
  if (recipe.train.output_dir.empty()) return ".token_cache";
  return (std::filesystem::absolute(recipe.train.output_dir).lexically_normal() / ".." / ".token_cache")
      .lexically_normal()
      .string();
}

}  // namespace ithaca
