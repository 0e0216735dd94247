// plan.json of a run folder: what a run decided before its first step, in particular what `auto` chose.
// Thread-safety: pure functions, but for the file that read_plan_file reads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/run.h"

namespace ithaca {

inline constexpr const char* kPlanFile = "plan.json";

// The text of plan.json: an object of model, data, backend, mesh, attention (schedule, layout, reason), steps and the
// bytes of weights, gradients and optimizer state per rank.
std::string plan_json(const RunPlan& plan);

// What plan.json says that is worth showing. Absent values are 0 or empty: other versions may write less.
struct SavedPlan {
  std::string family;
  int64_t parameters = 0;
  int64_t layers = 0;
  int64_t hidden_size = 0;
  std::string backend;  // "cpu, float32"
  int64_t ranks = 0;
  std::string mesh;      // "ring 2 x ulysses 2": the sizes that are not 1
  std::string schedule;  // what runs, never "auto"
  std::string layout;
  std::string reason;  // why auto chose the schedule; empty when it was given
  int64_t train_sequences = 0;
  int64_t train_tokens = 0;
  int64_t longest_sequence = 0;
  int64_t steps = 0;
  int64_t sequences_per_step = 0;

  // "ring over 4 ranks, zigzag layout", or that every sequence stays whole.
  std::string attention_text() const;
};

// Nothing when there is no such file. Throws InputError when it is not a plan.
std::optional<SavedPlan> read_plan_file(const std::string& path);

}  // namespace ithaca
