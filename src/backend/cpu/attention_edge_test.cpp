// Where attention kernels break: rows without keys, far-apart calls, huge scores, NaN, empty shapes, addresses beyond
// 2^31 elements, wrong arguments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <bit>
#include <cmath>
#include <limits>
#include <thread>

#include "backend/cpu/attention.h"
#include "backend/cpu/attention_test_case.h"
#include "base/error.h"

namespace ithaca::cpu {
namespace {

constexpr double kBound = 1e-6;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Shifts the scores of keys [begin, end) by `shift`.
void shift_scores(AttentionCase& attention, int64_t begin, int64_t end, float shift) {
  for (int64_t token = 0; token < attention.extents().query_tokens; ++token) {
    for (int64_t head = 0; head < attention.extents().query_heads; ++head) {
      attention.query.at(token, head, 0) = 1.0f / attention.scale();
    }
  }
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t head = 0; head < attention.extents().key_heads; ++head) attention.key.at(token, head, 0) = shift;
  }
}

// The log-sum-exps of the calls differ by more than 100 in either direction and order; the scores, of size `shift`,
// are themselves rounded to float32.
TEST(CpuAttentionEdge, LogSumExpGapsBetweenCalls) {
  for_each_instruction_set([] {
    const std::vector<std::vector<float>> cases = {
        {0, 120}, {120, 0}, {-150, 150}, {150, -150, 149}, {0, 1000, -1000}, {-3000, -3000}, {7, 9, 17, 25, 33}};
    for (const std::vector<float>& shifts : cases) {
      SCOPED_TRACE(testing::PrintToString(shifts));
      const auto parts = static_cast<int64_t>(shifts.size());
      const int64_t keys = 30 * parts;
      AttentionCase attention({40, keys, 2, 1, 16, 16});
      attention.gradient_floor = 0.01;
      std::vector<Tasks> calls;
      float largest = 0.0f;
      for (int64_t part = 0; part < parts; ++part) {
        shift_scores(attention, 30 * part, 30 * part + 30, shifts[static_cast<size_t>(part)]);
        calls.push_back({{0, 40, 30 * part, 30 * part + 30, kNoLower, kNoUpper}});
        largest = std::max(largest, std::abs(shifts[static_cast<size_t>(part)]));
      }
      attention.check(calls, 2 * kBound + 2e-7 * static_cast<double>(largest));
      AttentionCase at_once({40, keys, 2, 1, 16, 16});
      at_once.gradient_floor = 0.01;
      for (int64_t part = 0; part < parts; ++part) {
        shift_scores(at_once, 30 * part, 30 * part + 30, shifts[static_cast<size_t>(part)]);
      }
      at_once.check({everything(40, keys)}, 2 * kBound + 2e-7 * static_cast<double>(largest));
    }
  });
}

// Steps of the score along the keys make the running maximum grow inside of one block, again and again.
TEST(CpuAttentionEdge, MaximumGrowsWithinABlock) {
  for_each_instruction_set([] {
    AttentionCase attention({20, 600, 2, 2, 8, 8});
    for (int64_t key = 0; key < 600; ++key) {
      shift_scores(attention, key, key + 1, 0.5f * static_cast<float>(key - key % 3) / 3.0f);
    }
    attention.check({everything(20, 600)}, 4e-5);
  });
}

TEST(CpuAttentionEdge, HugeScores) {
  for_each_instruction_set([] {
    AttentionCase attention({50, 300, 2, 1, 64, 64}, 30.0);
    attention.gradient_floor = 0.1;
    // Scores reach about 1000, of which float32 keeps 6e-5, here summed over 64 products.
    attention.check({everything(50, 300)}, 5e-4);
  });
}

