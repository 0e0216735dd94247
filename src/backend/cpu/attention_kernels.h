// Entry points of the SIMD attention kernels, after arguments have been checked. Internal to the CPU backend.
#pragma once

#include "backend/cpu/attention.h"

namespace ithaca::cpu {

// `workspace`: ForwardBlocks::floats floats, 64-byte aligned.
void run_attention_forward(const AttentionForward& arguments, const AttentionAccumulator& accumulator,
                           float* workspace);
// `workspace`: BackwardBlocks::floats floats, 64-byte aligned.
void run_attention_backward(const AttentionBackward& arguments, float* workspace);

// Plain views of one tensor [tokens, heads, size] without checks per access.
template <typename T>
struct HeadRows {
  T* data;
  int64_t token_stride;
  int64_t head_stride;

  explicit HeadRows(const Tensor& tensor)
      : data(tensor.as<float>()), token_stride(tensor.stride(0)), head_stride(tensor.stride(1)) {}
  T* row(int64_t token, int64_t head) const { return data + token * token_stride + head * head_stride; }
};

}  // namespace ithaca::cpu
