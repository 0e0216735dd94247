// The CUDA backend: one NVIDIA GPU (Hopper) for one rank; bfloat16 with float32 accumulation.
//
// Matrix products by cuBLASLt, attention by cuDNN and own kernels (attention.h), everything else by own kernels. The
// three streams are CUDA streams; no operation waits for the device. Several backends, one per rank thread, may share
// one GPU. These functions exist in every build; without CUDA in the build there are no devices. Thread-safety: as
// Backend.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "backend/backend.h"

namespace ithaca {

// A CUDA call failed, or a kernel did. The text names the call, the place in the source and what CUDA says. Nothing
// that the device holds can be trusted afterwards.
class CudaError : public Error {
 public:
  using Error::Error;
};

// Backend::preferred_attention_rows: 1,024 of cuDNN's tiles. Calls of twice as many are about 2% quicker on long
// sequences, as multiprocessors end nearer to each other, but leave half as many groups of heads for exchanges to hide
// behind: that weighs more over eight ranks, and with packed documents (docs/benchmarks.md).
inline constexpr int64_t kCudaAttentionRows = int64_t{1} << 17;

struct CudaBackendOptions {
  // Number of the GPU, of those that the process sees.
  int device = 0;
  // How many ranks of this process use the GPU: what the memory is divided by when `memory_limit_bytes` is 0.
  int ranks_on_device = 1;
  // The ranks of this process are on the first so many GPUs, whose memory this one reads; 0: on all. Each of them comes
  // into use by this, which takes time and memory there.
  int devices_in_use = 0;
  // Size of the device arena, allocated at once. 0: nearly all that is free on the GPU, divided by `ranks_on_device`.
  int64_t memory_limit_bytes = 0;
  // Size of the host arena, page-locked when it is first used. 0: 1 GiB.
  int64_t host_memory_limit_bytes = 0;
  // bfloat16, or float32: the same kernels in single precision, slow and exact, for tests.
  DType compute_dtype = DType::bfloat16;
  // The same bits every time in the attention backward pass too (slower).
  bool deterministic = false;
  // Waits for the device after every operation, so that a fault is reported by the operation that caused it.
  bool synchronous = false;
};

struct CudaDeviceInfo {
  std::string name;          // "NVIDIA H200"
  int64_t memory_bytes = 0;  // in all
  int multiprocessors = 0;
  int compute_capability = 0;  // 90 for 9.0
};

// GPUs that this process can use; 0 without a driver, without a GPU, or without CUDA in the build.
int cuda_device_count();

// Why cuda_device_count() is 0 ("built without CUDA", or what the driver says).
std::string cuda_absence_reason();

// Why a CUDA backend cannot record traces (Backend::start_recording): no CUPTI, and what to install. Empty when it can.
std::string cuda_trace_absence_reason();

// Why ranks on CUDA cannot exchange tensors through NCCL: no NCCL, and what to install. Empty when they can.
std::string cuda_nccl_absence_reason();

// Whether each of the first `devices` GPUs can read the memory of each other one.
bool cuda_devices_are_peers(int devices);

// Throws ConfigurationError when there is no such device.
CudaDeviceInfo cuda_device_info(int device);

// Throws ConfigurationError when the device is not there, is not the kind that the kernels were built for, or has less
// memory than asked for. Call it on the rank's own thread.
std::unique_ptr<Backend> make_cuda_backend(const CudaBackendOptions& options = {});

}  // namespace ithaca
