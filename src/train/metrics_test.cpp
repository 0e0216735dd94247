#include "train/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace ithaca {
namespace {

TEST(Metrics, EveryNumberSurvivesTheRoundTrip) {
  StepMetrics metrics;
  metrics.step = (int64_t{1} << 53) + 1;
  metrics.loss = 0.1 + 0.2;
  metrics.grad_norm = 1e-310;  // subnormal
  metrics.learning_rate = 1.0 / 3.0;
  metrics.tokens = std::numeric_limits<int64_t>::max();
  metrics.memory.add(MemoryClass::saved, 700);
  metrics.memory.add(MemoryClass::weights, 77);
  const nlohmann::json line = nlohmann::json::parse(step_json(metrics));
  EXPECT_EQ(line.at("step").get<int64_t>(), metrics.step);
  EXPECT_EQ(line.at("loss").get<double>(), metrics.loss);
  EXPECT_EQ(line.at("grad_norm").get<double>(), metrics.grad_norm);
  EXPECT_EQ(line.at("learning_rate").get<double>(), metrics.learning_rate);
  EXPECT_EQ(line.at("tokens").get<int64_t>(), metrics.tokens);
  EXPECT_EQ(line.at("peak_memory_bytes").at("total").get<int64_t>(), 777);
  EXPECT_EQ(line.at("peak_memory_bytes").at("saved").get<int64_t>(), 700);
  EXPECT_EQ(line.at("peak_memory_bytes").at("communication").get<int64_t>(), 0);
}

TEST(Metrics, ALossThatIsNotFiniteIsNull) {
  StepMetrics metrics;
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.grad_norm = std::numeric_limits<double>::infinity();
  const nlohmann::json line = nlohmann::json::parse(step_json(metrics));
  EXPECT_TRUE(line.at("loss").is_null());
  EXPECT_TRUE(line.at("grad_norm").is_null());
}

}  // namespace
}  // namespace ithaca
