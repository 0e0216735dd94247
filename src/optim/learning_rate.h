// Learning rate schedules: the rate of every optimizer step.
// Thread-safety: pure functions and values.
#pragma once

#include <cstdint>
#include <string_view>

namespace ithaca {

enum class RateShape : uint8_t {
  constant,
  linear,  // falls in a straight line
  cosine,  // falls along half a cosine
  wsd,     // warmup, stable, decay: constant, then falls in a straight line over the last part
};
// "constant", "linear", "cosine", "wsd"; throws ConfigurationError for anything else.
RateShape parse_rate_shape(std::string_view name);

struct RateSchedule {
  RateShape shape = RateShape::cosine;
  double peak = 1e-5;
  double min_ratio = 0.0;  // the schedule falls to min_ratio * peak
  int64_t warmup_steps =
      0;  // the rate climbs in a straight line: step s (from 0) of them has (s + 1) / (warmup_steps + 1) of the peak
  int64_t total_steps = 1;
  double decay_ratio = 0.1;  // wsd: the part of total_steps that falls
};

// The rate of step `step`, counted from 0. Progress of the falling part is (step - first) / (total - first), as in
// Hugging Face transformers.
double learning_rate(const RateSchedule& schedule, int64_t step);

}  // namespace ithaca
