// Matrix products of the CUDA backend: cuBLASLt, with everything about a call but its pointers remembered for each
// shape. Internal to backend/cuda: includes CUDA headers.
//
// Most products need no workspace, and then a call only enqueues one kernel. That matters where a product is short:
// workspace that is given back leaves an event behind the kernel, and the next kernel starts microseconds later.
//
// Thread-safety: one rank's thread. Requires the rank's device to be current.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "backend/cuda/cuda_memory.h"
#include "backend/operations.h"

namespace ithaca::cuda {

class CudaGemm {
 public:
  explicit CudaGemm(WorkspaceProvider workspace);
  ~CudaGemm();
  CudaGemm(const CudaGemm&) = delete;
  CudaGemm& operator=(const CudaGemm&) = delete;

  // Arguments are checked (backend/check.h).
  void run(const Gemm& arguments, cudaStream_t stream);

  // Shapes that cuBLASLt refused, which an own kernel computes instead.
  int64_t refused_shapes() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace ithaca::cuda
