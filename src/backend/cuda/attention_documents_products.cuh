// The warpgroups of the document kernel (attention_documents.cuh) that multiply. Internal to backend/cuda.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backend/cuda/attention_documents_pass.cuh"

namespace ithaca::cuda {

// How a gradient is written: over what is there, or added to it (float32).
template <typename D>
struct GradientView {
  HeadsView<D> to;  // rows that begin at multiples of 8 bytes
  bool adds;

  // Accumulators of 64 rows (of which `rows` are there), columns from `column` on, by all lanes of a warp.
  template <int kCount>
  __device__ void write_tile(const float (&sums)[kCount], float factor, int64_t token, int64_t head, int rows,
                             int column, int thread) const {
    const int first_row = thread / 32 * 16 + thread % 32 / 4;
    column += 2 * (thread % 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = first_row + 8 * half;
      D* row = to.row(token + r, head) + column;
      const int columns = r < rows ? to.size - column : 0;
#pragma unroll
      for (int n = 0; n < kCount / 4; n += 2) {
        const float* first = sums + 4 * n + 2 * half;
        const float* second = first + 4;
        if constexpr (std::is_same_v<D, BFloat>) {
          write_blocks(pack_pair(factor * first[0], factor * first[1]),
                       pack_pair(factor * second[0], factor * second[1]), row + 8 * n, columns - 8 * n, thread % 2);
        } else {
          if (8 * n < columns) write(row + 8 * n, factor * first[0], factor * first[1]);
          if (8 * n + 8 < columns) write(row + 8 * n + 8, factor * second[0], factor * second[1]);
        }
      }
    }
  }

 private:
  __device__ void write(float* at, float first, float second) const {
    float2 pair = {first, second};
    if (adds) {
      const float2 before = *reinterpret_cast<const float2*>(at);
      pair.x += before.x;
      pair.y += before.y;
    }
    *reinterpret_cast<float2*>(at) = pair;
  }
  // Of two blocks of 8 columns an even lane takes its neighbour's part of the first, an odd one that of the second:
  // four lanes write the 32 bytes of a row together. `at`, `columns`: the lane's own place in the first block, and how
  // many columns there are from it on.
  __device__ void write_blocks(uint32_t first, uint32_t second, BFloat* at, int columns, int is_odd) const {
    const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, is_odd != 0 ? first : second, 1);
    const uint2 words = is_odd != 0 ? uint2{other, second} : uint2{first, other};
    if (columns > 8 * is_odd) *reinterpret_cast<uint2*>(at + 6 * is_odd) = words;
  }
};

template <int kSize, typename D>
class DocumentProducts {
  using Memory = DocumentMemory<kSize>;
  // Of heads of 128 elements, each warpgroup makes half of dQ; of shorter ones, every other tile.
  static constexpr bool kSharesTiles = kSize == 128;
  static constexpr int kQuerySums = 32;  // of 64 queries and 64 elements

 public:
  __device__ DocumentProducts(const DocumentArguments& arguments, const GradientView<D>& dquery,
                              const GradientView<D>& dkey, const GradientView<D>& dvalue, uint32_t shared, char* base,
                              int warpgroup, int thread)
      : arguments_(arguments),
        dquery_(dquery),
        dkey_(dkey),
        dvalue_(dvalue),
        shared_(shared),
        base_(base),
        warpgroup_(warpgroup),
        thread_(thread) {}

