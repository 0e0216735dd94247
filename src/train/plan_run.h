// From a recipe to decisions: mesh, schedule, layout, model and optimizer options. Nothing is allocated and nothing
// runs. Thread-safety: pure functions.
#pragma once

#include <string>

#include "data/dataset.h"
#include "data/step_loader.h"
#include "model/description.h"
#include "optim/learning_rate.h"
#include "train/rank.h"
#include "train/recipe.h"
#include "train/run.h"

namespace ithaca {

struct RunDecisions {
  TrainingRankOptions rank;
  StepLoaderOptions loader;
  RateSchedule rate;
  int64_t steps = 0;
  std::string schedule_reason;
};

// Throws ConfigurationError, naming the option and what would work.
RunDecisions decide_run(const Recipe& recipe, const ModelDescription& model, const Dataset& dataset);

// What the observer is told before the first step.
RunPlan describe_run(const Recipe& recipe, const ModelDescription& model, const RunDecisions& decisions,
                     const Dataset& train, const Dataset* eval);

}  // namespace ithaca
