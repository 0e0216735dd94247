// Text as the config.json of a model: what is accepted must be a model whose parameters can be listed.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "model/description.h"
#include "model/parameters.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const ithaca::ModelDescription model =
        ithaca::parse_model_description(std::string_view(reinterpret_cast<const char*>(data), size), "config.json");
    // A model of many layers only takes time.
    if (model.layer_count() <= 64) (void)ithaca::parameter_specs(model);
  } catch (const ithaca::InputError&) {
    return 0;
  }
  return 0;
}
