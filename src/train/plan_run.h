// From a recipe to decisions: mesh, schedule, layout, model and optimizer options. Nothing is allocated and nothing
// runs. Thread-safety: pure functions.
#pragma once

#include <memory>
#include <string>

#include "base/option_table.h"
#include "checkpoint/hugging_face.h"
#include "data/dataset.h"
#include "data/open_data.h"
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

// Opens data.train (or data.eval) of the recipe for the model.
std::unique_ptr<Dataset> open_training_data(const Recipe& recipe, const ModelDescription& model,
                                            const DataWatch& watch = {});
// Null when there is none.
std::unique_ptr<Dataset> open_evaluation_data(const Recipe& recipe, const ModelDescription& model,
                                              const DataWatch& watch = {});

// Throws InputError unless the directory holds exactly the weights that its config.json asks for.
void require_weights(const ModelDirectory& directory);

// Throws ConfigurationError, naming the option, its place and what would work.
RunDecisions decide_run(const Recipe& recipe, const ModelDescription& model, const Dataset& dataset);

// How the threads of a run's ranks wait for each other and reach each other's memory.
ThreadRankOptions thread_rank_options(const Recipe& recipe, const TrainingRankOptions& rank);

// What the model and this machine say about a recipe, as far as it does not depend on the data: the backend, the
// transport, sizes of the mesh, RoPE, and the room for the state. What is wrong is collected with its place. A model
// that cannot be opened is left to those who open it.
void check_run(const Recipe& recipe, OptionMistakes& mistakes);

// Throws ConfigurationError when weights, gradients and optimizer state alone exceed memory.limit_gib, and
// OutOfMemoryError when they exceed what the machine has: before anything is allocated.
void require_room_for_state(const Recipe& recipe, const RunPlan& plan);

// What the observer is told before the first step.
RunPlan describe_run(const Recipe& recipe, const ModelDescription& model, const RunDecisions& decisions,
                     const Dataset& train, const Dataset* eval);

}  // namespace ithaca
