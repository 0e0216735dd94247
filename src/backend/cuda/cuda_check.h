// Checks of CUDA calls. Internal to backend/cuda: includes CUDA headers.
#pragma once

#include <cuda_runtime_api.h>

namespace ithaca::cuda {

// Throws CudaError naming the call, the place and what CUDA says of `error`; OutOfMemoryError when memory was asked
// for.
[[noreturn]] void throw_cuda_error(cudaError_t error, const char* call, const char* file, int line);

inline void check_cuda(cudaError_t error, const char* call, const char* file, int line) {
  if (error != cudaSuccess) throw_cuda_error(error, call, file, line);
}

}  // namespace ithaca::cuda

#define ITHACA_CUDA_CHECK(call) ::ithaca::cuda::check_cuda((call), #call, __FILE__, __LINE__)
// Directly behind a kernel launch; `kernel` is a string literal.
#define ITHACA_CUDA_CHECK_LAUNCH(kernel) \
  ::ithaca::cuda::check_cuda(cudaGetLastError(), "launch of the kernel " kernel, __FILE__, __LINE__)
