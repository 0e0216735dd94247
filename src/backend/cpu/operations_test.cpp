// Every operation of the CPU backend against the float64 reference: odd sizes, strided rows, allowed aliasing, empty
// extents, repeatability.
#include "backend/operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <tuple>
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

constexpr double kBound = 3e-7;

class CpuOperations : public testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(tensors_.guards_intact()); }
  Stream& compute() { return backend_->compute_stream(); }

  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  TestTensors tensors_;
};

// Tokens, size, gap between rows.
class CpuRows : public CpuOperations, public testing::WithParamInterface<std::tuple<int64_t, int64_t, int64_t>> {
 protected:
  int64_t tokens() const { return std::get<0>(GetParam()); }
  int64_t size() const { return std::get<1>(GetParam()); }
  int64_t gap() const { return std::get<2>(GetParam()); }
  TensorPair rows() { return tensors_.normal({tokens(), size()}, gap()); }
  TensorPair undefined_rows() { return tensors_.undefined({tokens(), size()}, gap()); }
};

INSTANTIATE_TEST_SUITE_P(Sizes, CpuRows,
                         testing::Values(std::tuple(1, 3, 0), std::tuple(3, 7, 0), std::tuple(5, 16, 3),
                                         std::tuple(2, 63, 1), std::tuple(130, 129, 5), std::tuple(3, 4099, 0),
                                         std::tuple(2, 9000, 8), std::tuple(0, 64, 0)));

// ---- RMS normalisation ----

TEST_P(CpuRows, RmsNormForward) {
  const TensorPair input = rows();
  const TensorPair weight = tensors_.normal({size()}, 0, 0.2, 1.0);
  const TensorPair output = undefined_rows();
  const TensorPair inverse_rms = tensors_.undefined({tokens()});
  RmsNormForward fast = {.input = input.fast,
                         .residual = {},
                         .sum = {},
                         .weight = weight.fast,
                         .output = output.fast,
                         .inverse_rms = inverse_rms.fast};
  RmsNormForward exact = {.input = input.exact,
                          .residual = {},
                          .sum = {},
                          .weight = weight.exact,
                          .output = output.exact,
                          .inverse_rms = inverse_rms.exact};
  backend_->rms_norm_forward(compute(), fast);
  reference::rms_norm_forward(exact);
  EXPECT_LT(relative_error(output.fast, output.exact), kBound);
  EXPECT_LT(relative_error(inverse_rms.fast, inverse_rms.exact), kBound);
}

TEST_P(CpuRows, RmsNormForwardWithResidualIntoEitherInput) {
  const TensorPair weight = tensors_.normal({size()}, 0, 0.2, 1.0);
  for (const int sum_is : {0, 1, 2}) {  // a tensor of its own, the input, the residual
    const TensorPair input = rows();
    const TensorPair residual = rows();
    const TensorPair sum = sum_is == 0 ? undefined_rows() : sum_is == 1 ? input : residual;
    const TensorPair output = undefined_rows();
    backend_->rms_norm_forward(compute(), {.input = input.fast,
                                           .residual = residual.fast,
                                           .sum = sum.fast,
                                           .weight = weight.fast,
                                           .output = output.fast,
                                           .inverse_rms = {}});
    reference::rms_norm_forward({.input = input.exact,
                                 .residual = residual.exact,
                                 .sum = sum.exact,
                                 .weight = weight.exact,
                                 .output = output.exact,
                                 .inverse_rms = {}});
    EXPECT_LT(relative_error(sum.fast, sum.exact), kBound);
    EXPECT_LT(relative_error(output.fast, output.exact), kBound);
  }
}

