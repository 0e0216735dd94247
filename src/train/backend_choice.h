// Which backend a run computes with, and in which dtype: `auto` settled, and each rank's backend made.
//
// Thread-safety: pure functions; make_backend is called on the rank's own thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "backend/backend.h"
#include "comm/transport.h"

namespace ithaca {

enum class BackendKind { cpu, cuda };

std::string_view backend_kind_name(BackendKind kind);

struct BackendChoice {
  BackendKind kind = BackendKind::cpu;
  DType compute_dtype = DType::float32;
  int devices = 0;             // GPUs of this process; 0 with the CPU
  std::string device_name;     // of the first GPU
  bool deterministic = false;  // the same bits in the attention backward pass on CUDA (everything else always has them)
  Transport transport = Transport::peer;  // see settle_transport
  std::string transport_reason;           // why `auto` chose it; empty when given, and where no GPUs exchange anything
};

// `backend` is auto, cpu or cuda; `compute_dtype` is auto, float32 or bfloat16. Throws ConfigurationError when there is
// no GPU that can be used, or when the backend does not compute in that dtype.
BackendChoice choose_backend(const std::string& backend, const std::string& compute_dtype, bool deterministic);

// Backend::preferred_attention_rows of backends of this kind, before there is one.
int64_t preferred_attention_rows(BackendKind kind);

// What the choice of a transport depends on.
struct TransportFacts {
  BackendKind backend = BackendKind::cpu;
  int ranks = 1;
  int devices = 0;           // GPUs of this process
  bool are_peers = false;    // the GPUs that the ranks are on read each other's memory
  std::string nccl_absence;  // why NCCL cannot be used; empty when it can
};

// Sets `transport` and `transport_reason` of the choice. `transport` is auto, peer or nccl, and `option` what errors
// call it. Throws ConfigurationError, naming what works, when it is not for these ranks.
void choose_transport(BackendChoice& choice, const char* option, const std::string& transport,
                      const TransportFacts& facts);
// The same for `ranks` ranks on the GPUs of this process.
void settle_transport(BackendChoice& choice, const char* option, const std::string& transport, int ranks);

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
