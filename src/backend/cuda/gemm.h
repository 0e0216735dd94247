// Matrix products of the CUDA backend: cuBLASLt, with the choice of algorithm remembered for each shape. Internal to
// backend/cuda: includes CUDA headers.
//
// Thread-safety: one rank's thread. Requires the rank's device to be current.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "backend/operations.h"

namespace ithaca::cuda {

// What every product may use beside its arguments; whether it does is the library's choice.
inline constexpr int64_t kGemmWorkspaceBytes = int64_t{32} << 20;

class CudaGemm {
 public:
  CudaGemm();
  ~CudaGemm();
  CudaGemm(const CudaGemm&) = delete;
  CudaGemm& operator=(const CudaGemm&) = delete;

  // True when run() will not touch its workspace: an empty product.
  static bool needs_no_workspace(const Gemm& arguments);
  // Arguments are checked (backend/check.h). `workspace`: kGemmWorkspaceBytes, aligned to 256 bytes, of this call alone
  // until it has run.
  void run(const Gemm& arguments, void* workspace, cudaStream_t stream);

  // Shapes that cuBLASLt refused, which an own kernel computes instead.
  int64_t refused_shapes() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace ithaca::cuda