TEST_P(CpuRows, RmsNormBackward) {
  const TensorPair input = rows();
  const TensorPair doutput = rows();
  const TensorPair weight = tensors_.normal({size()}, 0, 0.2, 1.0);
  const TensorPair inverse_rms = tensors_.normal({tokens()}, 0, 0.1, 1.0);
  for (const bool in_place : {false, true}) {
    for (const bool with_weight : {false, true}) {
      const TensorPair dresidual = rows();
      const TensorPair dinput = in_place ? dresidual : undefined_rows();
      const TensorPair dweight = tensors_.normal({size()});
      backend_->rms_norm_backward(compute(), {.doutput = doutput.fast,
                                              .input = input.fast,
                                              .weight = weight.fast,
                                              .inverse_rms = inverse_rms.fast,
                                              .dresidual = dresidual.fast,
                                              .dinput = dinput.fast,
                                              .dweight = with_weight ? dweight.fast : Tensor{}});
      reference::rms_norm_backward({.doutput = doutput.exact,
                                    .input = input.exact,
                                    .weight = weight.exact,
                                    .inverse_rms = inverse_rms.exact,
                                    .dresidual = dresidual.exact,
                                    .dinput = dinput.exact,
                                    .dweight = with_weight ? dweight.exact : Tensor{}});
      EXPECT_LT(relative_error(dinput.fast, dinput.exact), kBound);
      EXPECT_LT(relative_error(dweight.fast, dweight.exact), kBound);
    }
  }
  const TensorPair dinput = undefined_rows();
  backend_->rms_norm_backward(compute(), {.doutput = doutput.fast,
                                          .input = input.fast,
                                          .weight = weight.fast,
                                          .inverse_rms = inverse_rms.fast,
                                          .dresidual = {},
                                          .dinput = dinput.fast,
                                          .dweight = {}});
  reference::rms_norm_backward({.doutput = doutput.exact,
                                .input = input.exact,
                                .weight = weight.exact,
                                .inverse_rms = inverse_rms.exact,
                                .dresidual = {},
                                .dinput = dinput.exact,
                                .dweight = {}});
  EXPECT_LT(relative_error(dinput.fast, dinput.exact), kBound);
}

// The error of a weight gradient must not grow with the number of tokens: all terms of one sign is the hard case.
TEST_F(CpuOperations, WeightSumsStayExactOverManyTokens) {
  constexpr int64_t tokens = 200000;
  const TensorPair input = tensors_.normal({tokens, 3}, 0, 0.1, 1.0);
  const TensorPair sum = tensors_.normal({3});
  backend_->column_sum(compute(), {input.fast, sum.fast});
  reference::column_sum({input.exact, sum.exact});
  EXPECT_LT(relative_error(sum.fast, sum.exact), kBound);

  const TensorPair ones = tensors_.normal({3}, 0, 0.0, 1.0);
  const TensorPair inverse_rms = tensors_.normal({tokens}, 0, 0.0, 1.0);
  const TensorPair dinput = tensors_.undefined({tokens, 3});
  const TensorPair dweight = tensors_.normal({3});
  backend_->rms_norm_backward(compute(),
                              {input.fast, input.fast, ones.fast, inverse_rms.fast, {}, dinput.fast, dweight.fast});
  reference::rms_norm_backward(
      {input.exact, input.exact, ones.exact, inverse_rms.exact, {}, dinput.exact, dweight.exact});
  EXPECT_LT(relative_error(dweight.fast, dweight.exact), kBound);
}

// ---- SwiGLU ----

TEST_P(CpuRows, SwigluForwardIntoAnyOfItsTensors) {
  for (const int output_is : {0, 1, 2}) {  // a tensor of its own, gate, up
    const TensorPair gate = tensors_.normal({tokens(), size()}, gap(), 4.0);
    const TensorPair up = rows();
    const TensorPair output = output_is == 0 ? undefined_rows() : output_is == 1 ? gate : up;
    backend_->swiglu_forward(compute(), {gate.fast, up.fast, output.fast});
    reference::swiglu_forward({gate.exact, up.exact, output.exact});
    EXPECT_LT(relative_error(output.fast, output.exact), kBound);
  }
}

