// The backward pass of flash attention. Geometry (rows, tiles, key blocks): attention_blocks.h.
//
// With the final output O and log-sum-exp L of every row, for every visible pair (Dao et al. 2022, appendix B)
//   P = exp(scale Q K^T - L),  delta = rowsum(dO * O),  dS = P * (dO V^T - delta),
//   dV += P^T dO,  dK += scale dS^T Q,  dQ += scale dS K.
// For every key block of every key head: pack the keys and values once; then, kTiles tiles at a time, pack the rows and
// for kScoreKeys keys at a time make P and dS transposed ([key][row]) and multiply. The gradients of the block's keys
// stay in the cache until all rows are done; those of the rows until the block is.
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "backend/cpu/attention_blocks.h"
#include "backend/cpu/attention_kernels.h"

// Instruction sets between AVX2 and the portable code, and variants of AVX-512 that add nothing here, would only cost
// compile time. Both attention kernels must agree on this list: they repeat each other's scores.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention_backward.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backend/cpu/attention_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ithaca::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kTiles = BackwardBlocks::kTiles;
constexpr int64_t kScoreKeys = BackwardBlocks::kScoreKeys;
constexpr int64_t kBlockRows = kTiles * kMaxTileRows;  // row capacity of everything packed by row
constexpr int64_t kStrip = kVectors * kLanes;          // columns of one strip of row-packed matrices

// Row-packed matrices hold their columns in strips of kStrip (the last one narrower, whole registers), each strip as
// [row][width]: where the strip of column `column` begins, in a matrix with room for `capacity` rows.
HWY_INLINE int64_t strip_offset(int64_t column, int64_t capacity) {
  return column * capacity;
}
HWY_INLINE int64_t strip_width(int64_t column, int64_t size) {
  return std::min<int64_t>(kStrip, round_up(size - column, kLanes));
}

// Writes factor * from[0, size) as row `row` of a row-packed matrix; columns past `size` are zeros.
HWY_INLINE void pack_row(const float* from, int64_t size, float factor, int64_t row, int64_t capacity,
                         float* HWY_RESTRICT to) {
  const FloatTag d;
  const Float scale = hn::Set(d, factor);
  for (int64_t column = 0; column < size; column += kStrip) {
    const int64_t width = strip_width(column, size);
    float* strip = to + strip_offset(column, capacity) + row * width;
    for (int64_t i = 0; i < width; i += kLanes) {
      if (column + i + kLanes <= size) {
        hn::StoreU(hn::Mul(scale, hn::LoadU(d, from + column + i)), d, strip + i);
      } else {
        for (int64_t j = i; j < i + kLanes; ++j) strip[j] = column + j < size ? factor * from[column + j] : 0.0f;
      }
    }
  }
}

// to[0, size) += row `row` of a row-packed matrix.
HWY_INLINE void add_row(const float* HWY_RESTRICT from, int64_t size, int64_t row, int64_t capacity, float* to) {
  const FloatTag d;
  for (int64_t column = 0; column < size; column += kStrip) {
    const int64_t width = strip_width(column, size);
    const float* strip = from + strip_offset(column, capacity) + row * width;
    for (int64_t i = 0; i < width; i += kLanes) {
      if (column + i + kLanes <= size) {
        float* at = to + column + i;
        hn::StoreU(hn::Add(hn::LoadU(d, at), hn::LoadU(d, strip + i)), d, at);
      } else {
        for (int64_t j = i; column + j < size; ++j) to[column + j] += strip[j];
      }
    }
  }
}

HWY_INLINE float dot(const float* a, const float* b, int64_t size) {
  const FloatTag d;
  Float sums = hn::Zero(d);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) sums = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sums);
  float result = hn::GetLane(hn::SumOfLanes(d, sums));
  for (; i < size; ++i) result += a[i] * b[i];
  return result;
}

// One group of rows: kTiles tiles and what is known of their rows.
struct RowGroup {
  int64_t tiles = 0;
  int64_t rows[kTiles];  // live rows of each tile
  TileKeys visible[kTiles];
  alignas(64) float log_sum_exp_high[kTiles][kMaxTileRows];  // in units of log2(e), as the sum of two floats
  alignas(64) float log_sum_exp_low[kTiles][kMaxTileRows];
  alignas(64) float delta[kTiles][kMaxTileRows];
  float* dquery[kTiles][kMaxTileRows];
};

