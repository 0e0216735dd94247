// Bulk copies from global to shared memory by the copy engine of compute capability 9.0: one thread asks for some
// kilobytes, which occupy neither registers nor threads on their way; a barrier in shared memory says when they are
// there. Internal to backend/cuda; device code of 9.0 and up (for others the functions do nothing and must not be
// called).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/shared_barrier.cuh"

namespace ithaca::cuda {

// In shared memory. One copy after the other; the n-th one (from 0) is waited for with phase n % 2.
struct BulkBarrier {
  uint64_t state;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define ITHACA_BULK_ASM(...) asm volatile(__VA_ARGS__)
#else
#define ITHACA_BULK_ASM(...)
#endif

// For one arrival, that of the thread which expects the bytes.
__device__ inline void init(BulkBarrier& barrier) {
  init_barrier(shared_address(&barrier), 1);
}

// Makes init() visible to the copy engine; by the thread that has called it, before its first copy.
__device__ inline void fence_barriers() {
  ITHACA_BULK_ASM("fence.mbarrier_init.release.cluster;" ::: "memory");
  ITHACA_BULK_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}

// Starts a copy of `bytes` (a multiple of 16, under 1 MiB); both addresses are multiples of 16. What threads have read
// at `to_shared` before must be ordered by a barrier of the block, or of the warp if no other reads there; no thread
// may have written there.
__device__ inline void begin_copy(void* to_shared, const void* from_global, uint32_t bytes, BulkBarrier& barrier) {
  [[maybe_unused]] const uint32_t target = shared_address(to_shared);
  [[maybe_unused]] const uint32_t address = shared_address(&barrier);
  [[maybe_unused]] const uint64_t source = __cvta_generic_to_global(from_global);
  ITHACA_BULK_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
  ITHACA_BULK_ASM(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
      "l"(source), "r"(bytes), "r"(address)
      : "memory");
}

// Waits until the copy of this phase is there, for every thread that reads it.
__device__ inline void wait(BulkBarrier& barrier, int phase) {
  wait_for_phase(shared_address(&barrier), phase);
}

#undef ITHACA_BULK_ASM

}  // namespace ithaca::cuda