  __device__ void run() {
    DocumentStage stage;
    int step = 0;
    for (int number = 0;; ++number) {
      wait_for_phase(shared_ + Memory::kKeysFull, number % 2);
      const DocumentPass& pass =
          reinterpret_cast<const DocumentPass*>(base_ + Memory::kPasses)[number % kDocumentPasses];
      if (!pass.is_there) return;
      float key_sums[kSize / 2];
      float value_sums[kSize / 2];
      clear(key_sums);
      clear(value_sums);
      Tile before;
#pragma unroll 1
      for (int i = 0; i < arguments_.group; ++i) {
        Tile tile = {pass.head_of_group(i, arguments_.group), pass.first_tile};
#pragma unroll 1
        for (; tile.number < pass.end_tile; ++tile.number) {
          wait_for_phase(shared_ + Memory::kFull + 8 * stage.index, stage.phase);
          if (!is_seen(pass, warpgroup_, tile)) {
            wait_for_dscores(step - 1);
            if (is_own(before)) add_queries(pass, before, step - 1);
            arrive_with_dscores(step);
          } else if (is_own(before)) {
            add_tile<true>(pass, tile, stage.index, before, step, key_sums, value_sums);
          } else {
            add_tile<false>(pass, tile, stage.index, before, step, key_sums, value_sums);
          }
          __syncwarp();
          if (thread_ % 32 == 0) arrive(shared_ + Memory::kEmpty + 8 * stage.index);
          before = tile;
          stage.advance();
          ++step;
        }
      }
      if (is_own(before)) {
        wait_for_dscores(step - 1);
        add_queries(pass, before, step - 1);
      }
      const int thread = forgotten(thread_);
      __syncwarp();
      if (thread % 32 == 0) arrive(shared_ + Memory::kKeysEmpty);
      const int64_t token = pass.k_begin + pass.key_begin + warpgroup_ * kDocumentTile;
      dkey_.write_tile(key_sums, arguments_.scale, token, pass.key_head, pass.keys(warpgroup_), 0, thread);
      dvalue_.write_tile(value_sums, 1.0f, token, pass.key_head, pass.keys(warpgroup_), 0, thread);
    }
  }

 private:
  // Of queries, of a head of the group.
  struct Tile {
    int query_head = 0;
    int number = -1;  // -1: none
  };
  // Whether the warpgroup makes dQ of a tile, or its half of it.
  __device__ bool is_own(const Tile& tile) const {
    return tile.number >= 0 && (kSharesTiles || tile.number % 2 == warpgroup_);
  }

  // Whether a tile sees any of the keys of a warpgroup.
  static __device__ bool is_seen(const DocumentPass& pass, int warpgroup, const Tile& tile) {
    return uniform(DocumentMask(pass, warpgroup, tile.number).is_any_visible());
  }

  // Adds a tile to dK and dV and makes its dS; meanwhile, dQ of the tile before. The compiler can follow products under
  // way as long as no branches meet between their start and the wait for them.
  template <bool kHasBefore>
  __device__ void add_tile(const DocumentPass& pass, const Tile& tile, int stage, const Tile& before, int step,
                           float (&key_sums)[kSize / 2], float (&value_sums)[kSize / 2]) const {
    const int thread = forgotten(thread_);
    const uint32_t query = shared_ + Memory::kQueries + stage * Memory::kTile;
    const uint32_t doutput = shared_ + Memory::kDoutputs + stage * Memory::kTile;
    const float* log_sum_exps =
        reinterpret_cast<const float*>(base_ + Memory::kRows + stage * Memory::kRowsOfStage) + 2 * (thread % 4);
    float query_sums[kQuerySums];
    float products[32];      // V dO^T
    uint32_t weights[4][4];  // P^T
    {
      float scores[32];  // [key][query]
      fence_registers();
      multiply_rows(scores, shared_ + Memory::kKeys + warpgroup_ * Memory::kTile, query);
      commit_products();
      multiply_rows(products, shared_ + Memory::kValues + warpgroup_ * Memory::kTile, doutput);
      commit_products();
      wait_for_products<1>();
      hold(scores);
      exponentiate(DocumentMask(pass, warpgroup_, tile.number), log_sum_exps, thread, scores);
      pack(scores, weights);
    }
    fence_registers();
    multiply_columns(value_sums, weights, doutput);
    commit_products();
    wait_for_products<1>();
    hold(products);
    const float* deltas = log_sum_exps + kDocumentTile;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 delta = *reinterpret_cast<const float2*>(deltas + 8 * n);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t pair = weights[n / 2][n % 2 * 2 + half];
        float* dscore = products + 4 * n + 2 * half;
        dscore[0] = __uint_as_float(pair << 16) * (dscore[0] - delta.x);
        dscore[1] = __uint_as_float(pair & 0xFFFF0000u) * (dscore[1] - delta.y);
      }
    }
    uint32_t dscore_words[4][4];  // dS^T
    pack(products, dscore_words);
    // Where the lane's row of the first fragment goes.
    const int row = thread / 32 * 16 + thread % 16;
    const uint32_t place = shared_ + Memory::kDscores + (step % 2 * 2 + warpgroup_) * kPanelBytes +
                           static_cast<uint32_t>(row * 128 + ((thread % 32 / 16) ^ (row % 8)) * 16);
    wait_for_dscores(step - 1);