class BackwardPass {
 public:
  BackwardPass(const AttentionBackward& arguments, float* workspace)
      : tasks_(arguments.tasks),
        query_(arguments.query),
        key_(arguments.key),
        value_(arguments.value),
        output_(arguments.output),
        doutput_(arguments.doutput),
        log_sum_exp_(arguments.log_sum_exp),
        dquery_(arguments.dquery),
        dkey_(arguments.dkey),
        dvalue_(arguments.dvalue),
        key_heads_(arguments.key.extent(1)),
        group_(arguments.query.extent(1) / std::max<int64_t>(key_heads_, 1)),
        key_size_(arguments.query.extent(2)),
        value_size_(arguments.value.extent(2)),
        scale_(arguments.scale),
        query_factor_(static_cast<float>(static_cast<double>(arguments.scale) * kLog2E)),
        blocks_(key_size_, value_size_),
        workspace_(workspace),
        zeros_(workspace + blocks_.zeros) {}

  void run() {
    std::fill_n(zeros_, blocks_.floats - blocks_.zeros, 0.0f);
    for (size_t first = 0; first < tasks_.size();) {
      const AttentionRun run = next_run(tasks_, first, blocks_.key_block);
      first = run.task_end;
      if (run.q_begin >= run.q_end) continue;
      for (int64_t head = 0; head < key_heads_; ++head) {
        for (int64_t begin = run.k_begin; begin < run.k_end; begin += blocks_.key_block) {
          add_block(run, head, begin, std::min(run.k_end, begin + blocks_.key_block));
        }
      }
    }
  }

 private:
  static constexpr double kLog2E = 1.4426950408889634;

  // All rows of one key head against one key block.
  void add_block(const AttentionRun& run, int64_t head, int64_t k_begin, int64_t k_end) {
    const TokenRange queries = visible_queries(tasks_, run, k_begin, k_end);
    const int64_t rows = (queries.end - queries.begin) * group_;
    if (rows == 0) return;
    const int64_t keys = k_end - k_begin;
    const float* key_rows = key_.row(k_begin, head);
    const float* value_rows = value_.row(k_begin, head);
    pack_key_panels(key_rows, key_.token_stride, keys, key_size_, zeros_, workspace_ + blocks_.key_panels);
    pack_key_panels(value_rows, value_.token_stride, keys, value_size_, zeros_, workspace_ + blocks_.value_panels);
    pack_row_panels(key_rows, key_.token_stride, keys, key_size_, blocks_.key_block, workspace_ + blocks_.key_rows);
    clear_rows(blocks_.dkey, key_size_, keys);
    clear_rows(blocks_.dvalue, value_size_, keys);

    RowGroup group;
    for (int64_t row = 0; row < rows; row += kTiles * kTileRows) {
      group.tiles = 0;
      for (int64_t first = row; first < std::min<int64_t>(rows, row + kTiles * kTileRows); first += kTileRows) {
        const int64_t token = queries.begin + first / group_;
        const int64_t tile_rows = std::min(kTileRows, rows - first);
        TileKeys& visible = group.visible[group.tiles];
        find_tile_keys(tasks_, run, token, first % group_, group_, tile_rows, k_begin, k_end, visible);
        if (visible.any_begin < visible.any_end) pack_tile(group, token, first % group_, head * group_, tile_rows);
      }
      if (group.tiles > 0) add_group(group);
    }

    for (int64_t key = 0; key < keys; ++key) {
      add_row(workspace_ + blocks_.dkey, key_size_, key, blocks_.key_block, dkey_.row(k_begin + key, head));
      add_row(workspace_ + blocks_.dvalue, value_size_, key, blocks_.key_block, dvalue_.row(k_begin + key, head));
    }
  }

  void clear_rows(int64_t offset, int64_t size, int64_t keys) {
    for (int64_t column = 0; column < size; column += kStrip) {
      std::fill_n(workspace_ + offset + strip_offset(column, blocks_.key_block),
                  round_up(keys, kPanel) * strip_width(column, size), 0.0f);
    }
  }

