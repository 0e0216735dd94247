// The reference itself: backward against finite differences of forward, values against closed forms.
#include "backend/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "backend/test_tensors.h"

namespace ithaca {
namespace {

using testing_support::relative_error;
using testing_support::TestTensors;

class References : public testing::Test {
 protected:
  Tensor normal(const Extents& extents, double deviation = 1.0, double mean = 0.0) {
    return tensors_.normal(extents, 0, deviation, mean).exact;
  }
  Tensor zeros(const Extents& extents) { return normal(extents, 0.0); }

  // The gradient of `loss` with respect to every element of `x`, by central differences.
  Tensor numeric_gradient(const Tensor& x, const std::function<double()>& loss) {
    constexpr double step = 1e-5;
    const Tensor gradient = zeros(x.extents);
    for (int64_t i = 0; i < x.element_count(); ++i) {
      double& value = x.as<double>()[i];
      const double kept = value;
      value = kept + step;
      const double above = loss();
      value = kept - step;
      const double below = loss();
      value = kept;
      gradient.as<double>()[i] = (above - below) / (2.0 * step);
    }
    return gradient;
  }

  static double dot(const Tensor& a, const Tensor& b) {
    double sum = 0.0;
    for (int64_t i = 0; i < a.element_count(); ++i) sum += a.as<double>()[i] * b.as<double>()[i];
    return sum;
  }