#pragma unroll
    for (int k = 0; k < 4; ++k) store_matrices(place ^ static_cast<uint32_t>(k << 5), dscore_words[k]);
    publish_to_products();
    wait_for_products<0>();
    hold(weights);
    hold(value_sums);
    if constexpr (kHasBefore) {
      begin_queries(pass, before, query_sums);
      multiply_queries(pass, before, step - 1, query_sums);
    }
    fence_registers();
    multiply_columns(key_sums, dscore_words, query);
    commit_products();
    if constexpr (kHasBefore) {
      wait_for_products<1>();
      hold(query_sums);
    }
    arrive_with_dscores(step);
    if constexpr (kHasBefore) write_queries(pass, before, query_sums);
    wait_for_products<0>();
    hold(dscore_words);
    hold(key_sums);
  }

  // dS of the warpgroup is there, and its dQ of the step before is done.
  __device__ void arrive_with_dscores(int step) const {
    arrive(shared_ + Memory::kDscoresFull + 16 * (step % 2) + 8 * warpgroup_);
  }
  // Of both warpgroups; then the dS of the step before that may be written over. At least once for every step: a
  // warpgroup that left one out could come two ahead of the other, whose phases would be mistaken.
  __device__ void wait_for_dscores(int step) const {
    if (step < 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      wait_for_phase(shared_ + Memory::kDscoresFull + 16 * (step % 2) + 8 * i, step / 2 % 2);
    }
  }

  // What the passes before have left of a tile's dQ, zeros for the first one.
  __device__ void begin_queries(const DocumentPass& pass, const Tile& tile, float (&sums)[kQuerySums]) const {
    clear(sums);
    if (pass.is_first(tile.number)) return;
    const float4* own = waiting(tile);
#pragma unroll
    for (int i = 0; i < kQuerySums / 4; ++i) {
      const float4 word = own[i * kWarpgroup];
      sums[4 * i] = word.x;
      sums[4 * i + 1] = word.y;
      sums[4 * i + 2] = word.z;
      sums[4 * i + 3] = word.w;
    }
  }
  // Starts the products of a tile's dQ. The dS of both warpgroups are there.
  __device__ void multiply_queries(const DocumentPass& pass, const Tile& tile, int step,
                                   float (&sums)[kQuerySums]) const {
    const uint32_t dscores = shared_ + Memory::kDscores + step % 2 * 2 * kPanelBytes;
    fence_registers();
    if (is_seen(pass, warpgroup_, tile)) {
      multiply_dscores(sums, dscores, warpgroup_);
      if (is_seen(pass, 1 - warpgroup_, tile)) multiply_dscores(sums, dscores, 1 - warpgroup_);
    } else {
      multiply_dscores(sums, dscores, 1 - warpgroup_);
    }
    commit_products();
  }
  // Leaves dQ to the passes that follow, or writes it after the last one.
  __device__ void write_queries(const DocumentPass& pass, const Tile& tile, const float (&sums)[kQuerySums]) const {
    if (pass.is_last(tile.number)) {
      dquery_.write_tile(sums, arguments_.scale, pass.q_begin + tile.number * kDocumentTile,
                         pass.key_head * arguments_.group + tile.query_head, pass.rows(tile.number),
                         kSharesTiles ? warpgroup_ * 64 : 0, forgotten(thread_));
      return;
    }
    float4* own = waiting(tile);
#pragma unroll
    for (int i = 0; i < kQuerySums / 4; ++i) {
      own[i * kWarpgroup] = {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
    }
  }
  // All of that at once, for a tile that no other follows.
  __device__ void add_queries(const DocumentPass& pass, const Tile& tile, int step) const {
    float sums[kQuerySums];
    begin_queries(pass, tile, sums);
    multiply_queries(pass, tile, step, sums);
    wait_for_products<0>();
    hold(sums);
    write_queries(pass, tile, sums);
  }
  template <int kCount>
  static __device__ void clear(float (&sums)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i] = 0.0f;
  }
  // Where the thread's sums of a tile wait.
  __device__ float4* waiting(const Tile& tile) const {
    return arguments_.waiting +
           ((blockIdx.x * arguments_.group + tile.query_head) * arguments_.waiting_tiles + tile.number) *
               (kDocumentTile * kSize / 4) +
           (kSharesTiles ? warpgroup_ * (kQuerySums / 4 * kWarpgroup) : 0) + forgotten(thread_);
  }

  // products (64 x 64) = rows of `left` * rows of `right`, transposed.
  static __device__ void multiply_rows(float (&products)[32], uint32_t left, uint32_t right) {
#pragma unroll
    for (int k = 0; k < kSize / 16; ++k) {
      const uint32_t offset = k / 4 * kPanelBytes + k % 4 * 32;
      multiply_shared<false, false>(products, operand(left, offset), operand(right, offset), k > 0);
    }
  }
  // sums (64 x kSize) += weights (64 x 64) * rows of `right`.
  static __device__ void multiply_columns(float (&sums)[kSize / 2], const uint32_t (&weights)[4][4], uint32_t right) {
#pragma unroll
    for (int k = 0; k < 4; ++k) multiply_registers<true>(sums, weights[k], operand(right, k * 2048));
  }
  // The warpgroup's elements of dQ += dS * K for the 64 keys of a warpgroup.
  __device__ void multiply_dscores(float (&sums)[kQuerySums], uint32_t dscores, int keys_of) const {
    const uint32_t left = dscores + keys_of * kPanelBytes;
    const uint32_t right =
        shared_ + Memory::kKeys + keys_of * Memory::kTile + (kSharesTiles ? warpgroup_ * kPanelBytes : 0);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      multiply_shared<true, true>(sums, operand(left, k * 2048), operand(right, k * 2048), true);
    }
  }

  // P^T of scores K Q^T.
  __device__ void exponentiate(const DocumentMask& mask, const float* log_sum_exps, int thread,
                               float (&scores)[32]) const {
    const float scale = arguments_.scale * kLog2E;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 log_sum_exp = *reinterpret_cast<const float2*>(log_sum_exps + 8 * n);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int k = 4 * n + j;
        scores[k] = exponential_2(scores[k] * scale - (j % 2 == 0 ? log_sum_exp.x : log_sum_exp.y));
      }
    }
    if (mask.is_all_visible()) return;
    const int row = thread / 32 * 16 + thread % 32 / 4;
    // Element (r, c) is seen when r - c - lower - 1 is in [0, upper - lower).
    const int first = row - 2 * (thread % 4) - mask.lower - 1;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t width = row + 8 * half < mask.keys ? static_cast<uint32_t>(mask.upper - mask.lower) : 0;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const bool is_visible = static_cast<uint32_t>(first + 8 * half - 8 * n - j) < width;
          if (!is_visible) scores[4 * n + 2 * half + j] = 0.0f;
        }
      }
    }
  }

  // Accumulators of 64 x 64 as left operands of four products, rounded.
  static __device__ void pack(const float (&sums)[32], uint32_t (&words)[4][4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int j = 0; j < 4; ++j) words[k][j] = pack_pair(sums[8 * k + 2 * j], sums[8 * k + 2 * j + 1]);
    }
  }

  const DocumentArguments& arguments_;
  const GradientView<D>& dquery_;
  const GradientView<D>& dkey_;
  const GradientView<D>& dvalue_;
  uint32_t shared_;
  char* base_;
  int warpgroup_;
  int thread_;
};

}  // namespace ithaca::cuda
