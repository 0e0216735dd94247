// Loss, gradient norm, clipping and AdamW of the CPU backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/reference.h"
#include "backend/test_tensors.h"

namespace ithaca {
namespace {

using testing::HasSubstr;
using testing_support::relative_error;
using testing_support::TensorPair;
using testing_support::TestTensors;

class CpuLoss : public testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(tensors_.guards_intact()); }

  double loss_of(const Tensor& logits, const std::vector<int64_t>& labels, const Tensor& weights = {}) {
    const Tensor loss = tensors_.number(0.0);
    backend_->cross_entropy(backend_->compute_stream(), {.logits = logits,
                                                         .labels = tensors_.integers(labels),
                                                         .weights = weights,
                                                         .with_gradient = false,
                                                         .gradient_scale = 0.0,
                                                         .loss_sum = loss});
    return *loss.as<double>();
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  TestTensors tensors_;
};

TEST_F(CpuLoss, MatchesTheReference) {
  for (const auto& [tokens, vocabulary, gap] :
       {std::tuple(1, 1, 0), std::tuple(4, 7, 0), std::tuple(9, 256, 3), std::tuple(3, 2049, 1),
        std::tuple(2, 50257, 0), std::tuple(0, 16, 0)}) {
    for (const bool with_weights : {false, true}) {
      std::vector<int64_t> labels;
      for (int64_t i = 0; i < tokens; ++i) labels.push_back(i % 3 == 2 ? -100 : (i * 7919 + 3) % vocabulary);
      const Tensor label_tensor = tensors_.integers(labels);
      const TensorPair logits = tensors_.normal({tokens, vocabulary}, gap, 5.0);
      const TensorPair weights = tensors_.normal({tokens}, 0, 0.5, 1.0);
      const Tensor loss = tensors_.number(0.25);
      const Tensor exact_loss = tensors_.number(0.25);
      backend_->cross_entropy(backend_->compute_stream(), {.logits = logits.fast,
                                                           .labels = label_tensor,
                                                           .weights = with_weights ? weights.fast : Tensor{},
                                                           .with_gradient = true,
                                                           .gradient_scale = 0.125,
                                                           .loss_sum = loss});
      reference::cross_entropy({.logits = logits.exact,
                                .labels = label_tensor,
                                .weights = with_weights ? weights.exact : Tensor{},
                                .with_gradient = true,
                                .gradient_scale = 0.125,
                                .loss_sum = exact_loss});
      EXPECT_NEAR(*loss.as<double>(), *exact_loss.as<double>(), 2e-7 * std::abs(*exact_loss.as<double>()) + 1e-12);
      // Softmax minus onehot: the error is that of the exponentials, whatever cancels.
      EXPECT_LT(relative_error(logits.fast, logits.exact), 5e-7) << vocabulary;
    }
  }
}

TEST_F(CpuLoss, WithoutGradientTheLogitsStay) {
  const TensorPair logits = tensors_.normal({3, 70});
  const TensorPair before = logits;
  const double loss = loss_of(logits.fast, {1, -100, 69});
  EXPECT_GT(loss, 0.0);
  EXPECT_EQ(relative_error(logits.fast, before.exact), 0.0);
}

TEST_F(CpuLoss, UniformLogitsLoseTheLogarithmOfTheVocabulary) {
  for (const double value : {0.0, 1000.0, -1000.0, 1e30}) {
    const TensorPair logits = tensors_.normal({1, 1000}, 0, 0.0, value);
    EXPECT_NEAR(loss_of(logits.fast, {17}), std::log(1000.0), 1e-6) << value;
  }
}

TEST_F(CpuLoss, SurvivesLargeGapsBetweenLogits) {
  const TensorPair logits = tensors_.normal({2, 3000}, 0, 0.0, -500.0);
  logits.fast.as<float>()[2500] = 500.0f;  // in the second piece of the first row
  logits.fast.as<float>()[3000] = 500.0f;  // first element of the second row
  EXPECT_NEAR(loss_of(logits.fast.slice(0, 0, 1), {2500}), 0.0, 1e-12);
  EXPECT_NEAR(loss_of(logits.fast.slice(0, 0, 1), {0}), 1000.0, 1e-9);
  EXPECT_NEAR(loss_of(logits.fast.slice(0, 1, 2), {1}), 1000.0, 1e-9);
}

TEST_F(CpuLoss, ForbiddenTokensMayBeMinusInfinity) {
  const TensorPair logits = tensors_.normal({1, 5000}, 0, 0.0, 0.0);
  for (int64_t i = 0; i < 4998; ++i) logits.fast.as<float>()[i] = -std::numeric_limits<float>::infinity();
  EXPECT_NEAR(loss_of(logits.fast, {4999}), std::log(2.0), 1e-7);
}

// A NaN anywhere must reach the loss: a step that hides it would train on garbage.
TEST_F(CpuLoss, NaNAndInfinityReachTheLoss) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const int64_t position : {0, 5, 16, 2047, 2048, 4999}) {
      const TensorPair logits = tensors_.normal({1, 5000});
      logits.fast.as<float>()[position] = bad;
      EXPECT_TRUE(std::isnan(loss_of(logits.fast, {7}))) << position;
    }
  }
}

