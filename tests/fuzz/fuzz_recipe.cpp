// Text as a recipe, and its first line as a --set argument: what is accepted is written out again and must read as the
// same recipe.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "train/recipe_options.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    (void)ithaca::recipe_table().catalog().read_assignment(text.substr(0, text.find('\n')));
  } catch (const ithaca::ConfigurationError&) {
    // The whole text may be a recipe all the same.
  }
  try {
    const ithaca::Recipe recipe = ithaca::parse_recipe(text, "run.yaml", "");
    const std::string written = ithaca::resolved_recipe_text(recipe);
    if (ithaca::resolved_recipe_text(ithaca::parse_recipe(written, "config.yaml", "")) != written) __builtin_trap();
  } catch (const ithaca::ConfigurationError&) {
    return 0;
  }
  return 0;
}
