#include "backend/cpu/reference_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/random.h"

namespace ithaca {
namespace {

std::vector<double> random_values(int64_t count, std::string_view name) {
  const RandomStream random(3, name);
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(random.normal(static_cast<uint64_t>(i)));
  return values;
}

ReferenceAttention random_attention(int64_t queries, int64_t keys, int64_t query_heads, int64_t key_heads,
                                    int64_t key_size, int64_t value_size) {
  return {queries,
          keys,
          query_heads,
          key_heads,
          key_size,
          value_size,
          0.7,
          random_values(queries * query_heads * key_size, "query"),
          random_values(keys * key_heads * key_size, "key"),
          random_values(keys * key_heads * value_size, "value")};
}

double loss(const ReferenceAttention& attention, const std::vector<double>& doutput,
            const AttentionVisibility& visible) {
  const ReferenceAttentionOutput result = reference_attention_forward(attention, visible);
  double sum = 0.0;
  for (size_t i = 0; i < doutput.size(); ++i) sum += result.output[i] * doutput[i];
  return sum;
}

TEST(ReferenceAttention, TwoKeysByHand) {
  // Scores 0 and ln 3: probabilities 1/4 and 3/4.
  ReferenceAttention attention{1, 2, 1, 1, 1, 2, 0.5, {2.0}, {0.0, std::log(3.0)}, {1.0, 10.0, 5.0, 20.0}};
  const ReferenceAttentionOutput result = reference_attention_forward(attention, visible_everywhere());
  EXPECT_NEAR(result.output[0], 4.0, 1e-15);
  EXPECT_NEAR(result.output[1], 17.5, 1e-14);
  EXPECT_NEAR(result.log_sum_exp[0], std::log(4.0), 1e-15);
}

TEST(ReferenceAttention, QueryThatSeesNothing) {
  const ReferenceAttention attention = random_attention(2, 3, 1, 1, 2, 2);
  const auto visible = [](int64_t query, int64_t) { return query == 1; };
  const ReferenceAttentionOutput result = reference_attention_forward(attention, visible);
  EXPECT_EQ(result.output[0], 0.0);
  EXPECT_EQ(result.log_sum_exp[0], -std::numeric_limits<double>::infinity());
  const ReferenceAttentionGradient gradient =
      reference_attention_backward(attention, random_values(4, "doutput"), visible);
  EXPECT_EQ(gradient.dquery[0], 0.0);
  EXPECT_NE(gradient.dquery[2], 0.0);
}

TEST(ReferenceAttention, TasksAreRectanglesWithBands) {
  // Query 4 is row 1 of the task: keys 10 + 1 + {-1, 0, 1}; query 3 is row 0 and its band leaves the rectangle.
  const std::vector<AttentionTask> tasks = {{3, 6, 10, 14, -2, 1}};
  const AttentionVisibility visible = visible_in_tasks(tasks);
  std::vector<int64_t> seen_by_first;
  std::vector<int64_t> seen_by_second;
  for (int64_t key = 0; key < 20; ++key) {
    if (visible(3, key)) seen_by_first.push_back(key);
    if (visible(4, key)) seen_by_second.push_back(key);
    EXPECT_FALSE(visible(2, key));
    EXPECT_FALSE(visible(6, key));
  }
  EXPECT_EQ(seen_by_first, (std::vector<int64_t>{10, 11}));
  EXPECT_EQ(seen_by_second, (std::vector<int64_t>{10, 11, 12}));
}

TEST(ReferenceAttention, GradientsAgreeWithFiniteDifferences) {
  const std::vector<AttentionTask> tasks = {{0, 3, 0, 3, kNoLower, 0}, {2, 5, 3, 7, -2, 1}};
  const AttentionVisibility visible = visible_in_tasks(tasks);
  ReferenceAttention attention = random_attention(5, 7, 4, 2, 3, 2);
  const std::vector<double> doutput = random_values(int64_t{5} * 4 * 2, "doutput");
  const ReferenceAttentionGradient gradient = reference_attention_backward(attention, doutput, visible);
  constexpr double kStep = 1e-5;
  const auto check = [&](std::vector<double>& values, const std::vector<double>& expected) {
    for (size_t i = 0; i < values.size(); ++i) {
      const double before = values[i];
      values[i] = before + kStep;
      const double above = loss(attention, doutput, visible);
      values[i] = before - kStep;
      const double below = loss(attention, doutput, visible);
      values[i] = before;
      EXPECT_NEAR((above - below) / (2 * kStep), expected[i], 1e-8);
    }
  };
  check(attention.query, gradient.dquery);
  check(attention.key, gradient.dkey);
  check(attention.value, gradient.dvalue);
}

TEST(ReferenceAttention, ReadsStridedViews) {
  std::vector<float> memory(24);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  const Tensor tensor = Tensor::contiguous(memory.data(), DType::float32, {2, 3, 4}).slice(2, 1, 3).transpose(0, 1);
  const std::vector<double> expected = {1, 2, 13, 14, 5, 6, 17, 18, 9, 10, 21, 22};
  EXPECT_EQ(to_doubles(tensor), expected);
}

}  // namespace
}  // namespace ithaca
