// Addresses in shared memory, and barriers there that threads or a copy engine arrive at. Internal to backend/cuda;
// barriers need compute capability 9.0 (in code for others their functions do nothing and must not be called).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ithaca::cuda {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define ITHACA_BARRIER_ASM(...) asm volatile(__VA_ARGS__)
#else
#define ITHACA_BARRIER_ASM(...)
#endif

// A barrier is 8 bytes, aligned to 8. The n-th time (from 0) that all its `arrivals` are there is waited for with phase
// n % 2; a wait with phase 1 before anything has happened returns at once.
__device__ inline void init_barrier([[maybe_unused]] uint32_t barrier, [[maybe_unused]] int arrivals) {
  ITHACA_BARRIER_ASM("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void wait_for_phase([[maybe_unused]] uint32_t barrier, [[maybe_unused]] int phase) {
  ITHACA_BARRIER_ASM(
      "{\n"
      ".reg .pred is_done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 is_done, [%0], %1;\n"
      "@is_done bra done;\n"
      "bra again;\n"
      "done:\n"
      "}\n" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

#undef ITHACA_BARRIER_ASM

}  // namespace ithaca::cuda