TEST_P(CpuRows, SwigluBackwardInPlaceOrNot) {
  for (const bool in_place : {false, true}) {
    const TensorPair gate = tensors_.normal({tokens(), size()}, gap(), 4.0);
    const TensorPair up = rows();
    const TensorPair doutput = rows();
    const TensorPair dgate = in_place ? gate : undefined_rows();
    const TensorPair dup = in_place ? up : undefined_rows();
    const SwigluBackward fast = {doutput.fast, gate.fast, up.fast, dgate.fast, dup.fast};
    // The reference works element by element too, so it may be in place as well.
    const SwigluBackward exact = {doutput.exact, gate.exact, up.exact, dgate.exact, dup.exact};
    backend_->swiglu_backward(compute(), fast);
    reference::swiglu_backward(exact);
    EXPECT_LT(relative_error(dgate.fast, dgate.exact), kBound);
    EXPECT_LT(relative_error(dup.fast, dup.exact), kBound);
  }
}

TEST_F(CpuOperations, SwigluIsExactElementByElementAtAnyMagnitude) {
  const std::vector<float> gates = {0.0f,  -0.0f,  1e-30f, -1e-30f, 1.0f,   -1.0f,  10.0f, -10.0f,
                                    40.0f, -40.0f, 87.0f,  -87.0f,  100.0f, -60.0f, 3e38f, -3e38f,
                                    0.5f,  -0.5f,  2.0f,   -2.0f,   17.0f,  -17.0f, 1e4f,  -1e4f};
  const auto count = static_cast<int64_t>(gates.size());
  const TensorPair gate = tensors_.normal({1, count});
  const TensorPair one = tensors_.normal({1, count}, 0, 0.0, 1.0);
  for (int64_t i = 0; i < count; ++i) {
    gate.fast.as<float>()[i] = gates[static_cast<size_t>(i)];
    gate.exact.as<double>()[i] = static_cast<double>(gates[static_cast<size_t>(i)]);
  }
  const TensorPair output = tensors_.undefined({1, count});
  const TensorPair dgate = tensors_.undefined({1, count});
  const TensorPair dup = tensors_.undefined({1, count});
  backend_->swiglu_forward(compute(), {gate.fast, one.fast, output.fast});
  reference::swiglu_forward({gate.exact, one.exact, output.exact});
  backend_->swiglu_backward(compute(), {one.fast, gate.fast, one.fast, dgate.fast, dup.fast});
  reference::swiglu_backward({one.exact, gate.exact, one.exact, dgate.exact, dup.exact});
  for (int64_t i = 0; i < count; ++i) {
    for (const TensorPair& pair : {output, dgate, dup}) {
      const double expected = pair.exact.as<double>()[i];
      const auto actual = static_cast<double>(pair.fast.as<float>()[i]);
      EXPECT_NEAR(actual, expected, 5e-7 * std::abs(expected) + 1e-37) << gates[static_cast<size_t>(i)];
    }
  }
}

TEST_F(CpuOperations, SwigluKeepsNaN) {
  const TensorPair gate = tensors_.normal({1, 40});
  const TensorPair up = tensors_.normal({1, 40});
  const TensorPair output = tensors_.normal({1, 40});
  gate.fast.as<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  gate.fast.as<float>()[39] = std::numeric_limits<float>::quiet_NaN();
  backend_->swiglu_forward(compute(), {gate.fast, up.fast, output.fast});
  for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(std::isnan(output.fast.as<float>()[i]), i == 3 || i == 39);
}

// ---- heads ----

struct HeadCase {
  int64_t tokens, heads, size, gap;
  bool with_norm, with_rotation;
};

class CpuHeads : public CpuOperations, public testing::WithParamInterface<HeadCase> {
 protected:
  CpuHeads() {
    const HeadCase& c = GetParam();
    if (c.with_norm) weight_ = tensors_.normal({c.size}, 0, 0.2, 1.0);
    if (!c.with_rotation) return;
    cosine_ = tensors_.normal({c.tokens, c.size / 2}, 1);
    sine_ = tensors_.normal({c.tokens, c.size / 2}, 2);
  }
  TensorPair heads() {
    const HeadCase& c = GetParam();
    return tensors_.normal({c.tokens, c.heads, c.size}, c.gap);
  }

