// metrics.jsonl: one JSON object per optimizer step, in full precision, and one per evaluation.
// Thread-safety: one thread at a time.
#pragma once

#include <fstream>
#include <string>

#include "train/run.h"

namespace ithaca {

// One line, without the newline. Numbers are written so that reading them gives the same double; a loss that is not
// finite is null.
std::string step_json(const StepMetrics& metrics);
std::string evaluation_json(const EvaluationMetrics& metrics);

// Appends lines to a file, each flushed as it is written. Throws FileError when the file cannot be written.
class MetricsFile {
 public:
  explicit MetricsFile(const std::string& path);
  void write(const std::string& line);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace ithaca
