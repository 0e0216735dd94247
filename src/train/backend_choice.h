// Which backend a run computes with, and in which dtype: `auto` settled, and each rank's backend made.
//
// Thread-safety: pure functions; make_backend is called on the rank's own thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "backend/backend.h"

namespace ithaca {

enum class BackendKind { cpu, cuda };

std::string_view backend_kind_name(BackendKind kind);

struct BackendChoice {
  BackendKind kind = BackendKind::cpu;
  DType compute_dtype = DType::float32;
  int devices = 0;             // GPUs of this process; 0 with the CPU
  std::string device_name;     // of the first GPU
  bool deterministic = false;  // the same bits in the attention backward pass on CUDA (everything else always has them)
};

// `backend` is auto, cpu or cuda; `compute_dtype` is auto, float32 or bfloat16. Throws ConfigurationError when there is
// no GPU that can be used, or when the backend does not compute in that dtype.
BackendChoice choose_backend(const std::string& backend, const std::string& compute_dtype, bool deterministic);

// The GPU of `rank` out of `ranks`, and how many ranks it has: ranks are dealt contiguously, so that neighbours in the
// mesh are neighbours on the host.
struct DevicePlace {
  int device = 0;
  int ranks_on_device = 1;
};
DevicePlace device_of_rank(int rank, int ranks, int devices);

// `memory_limit_bytes` of the device arena; 0: the rank's share of the GPU, or of the machine's memory.
std::unique_ptr<Backend> make_backend(const BackendChoice& choice, int rank, int ranks, int64_t memory_limit_bytes);

}  // namespace ithaca