TEST(CpuAttentionEdge, NegativeAndZeroScale) {
  AttentionCase negative({50, 60, 2, 1, 16, 16}, -0.5);
  negative.check({everything(50, 60)}, kBound);
  AttentionCase tiny({50, 60, 2, 1, 16, 16}, 1e-30);
  tiny.dquery.fill(0.0f);  // the gradients of query and key are as tiny
  tiny.dkey.fill(0.0f);
  tiny.check({everything(50, 60)}, kBound);
}

TEST(CpuAttentionEdge, RowsWithoutKeys) {
  for_each_instruction_set([] {
    AttentionCase attention({70, 50, 4, 2, 16, 24}, 0.0, Layout::head_major_with_gaps);
    // Queries 0..9 and 60..69 are in no task; 10..14 are, but their band hides every key; 40..49 see keys only in the
    // second call.
    const std::vector<Tasks> calls = {{{10, 40, 0, 20, kNoLower, -5}},
                                      {{35, 60, 20, 50, kNoLower, kNoUpper}, {40, 60, 0, 3, kNoLower, -3}}};
    const auto absent = [](int64_t token) { return token < 15 || token >= 60; };
    for (int64_t token = 0; token < 70; ++token) {
      for (int64_t head = 0; head < 4 && absent(token); ++head) {
        for (int64_t i = 0; i < 24; ++i) attention.doutput.at(token, head, i) = kNaN;
      }
    }
    attention.forward(calls);
    attention.backward(calls);
    for (int64_t token = 0; token < 70; ++token) {
      for (int64_t head = 0; head < 4; ++head) {
        if (!absent(token)) continue;
        EXPECT_EQ(attention.log_sum_exp.at(token, head, 0), -kInfinity);
        for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(attention.output.at(token, head, i), 0.0f);
        // The definition has no use for the doutput of such rows; the reference gets zeros.
        for (int64_t i = 0; i < 24; ++i) attention.doutput.at(token, head, i) = 0.0f;
      }
    }
    Tasks all;
    for (const Tasks& tasks : calls) all.insert(all.end(), tasks.begin(), tasks.end());
    EXPECT_LT(attention.errors(visible_in_tasks(all)).largest(), 2 * kBound);
  });
}

TEST(CpuAttentionEdge, EmptyShapes) {
  for_each_instruction_set([] {
    for (const AttentionExtents& extents :
         {AttentionExtents{0, 5, 2, 1, 4, 4}, AttentionExtents{5, 0, 2, 1, 4, 4}, AttentionExtents{0, 0, 2, 1, 4, 4},
          AttentionExtents{5, 5, 0, 0, 4, 4}, AttentionExtents{5, 5, 2, 1, 4, 0}, AttentionExtents{5, 5, 2, 1, 0, 4}}) {
      AttentionCase attention(extents, 0.5);
      attention.check({everything(extents.query_tokens, extents.key_tokens), {}}, kBound);
      AttentionCase no_tasks(extents, 0.5);
      no_tasks.check({{}}, kBound);
      AttentionCase no_calls(extents, 0.5);
      no_calls.check({}, kBound);
    }
  });
}

