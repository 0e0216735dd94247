#include "train/metrics.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

namespace ithaca {

namespace {

nlohmann::ordered_json number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

}  // namespace

std::string step_json(const StepMetrics& metrics) {
  nlohmann::ordered_json line;
  line["step"] = metrics.step;
  line["loss"] = number(metrics.loss);
  line["grad_norm"] = number(metrics.grad_norm);
  line["learning_rate"] = metrics.learning_rate;
  line["tokens"] = metrics.tokens;
  line["valid_tokens"] = metrics.valid_tokens;
  line["skipped"] = metrics.skipped;
  line["skipped_steps"] = metrics.skipped_steps;
  line["step_seconds"] = metrics.step_seconds;
  line["tokens_per_second"] = metrics.tokens_per_second;
  line["exposed_wait_seconds"] = metrics.exposed_wait_seconds;
  line["bytes_sent"] = metrics.bytes_sent;
  nlohmann::ordered_json& memory = line["peak_memory_bytes"];
  memory["total"] = metrics.memory.peak;
  for (int index = 0; index < kMemoryClasses; ++index) {
    memory[std::string(memory_class_name(static_cast<MemoryClass>(index)))] =
        metrics.memory.peak_by_class[static_cast<size_t>(index)];
  }
  return line.dump();
}

std::string evaluation_json(const EvaluationMetrics& metrics) {
  nlohmann::ordered_json line;
  line["step"] = metrics.step;
  line["eval_loss"] = number(metrics.loss);
  line["eval_valid_tokens"] = metrics.valid_tokens;
  line["eval_seconds"] = metrics.seconds;
  return line.dump();
}

}  // namespace ithaca
