// What cuda_backend.h promises in a build without CUDA.
#include "backend/cuda/cuda_backend.h"

namespace ithaca {

int cuda_device_count() {
  return 0;
}

std::string cuda_absence_reason() {
  return "this program was built without CUDA (configure with -DITHACA_CUDA=ON, or --preset cuda)";
}

std::string cuda_trace_absence_reason() {
  return cuda_absence_reason();
}

std::string cuda_nccl_absence_reason() {
  return cuda_absence_reason();
}

bool cuda_devices_are_peers(int /*devices*/) {
  return false;
}

CudaDeviceInfo cuda_device_info(int /*device*/) {
  throw ConfigurationError("no CUDA device: " + cuda_absence_reason());
}

std::unique_ptr<Backend> make_cuda_backend(const CudaBackendOptions& /*options*/) {
  throw ConfigurationError("no CUDA backend: " + cuda_absence_reason());
}

}  // namespace ithaca