// A NaN or infinity is never swallowed, whichever operand holds it, and stays in its own rows.
TEST(CpuAttentionEdge, NotFiniteNumbersComeThrough) {
  for_each_instruction_set([] {
    const auto count_not_finite = [](const Tensor& tensor) {
      int64_t count = 0;
      for (const double value : to_doubles(tensor)) count += std::isfinite(value) ? 0 : 1;
      return count;
    };
    for (const float bad : {kNaN, kInfinity, -kInfinity, std::bit_cast<float>(0x7FFFFFFFu)}) {
      SCOPED_TRACE(bad);
      const auto run = [&](auto&& poison) {
        auto attention = std::make_unique<AttentionCase>(AttentionExtents{20, 300, 1, 1, 8, 8});
        poison(*attention);
        attention->forward({everything(20, 150), {{0, 20, 150, 300, kNoLower, kNoUpper}}});
        return attention;
      };
      const auto query = run([&](AttentionCase& attention) { attention.query.at(3, 0, 2) = bad; });
      EXPECT_EQ(count_not_finite(query->output.tensor()), 8);
      EXPECT_TRUE(std::isnan(query->output.at(3, 0, 0)));
      for (const int64_t token : {0, 200}) {
        const auto value = run([&](AttentionCase& attention) { attention.value.at(token, 0, 5) = bad; });
        EXPECT_EQ(count_not_finite(value->output.tensor()), 20);
        EXPECT_FALSE(std::isfinite(value->output.at(7, 0, 5)));
        if (std::isnan(bad)) {
          const auto key = run([&](AttentionCase& attention) { attention.key.at(token, 0, 1) = bad; });
          EXPECT_EQ(count_not_finite(key->output.tensor()), 160);
        }
      }
      const auto gradient = run([&](AttentionCase& attention) { attention.doutput.at(4, 0, 1) = bad; });
      gradient->backward({everything(20, 300)});
      EXPECT_EQ(count_not_finite(gradient->dquery.tensor()), 8);
      EXPECT_EQ(count_not_finite(gradient->dkey.tensor()), 300 * 8);
      EXPECT_EQ(count_not_finite(gradient->dvalue.tensor()), 300);
    }
  });
}

