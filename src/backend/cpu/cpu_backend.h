// The CPU backend: float32, SIMD through Highway, matrix products through BLAS (one thread per rank).
//
// The compute stream runs inline on the calling thread; the communication and copy streams are real threads, so that
// exchanges overlap with computation. Results are bit-identical from run to run for the same arguments.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"

namespace ithaca {

inline constexpr int64_t kCpuAttentionRows = 1;  // Backend::preferred_attention_rows: any number runs at full speed

struct CpuBackendOptions {
  // Address space of the device arena; pages are only committed when they are touched. 0: the machine's physical
  // memory.
  int64_t memory_limit_bytes = 0;
  // Address space of the host arena. 0: the machine's physical memory.
  int64_t host_memory_limit_bytes = 0;
};

// Throws ConfigurationError when the BLAS library computes wrong products on this processor (checked once per process
// against a plain reference).
std::unique_ptr<Backend> make_cpu_backend(const CpuBackendOptions& options = {});

}  // namespace ithaca
