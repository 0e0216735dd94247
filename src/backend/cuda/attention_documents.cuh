// Backward attention of short documents: the work of one block, on warpgroup products (warpgroup_mma.cuh).
//
// A block takes a document and a key head at a time, from a queue, the largest first. It goes through the keys in
// passes of 128 and, in a pass, through the tiles of 64 queries that see them, of all query heads of the group: five
// products for each (K Q^T, V dO^T, dV, dK, dQ). Two warpgroups multiply, each for 64 keys of the pass, whose dK and dV
// stay in its registers; P^T and dS^T are left operands in registers, and dS^T goes to shared memory for dQ, of which
// each warpgroup makes half of the elements (of heads of up to 64 elements, every other tile) for the keys of both. A
// dQ that more than one pass contributes to waits in memory of the block's own, where each thread finds what it has
// left. So nothing is added by two blocks, and the bits are always the same.
//
// What threads compute runs beside products: exponentials beside V dO^T, dS beside dV, and dQ is that of the tile
// before, written beside dK. So the warpgroups wait for each other's dS a tile late, and may be half a tile apart.
//
// A third warpgroup copies. Tiles, the keys of a pass and dS are handed over through barriers in shared memory: full
// ones and emptied ones.
//
// With ITHACA_EMULATED_WARPGROUPS this compiles for the CPU (warpgroup_emulation.h), where tests run it.
#pragma once

#include <cstdint>

#include "backend/cuda/attention_documents_copies.cuh"
#include "backend/cuda/attention_documents_pass.cuh"
#include "backend/cuda/attention_documents_products.cuh"

namespace ithaca::cuda {

// Registers of a thread that multiplies and of one that copies: 384 threads begin with 168 each.
inline constexpr int kMultiplyingRegisters = 232;
inline constexpr int kCopyingRegisters = 40;

// The work of one block, with kAllocatedBytes of shared memory.
template <int kSize, typename D>
__device__ void document_gradients(const DocumentArguments& arguments, const GradientView<D>& dquery,
                                   const GradientView<D>& dkey, const GradientView<D>& dvalue, void* memory) {
  using Memory = DocumentMemory<kSize>;
  const uint32_t shared = (shared_address(memory) + 1023) / 1024 * 1024;
  char* const base = static_cast<char*>(memory) + (shared - shared_address(memory));
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  if (threadIdx.x == 0) {
    constexpr int kMultiplyingWarps = (kDocumentThreads - kWarpgroup) / 32;
    for (int i = 0; i < kDocumentStages; ++i) {
      init_barrier(shared + Memory::kFull + 8 * i, kWarpgroup);
      init_barrier(shared + Memory::kEmpty + 8 * i, kMultiplyingWarps);
    }
    for (int i = 0; i < 4; ++i) init_barrier(shared + Memory::kDscoresFull + 8 * i, kWarpgroup);
    init_barrier(shared + Memory::kKeysFull, kWarpgroup);
    init_barrier(shared + Memory::kKeysEmpty, kMultiplyingWarps);
  }
  __syncthreads();
  if (warpgroup == 2) {
    give_registers<kCopyingRegisters>();
    DocumentCopies<kSize>(arguments, shared, base, thread).run();
  } else {
    take_registers<kMultiplyingRegisters>();
    DocumentProducts<kSize, D>(arguments, dquery, dkey, dvalue, shared, base, warpgroup, thread).run();
  }
}

}  // namespace ithaca::cuda
