// The pieces of the task kernels that multiply on the tensor cores: tiles of bfloat16 in shared memory, fragments, and
// the walk over the visible tiles of a task list. Internal to backend/cuda.
//
// A tile is 64 tokens of one head, kSize = 64, 128 or 256 elements each (shorter heads end in zeros), in rows of
// 16-byte chunks; chunk c of row r lies at place c ^ (r % 8), so that 8 rows of one chunk are in different banks.
// Fragments are those of mma.m16n8k16 (PTX ISA): lane 4 g + t holds elements 2 t and 2 t + 1 of row g.
#pragma once

#include <cstdint>

#include "backend/cuda/attention_tasks.cuh"
#include "backend/cuda/shared_barrier.cuh"

namespace ithaca::cuda {

inline constexpr int kMmaTile = static_cast<int>(kTaskTile);
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// ---- instructions ----

// 16 (4) bytes from global to shared memory, zeros when not live; `from` is a valid address either way.
__device__ inline void copy_async_16(uint32_t to, const void* from, bool is_live) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(is_live ? 16 : 0)
               : "memory");
}
__device__ inline void copy_async_4(uint32_t to, const void* from, bool is_live) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(from), "r"(is_live ? 4 : 0) : "memory");
}
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
// Waits until at most kPending of the groups committed last are under way.
template <int kPending>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

struct Fragment {
  uint32_t registers[4];
};
__device__ inline Fragment load_matrices(uint32_t address) {
  Fragment f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(f.registers[0]), "=r"(f.registers[1]), "=r"(f.registers[2]), "=r"(f.registers[3])
               : "r"(address)
               : "memory");
  return f;
}
__device__ inline Fragment load_matrices_transposed(uint32_t address) {
  Fragment f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(f.registers[0]), "=r"(f.registers[1]), "=r"(f.registers[2]), "=r"(f.registers[3])
               : "r"(address)
               : "memory");
  return f;
}
// sums (16 x 8) += a (16 x 16) * b (16 x 8).
__device__ inline void multiply_add(float (&sums)[4], const Fragment& a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a.registers[0]), "r"(a.registers[1]), "r"(a.registers[2]), "r"(a.registers[3]), "r"(b0), "r"(b1));
}
__device__ inline void store_shared_4(uint32_t to, uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(to), "r"(word) : "memory");
}
__device__ inline uint4 load_shared_16(uint32_t from) {
  uint4 word;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "r"(from)
               : "memory");
  return word;
}
__device__ inline uint32_t pack_pair(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);  // `first` in the low half
  return *reinterpret_cast<const uint32_t*>(&pair);
}
// 2^x, as the hardware approximates it.
__device__ inline float exponential_2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(result) : "f"(x));
  return result;
}

// ---- tiles ----

template <int kSize>
__device__ uint32_t chunk_offset(int row, int chunk) {
  return static_cast<uint32_t>(row * (kSize * 2) + ((chunk ^ (row & 7)) << 4));
}
template <int kSize>
inline constexpr int kTileBytes = kMmaTile* kSize * 2;

// Starts copying tokens [begin, begin + 64) of one head; zeros from live_rows on.
template <int kSize, int kThreads>
__device__ void copy_tile_async(const HeadsView<const BFloat>& from, int64_t head, int64_t begin, int live_rows,
                                uint32_t tile) {
  constexpr int kChunks = kSize / 8;
  const BFloat* base = from.row(begin, head);
#pragma unroll
  for (int i = 0; i < kMmaTile * kChunks; i += kThreads) {
    const int item = i + static_cast<int>(threadIdx.x);
    const int row = item / kChunks;
    const int chunk = item % kChunks;
    const bool is_live = row < live_rows && chunk * 8 < from.size;
    const BFloat* source = is_live ? base + row * from.token_stride + chunk * 8 : from.data;
    copy_async_16(tile + chunk_offset<kSize>(row, chunk), source, is_live);
  }
}

// Where a lane's row of the four 8 x 8 matrices begins: of A (16 rows from `row`, 16 columns from chunk `chunk`) and of
// B in a tile of [k][n] that is transposed on the way (16 k from `row`, 16 n) ...
template <int kSize>
__device__ uint32_t rows_by_columns(uint32_t tile, int row, int chunk, int lane) {
  return tile + chunk_offset<kSize>(row + lane % 16, chunk + lane / 16);
}
// ... and of B in a tile of [n][k] (16 n from `row`, 16 k).
template <int kSize>
__device__ uint32_t columns_by_rows(uint32_t tile, int row, int chunk, int lane) {
  return tile + chunk_offset<kSize>(row + (lane & 7) + ((lane >> 4) << 3), chunk + ((lane >> 3) & 1));
}