// Address space without memory behind it until it is touched.
class Reserved {
 public:
  explicit Reserved(size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  ~Reserved() {
    if (is_mapped()) munmap(data_, bytes_);
  }
  bool is_mapped() const { return data_ != MAP_FAILED; }
  float* floats() const { return static_cast<float*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

// Rows 2^30 elements apart, along tokens or along heads: the third lies beyond 2^31 elements.
TEST(CpuAttentionEdge, StridesBeyond32Bits) {
  constexpr int64_t kFar = int64_t{1} << 30;
  const Reserved reserved(size_t{7} << 32);
  if (!reserved.is_mapped()) GTEST_SKIP() << "no address space";
  for (const bool far_tokens : {true, false}) {
    SCOPED_TRACE(far_tokens ? "tokens" : "heads");
    const int64_t tokens = far_tokens ? 6 : 10;
    const int64_t heads = far_tokens ? 2 : 6;
    AttentionCase attention({tokens, tokens, heads, heads, 8, 8});
    std::vector<Tensor> views;
    for (TestTensor* tensor : {&attention.query, &attention.key, &attention.value, &attention.output,
                               &attention.doutput, &attention.dquery, &attention.dkey, &attention.dvalue}) {
      Tensor view = tensor->tensor();
      view.data = reserved.floats() + 1024 * static_cast<int64_t>(views.size());
      view.strides = far_tokens ? Extents{kFar, 16, 1} : Extents{16, kFar, 1};
      for (int64_t token = 0; token < tokens; ++token) {
        for (int64_t head = 0; head < heads; ++head) {
          std::copy_n(&tensor->at(token, head, 0), 8,
                      view.as<float>() + token * view.stride(0) + head * view.stride(1));
        }
      }
      views.push_back(view);
    }
    Tensor log_sum_exp{reserved.floats() + 16384, DType::float32, {tokens, heads}, {}};
    log_sum_exp.strides = far_tokens ? Extents{kFar, 1} : Extents{1, kFar};
    const AttentionShape shape{tokens, heads, 8};
    std::vector<float> memory(static_cast<size_t>(attention_accumulator_elements(shape)));
    const AttentionAccumulator accumulator = begin_attention(
        shape, Tensor::contiguous(memory.data(), DType::float32, {static_cast<int64_t>(memory.size())}));
    std::vector<std::byte> workspace(static_cast<size_t>(
        std::max(attention_forward_workspace_bytes(8, 8), attention_backward_workspace_bytes(8, 8))));
    const Tasks tasks = causal(tokens);
    attention_forward({views[0], views[1], views[2], tasks, attention.scale(), nullptr}, accumulator, workspace);
    finish_attention(accumulator, views[3], log_sum_exp);
    attention_backward({views[0], views[1], views[2], views[3], log_sum_exp, views[4], tasks, attention.scale(),
                        views[5], views[6], views[7]},
                       workspace);
    attention.forward({tasks});
    attention.backward({tasks});
    EXPECT_EQ(to_doubles(views[3]), to_doubles(attention.output.tensor()));
    EXPECT_EQ(to_doubles(log_sum_exp), to_doubles(attention.log_sum_exp_tensor()));
    EXPECT_EQ(to_doubles(views[5]), to_doubles(attention.dquery.tensor()));
    EXPECT_EQ(to_doubles(views[6]), to_doubles(attention.dkey.tensor()));
    EXPECT_EQ(to_doubles(views[7]), to_doubles(attention.dvalue.tensor()));
  }
}

// Token indices themselves beyond 2^31, in views that repeat one token (stride 0).
TEST(CpuAttentionEdge, TokenIndicesBeyond32Bits) {
  constexpr int64_t kTokens = (int64_t{1} << 31) + 100;
  AttentionCase attention({1, 1, 2, 1, 8, 8});
  attention.forward({everything(1, 1)});
  const auto repeated = [](Tensor tensor) {
    tensor.extents[0] = kTokens;
    tensor.strides[0] = 0;
    return tensor;
  };
  std::vector<std::byte> workspace(static_cast<size_t>(attention_backward_workspace_bytes(8, 8)));
  // Three queries, each of which sees one key: with the log-sum-exp of that key, probabilities of 1.
  const Tasks tasks = {{kTokens - 5, kTokens - 2, kTokens - 9, kTokens - 6, -1, 0}};
  attention_backward(
      {repeated(attention.query.tensor()), repeated(attention.key.tensor()), repeated(attention.value.tensor()),
       repeated(attention.output.tensor()), repeated(attention.log_sum_exp_tensor()),
       repeated(attention.doutput.tensor()), tasks, attention.scale(), repeated(attention.dquery.tensor()),
       repeated(attention.dkey.tensor()), repeated(attention.dvalue.tensor())},
      workspace);
  std::vector<double> expected;
  for (int64_t i = 0; i < 8; ++i) {
    expected.push_back(3.0 * static_cast<double>(attention.doutput.at(0, 0, i) + attention.doutput.at(0, 1, i)));
  }
  EXPECT_LT(relative_error(attention.dvalue.added(), expected), kBound);
}

// An accumulator of more than 2^31 elements; only the last tokens are computed.
TEST(CpuAttentionEdge, AccumulatorBeyond32Bits) {
  constexpr int64_t kTokens = (int64_t{1} << 20) + 10;
  const AttentionShape shape{kTokens, 1, 2048};
  const int64_t elements = attention_accumulator_elements(shape);
  ASSERT_GT(elements, int64_t{1} << 31);
  const Reserved reserved(static_cast<size_t>(elements) * sizeof(float));
  if (!reserved.is_mapped()) GTEST_SKIP() << "no address space";
  const AttentionAccumulator accumulator =
      begin_attention(shape, Tensor::contiguous(reserved.floats(), DType::float32, {elements}));
  AttentionCase attention({4, 4, 1, 1, 8, 2048});
  Tensor query = attention.query.tensor();
  query.extents[0] = kTokens;
  query.data = query.as<float>() - (kTokens - 4) * query.stride(0);  // only its last four tokens exist
  std::vector<std::byte> workspace(static_cast<size_t>(attention_forward_workspace_bytes(8, 2048)));
  const Tasks tasks = {{kTokens - 4, kTokens, 0, 4, kNoLower, 0}};
  attention_forward({query, attention.key.tensor(), attention.value.tensor(), tasks, attention.scale(), nullptr},
                    accumulator, workspace);
  attention.forward({causal(4)});
  std::vector<float> output(int64_t{4} * 2048);
  std::vector<float> log_sum_exp(4);
  finish_attention({accumulator.output.slice(0, kTokens - 4, kTokens),
                    accumulator.maximum.slice(0, kTokens - 4, kTokens), accumulator.sum.slice(0, kTokens - 4, kTokens)},
                   Tensor::contiguous(output.data(), DType::float32, {4, 1, 2048}),
                   Tensor::contiguous(log_sum_exp.data(), DType::float32, {4, 1}));
  EXPECT_EQ(output, attention.output.values());
  EXPECT_EQ(log_sum_exp, attention.log_sum_exp.values());
}

// Ranks call at the same time, each with its own arguments.
TEST(CpuAttentionEdge, SeveralThreads) {
  std::vector<float> expected;
  {
    AttentionCase attention({150, 150, 4, 2, 32, 32});
    attention.forward({causal(150)});
    attention.backward({causal(150)});
    expected = attention.dkey.values();
  }
  std::vector<std::vector<float>> results(4);
  std::vector<std::thread> threads;
  threads.reserve(results.size());
  for (std::vector<float>& result : results) {
    threads.emplace_back([&result] {
      AttentionCase attention({150, 150, 4, 2, 32, 32});
      attention.forward({causal(150)});
      attention.backward({causal(150)});
      result = attention.dkey.values();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& result : results) EXPECT_EQ(result, expected);
}

template <typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const ContractError& error) {
    return error.what();
  }
  return "no ContractError";
}

TEST(CpuAttentionEdge, WrongArgumentsAreNamed) {
  using testing::AllOf;
  using testing::HasSubstr;
  AttentionCase attention({6, 9, 4, 2, 8, 16});
  std::vector<std::byte> workspace(static_cast<size_t>(attention_backward_workspace_bytes(8, 16)));
  const Tasks tasks = everything(6, 9);
  const auto arguments = [&] {
    return AttentionBackward{attention.query.tensor(),
                             attention.key.tensor(),
                             attention.value.tensor(),
                             attention.output.tensor(),
                             attention.log_sum_exp_tensor(),
                             attention.doutput.tensor(),
                             tasks,
                             1.0f,
                             attention.dquery.tensor(),
                             attention.dkey.tensor(),
                             attention.dvalue.tensor()};
  };
  const auto message = [&](const AttentionBackward& changed) {
    return message_of([&] { attention_backward(changed, workspace); });
  };
  EXPECT_EQ(message(arguments()), "no ContractError");

  AttentionBackward changed = arguments();
  changed.key = changed.key.slice(2, 0, 7);
  EXPECT_THAT(message(changed), AllOf(HasSubstr("key is float32 [9, 2, 7]"), HasSubstr("must be [9, 2, 8]")));

  changed = arguments();
  changed.query = changed.query.slice(1, 0, 3);
  EXPECT_THAT(message(changed), HasSubstr("3 query heads cannot share 2 key heads"));

  changed = arguments();
  changed.doutput.strides[2] = 2;
  EXPECT_THAT(message(changed), HasSubstr("doutput"));

  changed = arguments();
  changed.value.dtype = DType::bfloat16;
  EXPECT_THAT(message(changed), HasSubstr("value is bfloat16"));

  changed = arguments();
  const Tasks outside = {{0, 6, 4, 10, kNoLower, 0}};
  changed.tasks = outside;
  EXPECT_THAT(message(changed), HasSubstr("keys [4, 10) is outside of 6 queries and 9 keys"));

  EXPECT_THAT(message_of([&] { attention_backward(arguments(), std::span(workspace).first(1000)); }),
              HasSubstr("workspace of 1000 bytes, needs"));

  std::vector<float> memory(100);
  EXPECT_THAT(message_of([&] {
                begin_attention({6, 4, 16}, Tensor::contiguous(memory.data(), DType::float32, {100}));
              }),
              HasSubstr("432 elements"));
}

}  // namespace
}  // namespace ithaca::cpu
