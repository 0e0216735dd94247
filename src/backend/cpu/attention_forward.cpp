// The forward pass of flash attention. Geometry (rows, tiles, key blocks): attention_blocks.h.
//
// For every key block of every key head: pack the keys and values once; then, tile by tile, bring the rows' running
// softmax into the cache, and for 128 keys at a time
//   scores[key][row]   = key panel * query tile, and their maximum per row,
//   probability        = 2^(score - m), summed per row,
//   output[dim][row]  += value panel * probabilities.
// The reference m of a row follows its maximum only when that has grown by more than 8, i.e. when probabilities could
// exceed 2^8: m cancels in output / sum, so any nearby value is as exact, and the output is hardly ever rescaled.
#include <array>
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
#define HWY_TARGET_INCLUDE "backend/cpu/attention_forward.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backend/cpu/attention_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ithaca::cpu::HWY_NAMESPACE {
namespace {

constexpr float kMaximumSlack = 8.0f;

class ForwardPass {
 public:
  ForwardPass(const AttentionForward& arguments, const AttentionAccumulator& accumulator, float* workspace)
      : tasks_(arguments.tasks),
        query_(arguments.query),
        key_(arguments.key),
        value_(arguments.value),
        output_(accumulator.output),
        maximum_(accumulator.maximum.as<float>()),
        sum_(accumulator.sum.as<float>()),
        query_heads_(arguments.query.extent(1)),
        key_heads_(arguments.key.extent(1)),
        group_(query_heads_ / std::max<int64_t>(key_heads_, 1)),
        key_size_(arguments.query.extent(2)),
        value_size_(arguments.value.extent(2)),
        query_factor_(static_cast<float>(static_cast<double>(arguments.scale) * 1.4426950408889634)),
        blocks_(key_size_, value_size_),
        key_panels_(workspace + blocks_.key_panels),
        value_panels_(workspace + blocks_.value_panels),
        query_tile_(workspace + blocks_.query_tile),
        scores_(workspace + blocks_.scores),
        output_tile_(workspace + blocks_.output_tile),
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
  // All rows of one key head against one key block.
  void add_block(const AttentionRun& run, int64_t head, int64_t k_begin, int64_t k_end) {
    const TokenRange queries = visible_queries(tasks_, run, k_begin, k_end);
    const int64_t rows = (queries.end - queries.begin) * group_;
    if (rows == 0) return;
    const int64_t keys = k_end - k_begin;
    pack_key_panels(key_.row(k_begin, head), key_.token_stride, keys, key_size_, zeros_, key_panels_);
    pack_row_panels(value_.row(k_begin, head), value_.token_stride, keys, value_size_, blocks_.key_block,
                    value_panels_);
    for (int64_t row = 0; row < rows; row += kTileRows) {
      const int64_t token = queries.begin + row / group_;
      const int64_t tile_rows = std::min(kTileRows, rows - row);
      TileKeys visible;
      find_tile_keys(tasks_, run, token, row % group_, group_, tile_rows, k_begin, k_end, visible);
      if (visible.any_begin < visible.any_end) add_tile(token, row % group_, head * group_, tile_rows, visible);
    }
  }

