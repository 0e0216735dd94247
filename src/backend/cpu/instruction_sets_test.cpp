// The SIMD kernels under every instruction set that this processor has, not only the best one.
#include <gtest/gtest.h>

// As in the kernels, so that the list of compiled instruction sets is the same.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/reference.h"
#include "backend/test_tensors.h"

namespace ithaca {
namespace {

using testing_support::relative_error;
using testing_support::TensorPair;
using testing_support::TestTensors;

void select(int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

class InstructionSets : public testing::TestWithParam<int64_t> {
 protected:
  InstructionSets() { select(GetParam()); }
  void TearDown() override {
    EXPECT_TRUE(tensors_.guards_intact());
    select(0);
  }
  Stream& compute() { return backend_->compute_stream(); }
  void expect_near(const TensorPair& pair) { EXPECT_LT(relative_error(pair.fast, pair.exact), 4e-7); }

  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  TestTensors tensors_;
};

INSTANTIATE_TEST_SUITE_P(All, InstructionSets, testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return hwy::TargetName(info.param); });

TEST_P(InstructionSets, Normalisation) {
  const TensorPair x = tensors_.normal({70, 101}, 3);
  const TensorPair residual = tensors_.normal({70, 101});
  const TensorPair weight = tensors_.normal({101}, 0, 0.2, 1.0);
  const TensorPair y = tensors_.undefined({70, 101}, 1);
  const TensorPair inverse_rms = tensors_.undefined({70});
  backend_->rms_norm_forward(compute(),
                             {x.fast, residual.fast, residual.fast, weight.fast, y.fast, inverse_rms.fast, 1e-6f});
  reference::rms_norm_forward(
      {x.exact, residual.exact, residual.exact, weight.exact, y.exact, inverse_rms.exact, 1e-6f});
  expect_near(y);
  expect_near(inverse_rms);
  const TensorPair dx = tensors_.undefined({70, 101});
  const TensorPair dweight = tensors_.normal({101});
  backend_->rms_norm_backward(compute(),
                              {x.fast, residual.fast, weight.fast, inverse_rms.fast, y.fast, dx.fast, dweight.fast});
  reference::rms_norm_backward(
      {x.exact, residual.exact, weight.exact, inverse_rms.exact, y.exact, dx.exact, dweight.exact});
  expect_near(dx);
  expect_near(dweight);
}

TEST_P(InstructionSets, Heads) {
  const TensorPair x = tensors_.normal({9, 3, 46}, 3);
  const TensorPair weight = tensors_.normal({46}, 0, 0.2, 1.0);
  const TensorPair cosine = tensors_.normal({9, 23});
  const TensorPair sine = tensors_.normal({9, 23});
  const TensorPair y = tensors_.undefined({9, 3, 46}, 1);
  const TensorPair inverse_rms = tensors_.undefined({9, 3});
  backend_->head_rope_forward(compute(),
                              {x.fast, weight.fast, 1e-6f, inverse_rms.fast, cosine.fast, sine.fast, y.fast});
  reference::head_rope_forward({x.exact, weight.exact, 1e-6f, inverse_rms.exact, cosine.exact, sine.exact, y.exact});
  expect_near(y);
  const TensorPair dx = tensors_.undefined({9, 3, 46});
  const TensorPair dweight = tensors_.normal({46});
  backend_->head_rope_backward(
      compute(), {y.fast, x.fast, weight.fast, inverse_rms.fast, cosine.fast, sine.fast, dx.fast, dweight.fast});
  reference::head_rope_backward(
      {y.exact, x.exact, weight.exact, inverse_rms.exact, cosine.exact, sine.exact, dx.exact, dweight.exact});
  expect_near(dx);
  expect_near(dweight);
}

TEST_P(InstructionSets, Swiglu) {
  const TensorPair gate = tensors_.normal({3, 77}, 2, 5.0);
  const TensorPair up = tensors_.normal({3, 77});
  const TensorPair dy = tensors_.normal({3, 77});
  const TensorPair y = tensors_.undefined({3, 77});
  const TensorPair dgate = tensors_.undefined({3, 77});
  const TensorPair dup = tensors_.undefined({3, 77});
  backend_->swiglu_forward(compute(), {gate.fast, up.fast, y.fast});
  reference::swiglu_forward({gate.exact, up.exact, y.exact});
  backend_->swiglu_backward(compute(), {dy.fast, gate.fast, up.fast, dgate.fast, dup.fast});
  reference::swiglu_backward({dy.exact, gate.exact, up.exact, dgate.exact, dup.exact});
  for (const TensorPair& pair : {y, dgate, dup}) expect_near(pair);
}

TEST_P(InstructionSets, CrossEntropy) {
  const TensorPair logits = tensors_.normal({3, 2301}, 2, 6.0);
  const Tensor labels = tensors_.integers({2300, -100, 0});
  const Tensor loss = tensors_.number(0.0);
  const Tensor exact_loss = tensors_.number(0.0);
  backend_->cross_entropy(compute(), {logits.fast, labels, {}, true, 0.5, loss});
  reference::cross_entropy({logits.exact, labels, {}, true, 0.5, exact_loss});
  EXPECT_NEAR(*loss.as<double>(), *exact_loss.as<double>(), 2e-7 * *exact_loss.as<double>());
  expect_near(logits);
  logits.fast.as<float>()[5] = std::nanf("");
  backend_->cross_entropy(compute(), {logits.fast, labels, {}, false, 0.0, loss});
  EXPECT_TRUE(std::isnan(*loss.as<double>()));
}

TEST_P(InstructionSets, SumsAndAdamW) {
  const TensorPair x = tensors_.normal({45, 77}, 1);
  const TensorPair sum = tensors_.normal({77});
  backend_->column_sum(compute(), {x.fast, sum.fast});
  reference::column_sum({x.exact, sum.exact});
  expect_near(sum);
  const TensorPair gradients = tensors_.normal({1003});
  const Tensor square_sum = tensors_.number(0.0);
  const Tensor exact_square_sum = tensors_.number(0.0);
  backend_->square_sum(compute(), {gradients.fast, square_sum});
  reference::square_sum({gradients.exact, exact_square_sum});
  EXPECT_NEAR(*square_sum.as<double>(), *exact_square_sum.as<double>(), 1e-13 * *exact_square_sum.as<double>());
  const TensorPair weights = tensors_.normal({1003});
  backend_->add(compute(), {gradients.fast, weights.fast, 0.3f});
  reference::add({gradients.exact, weights.exact, 0.3f});
  const TensorPair first = tensors_.normal({1003}, 0, 0.1);
  const TensorPair second = tensors_.normal({1003}, 0, 0.01, 0.1);
  AdamW arguments = {.weights = weights.fast,
                     .gradients = gradients.fast,
                     .first_moment = first.fast,
                     .second_moment = second.fast,
                     .compute_weights = {},
                     .learning_rate = 1e-2,
                     .weight_decay = 0.1,
                     .clip_factor = tensors_.float_number(0.5f),
                     .skipped = tensors_.integers({0}),
                     .applied_steps = tensors_.integers({3})};
  backend_->adamw(compute(), arguments);
  arguments.weights = weights.exact;
  arguments.gradients = gradients.exact;
  arguments.first_moment = first.exact;
  arguments.second_moment = second.exact;
  reference::adamw(arguments);
  for (const TensorPair& pair : {weights, first, second}) expect_near(pair);
}

}  // namespace
}  // namespace ithaca
