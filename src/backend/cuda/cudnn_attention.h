// Attention by cuDNN's fused kernels: graphs, plans and their execution.
//
// bfloat16 tensors, float32 arithmetic. A plan is dense (a batch of equal rectangles; lengths are part of it) or ragged
// (a batch of rectangles whose places and lengths are data: one plan serves every packing up to its batch and length).
// Scale and window are data too. Plans are built once and kept.
//
// What cuDNN needs, and what this class therefore requires: head size a multiple of 32, the same for keys and values;
// tensors aligned to 16 bytes; no rectangle with queries but without keys; dense lengths that are multiples of 128 (its
// dense backward is wrong for some others). Query head h uses key head h / (query heads / key heads).
//
// Thread-safety: one thread and the device that is current when it is constructed.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "backend/cuda/attention_calls.h"
#include "backend/cuda/cudnn_graph.h"

namespace ithaca::cuda {

// Strides in elements; that of the elements of a head is 1. Ragged: `batch` is not used.
struct CudnnStrides {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t token = 0;
  auto operator<=>(const CudnnStrides&) const = default;
};

// What a plan depends on.
struct CudnnAttentionShape {
  bool backward = false;
  bool ragged = false;
  AttentionMask mask = AttentionMask::full;
  bool windowed = false;
  int64_t batch = 1;  // ragged: the most rectangles
  int64_t query_heads = 0;
  int64_t key_heads = 0;
  int64_t query_length = 0;  // of one rectangle; ragged: the longest
  int64_t key_length = 0;
  int64_t head_size = 0;
  CudnnStrides query, key, value, output;
  // Backward only. Ragged: gradients have the strides, and the offsets, of what they are gradients of.
  CudnnStrides doutput, dquery, dkey, dvalue;
  auto operator<=>(const CudnnAttentionShape&) const = default;
};

// The places of the rectangles of a ragged call, in device memory. Offsets count elements of the tensor they belong to:
// first token times token stride; one more for the end of the last rectangle. Rectangles that are not used have length
// 0.
struct CudnnRaggedArrays {
  const int32_t* query_lengths = nullptr;  // [batch]
  const int32_t* key_lengths = nullptr;
  const int64_t* query = nullptr;  // [batch + 1]
  const int64_t* key = nullptr;
  const int64_t* value = nullptr;
  const int64_t* output = nullptr;
  const int64_t* log_sum_exp = nullptr;
};

// Row tensors (log-sum-exp, row sums) are float32: dense [batch, query heads, query length], ragged [tokens, query
// heads].
struct CudnnForwardData {
  const void* query = nullptr;
  const void* key = nullptr;
  const void* value = nullptr;
  void* output = nullptr;
  float* log_sum_exp = nullptr;
  float scale = 1.0f;
  int64_t window = 0;
  CudnnRaggedArrays ragged;
};

struct CudnnBackwardData {
  const void* query = nullptr;
  const void* key = nullptr;
  const void* value = nullptr;
  const void* output = nullptr;
  const void* doutput = nullptr;
  const float* log_sum_exp = nullptr;
  // bfloat16, overwritten; ragged: only the tokens of rectangles are written.
  void* dquery = nullptr;
  void* dkey = nullptr;
  void* dvalue = nullptr;
  // Workspace: float32 row sums like log_sum_exp, and a float32 accumulator of dquery: dense [batch, query heads, query
  // length, head size], ragged like dquery.
  float* row_sums = nullptr;
  float* dquery_accumulator = nullptr;
  // Ragged with more query heads than key heads: bfloat16 dkey and dvalue of every query head, [tokens, query heads,
  // head size].
  void* dkey_by_query_head = nullptr;
  void* dvalue_by_query_head = nullptr;
  float scale = 1.0f;
  int64_t window = 0;
  CudnnRaggedArrays ragged;
};

class CudnnAttention {
 public:
  CudnnAttention();
  // No device: plans can be built for the device that the JSON text describes (cuDNN's device properties), not run.
  explicit CudnnAttention(const std::string& device_properties);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  // Whether head size and head counts are what cuDNN may take at all.
  static bool may_take(int64_t query_heads, int64_t key_heads, int64_t key_size, int64_t value_size);

  // Builds the plan if it is not there. False when cuDNN has no engine for it (also remembered).
  bool prepare(const CudnnAttentionShape& shape);
  // Whether a plan, or cuDNN's refusal, is there already.
  bool is_known(const CudnnAttentionShape& shape) const;
  // Of a shape that prepare() said yes to. `workspace`: 256-byte aligned, workspace_bytes(shape).
  int64_t workspace_bytes(const CudnnAttentionShape& shape) const;
  void forward(cudaStream_t stream, const CudnnAttentionShape& shape, const CudnnForwardData& data, void* workspace);
  void backward(cudaStream_t stream, const CudnnAttentionShape& shape, const CudnnBackwardData& data, void* workspace);

  int64_t plans_built() const { return plans_built_; }
  // Why cuDNN refused the shape that was refused last.
  const std::string& last_refusal() const { return last_refusal_; }

 private:
  const CudnnPlan& plan(const CudnnAttentionShape& shape) const;
  void use_stream(cudaStream_t stream);

  cudnnHandle_t handle_ = nullptr;
  std::unique_ptr<CudnnDescriptor> device_properties_;
  std::map<CudnnAttentionShape, std::unique_ptr<CudnnPlan>> plans_;  // null: refused
  int64_t plans_built_ = 0;
  std::string last_refusal_;
};

}  // namespace ithaca::cuda