  static constexpr double kBound = 1e-8;
  TestTensors tensors_;
};

TEST_F(References, GemmByHand) {
  const Tensor a = zeros({2, 3});
  const Tensor b = zeros({3, 1});
  const Tensor c = zeros({2, 1});
  for (int64_t i = 0; i < 6; ++i) a.as<double>()[i] = static_cast<double>(i + 1);
  for (int64_t i = 0; i < 3; ++i) b.as<double>()[i] = static_cast<double>(i + 1);
  c.as<double>()[0] = 100.0;
  const Tensor bias = normal({1}, 0.0, 0.5);
  reference::gemm({.a = a, .b = b, .c = c, .alpha = 2.0f, .beta = 0.25f, .bias = bias});
  EXPECT_EQ(c.as<double>()[0], 2.0 * 14.0 + 25.0 + 0.5);
  EXPECT_EQ(c.as<double>()[1], 2.0 * 32.0 + 0.5);
}

TEST_F(References, RmsNormBackwardIsTheGradientOfForward) {
  const Tensor x = normal({4, 9});
  const Tensor residual = normal({4, 9});
  const Tensor weight = normal({9}, 0.3, 1.0);
  const Tensor sum = zeros({4, 9});
  const Tensor y = zeros({4, 9});
  const Tensor inverse_rms = zeros({4});
  const Tensor dy = normal({4, 9});
  const Tensor dsum = normal({4, 9});
  const auto loss = [&] {
    reference::rms_norm_forward({x, residual, sum, weight, y, inverse_rms, 1e-2f});
    return dot(y, dy) + dot(sum, dsum);
  };
  const Tensor expected_dx = numeric_gradient(x, loss);
  const Tensor expected_dweight = numeric_gradient(weight, loss);
  loss();
  const Tensor dx = zeros({4, 9});
  const Tensor dweight = zeros({9});
  reference::rms_norm_backward({dy, sum, weight, inverse_rms, dsum, dx, dweight});
  EXPECT_LT(relative_error(dx, expected_dx), kBound);
  EXPECT_LT(relative_error(dweight, expected_dweight), kBound);
  // Adds to the weight gradient.
  reference::rms_norm_backward({dy, sum, weight, inverse_rms, dsum, dx, dweight});
  EXPECT_NEAR(dweight.as<double>()[0], 2 * expected_dweight.as<double>()[0], 1e-6);
}

TEST_F(References, HeadRopeBackwardIsTheGradientOfForward) {
  for (const bool with_norm : {false, true}) {
    for (const bool with_rotation : {false, true}) {
      const Tensor x = normal({3, 2, 8});
      const Tensor weight = with_norm ? normal({8}, 0.3, 1.0) : Tensor{};
      const Tensor inverse_rms = with_norm ? zeros({3, 2}) : Tensor{};
      const Tensor cosine = with_rotation ? normal({3, 4}) : Tensor{};
      const Tensor sine = with_rotation ? normal({3, 4}) : Tensor{};
      const Tensor y = zeros({3, 2, 8});
      const Tensor dy = normal({3, 2, 8});
      const auto loss = [&] {
        reference::head_rope_forward({x, weight, 1e-2f, inverse_rms, cosine, sine, y});
        return dot(y, dy);
      };
      const Tensor expected_dx = numeric_gradient(x, loss);
      loss();
      const Tensor dx = zeros({3, 2, 8});
      const Tensor dweight = with_norm ? zeros({8}) : Tensor{};
      reference::head_rope_backward({dy, with_norm ? x : Tensor{}, weight, inverse_rms, cosine, sine, dx, dweight});
      EXPECT_LT(relative_error(dx, expected_dx), kBound);
      if (with_norm) {
        EXPECT_LT(relative_error(dweight, numeric_gradient(weight, loss)), kBound);
      }
    }
  }
}

// Rotating by the angle of a position turns (1, 0) into (cos, sin): the direction of Hugging Face's rotate_half.
TEST_F(References, HeadRopeTurnsPairsOfOppositeHalves) {
  const Tensor x = zeros({1, 1, 4});
  x.as<double>()[0] = 1.0;
  x.as<double>()[3] = 1.0;  // second half of pair 1
  const Tensor cosine = zeros({1, 2});
  const Tensor sine = zeros({1, 2});
  for (int64_t i = 0; i < 2; ++i) {
    cosine.as<double>()[i] = std::cos(0.3 + static_cast<double>(i));
    sine.as<double>()[i] = std::sin(0.3 + static_cast<double>(i));
  }
  const Tensor y = zeros({1, 1, 4});
  reference::head_rope_forward({x, {}, 0.0f, {}, cosine, sine, y});
  EXPECT_DOUBLE_EQ(y.as<double>()[0], std::cos(0.3));
  EXPECT_DOUBLE_EQ(y.as<double>()[2], std::sin(0.3));
  EXPECT_DOUBLE_EQ(y.as<double>()[1], -std::sin(1.3));
  EXPECT_DOUBLE_EQ(y.as<double>()[3], std::cos(1.3));
}

TEST_F(References, SwigluBackwardIsTheGradientOfForward) {
  const Tensor gate = normal({3, 7}, 2.0);
  const Tensor up = normal({3, 7});
  const Tensor y = zeros({3, 7});
  const Tensor dy = normal({3, 7});
  const auto loss = [&] {
    reference::swiglu_forward({gate, up, y});
    return dot(y, dy);
  };
  const Tensor dgate = zeros({3, 7});
  const Tensor dup = zeros({3, 7});
  reference::swiglu_backward({dy, gate, up, dgate, dup});
  EXPECT_LT(relative_error(dgate, numeric_gradient(gate, loss)), kBound);
  EXPECT_LT(relative_error(dup, numeric_gradient(up, loss)), kBound);
}

TEST_F(References, EmbeddingBackwardIsTheGradientOfForward) {
  const Tensor table = normal({5, 3});
  const Tensor ids = tensors_.integers({4, 1, 4, 0});
  const Tensor y = zeros({4, 3});
  const Tensor dy = normal({4, 3});
  const auto loss = [&] {
    reference::embedding_forward({table, ids, y});
    return dot(y, dy);
  };
  const Tensor dtable = zeros({5, 3});
  reference::embedding_backward({dy, ids, dtable});
  EXPECT_LT(relative_error(dtable, numeric_gradient(table, loss)), kBound);
}

TEST_F(References, CrossEntropyGradientIsTheGradientOfTheLoss) {
  const Tensor logits = normal({4, 6}, 2.0);
  const Tensor labels = tensors_.integers({3, -100, 0, 5});
  const Tensor weights = normal({4}, 0.3, 1.0);
  const Tensor loss_sum = tensors_.number(0.0);
  CrossEntropy arguments = {logits, labels, weights, false, 0.0, loss_sum};
  const auto loss = [&] {
    *loss_sum.as<double>() = 0.0;
    reference::cross_entropy(arguments);
    return *loss_sum.as<double>();
  };
  // With a scale of 1 the gradient is that of the loss sum.
  const Tensor expected = numeric_gradient(logits, loss);
  arguments.with_gradient = true;
  arguments.gradient_scale = 1.0;
  reference::cross_entropy(arguments);
  EXPECT_LT(relative_error(logits, expected), kBound);
}

TEST_F(References, CrossEntropyOfTwoTokensByHand) {
  const Tensor logits = zeros({1, 2});
  logits.as<double>()[0] = 1.0;
  const Tensor loss_sum = tensors_.number(0.5);
  reference::cross_entropy({logits, tensors_.integers({1}), {}, false, 0.0, loss_sum});
  EXPECT_NEAR(*loss_sum.as<double>(), 0.5 + std::log1p(std::exp(1.0)), 1e-14);
}

// Three steps of torch.optim.AdamW(lr=0.1, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.01) on w = 1 with gradients
// 0.5, -1, 2, worked out by its documented recurrence in another program.
TEST_F(References, AdamWFollowsTheRecurrence) {
  const Tensor weights = normal({1}, 0.0, 1.0);
  const Tensor first = zeros({1});
  const Tensor second = zeros({1});
  const Tensor steps = tensors_.integers({0});
  const std::vector<double> gradients = {0.5, -1.0, 2.0};
  const std::vector<double> expected = {0.8990000019999999, 0.9346617728697225, 0.8918965816293766};
  for (size_t i = 0; i < gradients.size(); ++i) {
    ++*steps.as<int64_t>();
    reference::adamw({.weights = weights,
                      .gradients = normal({1}, 0.0, gradients[i]),
                      .first_moment = first,
                      .second_moment = second,
                      .compute_weights = {},
                      .learning_rate = 0.1,
                      .beta1 = 0.9,
                      .beta2 = 0.99,
                      .epsilon = 1e-8,
                      .weight_decay = 0.01,
                      .clip_factor = tensors_.float_number(1.0f),
                      .skipped = tensors_.integers({0}),
                      .applied_steps = steps});
    EXPECT_NEAR(*weights.as<double>(), expected[i], 1e-12);
  }
}

}  // namespace
}  // namespace ithaca
