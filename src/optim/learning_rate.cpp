#include "optim/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "base/error.h"

namespace ithaca {

RateShape parse_rate_shape(std::string_view name) {
  if (name == "constant") return RateShape::constant;
  if (name == "linear") return RateShape::linear;
  if (name == "cosine") return RateShape::cosine;
  if (name == "wsd") return RateShape::wsd;
  throw ConfigurationError("optim.lr_scheduler_type: '" + std::string(name) +
                           "' is not one of cosine, linear, constant, wsd");
}

double learning_rate(const RateSchedule& schedule, int64_t step) {
  if (step < schedule.warmup_steps) {
    return schedule.peak * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps + 1);
  }
  int64_t first = schedule.warmup_steps;
  if (schedule.shape == RateShape::wsd) {
    const auto decay_steps =
        static_cast<int64_t>(std::llround(schedule.decay_ratio * static_cast<double>(schedule.total_steps)));
    first = std::max(first, schedule.total_steps - decay_steps);
  }
  const int64_t length = std::max<int64_t>(1, schedule.total_steps - first);
  const double progress = std::clamp(static_cast<double>(step - first) / static_cast<double>(length), 0.0, 1.0);
  double remaining = 1.0;
  switch (schedule.shape) {
    case RateShape::constant:
      return schedule.peak;
    case RateShape::linear:
    case RateShape::wsd:
      remaining = 1.0 - progress;
      break;
    case RateShape::cosine:
      remaining = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
      break;
  }
  return schedule.peak * (schedule.min_ratio + (1.0 - schedule.min_ratio) * remaining);
}

}  // namespace ithaca
