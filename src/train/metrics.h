// Lines of metrics.jsonl: one JSON object per optimizer step, in full precision, and one per evaluation.
// Thread-safety: pure functions.
#pragma once

#include <string>

#include "train/run.h"

namespace ithaca {

// One line, without the newline. Numbers are written so that reading them gives the same double; a loss that is not
// finite is null.
std::string step_json(const StepMetrics& metrics);
std::string evaluation_json(const EvaluationMetrics& metrics);

}  // namespace ithaca
