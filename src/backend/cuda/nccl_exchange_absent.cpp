// What nccl_exchange.h promises in a build without NCCL's header.
#include "backend/cuda/nccl_exchange.h"
#include "base/error.h"

namespace ithaca::cuda {

std::string nccl_absence_reason() {
  return "this program was built without NCCL; install its header nccl.h (package libnccl-dev, or pip install "
         "nvidia-nccl-cu13) and configure again";
}

std::unique_ptr<DeviceExchange> make_nccl_exchange(std::span<const int> /*devices*/) {
  throw ConfigurationError(nccl_absence_reason());
}

void run_nccl_exchange(DeviceExchange& /*exchange*/, int /*rank*/, std::span<const DeviceMessage> /*sends*/,
                       std::span<const DeviceMessage> /*receives*/, cudaStream_t /*stream*/) {
  throw ContractError(nccl_absence_reason());
}

}  // namespace ithaca::cuda