// products (16 x 8 kBlocks) = 16 rows of `left` * rows [first, first + 8 kBlocks) of `right`, transposed.
template <int kSize, int kBlocks>
__device__ void multiply_rows(uint32_t left, int left_row, uint32_t right, int right_row, int lane,
                              float (&products)[kBlocks][4]) {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) products[n][j] = 0.0f;
  }
#pragma unroll
  for (int k = 0; k < kSize / 16; ++k) {
    const Fragment a = load_matrices(rows_by_columns<kSize>(left, left_row, 2 * k, lane));
#pragma unroll
    for (int n = 0; n < kBlocks; n += 2) {
      const Fragment b = load_matrices(columns_by_rows<kSize>(right, right_row + 8 * n, 2 * k, lane));
      multiply_add(products[n], a, b.registers[0], b.registers[1]);
      multiply_add(products[n + 1], a, b.registers[2], b.registers[3]);
    }
  }
}

// sums (16 x kSize) += weights (16 x 8 kBlocks, rounded to bfloat16) * rows [first, first + 8 kBlocks) of `right`.
template <int kSize, int kBlocks>
__device__ void add_weighted_rows(const float (&weights)[kBlocks][4], uint32_t right, int right_row, int lane,
                                  float (&sums)[kSize / 8][4]) {
#pragma unroll
  for (int k = 0; k < kBlocks; k += 2) {
    const Fragment a = {{pack_pair(weights[k][0], weights[k][1]), pack_pair(weights[k][2], weights[k][3]),
                         pack_pair(weights[k + 1][0], weights[k + 1][1]),
                         pack_pair(weights[k + 1][2], weights[k + 1][3])}};
#pragma unroll
    for (int n = 0; n < kSize / 8; n += 2) {
      const Fragment b = load_matrices_transposed(rows_by_columns<kSize>(right, right_row + 8 * k, n, lane));
      multiply_add(sums[n], a, b.registers[0], b.registers[1]);
      multiply_add(sums[n + 1], a, b.registers[2], b.registers[3]);
    }
  }
}

// ---- the place of a block ----

// Blocks of one tile follow each other head by head, since the heads of a token lie together in memory.
struct BlockPlace {
  int64_t tile;
  int64_t head;  // of the heads, or pairs of heads, that blocks are made for
};
__device__ inline BlockPlace first_tile_first(int64_t heads) {
  const int64_t tile = blockIdx.x / static_cast<unsigned>(heads);
  return {tile, static_cast<int64_t>(blockIdx.x) - tile * heads};
}
// Under a causal mask the last queries have most to do.
__device__ inline BlockPlace last_tile_first(int64_t tiles, int64_t heads) {
  BlockPlace place = first_tile_first(heads);
  place.tile = tiles - 1 - place.tile;
  return place;
}

// ---- the visible part of a tile ----

// What of a 64 x 64 tile is visible, in indices of the tile: row r (of the side that the block owns) and column c, iff
// row_begin <= r < row_end, c < column_end and lower < c - r <= upper.
struct TileMask {
  int row_begin = 0;
  int row_end = 0;
  int column_end = 0;
  int lower = 0;
  int upper = 0;

  __device__ bool is_visible(int row, int column) const {
    return row >= row_begin && row < row_end && column < column_end && column - row > lower && column - row <= upper;
  }
  // Of 16 rows from `row` on and columns [first, end).
  __device__ bool is_all_visible(int row, int first, int end) const {
    return row >= row_begin && row + 16 <= row_end && end <= column_end && first - (row + 15) > lower &&
           end - 1 - row <= upper;
  }
  __device__ bool is_any_visible(int row, int first, int end) const {
    const int last = min(end, column_end) - 1;
    return row < row_end && row + 16 > row_begin && first <= last && last - row > lower && first - (row + 15) <= upper;
  }
};

__device__ inline int to_tile(int64_t value) {
  constexpr int64_t kFar = 1 << 20;  // beyond every diagonal of a tile
  return static_cast<int>(larger(-kFar, smaller(kFar, value)));
}

// One tile of the other side: tokens from `begin` on.
struct TileStep {
  int64_t begin = 0;
  TileMask mask;
};

// Visits the key tiles that a query tile sees, task by task.
class KeyTileWalk {
 public:
  __device__ KeyTileWalk(const TaskTiles& tiles, const TaskTile& tile)
      : tasks_(tiles.tasks + tile.first), count_(tile.count), tile_begin_(tile.begin) {}

