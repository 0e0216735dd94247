// The exchange between the devices of one process by NCCL, which is loaded when it is first asked for.
// Internal to backend/cuda: includes CUDA headers, but none of NCCL; without them in the build the functions say so.
//
// One communicator of NCCL over all ranks, made by one call for all of them (ncclCommInitAll), with every connection
// that sends and receives will use: after that no call into NCCL waits for another rank on the host. Thread-safety: any
// thread; the calls of one rank must not overlap.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <span>
#include <string>

#include "backend/device_exchange.h"

namespace ithaca::cuda {

// Why NCCL cannot be used: what to install. Empty when it can.
std::string nccl_absence_reason();

// Rank r is on the GPU `devices[r]`. Throws ConfigurationError when there is no NCCL or when ranks share a GPU, and
// CommunicationError when it cannot connect them.
std::unique_ptr<DeviceExchange> make_nccl_exchange(std::span<const int> devices);

// As DeviceIssuer::exchange, on a stream of the rank's device, which is the current one.
void run_nccl_exchange(DeviceExchange& exchange, int rank, std::span<const DeviceMessage> sends,
                       std::span<const DeviceMessage> receives, cudaStream_t stream);

}  // namespace ithaca::cuda
