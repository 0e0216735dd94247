// Attention in float64 by its definition: what tests hold the fast kernels and the schedules to.
//
// Forms whole score rows and makes no attempt to be quick: keep it to a few thousand tokens. Thread-safety: pure
// functions of their arguments.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backend/operations.h"
#include "tensor/tensor.h"

namespace ithaca {

// Whether query token `query` may see key token `key`.
using AttentionVisibility = std::function<bool(int64_t query, int64_t key)>;

// Exactly the pairs that `tasks` make visible (copied).
AttentionVisibility visible_in_tasks(std::span<const AttentionTask> tasks);
// Everything; key <= query.
AttentionVisibility visible_everywhere();
AttentionVisibility visible_causally();

// All arrays are row-major. Query head h uses key head h / (query_heads / key_heads).
struct ReferenceAttention {
  int64_t query_tokens = 0;
  int64_t key_tokens = 0;
  int64_t query_heads = 0;
  int64_t key_heads = 0;
  int64_t key_size = 0;
  int64_t value_size = 0;
  double scale = 1.0;
  std::vector<double> query;  // [query_tokens, query_heads, key_size]
  std::vector<double> key;    // [key_tokens, key_heads, key_size]
  std::vector<double> value;  // [key_tokens, key_heads, value_size]
};

// Copies float32 or float64 views of any strides.
ReferenceAttention make_reference_attention(const Tensor& query, const Tensor& key, const Tensor& value, double scale);

// The elements of a float32 or float64 view of any strides, in row-major order.
std::vector<double> to_doubles(const Tensor& tensor);

struct ReferenceAttentionOutput {
  std::vector<double> output;       // [query_tokens, query_heads, value_size]; 0 where a query sees no key
  std::vector<double> log_sum_exp;  // [query_tokens, query_heads], natural; -inf where a query sees no key
};

struct ReferenceAttentionGradient {
  std::vector<double> dquery;  // [query_tokens, query_heads, key_size]
  std::vector<double> dkey;    // [key_tokens, key_heads, key_size]
  std::vector<double> dvalue;  // [key_tokens, key_heads, value_size]
};

// output = softmax(scale * query key^T) value over the visible keys.
ReferenceAttentionOutput reference_attention_forward(const ReferenceAttention& attention,
                                                     const AttentionVisibility& visible);

// The gradient of sum(output * doutput), from the definition of softmax: dS = P * (dP - sum(P * dP)). Nothing of a
// forward pass is reused.
ReferenceAttentionGradient reference_attention_backward(const ReferenceAttention& attention,
                                                        std::span<const double> doutput,
                                                        const AttentionVisibility& visible);

}  // namespace ithaca
