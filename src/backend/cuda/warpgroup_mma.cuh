// The instructions of compute capability 9.0 that work on whole warpgroups (128 threads): products whose operands lie
// in shared memory and which run beside the threads, barriers between groups of threads, and the tiles they agree on.
// Internal to backend/cuda; code for architecture 9.0a (for others the functions do nothing and must not be called).
//
// Operands lie as warpgroup_layout.h says.
//
// Accumulators of 64 x N: lane 4 g + t of warp w holds, in sums[4 n + j], row 16 w + g + 8 (j / 2), column
// 8 n + 2 t + j % 2. A left operand of 64 x 16 in registers: those of mma.m16n8k16 for the rows of the warp.
#pragma once

#include <cstdint>

#include "backend/cuda/attention_mma.cuh"
#include "backend/cuda/shared_barrier.cuh"
#include "backend/cuda/warpgroup_layout.h"

namespace ithaca::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ITHACA_WARPGROUP_ASM(...) asm volatile(__VA_ARGS__)
#else
#define ITHACA_WARPGROUP_ASM(...)
#endif

// ---- barriers ----

// At one of shared_barrier.cuh.
__device__ inline void arrive([[maybe_unused]] uint32_t barrier) {
  ITHACA_WARPGROUP_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
// Waits until kThreads threads are here; kBarrier 0 is that of __syncthreads().
template <int kBarrier, int kThreads>
__device__ void meet() {
  ITHACA_WARPGROUP_ASM("bar.sync %0, %1;\n" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

// What this thread has written to shared memory so far becomes visible to products that are started behind a barrier.
__device__ inline void publish_to_products() {
  ITHACA_WARPGROUP_ASM("fence.proxy.async.shared::cta;\n" ::: "memory");
}

// Registers of a thread from here on; by all warps of a warpgroup. The block was launched with fewer (or more).
template <int kRegisters>
__device__ void take_registers() {
  ITHACA_WARPGROUP_ASM("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void give_registers() {
  ITHACA_WARPGROUP_ASM("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

// A value that is the same for all lanes of a warp, so that the compiler knows it: products cannot run beside anything
// in branches that it believes lanes could take apart from each other.
__device__ inline int uniform(int value) {
  return __shfl_sync(0xFFFFFFFFu, value, 0);
}

// The same value, but what follows from it is computed here and now: there is more of that than registers.
__device__ inline int forgotten(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
__device__ inline float forgotten(float value) {
  asm volatile("" : "+f"(value));
  return value;
}

// ---- products ----

// Before the first product that reads registers which were written since.
__device__ inline void fence_registers() {
  ITHACA_WARPGROUP_ASM("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ inline void commit_products() {
  ITHACA_WARPGROUP_ASM("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
// Waits until at most kPending of the groups committed last are under way.
template <int kPending>
__device__ void wait_for_products() {
  ITHACA_WARPGROUP_ASM("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}
// The compiler knows nothing of products under way: what reads or writes their registers stays behind this.
template <int kCount>
__device__ void hold(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) ITHACA_WARPGROUP_ASM("" : "+f"(registers[i])::"memory");
}
template <int kCount>
__device__ void hold(uint32_t (&registers)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) ITHACA_WARPGROUP_ASM("" : "+r"(registers[i][j])::"memory");
  }
}

// sums (64 x 64) = or += a (64 x 16) * b (16 x 64), both operands in shared memory, each read by rows or by columns.
template <bool kColumnsOfA, bool kColumnsOfB>
__device__ void multiply_shared(float (&sums)[32], uint64_t a, uint64_t b, bool adds) {
  ITHACA_WARPGROUP_ASM(
      "{\n"
      ".reg .pred adds;\n"
      "setp.ne.b32 adds, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, adds, 1, 1, %35, %36;\n"
      "}\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]),
        "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]),
        "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]), "+f"(sums[20]),
        "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]), "+f"(sums[26]), "+f"(sums[27]),
        "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31])
      : "l"(a), "l"(b), "r"(static_cast<int>(adds)), "n"(kColumnsOfA ? 1 : 0), "n"(kColumnsOfB ? 1 : 0));
}
// sums (64 x N) += a (64 x 16, in registers) * b (16 x N).
template <bool kColumnsOfB>
__device__ void multiply_registers(float (&sums)[32], const uint32_t (&a)[4], uint64_t b) {
  ITHACA_WARPGROUP_ASM(
      "{\n"
      ".reg .pred adds;\n"
      "setp.ne.b32 adds, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, adds, 1, 1, %37;\n"
      "}\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]),
        "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]),
        "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]), "+f"(sums[20]),
        "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]), "+f"(sums[26]), "+f"(sums[27]),
        "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kColumnsOfB ? 1 : 0));
}
template <bool kColumnsOfB>
__device__ void multiply_registers(float (&sums)[64], const uint32_t (&a)[4], uint64_t b) {
  ITHACA_WARPGROUP_ASM(
      "{\n"
      ".reg .pred adds;\n"
      "setp.ne.b32 adds, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
      "%59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, adds, 1, 1, %69;\n"
      "}\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]),
        "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]),
        "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]), "+f"(sums[20]),
        "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]), "+f"(sums[26]), "+f"(sums[27]),
        "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31]), "+f"(sums[32]), "+f"(sums[33]), "+f"(sums[34]),
        "+f"(sums[35]), "+f"(sums[36]), "+f"(sums[37]), "+f"(sums[38]), "+f"(sums[39]), "+f"(sums[40]), "+f"(sums[41]),
        "+f"(sums[42]), "+f"(sums[43]), "+f"(sums[44]), "+f"(sums[45]), "+f"(sums[46]), "+f"(sums[47]), "+f"(sums[48]),
        "+f"(sums[49]), "+f"(sums[50]), "+f"(sums[51]), "+f"(sums[52]), "+f"(sums[53]), "+f"(sums[54]), "+f"(sums[55]),
        "+f"(sums[56]), "+f"(sums[57]), "+f"(sums[58]), "+f"(sums[59]), "+f"(sums[60]), "+f"(sums[61]), "+f"(sums[62]),
        "+f"(sums[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kColumnsOfB ? 1 : 0));
}

// ---- registers to shared memory ----

// The four 8 x 8 matrices of a fragment: lanes 8 i ... 8 i + 7 have the addresses of the rows of matrix i.
__device__ inline void store_matrices([[maybe_unused]] uint32_t address, [[maybe_unused]] const uint32_t (&words)[4]) {
  ITHACA_WARPGROUP_ASM("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address),
                       "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                       : "memory");
}

#undef ITHACA_WARPGROUP_ASM

}  // namespace ithaca::cuda