  __device__ bool next(TileStep& step) {
    while (index_ < count_) {
      const AttentionTask task = tasks_[index_];
      const TaskPart part = part_of_queries(task, tile_begin_);
      const int64_t begin = part.k_begin + done_;
      if (part.is_empty() || begin >= part.k_end) {
        ++index_;
        done_ = 0;
        continue;
      }
      done_ += kMmaTile;
      step.begin = begin;
      step.mask.row_begin = static_cast<int>(part.q_begin - tile_begin_);
      step.mask.row_end = static_cast<int>(part.q_end - tile_begin_);
      step.mask.column_end = to_tile(part.k_end - begin);
      // The diagonal of (row, column) in the task is column - row + shift.
      const int64_t shift = (begin - task.k_begin) - (tile_begin_ - task.q_begin);
      step.mask.lower = to_tile(task.lower - shift);
      step.mask.upper = to_tile(task.upper - shift);
      return true;
    }
    return false;
  }

 private:
  const AttentionTask* tasks_;
  int count_;
  int64_t tile_begin_;
  int index_ = 0;
  int64_t done_ = 0;
};

// Visits the query tiles that see a key tile, head by head of the group, task by task. Rows are keys, columns queries.
class QueryTileWalk {
 public:
  __device__ QueryTileWalk(const TaskTiles& tiles, const TaskTile& tile, int group)
      : tasks_(tiles.tasks + tile.first), count_(tile.count), tile_begin_(tile.begin), group_(group) {}

  __device__ bool next(TileStep& step, int& head_in_group) {
    while (head_ < group_) {
      if (index_ == count_) {
        index_ = 0;
        ++head_;
        continue;
      }
      const AttentionTask task = tasks_[index_];
      const TaskPart part = part_of_keys(task, tile_begin_);
      const int64_t begin = part.q_begin + done_;
      if (part.is_empty() || begin >= part.q_end) {
        ++index_;
        done_ = 0;
        continue;
      }
      done_ += kMmaTile;
      head_in_group = head_;
      step.begin = begin;
      step.mask.row_begin = static_cast<int>(part.k_begin - tile_begin_);
      step.mask.row_end = static_cast<int>(part.k_end - tile_begin_);
      step.mask.column_end = to_tile(part.q_end - begin);
      // The diagonal in the task is row - column + shift: lower < it <= upper, turned around for column - row.
      const int64_t shift = (tile_begin_ - task.k_begin) - (begin - task.q_begin);
      step.mask.lower = to_tile(shift - task.upper - 1);
      step.mask.upper = to_tile(shift - task.lower - 1);
      return true;
    }
    return false;
  }

 private:
  const AttentionTask* tasks_;
  int count_;
  int64_t tile_begin_;
  int group_;
  int head_ = 0;
  int index_ = 0;
  int64_t done_ = 0;
};

// ---- host side ----

// Whether the tensor cores can take heads of this tensor: 16-byte rows of at most `largest` elements.
inline bool is_mma_input(const Tensor& tensor, int64_t largest = 256) {
  return tensor.dtype == DType::bfloat16 && rows_are_vectors(tensor, 8) && tensor.extent(2) <= largest &&
         tensor.extent(2) > 0;
}
// Whether pairs of a float32 gradient can be read and written together.
inline bool is_pair_output(const Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.data) % 8 == 0 && tensor.stride(0) % 2 == 0 && tensor.stride(1) % 2 == 0 &&
         tensor.extent(2) % 2 == 0;
}

// Calls function(size, heads) with integral constants: room for `size` elements; two query heads of a key head together
// where their number and shared memory allow it.
template <typename Function>
void with_mma_shape(int64_t size, int64_t group, const Function& function) {
  const auto with_heads = [&](auto padded) {
    if (group % 2 == 0) {
      function(padded, std::integral_constant<int, 2>{});
    } else {
      function(padded, std::integral_constant<int, 1>{});
    }
  };
  if (size <= 64) {
    with_heads(std::integral_constant<int, 64>{});
  } else if (size <= 128) {
    with_heads(std::integral_constant<int, 128>{});
  } else {
    function(std::integral_constant<int, 256>{}, std::integral_constant<int, 1>{});
  }
}

// attention_mma_forward.cu, attention_mma_backward.cu: false when the tensors are none that the tensor cores can take.
bool mma_attention_forward(const AttentionForward& arguments, const TaskTiles& by_query, const Tensor& output,
                           const Tensor& log_sum_exp, cudaStream_t stream);
bool mma_attention_backward(const AttentionBackward& arguments, const TaskTiles& by_query, const TaskTiles& by_key,
                            const float* sums, cudaStream_t stream);

}  // namespace ithaca::cuda
