// What the attention tests share: one attention problem with random numbers, run through the kernel in any number of
// calls and through the float64 reference.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "backend/cpu/attention.h"
#include "backend/cpu/reference_attention.h"
#include "base/random.h"

namespace ithaca::cpu {

using Tasks = std::vector<AttentionTask>;

struct AttentionExtents {
  int64_t query_tokens = 0;
  int64_t key_tokens = 0;
  int64_t query_heads = 1;
  int64_t key_heads = 1;
  int64_t key_size = 0;
  int64_t value_size = 0;
};

enum class Layout { contiguous, head_major_with_gaps };

// Owns a float32 tensor [tokens, heads, size] of normal random numbers. With gaps, the memory is [heads][tokens] and no
// two rows touch; the gaps hold NaN, which nothing may read, and must not be written.
class TestTensor {
 public:
  TestTensor(int64_t tokens, int64_t heads, int64_t size, Layout layout, std::string_view name, double factor = 1.0) {
    const int64_t row = layout == Layout::contiguous ? size : size + 3;
    const int64_t head = layout == Layout::contiguous ? row : tokens * row + 5;
    const int64_t count = layout == Layout::contiguous ? tokens * heads * size : heads * head;
    values_.assign(static_cast<size_t>(count), std::numeric_limits<float>::quiet_NaN());
    tensor_ = {values_.data(), DType::float32, {tokens, heads, size}, {row, head, 1}};
    if (layout == Layout::contiguous) tensor_.strides = {heads * row, row, 1};
    const RandomStream random(7, name);
    uint64_t index = 0;
    for (int64_t token = 0; token < tokens; ++token) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < size; ++i) at(token, h, i) = static_cast<float>(factor * random.normal(index++));
      }
    }
    original_ = values_;
  }
  TestTensor(const TestTensor&) = delete;
  TestTensor& operator=(const TestTensor&) = delete;

  const Tensor& tensor() const { return tensor_; }
  float& at(int64_t token, int64_t head, int64_t i) {
    return values_[static_cast<size_t>(token * tensor_.stride(0) + head * tensor_.stride(1) + i)];
  }
  const std::vector<float>& values() const { return values_; }
  // Values now, less the values at the start: what was added.
  std::vector<double> added() const {
    std::vector<double> result = to_doubles(tensor_);
    Tensor before = tensor_;
    std::vector<float> copy = original_;
    before.data = copy.data();
    const std::vector<double> start = to_doubles(before);
    for (size_t i = 0; i < result.size(); ++i) result[i] -= start[i];
    return result;
  }
  void fill(float value) {
    for (int64_t token = 0; token < tensor_.extent(0); ++token) {
      for (int64_t head = 0; head < tensor_.extent(1); ++head) {
        std::fill_n(tensor_.extent(2) > 0 ? &at(token, head, 0) : nullptr, tensor_.extent(2), value);
      }
    }
    original_ = values_;
  }
  // Gaps between rows still hold NaN.
  bool gaps_untouched() const {
    int64_t numbers = 0;
    for (const float value : values_) numbers += std::isnan(value) ? 0 : 1;
    return numbers <= tensor_.element_count();
  }

 private:
  std::vector<float> values_;
  std::vector<float> original_;
  Tensor tensor_;
};

// ||a - b|| / ||b||; infinite when a holds a NaN or the sizes differ. `floor`: the least root mean square that b is
// taken to have, for gradients that are 0 by cancellation (a softmax over one key).
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b, double floor = 0.0) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;  // also equal infinities
    difference += (a[i] - b[i]) * (a[i] - b[i]);
  }
  for (const double value : b) norm += std::isinf(value) ? 0.0 : value * value;
  if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
  norm = std::max(norm, floor * floor * static_cast<double>(b.size()));
  return norm > 0.0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

class AttentionCase {
 public:
  explicit AttentionCase(const AttentionExtents& extents, double scale = 0.0, Layout layout = Layout::contiguous)
      : extents_(extents),
        scale_(static_cast<float>(scale != 0.0 ? scale : 1.0 / std::sqrt(static_cast<double>(extents.key_size)))),
        query(extents.query_tokens, extents.query_heads, extents.key_size, layout, "query"),
        key(extents.key_tokens, extents.key_heads, extents.key_size, layout, "key"),
        value(extents.key_tokens, extents.key_heads, extents.value_size, layout, "value"),
        output(extents.query_tokens, extents.query_heads, extents.value_size, layout, "output"),
        log_sum_exp(extents.query_tokens, extents.query_heads, 1, layout, "log_sum_exp"),
        doutput(extents.query_tokens, extents.query_heads, extents.value_size, layout, "doutput"),
        dquery(extents.query_tokens, extents.query_heads, extents.key_size, layout, "dquery", 0.01),
        dkey(extents.key_tokens, extents.key_heads, extents.key_size, layout, "dkey", 0.01),
        dvalue(extents.key_tokens, extents.key_heads, extents.value_size, layout, "dvalue", 0.01) {}

  const AttentionExtents& extents() const { return extents_; }
  float scale() const { return scale_; }
  Tensor log_sum_exp_tensor() const { return log_sum_exp.tensor().select(2, 0); }

