// How operands of warpgroup products lie in shared memory. Internal to backend/cuda.
//
// A panel is 64 rows of 64 bfloat16: 128 bytes a row, in chunks of 16 bytes; chunk c of row r lies at place c ^ (r %
// 8), which is the 128-byte swizzle of the PTX ISA for panels that begin at multiples of 1,024 bytes. A tile is 64
// tokens of one head: one panel for every 64 elements. A panel can be read by rows (an operand's rows are the panel's,
// multiplied along the 64 elements) or by columns (an operand's rows are the panel's columns, multiplied along its
// rows).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ithaca::cuda {

inline constexpr uint32_t kPanelBytes = 64 * 128;

// An operand in panels that follow each other, from `address` + `offset` on. By rows: 32 bytes further are the next 16
// elements. By columns: 2,048 bytes further are the next 16 rows, 128 bytes of a row are 64 rows of the operand, the
// next 64 are in the next panel. `offset` is a constant where it is known to the compiler, so that it is added once.
__host__ __device__ inline uint64_t operand(uint32_t address, uint32_t offset) {
  constexpr uint32_t kSwizzle128 = uint32_t{1} << 30;
  constexpr uint32_t kEightRows = 1024 >> 4;
  constexpr uint32_t kNextPanel = (kPanelBytes >> 4) << 16;
  return uint64_t{kSwizzle128 | kEightRows} << 32 | ((address >> 4) + (kNextPanel + (offset >> 4)));
}

}  // namespace ithaca::cuda
