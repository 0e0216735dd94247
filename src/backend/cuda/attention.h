// Attention of the CUDA backend: a running softmax over lists of tasks, and its gradient.
//
// A task list becomes a few calls (attention_calls.h): cuDNN's fused kernels where they take the shape (bfloat16,
// common masks, packed documents as one ragged batch), own kernels for everything else. Every call makes a partial
// result (output in the compute dtype, log-sum-exp in float32); partials are merged in float32. Calls that touch
// disjoint queries share one partial, so that attention on one rank is never merged, and with a destination given to
// begin() it is not even copied.
//
// Everything is enqueued on the stream that is given; nothing waits for the device and nothing is allocated except
// through the workspace provider. Index arrays of task lists and cuDNN plans are cached: a step that repeats the shapes
// and lists of an earlier one builds and uploads nothing. Results are repeatable except dquery of the fused backward,
// whose order of additions varies; with Options::deterministic own kernels compute the backward pass.
//
// Thread-safety: one rank's thread; all calls of one instance are on one stream (or on streams that the caller orders).
// Requires the rank's device to be current. Internal to backend/cuda: includes CUDA headers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "backend/cuda/cuda_memory.h"
#include "backend/operations.h"
#include "tensor/tensor.h"

namespace ithaca::cuda {

class CudaAttention {
 public:
  struct Options {
    // The same bits every time: the backward pass runs in own kernels that add in a fixed order (slower).
    bool deterministic = false;
    // Off: own kernels only.
    bool use_cudnn = true;
    // Task lists with fewer visible pairs (times query heads) than this are not worth cuDNN's launches.
    int64_t smallest_cudnn_work = 1 << 16;
  };

  CudaAttention(WorkspaceProvider workspace, const Options& options);
  explicit CudaAttention(WorkspaceProvider workspace);
  ~CudaAttention();
  CudaAttention(const CudaAttention&) = delete;
  CudaAttention& operator=(const CudaAttention&) = delete;

  // Backend::begin_attention.
  std::unique_ptr<AttentionState> begin(cudaStream_t stream, const AttentionShape& shape,
                                        const AttentionDestination& destination = {});
  // Backend::attention_forward, attention_backward: bfloat16, or float32 (own kernels). Arguments are checked.
  void forward(cudaStream_t stream, const AttentionForward& arguments);
  void backward(cudaStream_t stream, const AttentionBackward& arguments);
  // Backend::finish_attention. With a destination given to begin(), `output` and `log_sum_exp` must be it.
  void finish(cudaStream_t stream, AttentionState& state, const Tensor& output, const Tensor& log_sum_exp);

  // cuDNN plans built so far: constant from step to step once shapes repeat.
  int64_t plans_built() const;
  // Uploads of index arrays so far: constant from step to step once task lists repeat.
  int64_t index_uploads() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace ithaca::cuda