TEST_F(CpuLoss, RowsWithoutLabelOrWeightContributeExactZeros) {
  const TensorPair logits = tensors_.normal({3, 50}, 2);
  logits.fast.as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  const TensorPair weights = tensors_.normal({3}, 0, 0.0, 0.0);
  const Tensor loss = tensors_.number(0.0);
  backend_->cross_entropy(backend_->compute_stream(), {.logits = logits.fast,
                                                       .labels = tensors_.integers({-100, 3, -100}),
                                                       .weights = weights.fast,
                                                       .with_gradient = true,
                                                       .gradient_scale = 1.0,
                                                       .loss_sum = loss});
  EXPECT_EQ(*loss.as<double>(), 0.0);
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(logits.fast.as<float>()[row * 52 + i], 0.0f);
  }
}

TEST_F(CpuLoss, LabelsOutsideOfTheVocabularyAreErrors) {
  const TensorPair logits = tensors_.normal({2, 50});
  for (const int64_t label : {int64_t{50}, int64_t{-1}, int64_t{-101}}) {
    backend_ = make_cpu_backend();
    try {
      loss_of(logits.fast, {0, label});
      FAIL() << label;
    } catch (const ContractError& error) {
      EXPECT_THAT(error.what(), HasSubstr("of row 1 is neither -100 nor in [0, 50)"));
    }
  }
}

// ---- the numbers of a step ----

class CpuStep : public CpuLoss {
 protected:
  struct Numbers {
    double norm;
    float clip_factor;
    int64_t skipped;
    int64_t applied_steps;
  };
  Numbers numbers(double square_sum, double loss_sum, double weight_sum, double max_norm) {
    StepNumbers arguments = {.square_sum = tensors_.number(square_sum),
                             .loss_sum = tensors_.number(loss_sum),
                             .label_weight_sum = weight_sum,
                             .max_norm = max_norm,
                             .gradient_norm = tensors_.number(-1.0),
                             .clip_factor = tensors_.float_number(-1.0f),
                             .skipped = tensors_.integers({-1}),
                             .applied_steps = tensors_.integers({41})};
    backend_->step_numbers(backend_->compute_stream(), arguments);
    const Numbers result = {*arguments.gradient_norm.as<double>(), *arguments.clip_factor.as<float>(),
                            *arguments.skipped.as<int64_t>(), *arguments.applied_steps.as<int64_t>()};
    *arguments.applied_steps.as<int64_t>() = 41;
    reference::step_numbers(arguments);
    EXPECT_EQ(*arguments.skipped.as<int64_t>(), result.skipped);
    EXPECT_EQ(*arguments.applied_steps.as<int64_t>(), result.applied_steps);
    return result;
  }
};

TEST_F(CpuStep, ClipsOnlyNormsAboveTheMaximum) {
  const Numbers large = numbers(16.0, 1.0, 8.0, 1.0);
  EXPECT_DOUBLE_EQ(large.norm, 4.0);
  EXPECT_FLOAT_EQ(large.clip_factor, static_cast<float>(1.0 / (4.0 + 1e-6)));
  EXPECT_EQ(large.skipped, 0);
  EXPECT_EQ(large.applied_steps, 42);
  EXPECT_EQ(numbers(0.25, 1.0, 8.0, 1.0).clip_factor, 1.0f);
  EXPECT_EQ(numbers(1e6, 1.0, 8.0, 0.0).clip_factor, 1.0f);
}

TEST_F(CpuStep, SkipsWhatWouldPoisonTheWeights) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const auto& [square_sum, loss, weight_sum] :
       {std::array{nan, 1.0, 1.0}, std::array{infinity, 1.0, 1.0}, std::array{1.0, nan, 1.0},
        std::array{1.0, infinity, 1.0}, std::array{1.0, 1.0, 0.0}}) {
    const Numbers result = numbers(square_sum, loss, weight_sum, 1.0);
    EXPECT_EQ(result.skipped, 1);
    EXPECT_EQ(result.applied_steps, 41);
  }
}

