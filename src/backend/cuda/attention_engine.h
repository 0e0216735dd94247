// How CUDA attention runs its calls: workspace, plans, and the choice between fused and own kernels. What
// CudaAttention's forward and backward halves share. Internal to backend/cuda. Thread-safety: one thread, one stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string_view>
#include <tuple>

#include "backend/cuda/attention.h"
#include "backend/cuda/attention_lists.h"
#include "backend/cuda/cudnn_attention.h"

namespace ithaca::cuda {

// A tensor in memory of its own.
struct OwnTensor {
  std::shared_ptr<void> memory;
  Tensor tensor;

  bool is_empty() const { return memory == nullptr; }
};

class AttentionEngine {
 public:
  AttentionEngine(WorkspaceProvider workspace, const CudaAttention::Options& options)
      : options_(options), workspace_(workspace), lists_(std::move(workspace)) {}

  // Row-major, content undefined.
  OwnTensor allocate(std::string_view name, DType dtype, const Extents& extents, cudaStream_t stream);
  std::shared_ptr<void> allocate_bytes(std::string_view name, int64_t bytes, cudaStream_t stream);

  AttentionLists& lists() { return lists_; }
  const CudaAttention::Options& options() const { return options_; }
  CudnnAttention& cudnn();
  int64_t plans_built() const { return cudnn_ == nullptr ? 0 : cudnn_->plans_built(); }

  // Calls for tensors of these arguments.
  AttentionCallRules rules(const Tensor& query, const Tensor& key, const Tensor& value, bool fused) const;
  // Whether cuDNN can read and write heads of this tensor where they are.
  static bool is_aligned(const Tensor& tensor);

  // Everything of a plan that does not depend on the strides.
  static CudnnAttentionShape dense_shape(const PreparedCall& prepared, const Tensor& query, const Tensor& key);
  static CudnnAttentionShape ragged_shape(const PreparedCall& prepared, const Tensor& query, const Tensor& key);
  // Whether a dense plan of this shape is there or may be built. Lengths are part of dense plans, so that their number
  // is bounded: the first kMostDenseShapes shapes have one, later ones run as ragged batches, whose plans are few.
  bool admits_dense(const CudnnAttentionShape& shape);
  static constexpr size_t kMostDenseShapes = 32;

 private:
  CudaAttention::Options options_;
  WorkspaceProvider workspace_;
  AttentionLists lists_;
  std::unique_ptr<CudnnAttention> cudnn_;
  // Direction, mask, windowed, batch, query length, key length.
  using DenseLengths = std::tuple<bool, AttentionMask, bool, int64_t, int64_t, int64_t>;
  std::set<DenseLengths> dense_lengths_;
};

// The distance between the rectangles of a dense call (of a single one: its length).
int64_t query_distance(const AttentionCall& call);
int64_t key_distance(const AttentionCall& call);
// A dense batch of [tokens, heads, size] rectangles `distance` tokens apart.
CudnnStrides cudnn_strides(const Tensor& tensor, int64_t distance);

// attention_backward.cpp
void attention_backward(AttentionEngine& engine, const AttentionBackward& arguments, cudaStream_t stream);

}  // namespace ithaca::cuda