  // One tile against the visible keys of the packed block. Its first row is head `first_head + group_head` of `token`.
  void add_tile(int64_t token, int64_t group_head, int64_t first_head, int64_t rows, const TileKeys& visible) {
    const FloatTag d;
    const float* query_rows[kTileRows];
    float* output_rows[kTileRows];
    const float* seen_rows[kTileRows];  // the output so far, or zeros
    int64_t statistics[kTileRows];
    alignas(64) float maximum[kTileRows];
    alignas(64) float sum[kTileRows];
    for (int64_t r = 0; r < kTileRows; ++r) {
      if (r < rows) {
        statistics[r] = token * query_heads_ + first_head + group_head;
        query_rows[r] = query_.row(token, first_head + group_head);
        output_rows[r] = output_.row(token, first_head + group_head);
        maximum[r] = maximum_[statistics[r]];
        sum[r] = sum_[statistics[r]];
        seen_rows[r] = maximum[r] == -std::numeric_limits<float>::infinity() ? zeros_ : output_rows[r];
        if (++group_head == group_) {
          group_head = 0;
          ++token;
        }
      } else {
        query_rows[r] = zeros_;
        seen_rows[r] = zeros_;
        maximum[r] = 0.0f;
        sum[r] = 0.0f;
      }
    }
    pack_transposed<kTileRows>(query_rows, key_size_, query_factor_, query_tile_, kMaxTileRows);
    pack_transposed<kTileRows>(seen_rows, value_size_, 1.0f, output_tile_, kMaxTileRows);
    for (int64_t i = value_size_; i < round_up(value_size_, kPanel); ++i) {
      std::fill_n(output_tile_ + i * kMaxTileRows, kTileRows, 0.0f);
    }

    Vectors m;
    Vectors l;
    for (int64_t v = 0; v < kVectors; ++v) {
      m[v] = hn::Load(d, maximum + v * kLanes);
      l[v] = hn::Load(d, sum + v * kLanes);
    }
    const int64_t end = round_up(visible.any_end, kPanel);
    for (int64_t key = visible.any_begin / kPanel * kPanel; key < end; key += ForwardBlocks::kScoreKeys) {
      add_keys(key, std::min(end, key + ForwardBlocks::kScoreKeys), visible, m, l);
    }
    for (int64_t v = 0; v < kVectors; ++v) {
      hn::Store(m[v], d, maximum + v * kLanes);
      hn::Store(l[v], d, sum + v * kLanes);
    }
    unpack_transposed<false>(output_tile_, rows, value_size_, 1.0f, output_rows);
    for (int64_t r = 0; r < rows; ++r) {
      maximum_[statistics[r]] = maximum[r];
      sum_[statistics[r]] = sum[r];
    }
  }

  // Keys [begin, end) of the block, whole panels, at most kScoreKeys of them.
  HWY_INLINE void add_keys(int64_t begin, int64_t end, const TileKeys& visible, Vectors& m, Vectors& l) {
    const FloatTag d;
    const Float minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
    Vectors largest;
    for (int64_t v = 0; v < kVectors; ++v) largest[v] = minus_infinity;
    for (int64_t key = begin; key < end; key += kPanel) {
      if (is_unmasked(key, visible)) {
        score_panel<false>(key, begin, visible, largest);
      } else {
        score_panel<true>(key, begin, visible, largest);
      }
    }
    follow_maximum(largest, m, l);

    Vectors reference;  // finite, so that masked scores stay -inf
    for (int64_t v = 0; v < kVectors; ++v) {
      reference[v] = hn::IfThenElse(hn::Eq(m[v], minus_infinity), hn::Zero(d), m[v]);
    }
    Vectors block_sum;
    for (int64_t v = 0; v < kVectors; ++v) block_sum[v] = hn::Zero(d);
    for (int64_t key = begin; key < end; key += kPanel) {
      float* scores = scores_ + (key - begin) * kMaxTileRows;
      if (is_unmasked(key, visible)) {
        exponentiate_panel<false>(scores, reference, block_sum);
      } else {
        exponentiate_panel<true>(scores, reference, block_sum);
      }
    }
    for (int64_t v = 0; v < kVectors; ++v) l[v] = hn::Add(l[v], block_sum[v]);

    for (int64_t i = 0; i < value_size_; i += kPanel) {
      add_product_to_tile(value_panels_ + i * blocks_.key_block + begin * kPanel, scores_, end - begin,
                          output_tile_ + i * kMaxTileRows);
    }
  }

  static bool is_unmasked(int64_t key, const TileKeys& visible) {
    return key >= visible.all_begin && key + kPanel <= visible.all_end;
  }

  // Scores of one key panel and their maxima; masked ones become -inf.
  template <bool kMasked>
  HWY_INLINE void score_panel(int64_t key, int64_t begin, const TileKeys& visible, Vectors& largest) {
    const FloatTag d;
    const IntTag di;
    Float sums[kPanel][kVectors];
    multiply_scores(key_panels_ + key * key_size_, query_tile_, key_size_, sums);
    float* to = scores_ + (key - begin) * kMaxTileRows;
    ITHACA_UNROLL
    for (int64_t v = 0; v < kVectors; ++v) {
      ITHACA_UNROLL
      for (int64_t i = 0; i < kPanel; ++i) {
        Float score = sums[i][v];
        if (kMasked) {
          const auto index = hn::Set(di, static_cast<int32_t>(key + i));
          const auto first = hn::Load(di, visible.begin.data() + v * kLanes);
          const auto last = hn::Load(di, visible.end.data() + v * kLanes);
          const auto outside = hn::Or(hn::Lt(index, first), hn::Not(hn::Lt(index, last)));
          score =
              hn::IfThenElse(hn::RebindMask(d, outside), hn::Set(d, -std::numeric_limits<float>::infinity()), score);
        }
        hn::StoreU(score, d, to + i * kMaxTileRows + v * kLanes);
        largest[v] = hn::Max(largest[v], score);
      }
    }
  }

