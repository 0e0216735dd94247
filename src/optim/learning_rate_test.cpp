#include "optim/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace ithaca {
namespace {

RateSchedule schedule(RateShape shape) {
  RateSchedule result;
  result.shape = shape;
  result.peak = 2.0;
  result.min_ratio = 0.25;
  result.warmup_steps = 4;
  result.total_steps = 24;
  result.decay_ratio = 0.25;
  return result;
}

TEST(LearningRate, WarmupClimbsInEqualStepsAndNeverStandsStill) {
  for (const RateShape shape : {RateShape::constant, RateShape::linear, RateShape::cosine, RateShape::wsd}) {
    for (int64_t step = 0; step < 4; ++step) {
      EXPECT_DOUBLE_EQ(learning_rate(schedule(shape), step), 2.0 * static_cast<double>(step + 1) / 5.0);
    }
    EXPECT_DOUBLE_EQ(learning_rate(schedule(shape), 4), 2.0);
  }
}

TEST(LearningRate, ShapesMeetTheirClosedForms) {
  // The falling part begins at step 4 and would reach the minimum at step 24.
  EXPECT_DOUBLE_EQ(learning_rate(schedule(RateShape::constant), 23), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule(RateShape::linear), 14), 2.0 * (0.25 + 0.75 * 0.5));
  EXPECT_DOUBLE_EQ(learning_rate(schedule(RateShape::linear), 24), 0.5);
  EXPECT_NEAR(learning_rate(schedule(RateShape::cosine), 14), 2.0 * (0.25 + 0.75 * 0.5), 1e-12);
  EXPECT_NEAR(learning_rate(schedule(RateShape::cosine), 9), 2.0 * (0.25 + 0.75 * 0.5 * (1.0 + std::sqrt(0.5))), 1e-12);
  // wsd: constant until step 18, then six steps of decay.
  EXPECT_DOUBLE_EQ(learning_rate(schedule(RateShape::wsd), 17), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule(RateShape::wsd), 21), 2.0 * (0.25 + 0.75 * 0.5));
}

TEST(LearningRate, StaysAtTheMinimumBehindTheEnd) {
  for (const RateShape shape : {RateShape::linear, RateShape::cosine, RateShape::wsd}) {
    EXPECT_NEAR(learning_rate(schedule(shape), 100), 0.5, 1e-12);
  }
}

TEST(LearningRate, DegenerateLengthsAreFinite) {
  RateSchedule tiny = schedule(RateShape::cosine);
  tiny.total_steps = 1;
  tiny.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate(tiny, 0), 2.0);
  tiny.warmup_steps = 5;  // warmup longer than the run
  EXPECT_GT(learning_rate(tiny, 0), 0.0);
}

TEST(LearningRate, UnknownNameIsAnErrorThatListsTheKnownOnes) {
  EXPECT_EQ(parse_rate_shape("wsd"), RateShape::wsd);
  try {
    parse_rate_shape("cosinus");
    FAIL();
  } catch (const ConfigurationError& error) {
    EXPECT_NE(std::string(error.what()).find("cosine, linear, constant, wsd"), std::string::npos);
  }
}

}  // namespace
}  // namespace ithaca
