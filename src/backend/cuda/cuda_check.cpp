#include "backend/cuda/cuda_check.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "backend/cuda/cuda_backend.h"

namespace ithaca::cuda {

void throw_cuda_error(cudaError_t error, const char* call, const char* file, int line) {
  static_cast<void>(cudaGetLastError());  // an error that does not stay must not be found again by the next check
  std::string_view place(file);
  const size_t source = place.rfind("src/");
  if (source != std::string_view::npos) place.remove_prefix(source);
  const std::string text = fmt::format("CUDA: {} failed with {} ({}), at {}:{}", call, cudaGetErrorName(error),
                                       cudaGetErrorString(error), place, line);
  if (error == cudaErrorMemoryAllocation) throw OutOfMemoryError(text);
  throw CudaError(text);
}

}  // namespace ithaca::cuda