  TensorPair weight_;
  TensorPair cosine_;
  TensorPair sine_;
};

INSTANTIATE_TEST_SUITE_P(Shapes, CpuHeads,
                         testing::Values(HeadCase{5, 3, 8, 0, true, true}, HeadCase{5, 3, 8, 0, false, true},
                                         HeadCase{70, 2, 64, 4, true, true}, HeadCase{3, 4, 6, 1, true, true},
                                         HeadCase{3, 2, 128, 0, false, true}, HeadCase{7, 2, 90, 3, true, false},
                                         HeadCase{4, 1, 256, 0, true, true}, HeadCase{2, 2, 5, 2, true, false},
                                         HeadCase{2, 2, 5, 2, false, false}, HeadCase{0, 2, 64, 0, true, true},
                                         HeadCase{4, 0, 64, 0, true, true}));

TEST_P(CpuHeads, HeadRopeForwardInPlaceOrNot) {
  const HeadCase& c = GetParam();
  for (const bool in_place : {false, true}) {
    const TensorPair input = heads();
    const TensorPair output = in_place ? input : tensors_.undefined({c.tokens, c.heads, c.size}, c.gap);
    const TensorPair inverse_rms = tensors_.undefined({c.tokens, c.heads});
    backend_->head_rope_forward(compute(), {.input = input.fast,
                                            .norm_weight = weight_.fast,
                                            .epsilon = 1e-5f,
                                            .inverse_rms = inverse_rms.fast,
                                            .cosine = cosine_.fast,
                                            .sine = sine_.fast,
                                            .output = output.fast});
    reference::head_rope_forward({.input = input.exact,
                                  .norm_weight = weight_.exact,
                                  .epsilon = 1e-5f,
                                  .inverse_rms = inverse_rms.exact,
                                  .cosine = cosine_.exact,
                                  .sine = sine_.exact,
                                  .output = output.exact});
    EXPECT_LT(relative_error(output.fast, output.exact), kBound);
    if (c.with_norm) {
      EXPECT_LT(relative_error(inverse_rms.fast, inverse_rms.exact), kBound);
    }
  }
}

TEST_P(CpuHeads, HeadRopeBackwardInPlaceOrNot) {
  const HeadCase& c = GetParam();
  for (const bool in_place : {false, true}) {
    const TensorPair doutput = heads();
    const TensorPair input = heads();
    const TensorPair inverse_rms = tensors_.normal({c.tokens, c.heads}, 0, 0.1, 1.0);
    const TensorPair dinput = in_place ? doutput : tensors_.undefined({c.tokens, c.heads, c.size}, c.gap);
    const TensorPair dweight = tensors_.normal({c.size});
    const auto absent_without_norm = [&](const Tensor& tensor) { return c.with_norm ? tensor : Tensor{}; };
    backend_->head_rope_backward(compute(), {.doutput = doutput.fast,
                                             .input = absent_without_norm(input.fast),
                                             .norm_weight = weight_.fast,
                                             .inverse_rms = absent_without_norm(inverse_rms.fast),
                                             .cosine = cosine_.fast,
                                             .sine = sine_.fast,
                                             .dinput = dinput.fast,
                                             .dnorm_weight = absent_without_norm(dweight.fast)});
    reference::head_rope_backward({.doutput = doutput.exact,
                                   .input = absent_without_norm(input.exact),
                                   .norm_weight = weight_.exact,
                                   .inverse_rms = absent_without_norm(inverse_rms.exact),
                                   .cosine = cosine_.exact,
                                   .sine = sine_.exact,
                                   .dinput = dinput.exact,
                                   .dnorm_weight = absent_without_norm(dweight.exact)});
    EXPECT_LT(relative_error(dinput.fast, dinput.exact), kBound);
    EXPECT_LT(relative_error(dweight.fast, dweight.exact), kBound);
  }
}