  // Packs the next tile of `group`, whose visible keys are already there. Rows without any key in the whole sequence
  // become rows that see nothing.
  void pack_tile(RowGroup& group, int64_t token, int64_t group_head, int64_t first_head, int64_t rows) {
    const int64_t tile = group.tiles++;
    group.rows[tile] = rows;
    TileKeys& visible = group.visible[tile];
    const float* query_rows[kTileRows];
    const float* doutput_rows[kTileRows];
    bool any_absent = false;
    for (int64_t r = 0; r < kTileRows; ++r) {
      query_rows[r] = zeros_;
      doutput_rows[r] = zeros_;
      group.log_sum_exp_high[tile][r] = 0.0f;
      group.log_sum_exp_low[tile][r] = 0.0f;
      group.delta[tile][r] = 0.0f;
      if (r >= rows) continue;
      const int64_t query_head = first_head + group_head;
      const float log_sum_exp = *log_sum_exp_.row(token, query_head);
      group.dquery[tile][r] = dquery_.row(token, query_head);
      if (log_sum_exp == -std::numeric_limits<float>::infinity()) {
        visible.begin[static_cast<size_t>(r)] = 0;
        visible.end[static_cast<size_t>(r)] = 0;
        any_absent = true;
      } else {
        query_rows[r] = query_.row(token, query_head);
        doutput_rows[r] = doutput_.row(token, query_head);
        const double base_two = static_cast<double>(log_sum_exp) * kLog2E;
        const auto high = static_cast<float>(base_two);
        group.log_sum_exp_high[tile][r] = high;
        group.log_sum_exp_low[tile][r] = static_cast<float>(base_two - static_cast<double>(high));
        group.delta[tile][r] = dot(doutput_rows[r], output_.row(token, query_head), value_size_);
      }
      if (++group_head == group_) {
        group_head = 0;
        ++token;
      }
    }
    if (any_absent) summarize_tile_keys(rows, visible);
    pack_transposed<kTileRows>(query_rows, key_size_, query_factor_, query_tile(tile), kMaxTileRows);
    pack_transposed<kTileRows>(doutput_rows, value_size_, 1.0f, doutput_tile(tile), kMaxTileRows);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = tile * kMaxTileRows + r;
      pack_row(query_rows[r], key_size_, scale_, row, kBlockRows, workspace_ + blocks_.query_rows);
      pack_row(doutput_rows[r], value_size_, 1.0f, row, kBlockRows, workspace_ + blocks_.doutput_rows);
    }
    std::fill_n(dquery_tile(tile), round_up(key_size_, kPanel) * kMaxTileRows, 0.0f);
  }

  // The packed rows of `group` against the packed key block.
  void add_group(RowGroup& group) {
    int64_t begin = std::numeric_limits<int64_t>::max();
    int64_t end = 0;
    for (int64_t tile = 0; tile < group.tiles; ++tile) {
      if (group.visible[tile].any_begin >= group.visible[tile].any_end) continue;
      begin = std::min<int64_t>(begin, group.visible[tile].any_begin);
      end = std::max<int64_t>(end, group.visible[tile].any_end);
    }
    if (begin >= end) return;
    begin = begin / kPanel * kPanel;
    end = round_up(end, kPanel);
    for (int64_t key = begin; key < end; key += kScoreKeys) add_keys(group, key, std::min(end, key + kScoreKeys));
    for (int64_t tile = 0; tile < group.tiles; ++tile) {
      unpack_transposed<true>(dquery_tile(tile), group.rows[tile], key_size_, scale_, group.dquery[tile]);
    }
  }

  // The first and last tile that see a key panel; tiles between them that do not hold zeros for it.
  struct PanelTiles {
    int64_t begin = kTiles;
    int64_t end = 0;
  };

  // Keys [begin, end) of the block, whole panels, at most kScoreKeys of them.
  void add_keys(RowGroup& group, int64_t begin, int64_t end) {
    std::array<PanelTiles, static_cast<size_t>(kScoreKeys / kPanel)> panels{};
    for (int64_t tile = 0; tile < group.tiles; ++tile) {
      const TileKeys& visible = group.visible[tile];
      const int64_t first = std::max<int64_t>(begin, visible.any_begin / kPanel * kPanel);
      const int64_t last = std::min<int64_t>(end, round_up(visible.any_end, kPanel));
      for (int64_t key = begin; key < end; key += kPanel) {
        PanelTiles& tiles = panels[static_cast<size_t>((key - begin) / kPanel)];
        if (key < first || key >= last) {
          // In case a tile behind it sees this panel.
          std::fill_n(probabilities(tile, key - begin), kPanel * kMaxTileRows, 0.0f);
          std::fill_n(score_gradients(tile, key - begin), kPanel * kMaxTileRows, 0.0f);
          continue;
        }
        tiles.begin = std::min(tiles.begin, tile);
        tiles.end = tile + 1;
        if (key >= visible.all_begin && key + kPanel <= visible.all_end) {
          score_panel<false>(group, tile, key, key - begin);
        } else {
          score_panel<true>(group, tile, key, key - begin);
        }
      }
      if (first >= last) continue;
      for (int64_t i = 0; i < key_size_; i += kPanel) {
        add_product_to_tile(workspace_ + blocks_.key_rows + i * blocks_.key_block + first * kPanel,
                            score_gradients(tile, first - begin), last - first, dquery_tile(tile) + i * kMaxTileRows);
      }
    }
    add_key_gradients(group, panels, begin, end, blocks_.probabilities, blocks_.doutput_rows, value_size_,
                      blocks_.dvalue);
    add_key_gradients(group, panels, begin, end, blocks_.score_gradients, blocks_.query_rows, key_size_, blocks_.dkey);
  }

  // P and dS of one key panel and one tile.
  template <bool kMasked>
  HWY_INLINE void score_panel(const RowGroup& group, int64_t tile, int64_t key, int64_t slot) {
    const FloatTag d;
    const IntTag di;
    float* HWY_RESTRICT probability = probabilities(tile, slot);
    float* HWY_RESTRICT gradient = score_gradients(tile, slot);
    Float sums[kPanel][kVectors];
    multiply_scores(workspace_ + blocks_.key_panels + key * key_size_, query_tile(tile), key_size_, sums);
    ITHACA_UNROLL
    for (int64_t v = 0; v < kVectors; ++v) {
      const Float high = hn::Load(d, group.log_sum_exp_high[tile] + v * kLanes);
      const Float low = hn::Load(d, group.log_sum_exp_low[tile] + v * kLanes);
      ITHACA_UNROLL
      for (int64_t i = 0; i < kPanel; ++i) {
        Float p = exp2(hn::Sub(hn::Sub(sums[i][v], high), low));
        if (kMasked) {
          const auto index = hn::Set(di, static_cast<int32_t>(key + i));
          const auto first = hn::Load(di, group.visible[tile].begin.data() + v * kLanes);
          const auto last = hn::Load(di, group.visible[tile].end.data() + v * kLanes);
          const auto outside = hn::Or(hn::Lt(index, first), hn::Not(hn::Lt(index, last)));
          p = hn::IfThenZeroElse(hn::RebindMask(d, outside), p);
        }
        hn::StoreU(p, d, probability + i * kMaxTileRows + v * kLanes);
      }
    }
    multiply_scores(workspace_ + blocks_.value_panels + key * value_size_, doutput_tile(tile), value_size_, sums);
    ITHACA_UNROLL
    for (int64_t v = 0; v < kVectors; ++v) {
      const Float delta = hn::Load(d, group.delta[tile] + v * kLanes);
      ITHACA_UNROLL
      for (int64_t i = 0; i < kPanel; ++i) {
        const Float p = hn::LoadU(d, probability + i * kMaxTileRows + v * kLanes);
        hn::StoreU(hn::Mul(p, hn::Sub(sums[i][v], delta)), d, gradient + i * kMaxTileRows + v * kLanes);
      }
    }
  }

  // gradient[key][column] += sum over rows of scores[key][row] * rows[row][column], for keys [begin, end).
  void add_key_gradients(const RowGroup& group, std::span<const PanelTiles> panels, int64_t begin, int64_t end,
                         int64_t scores, int64_t rows, int64_t size, int64_t gradient) {
    for (int64_t column = 0; column < size; column += kStrip) {
      const float* strip = workspace_ + rows + strip_offset(column, kBlockRows);
      float* to = workspace_ + gradient + strip_offset(column, blocks_.key_block);
      const int64_t width = strip_width(column, size);
      for (int64_t key = begin; key < end; key += kPanel) {
        const PanelTiles tiles = panels[static_cast<size_t>((key - begin) / kPanel)];
        const float* panel = workspace_ + scores + (key - begin) * kMaxTileRows;
        add_key_panel_of_width<kVectors>(width, group, tiles, panel, strip, to + key * width);
      }
    }
  }

  // Finds the number of registers in a strip of `width` columns.
  template <int64_t kColumns>
  HWY_INLINE void add_key_panel_of_width(int64_t width, const RowGroup& group, PanelTiles tiles, const float* panel,
                                         const float* strip, float* to) {
    if (width == kColumns * kLanes) {
      add_key_panel<kColumns>(group, tiles, panel, strip, to);
    } else if constexpr (kColumns > 1) {
      add_key_panel_of_width<kColumns - 1>(width, group, tiles, panel, strip, to);
    }
  }

  template <int64_t kColumns>
  HWY_INLINE void add_key_panel(const RowGroup& group, PanelTiles tiles, const float* HWY_RESTRICT panel,
                                const float* HWY_RESTRICT strip, float* HWY_RESTRICT to) {
    constexpr int64_t kWidth = kColumns * kLanes;
    Float sums[kPanel][kColumns];
    clear(sums);
    for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
      multiply_panel<kPanel, kColumns, kMaxTileRows, 1>(panel + tile * kScoreKeys * kMaxTileRows,
                                                        strip + tile * kMaxTileRows * kWidth, kWidth, group.rows[tile],
                                                        sums);
    }
    add_to(sums, kWidth, to);
  }

  float* query_tile(int64_t tile) const { return workspace_ + blocks_.query_tiles + tile * key_size_ * kMaxTileRows; }
  float* doutput_tile(int64_t tile) const {
    return workspace_ + blocks_.doutput_tiles + tile * value_size_ * kMaxTileRows;
  }
  float* dquery_tile(int64_t tile) const {
    return workspace_ + blocks_.dquery_tiles + tile * round_up(key_size_, kPanelFloats) * kMaxTileRows;
  }
  float* probabilities(int64_t tile, int64_t slot) const {
    return workspace_ + blocks_.probabilities + (tile * kScoreKeys + slot) * kMaxTileRows;
  }
  float* score_gradients(int64_t tile, int64_t slot) const {
    return workspace_ + blocks_.score_gradients + (tile * kScoreKeys + slot) * kMaxTileRows;
  }

  const std::span<const AttentionTask> tasks_;
  const HeadRows<const float> query_;
  const HeadRows<const float> key_;
  const HeadRows<const float> value_;
  const HeadRows<const float> output_;
  const HeadRows<const float> doutput_;
  const HeadRows<const float> log_sum_exp_;
  const HeadRows<float> dquery_;
  const HeadRows<float> dkey_;
  const HeadRows<float> dvalue_;
  const int64_t key_heads_;
  const int64_t group_;
  const int64_t key_size_;
  const int64_t value_size_;
  const float scale_;
  const float query_factor_;  // scale * log2(e), as in the forward pass: the same scores to the bit
  const BackwardBlocks blocks_;
  float* const workspace_;
  float* const zeros_;
};

void attention_backward_on_target(const AttentionBackward& arguments, float* workspace) {
  BackwardPass(arguments, workspace).run();
}

}  // namespace
}  // namespace ithaca::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ithaca::cpu {

HWY_EXPORT(attention_backward_on_target);

void run_attention_backward(const AttentionBackward& arguments, float* workspace) {
  HWY_DYNAMIC_DISPATCH(attention_backward_on_target)(arguments, workspace);
}

}  // namespace ithaca::cpu
#endif