  // One kernel call per list of tasks.
  void forward(const std::vector<Tasks>& calls) {
    const AttentionShape shape{extents_.query_tokens, extents_.query_heads, extents_.value_size};
    std::vector<float> memory(static_cast<size_t>(attention_accumulator_elements(shape)),
                              std::numeric_limits<float>::quiet_NaN());
    const AttentionAccumulator accumulator = begin_attention(
        shape, Tensor::contiguous(memory.data(), DType::float32, {static_cast<int64_t>(memory.size())}));
    std::vector<std::byte> workspace(
        static_cast<size_t>(attention_forward_workspace_bytes(extents_.key_size, extents_.value_size)),
        std::byte{0xFF});
    for (const Tasks& tasks : calls) {
      attention_forward({query.tensor(), key.tensor(), value.tensor(), tasks, scale_, nullptr}, accumulator, workspace);
    }
    finish_attention(accumulator, output.tensor(), log_sum_exp_tensor());
  }

  void backward(const std::vector<Tasks>& calls) {
    std::vector<std::byte> workspace(
        static_cast<size_t>(attention_backward_workspace_bytes(extents_.key_size, extents_.value_size)),
        std::byte{0xFF});
    for (const Tasks& tasks : calls) {
      attention_backward({query.tensor(), key.tensor(), value.tensor(), output.tensor(), log_sum_exp_tensor(),
                          doutput.tensor(), tasks, scale_, dquery.tensor(), dkey.tensor(), dvalue.tensor()},
                         workspace);
    }
  }

  ReferenceAttention reference() const {
    return make_reference_attention(query.tensor(), key.tensor(), value.tensor(), static_cast<double>(scale_));
  }

  struct Errors {
    double output = 0.0;
    double log_sum_exp = 0.0;
    double dquery = 0.0;
    double dkey = 0.0;
    double dvalue = 0.0;
    double largest() const { return std::max({output, log_sum_exp, dquery, dkey, dvalue}); }
  };

  // Of what forward() and backward() left, against float64.
  Errors errors(const AttentionVisibility& visible) const {
    const ReferenceAttention attention = reference();
    const ReferenceAttentionOutput forward_result = reference_attention_forward(attention, visible);
    const ReferenceAttentionGradient gradient =
        reference_attention_backward(attention, to_doubles(doutput.tensor()), visible);
    return {relative_error(to_doubles(output.tensor()), forward_result.output),
            relative_error(to_doubles(log_sum_exp_tensor()), forward_result.log_sum_exp),
            relative_error(dquery.added(), gradient.dquery, gradient_floor),
            relative_error(dkey.added(), gradient.dkey, gradient_floor),
            relative_error(dvalue.added(), gradient.dvalue)};
  }

  // Runs `calls` both ways and expects every result within `bound` of float64.
  Errors check(const std::vector<Tasks>& calls, double bound, const AttentionVisibility& visible) {
    forward(calls);
    backward(calls);
    const Errors found = errors(visible);
    EXPECT_LT(found.output, bound);
    EXPECT_LT(found.log_sum_exp, bound);
    EXPECT_LT(found.dquery, bound);
    EXPECT_LT(found.dkey, bound);
    EXPECT_LT(found.dvalue, bound);
    for (const TestTensor* tensor : {&output, &log_sum_exp, &dquery, &dkey, &dvalue}) {
      EXPECT_TRUE(tensor->gaps_untouched());
    }
    return found;
  }
  Errors check(const std::vector<Tasks>& calls, double bound) {
    Tasks all;
    for (const Tasks& tasks : calls) all.insert(all.end(), tasks.begin(), tasks.end());
    return check(calls, bound, visible_in_tasks(all));
  }

 private:
  AttentionExtents extents_;
  float scale_;

 public:
  double gradient_floor = 0.0;  // see relative_error; of dquery and dkey
  TestTensor query, key, value, output, log_sum_exp, doutput, dquery, dkey, dvalue;
};

inline Tasks everything(int64_t queries, int64_t keys) {
  return {{0, queries, 0, keys, kNoLower, kNoUpper}};
}
inline Tasks causal(int64_t tokens) {
  return {{0, tokens, 0, tokens, kNoLower, 0}};
}

// Causal attention with the keys dealt over `parts` calls, as a ring deals them over hops.
inline std::vector<Tasks> causal_in_parts(int64_t tokens, int64_t parts) {
  std::vector<Tasks> calls;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = tokens * part / parts;
    const int64_t end = tokens * (part + 1) / parts;
    calls.push_back({{0, tokens, begin, end, kNoLower, -begin}});
  }
  return calls;
}

// Causal documents end to end.
inline Tasks documents(const std::vector<int64_t>& lengths) {
  Tasks tasks;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    tasks.push_back({begin, begin + length, begin, begin + length, kNoLower, 0});
    begin += length;
  }
  return tasks;
}

// Runs `body` once for every instruction set that this processor and this program have.
template <typename Body>
void for_each_instruction_set(const Body& body) {
  const int64_t available = hwy::SupportedTargets();
  for (const int64_t target : {int64_t{HWY_AVX3}, int64_t{HWY_AVX2}, int64_t{HWY_SSE4}, int64_t{HWY_SCALAR}}) {
    if ((available & target) == 0 && target != HWY_SCALAR) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    body();
    hwy::SetSupportedTargetsForTest(0);
  }
}

}  // namespace ithaca::cpu