// ---- positions ----

// cos and sin of float32(position * frequency), by arbitrary-precision arithmetic (50 digits), rounded to 9 digits.
TEST_F(CpuOperations, RopeTableIsRightAtPositionOneMillion) {
  const Tensor positions = tensors_.integers({0, 1, 1000000, 16777217});
  const TensorPair frequencies = tensors_.normal({2});
  frequencies.fast.as<float>()[0] = 1.0f;
  frequencies.fast.as<float>()[1] = 0.1f;  // 0.100000001490116...
  const TensorPair cosine = tensors_.undefined({4, 2});
  const TensorPair sine = tensors_.undefined({4, 2});
  backend_->rope_table(compute(), {positions, frequencies.fast, 1.0f, cosine.fast, sine.fast});
  const auto check = [&](int64_t row, int64_t column, double expected_cosine, double expected_sine) {
    EXPECT_NEAR(static_cast<double>(cosine.fast.as<float>()[row * 2 + column]), expected_cosine, 1e-7) << row << column;
    EXPECT_NEAR(static_cast<double>(sine.fast.as<float>()[row * 2 + column]), expected_sine, 1e-7) << row << column;
  };
  check(0, 0, 1.0, 0.0);
  check(0, 1, 1.0, 0.0);
  check(1, 0, 0.540302306, 0.841470985);
  check(2, 0, 0.936752128, -0.349993502);  // angle 1000000
  check(2, 1, -0.999360807, 0.035748798);  // angle 100000.0: float32(1e6 * 0.1f)
  check(3, 0, 0.626322983, -0.779563673);  // angle 16777216: float32 of the position
}

TEST_F(CpuOperations, RopeTableMatchesTheReferenceAndScales) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 300; ++i) ids.push_back(i * i * 37 % 1100003);
  const Tensor positions = tensors_.integers(ids);
  const TensorPair frequencies = tensors_.normal({33});
  for (int64_t i = 0; i < 33; ++i) {
    const auto frequency = static_cast<float>(std::pow(500000.0, -static_cast<double>(i) / 33));
    frequencies.fast.as<float>()[i] = frequency;
    frequencies.exact.as<double>()[i] = static_cast<double>(frequency);
  }
  const TensorPair cosine = tensors_.undefined({300, 33}, 2);
  const TensorPair sine = tensors_.undefined({300, 33}, 1);
  backend_->rope_table(compute(), {positions, frequencies.fast, 1.2079f, cosine.fast, sine.fast});
  reference::rope_table({positions, frequencies.exact, 1.2079f, cosine.exact, sine.exact});
  EXPECT_LT(relative_error(cosine.fast, cosine.exact), kBound);
  EXPECT_LT(relative_error(sine.fast, sine.exact), kBound);
}

// ---- embedding ----

TEST_F(CpuOperations, EmbeddingForwardAndBackward) {
  const Tensor ids = tensors_.integers({3, 0, 6, 3, 3, 1});
  const TensorPair table = tensors_.normal({7, 19}, 3);
  const TensorPair output = tensors_.undefined({6, 19}, 1);
  backend_->embedding_forward(compute(), {table.fast, ids, output.fast});
  reference::embedding_forward({table.exact, ids, output.exact});
  EXPECT_EQ(relative_error(output.fast, output.exact), 0.0);

  const TensorPair doutput = tensors_.normal({6, 19}, 2);
  backend_->embedding_backward(compute(), {doutput.fast, ids, table.fast});
  reference::embedding_backward({doutput.exact, ids, table.exact});
  EXPECT_LT(relative_error(table.fast, table.exact), kBound);

  const Tensor none = tensors_.integers({});
  const TensorPair nothing = tensors_.undefined({0, 19});
  backend_->embedding_forward(compute(), {table.fast, none, nothing.fast});
  backend_->embedding_backward(compute(), {nothing.fast, none, table.fast});
  EXPECT_LT(relative_error(table.fast, table.exact), kBound);
}

