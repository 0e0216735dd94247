// The attention operations of the CPU backend: the kernels behind them have tests of their own
// (backend/cpu/attention_test.cpp); here it is that states, workspaces and streams are handled right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
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

constexpr int64_t kTokens = 19;
constexpr int64_t kHeads = 4;
constexpr int64_t kKeyHeads = 2;
constexpr int64_t kKeySize = 6;
constexpr int64_t kValueSize = 5;
constexpr float kScale = 0.4f;

class CpuBackendAttention : public testing::Test {
 protected:
  CpuBackendAttention() {
    query_ = tensors_.normal({kTokens, kHeads, kKeySize});
    key_ = tensors_.normal({kTokens, kKeyHeads, kKeySize});
    value_ = tensors_.normal({kTokens, kKeyHeads, kValueSize});
    doutput_ = tensors_.normal({kTokens, kHeads, kValueSize});
  }

  static double at(const Tensor& tensor, int64_t i, int64_t j, int64_t k) {
    return reference::load(tensor, i * tensor.stride(0) + j * tensor.stride(1) + k * tensor.stride(2));
  }

  // Causal attention by definition, in double: softmax over the whole row.
  void expect_causal(const Tensor& output, const Tensor& log_sum_exp) {
    const TensorPair expected = tensors_.undefined({kTokens, kHeads, kValueSize});
    const TensorPair expected_log_sum_exp = tensors_.undefined({kTokens, kHeads});
    for (int64_t q = 0; q < kTokens; ++q) {
      for (int64_t h = 0; h < kHeads; ++h) {
        const int64_t key_head = h / (kHeads / kKeyHeads);
        double sum = 0.0;
        std::vector<double> weighted(kValueSize, 0.0);
        for (int64_t k = 0; k <= q; ++k) {
          double score = 0.0;
          for (int64_t i = 0; i < kKeySize; ++i) score += at(query_.exact, q, h, i) * at(key_.exact, k, key_head, i);
          const double weight = std::exp(static_cast<double>(kScale) * score);
          sum += weight;
          for (int64_t i = 0; i < kValueSize; ++i) {
            weighted[static_cast<size_t>(i)] += weight * at(value_.exact, k, key_head, i);
          }
        }
        for (int64_t i = 0; i < kValueSize; ++i) {
          expected.exact.as<double>()[(q * kHeads + h) * kValueSize + i] = weighted[static_cast<size_t>(i)] / sum;
        }
        expected_log_sum_exp.exact.as<double>()[q * kHeads + h] = std::log(sum);
      }
    }
    EXPECT_LT(relative_error(output, expected.exact), 1e-6);
    EXPECT_LT(relative_error(log_sum_exp, expected_log_sum_exp.exact), 1e-6);
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  TestTensors tensors_;
  TensorPair query_, key_, value_, doutput_;
  const std::vector<AttentionTask> causal_ = {{0, kTokens, 0, kTokens, kNoLower, 0}};
};

TEST_F(CpuBackendAttention, ForwardInPiecesOnEveryStream) {
  for (Stream* const stream : {&backend_->compute_stream(), &backend_->communication_stream()}) {
    const TensorPair output = tensors_.undefined({kTokens, kHeads, kValueSize});
    const TensorPair log_sum_exp = tensors_.undefined({kTokens, kHeads});
    const int64_t before = backend_->arena(Tier::device).usage().current;
    {
      const std::unique_ptr<AttentionState> state =
          backend_->begin_attention(*stream, {kTokens, kHeads, kValueSize}, {});
      EXPECT_GT(backend_->arena(Tier::device).usage().current, before);
      // Two calls over disjoint keys; the caller's task list dies right after the call.
      {
        std::vector<AttentionTask> tasks = {{0, kTokens, 0, 8, kNoLower, 0}};
        backend_->attention_forward(*stream, {query_.fast, key_.fast, value_.fast, tasks, kScale, state.get()});
        tasks.assign(1, {0, 1, 0, 1, kNoLower, kNoUpper});
      }
      const std::vector<AttentionTask> rest = {{8, kTokens, 8, kTokens, kNoLower, 0}};
      backend_->attention_forward(*stream, {query_.fast, key_.fast, value_.fast, rest, kScale, state.get()});
      backend_->finish_attention(*stream, *state, output.fast, log_sum_exp.fast);
    }
    EXPECT_EQ(backend_->arena(Tier::device).usage().current, before);
    backend_->finish(backend_->record(*stream));
    expect_causal(output.fast, log_sum_exp.fast);
  }
}

TEST_F(CpuBackendAttention, QueriesWithoutKeysGetZeroAndMinusInfinity) {
  const TensorPair output = tensors_.undefined({kTokens, kHeads, kValueSize});
  const TensorPair log_sum_exp = tensors_.undefined({kTokens, kHeads});
  Stream& stream = backend_->compute_stream();
  const std::unique_ptr<AttentionState> state = backend_->begin_attention(stream, {kTokens, kHeads, kValueSize}, {});
  backend_->finish_attention(stream, *state, output.fast, log_sum_exp.fast);
  for (int64_t i = 0; i < output.fast.element_count(); ++i) EXPECT_EQ(output.fast.as<float>()[i], 0.0f);
  for (int64_t i = 0; i < log_sum_exp.fast.element_count(); ++i) {
    EXPECT_EQ(log_sum_exp.fast.as<float>()[i], -std::numeric_limits<float>::infinity());
  }
}

// The gradient of sum(output * doutput) by central differences through the backend's own forward (float32, so the bound
// is that of the differences).
TEST_F(CpuBackendAttention, BackwardIsTheGradientOfForwardAndAdds) {
  Stream& stream = backend_->compute_stream();
  const TensorPair output = tensors_.undefined({kTokens, kHeads, kValueSize});
  const TensorPair log_sum_exp = tensors_.undefined({kTokens, kHeads});
  const auto loss = [&] {
    const std::unique_ptr<AttentionState> state = backend_->begin_attention(stream, {kTokens, kHeads, kValueSize}, {});
    backend_->attention_forward(stream, {query_.fast, key_.fast, value_.fast, causal_, kScale, state.get()});
    backend_->finish_attention(stream, *state, output.fast, log_sum_exp.fast);
    double sum = 0.0;
    for (int64_t i = 0; i < output.fast.element_count(); ++i) {
      sum += static_cast<double>(output.fast.as<float>()[i]) * doutput_.exact.as<double>()[i];
    }
    return sum;
  };
  const auto numeric_gradient = [&](const Tensor& x) {
    const TensorPair gradient = tensors_.undefined(x.extents);
    for (int64_t i = 0; i < x.element_count(); ++i) {
      constexpr float step = 0.01f;
      float& element = x.as<float>()[i];
      const float kept = element;
      element = kept + step;
      const double above = loss();
      const auto upper = static_cast<double>(element);
      element = kept - step;
      const double below = loss();
      const auto lower = static_cast<double>(element);
      element = kept;
      gradient.exact.as<double>()[i] = (above - below) / (upper - lower);
    }
    return gradient.exact;
  };
  const Tensor expected_dquery = numeric_gradient(query_.fast);
  const Tensor expected_dkey = numeric_gradient(key_.fast);
  const Tensor expected_dvalue = numeric_gradient(value_.fast);
  loss();
  const TensorPair dquery = tensors_.normal({kTokens, kHeads, kKeySize}, 0, 0.0);
  const TensorPair dkey = tensors_.normal({kTokens, kKeyHeads, kKeySize}, 0, 0.0);
  const TensorPair dvalue = tensors_.normal({kTokens, kKeyHeads, kValueSize}, 0, 0.0);
  AttentionBackward arguments = {query_.fast, key_.fast, value_.fast, output.fast, log_sum_exp.fast, doutput_.fast,
                                 causal_,     kScale,    dquery.fast, dkey.fast,   dvalue.fast};
  backend_->attention_backward(stream, arguments);
  EXPECT_LT(relative_error(dquery.fast, expected_dquery), 1e-3);
  EXPECT_LT(relative_error(dkey.fast, expected_dkey), 1e-3);
  EXPECT_LT(relative_error(dvalue.fast, expected_dvalue), 1e-3);
  // Once more on the communication stream: everything doubles.
  const auto first = static_cast<double>(dkey.fast.as<float>()[7]);
  backend_->attention_backward(backend_->communication_stream(), arguments);
  backend_->finish(backend_->record(backend_->communication_stream()));
  EXPECT_NEAR(static_cast<double>(dkey.fast.as<float>()[7]), 2 * first, 1e-6 * std::abs(first));
  // Overwritten, side by side and without tasks.
  arguments.overwrites_dkey_dvalue = true;
  backend_->attention_backward(stream, arguments);
  EXPECT_LT(relative_error(dkey.fast, expected_dkey), 1e-3);
  EXPECT_LT(relative_error(dvalue.fast, expected_dvalue), 1e-3);
  EXPECT_GT(relative_error(dquery.fast, expected_dquery), 1.5);  // three times what it should be
  arguments.overwrites_dquery = true;
  arguments.overwrites_dkey_dvalue = false;
  backend_->attention_backward(stream, arguments);
  EXPECT_LT(relative_error(dquery.fast, expected_dquery), 1e-3);
  EXPECT_GT(relative_error(dkey.fast, expected_dkey), 0.9);
  arguments.tasks = {};
  backend_->attention_backward(stream, arguments);
  for (int64_t i = 0; i < dquery.fast.element_count(); ++i) EXPECT_EQ(dquery.fast.as<float>()[i], 0.0f);
}

TEST_F(CpuBackendAttention, TheDestinationIsWhatFinishWrites) {
  Stream& stream = backend_->compute_stream();
  const TensorPair output = tensors_.undefined({kTokens, kHeads, kValueSize});
  const TensorPair other = tensors_.undefined({kTokens, kHeads, kValueSize});
  const TensorPair log_sum_exp = tensors_.undefined({kTokens, kHeads});
  const std::unique_ptr<AttentionState> state =
      backend_->begin_attention(stream, {kTokens, kHeads, kValueSize}, {output.fast, log_sum_exp.fast});
  EXPECT_THROW(backend_->finish_attention(stream, *state, other.fast, log_sum_exp.fast), ContractError);
  backend_->finish_attention(stream, *state, output.fast, log_sum_exp.fast);
  EXPECT_EQ(output.fast.as<float>()[0], 0.0f);
  EXPECT_THROW(backend_->begin_attention(stream, {kTokens + 1, kHeads, kValueSize}, {output.fast, log_sum_exp.fast}),
               ContractError);
}

TEST_F(CpuBackendAttention, NamesWhatDoesNotFit) {
  Stream& stream = backend_->compute_stream();
  const std::unique_ptr<AttentionState> state = backend_->begin_attention(stream, {kTokens, kHeads, kValueSize}, {});
  const auto error_text = [&](const AttentionForward& arguments) -> std::string {
    try {
      backend_->attention_forward(stream, arguments);
    } catch (const ContractError& error) {
      return error.what();
    }
    return "no error";
  };
  const AttentionForward good = {query_.fast, key_.fast, value_.fast, causal_, kScale, state.get()};
  EXPECT_EQ(error_text(good), "no error");
  AttentionForward bad = good;
  bad.state = nullptr;
  EXPECT_THAT(error_text(bad), HasSubstr("the state is missing"));
  bad = good;
  bad.query = tensors_.normal({kTokens, 3, kKeySize}).fast;
  EXPECT_THAT(error_text(bad), HasSubstr("3 query heads are not a multiple of 2 key heads"));
  bad = good;
  bad.query = tensors_.normal({kTokens + 1, kHeads, kKeySize}).fast;
  EXPECT_THAT(error_text(bad), HasSubstr("do not fit the state of 19 queries"));
  bad = good;
  bad.value = tensors_.normal({kTokens - 1, kKeyHeads, kValueSize}).fast;
  EXPECT_THAT(error_text(bad), HasSubstr("value is float32 [18, 2, 5], expected the extents [19, 2, 5]"));
  bad = good;
  const std::vector<AttentionTask> outside = {{0, kTokens, 0, kTokens + 1, kNoLower, 0}};
  bad.tasks = outside;
  EXPECT_THAT(error_text(bad), HasSubstr("is outside of 19 queries x 19 keys"));
  EXPECT_THROW(backend_->finish_attention(stream, *state, query_.fast, query_.fast), ContractError);
}

}  // namespace
}  // namespace ithaca