// ---- AdamW ----

TEST_F(CpuStep, AdamWMatchesTheReferenceOverSteps) {
  for (const int64_t size : {0, 1, 17, 64, 1003}) {
    const TensorPair weights = tensors_.normal({size});
    const TensorPair first = tensors_.normal({size}, 0, 0.0);
    const TensorPair second = tensors_.normal({size}, 0, 0.0);
    const Tensor skipped = tensors_.integers({0});
    const Tensor steps = tensors_.integers({0});
    for (int step = 1; step <= 4; ++step) {
      const TensorPair gradients = tensors_.normal({size}, 0, 0.01);
      *steps.as<int64_t>() = step;
      AdamW fast = {.weights = weights.fast,
                    .gradients = gradients.fast,
                    .first_moment = first.fast,
                    .second_moment = second.fast,
                    .compute_weights = {},
                    .learning_rate = 1e-2,
                    .beta1 = 0.9,
                    .beta2 = 0.95,
                    .epsilon = 1e-8,
                    .weight_decay = 0.1,
                    .clip_factor = tensors_.float_number(0.75f),
                    .skipped = skipped,
                    .applied_steps = steps};
      AdamW exact = fast;
      exact.weights = weights.exact;
      exact.gradients = gradients.exact;
      exact.first_moment = first.exact;
      exact.second_moment = second.exact;
      backend_->adamw(backend_->compute_stream(), fast);
      reference::adamw(exact);
      EXPECT_LT(relative_error(first.fast, first.exact), 3e-7);
      EXPECT_LT(relative_error(second.fast, second.exact), 3e-7);
      EXPECT_LT(relative_error(weights.fast, weights.exact), 2e-7);
    }
  }
}

// The first step of AdamW moves every weight by the learning rate against the sign of its gradient (epsilon aside),
// after the decay: a closed form.
TEST_F(CpuStep, AdamWFirstStepIsTheSignOfTheGradient) {
  const TensorPair weights = tensors_.normal({40}, 0, 0.0, 2.0);
  const TensorPair gradients = tensors_.normal({40});
  const TensorPair moments = tensors_.normal({80}, 0, 0.0);
  const Tensor copy = tensors_.undefined({40}).fast;
  AdamW arguments = {.weights = weights.fast,
                     .gradients = gradients.fast,
                     .first_moment = moments.fast.slice(0, 0, 40),
                     .second_moment = moments.fast.slice(0, 40, 80),
                     .compute_weights = copy,
                     .learning_rate = 0.01,
                     .beta1 = 0.9,
                     .beta2 = 0.999,
                     .epsilon = 0.0,
                     .weight_decay = 0.5,
                     .clip_factor = tensors_.float_number(1.0f),
                     .skipped = tensors_.integers({0}),
                     .applied_steps = tensors_.integers({1})};
  backend_->adamw(backend_->compute_stream(), arguments);
  for (int64_t i = 0; i < 40; ++i) {
    const double sign = gradients.fast.as<float>()[i] > 0 ? 1.0 : -1.0;
    EXPECT_NEAR(static_cast<double>(weights.fast.as<float>()[i]), 2.0 * (1.0 - 0.01 * 0.5) - 0.01 * sign, 5e-7);
    EXPECT_EQ(copy.as<float>()[i], weights.fast.as<float>()[i]);
  }
}

TEST_F(CpuStep, AdamWDoesNothingWhenSkipped) {
  const TensorPair weights = tensors_.normal({40});
  const TensorPair gradients = tensors_.normal({40}, 0, 0.0, std::numeric_limits<double>::quiet_NaN());
  const TensorPair first = tensors_.normal({40});
  const TensorPair second = tensors_.normal({40});
  backend_->adamw(backend_->compute_stream(), {.weights = weights.fast,
                                               .gradients = gradients.fast,
                                               .first_moment = first.fast,
                                               .second_moment = second.fast,
                                               .compute_weights = {},
                                               .learning_rate = 0.01,
                                               .weight_decay = 0.1,
                                               .clip_factor = tensors_.float_number(1.0f),
                                               .skipped = tensors_.integers({1}),
                                               .applied_steps = tensors_.integers({3})});
  EXPECT_EQ(relative_error(weights.fast, weights.exact), 0.0);
  EXPECT_EQ(relative_error(first.fast, first.exact), 0.0);
  EXPECT_EQ(relative_error(second.fast, second.exact), 0.0);
}

}  // namespace
}  // namespace ithaca
