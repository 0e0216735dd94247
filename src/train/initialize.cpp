#include "train/initialize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "base/random.h"

namespace ithaca {

void load_weights(const ModelDirectory& directory, ShardedParameters& parameters, const std::atomic<bool>* stop) {
  std::vector<float> values;
  for (int64_t index = 0; index < static_cast<int64_t>(parameters.specs().size()); ++index) {
    if (stop != nullptr && stop->load()) return;
    const ParameterSpec& spec = parameters.specs()[static_cast<size_t>(index)];
    values.resize(static_cast<size_t>(spec.extents.product()));
    directory.read_float32(spec.name, values);
    const auto bad = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
    if (bad != values.end()) {
      throw InputError(
          fmt::format("{}: tensor {} holds {} at element {}: the checkpoint is damaged or its training had diverged",
                      directory.path(), spec.name, *bad, bad - values.begin()));
    }
    parameters.set_weights(index, values);
  }
}

void initialize_weights(const ModelDescription& model, int64_t seed, ShardedParameters& parameters,
                        const std::atomic<bool>* stop) {
  std::vector<float> values;
  for (int64_t index = 0; index < static_cast<int64_t>(parameters.specs().size()); ++index) {
    if (stop != nullptr && stop->load()) return;
    const ParameterSpec& spec = parameters.specs()[static_cast<size_t>(index)];
    values.assign(static_cast<size_t>(spec.extents.product()),
                  spec.initialization == Initialization::ones ? 1.0f : 0.0f);
    if (spec.initialization == Initialization::normal) {
      const RandomStream random(static_cast<uint64_t>(seed), spec.name);
      // Each element is a function of its index, so that the threads change nothing.
      parallel_parts(spec.extents.product(), int64_t{1} << 16, [&](int64_t begin, int64_t end) {
        for (int64_t element = begin; element < end; ++element) {
          values[static_cast<size_t>(element)] =
              static_cast<float>(model.initializer_range * random.normal(static_cast<uint64_t>(element)));
        }
      });
    }
    parameters.set_weights(index, values);
  }
}

void give_first_weights(const Recipe& recipe, const ModelDirectory& directory, ShardedParameters& parameters,
                        const std::atomic<bool>* stop) {
  if (recipe.model.init == "random") {
    initialize_weights(directory.description(), recipe.train.seed, parameters, stop);
  } else {
    load_weights(directory, parameters, stop);
  }
}

}  // namespace ithaca