TEST_F(CpuOperations, EmbeddingNamesATokenOutsideOfTheVocabulary) {
  const TensorPair table = tensors_.normal({7, 4});
  const TensorPair output = tensors_.normal({2, 4});
  for (const int64_t id : {int64_t{7}, int64_t{-1}}) {
    const std::unique_ptr<Backend> backend = make_cpu_backend();
    const Tensor ids = tensors_.integers({0, id});
    try {
      backend->embedding_forward(backend->compute_stream(), {table.fast, ids, output.fast});
      FAIL();
    } catch (const ContractError& error) {
      EXPECT_THAT(error.what(), HasSubstr("position 1 is outside of the vocabulary [0, 7)"));
    }
  }
}

// ---- sums ----

TEST_P(CpuRows, ColumnSumAdds) {
  const TensorPair input = rows();
  const TensorPair sum = tensors_.normal({size()});
  backend_->column_sum(compute(), {input.fast, sum.fast});
  reference::column_sum({input.exact, sum.exact});
  EXPECT_LT(relative_error(sum.fast, sum.exact), kBound);
}

TEST_F(CpuOperations, SquareSumIsExactToDoublePrecision) {
  for (const int64_t size : {0, 1, 5, 31, 32, 33, 100003}) {
    const TensorPair input = tensors_.normal({size}, 0, 1e3);
    const Tensor fast = tensors_.number(2.5);
    const Tensor exact = tensors_.number(2.5);
    backend_->square_sum(compute(), {input.fast, fast});
    reference::square_sum({input.exact, exact});
    EXPECT_NEAR(*fast.as<double>(), *exact.as<double>(), 1e-13 * *exact.as<double>()) << size;
  }
}

// ---- same bits ----

TEST_F(CpuOperations, TheSameArgumentsGiveTheSameBits) {
  const auto run = [](std::vector<float>& results) {
    const std::unique_ptr<Backend> backend = make_cpu_backend();
    Stream& stream = backend->compute_stream();
    TestTensors tensors(99);
    const TensorPair input = tensors.normal({77, 301}, 3);
    const TensorPair weight = tensors.normal({301});
    const TensorPair output = tensors.undefined({77, 301});
    const TensorPair inverse_rms = tensors.undefined({77});
    const TensorPair dinput = tensors.undefined({77, 301});
    const TensorPair dweight = tensors.normal({301});
    backend->rms_norm_forward(stream, {input.fast, {}, {}, weight.fast, output.fast, inverse_rms.fast, 1e-6f});
    backend->rms_norm_backward(stream,
                               {output.fast, input.fast, weight.fast, inverse_rms.fast, {}, dinput.fast, dweight.fast});
    const TensorPair product = tensors.undefined({77, 77});
    backend->gemm(stream, {.a = input.fast, .b = dinput.fast, .c = product.fast, .transpose_b = true, .bias = {}});
    const Tensor loss = tensors.number(0.0);
    backend->cross_entropy(stream, {.logits = product.fast,
                                    .labels = tensors.integers(std::vector<int64_t>(77, 5)),
                                    .weights = {},
                                    .with_gradient = true,
                                    .gradient_scale = 1.0 / 77,
                                    .loss_sum = loss});
    for (const Tensor& tensor : {output.fast, dinput.fast, dweight.fast, product.fast}) {
      results.insert(results.end(), tensor.as<float>(), tensor.as<float>() + tensor.element_count());
    }
    results.push_back(static_cast<float>(*loss.as<double>()));
  };
  std::vector<float> first;
  std::vector<float> second;
  run(first);
  run(second);
  ASSERT_EQ(first.size(), second.size());
  EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace ithaca