  // Raises the reference of rows whose maximum has grown beyond the slack, and rescales what they have summed.
  HWY_INLINE void follow_maximum(const Vectors& largest, Vectors& m, Vectors& l) {
    const FloatTag d;
    const Float minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
    bool any_grown = false;
    for (int64_t v = 0; v < kVectors; ++v) {
      any_grown |= !hn::AllFalse(d, hn::Gt(largest[v], hn::Add(m[v], hn::Set(d, kMaximumSlack))));
    }
    if (!any_grown) return;
    for (int64_t v = 0; v < kVectors; ++v) {
      const auto grown = hn::Gt(largest[v], hn::Add(m[v], hn::Set(d, kMaximumSlack)));
      const Float next = hn::IfThenElse(grown, largest[v], m[v]);
      Float factor = exp2(hn::Sub(m[v], next));
      factor = hn::IfThenElse(grown, factor, hn::Set(d, 1.0f));
      factor = hn::IfThenElse(hn::Eq(m[v], minus_infinity), hn::Zero(d), factor);
      // Where nothing was seen the sum is 0, or NaN that must stay.
      l[v] = hn::Mul(l[v], factor);
      m[v] = next;
      for (int64_t i = 0; i < value_size_; ++i) {
        float* output = output_tile_ + i * kMaxTileRows + v * kLanes;
        hn::StoreU(hn::Mul(hn::LoadU(d, output), factor), d, output);
      }
    }
  }

  // scores[kPanel][tile rows] becomes 2^(scores - reference), exactly 0 where a score is -inf.
  template <bool kMasked>
  HWY_INLINE void exponentiate_panel(float* HWY_RESTRICT scores, const Vectors& reference, Vectors& block_sum) {
    const FloatTag d;
    ITHACA_UNROLL
    for (int64_t i = 0; i < kPanel; ++i) {
      ITHACA_UNROLL
      for (int64_t v = 0; v < kVectors; ++v) {
        float* at = scores + i * kMaxTileRows + v * kLanes;
        const Float score = hn::LoadU(d, at);
        Float probability = exp2(hn::Sub(score, reference[v]));
        if (kMasked) {
          const auto masked = hn::Eq(score, hn::Set(d, -std::numeric_limits<float>::infinity()));
          probability = hn::IfThenZeroElse(masked, probability);
        }
        hn::StoreU(probability, d, at);
        block_sum[v] = hn::Add(block_sum[v], probability);
      }
    }
  }

  const std::span<const AttentionTask> tasks_;
  const HeadRows<const float> query_;
  const HeadRows<const float> key_;
  const HeadRows<const float> value_;
  const HeadRows<float> output_;
  float* const maximum_;
  float* const sum_;
  const int64_t query_heads_;
  const int64_t key_heads_;
  const int64_t group_;
  const int64_t key_size_;
  const int64_t value_size_;
  const float query_factor_;  // scale * log2(e): scores come out in units of log2(e)
  const ForwardBlocks blocks_;
  float* const key_panels_;
  float* const value_panels_;
  float* const query_tile_;
  float* const scores_;
  float* const output_tile_;
  float* const zeros_;
};

void attention_forward_on_target(const AttentionForward& arguments, const AttentionAccumulator& accumulator,
                                 float* workspace) {
  ForwardPass(arguments, accumulator, workspace).run();
}

}  // namespace
}  // namespace ithaca::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ithaca::cpu {

HWY_EXPORT(attention_forward_on_target);

void run_attention_forward(const AttentionForward& arguments, const AttentionAccumulator& accumulator,
                           float* workspace) {
  HWY_DYNAMIC_DISPATCH(attention_forward_on_target)(arguments, accumulator, workspace);
}

}  // namespace ithaca::cpu
#endif
