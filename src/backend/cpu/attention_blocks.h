// Block sizes, workspace layout and task geometry of the CPU attention kernel. Internal to it.
//
// The kernel works on ROWS: the (query token, query head) pairs that share one key head, token by token, the heads of
// the group within a token. A TILE is a few tens of rows, side by side in the lanes of SIMD registers, so that scores
// are computed transposed ([key][row]): the softmax then runs down the lanes without horizontal sums, and the matrix
// products read their operands exactly as they were written. A key block is packed once per key head and used by all
// its rows.
//
// Thread-safety: pure functions.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/operations.h"

namespace ithaca::cpu {

// The most rows of a tile, over all instruction sets; also the row stride of everything laid out by tile.
inline constexpr int64_t kMaxTileRows = 32;
// Sizes of panels are rounded up to this many floats: one cache line, the widest register.
inline constexpr int64_t kPanelFloats = 16;

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Keys per block: as many as fit into `floats` of cache at `floats_per_key`, a multiple of 64 between 64 and 1024.
constexpr int64_t keys_per_block(int64_t floats, int64_t floats_per_key) {
  return std::clamp<int64_t>(floats / std::max<int64_t>(floats_per_key, 1) / 64 * 64, 64, 1024);
}

// Offsets and sizes in floats.
struct ForwardBlocks {
  static constexpr int64_t kScoreKeys = 128;  // keys whose scores are in flight: 16 KiB of scores

  int64_t key_block;     // keys that are packed at a time: half of a 1 MiB second-level cache
  int64_t key_panels;    // [key_block / panel][key size][panel]
  int64_t value_panels;  // [value size / panel][key_block][panel]
  int64_t query_tile;    // [key size][tile rows]
  int64_t scores;        // [kScoreKeys][tile rows]
  int64_t output_tile;   // [value size][tile rows]
  int64_t zeros;         // [max(key size, value size)]: stands for rows that are absent
  int64_t floats;        // all of it

  constexpr ForwardBlocks(int64_t key_size, int64_t value_size)
      : key_block(keys_per_block(131072, key_size + value_size)),
        key_panels(0),
        value_panels(key_panels + round_up(key_block * key_size, kPanelFloats)),
        query_tile(value_panels + key_block * round_up(value_size, kPanelFloats)),
        scores(query_tile + key_size * kMaxTileRows),
        output_tile(scores + kScoreKeys * kMaxTileRows),
        zeros(output_tile + round_up(value_size, kPanelFloats) * kMaxTileRows),
        floats(zeros + round_up(std::max(key_size, value_size), kPanelFloats)) {}
};

struct BackwardBlocks {
  static constexpr int64_t kScoreKeys = 64;  // keys whose scores are in flight
  static constexpr int64_t kTiles = 4;       // tiles that share one pass over the keys in flight

  int64_t key_block;        // keys that are packed at a time
  int64_t key_panels;       // [key_block / panel][key size][panel], for scores
  int64_t value_panels;     // [key_block / panel][value size][panel], for the gradient of the scores
  int64_t key_rows;         // [key size / panel][key_block][panel], for dquery
  int64_t dkey;             // [key size / width][key_block][width]
  int64_t dvalue;           // [value size / width][key_block][width]
  int64_t query_tiles;      // [kTiles][key size][tile rows]
  int64_t doutput_tiles;    // [kTiles][value size][tile rows]
  int64_t query_rows;       // [key size / width][kTiles * tile rows][width]
  int64_t doutput_rows;     // [value size / width][kTiles * tile rows][width]
  int64_t dquery_tiles;     // [kTiles][key size][tile rows]
  int64_t probabilities;    // [kTiles][kScoreKeys][tile rows]
  int64_t score_gradients;  // [kTiles][kScoreKeys][tile rows]
  int64_t zeros;            // [max(key size, value size)]: stands for rows that are absent
  int64_t floats;           // all of it

  constexpr BackwardBlocks(int64_t key_size, int64_t value_size)
      : key_block(keys_per_block(163840, 3 * key_size + 2 * value_size)),
        key_panels(0),
        value_panels(key_panels + round_up(key_block * key_size, kPanelFloats)),
        key_rows(value_panels + round_up(key_block * value_size, kPanelFloats)),
        dkey(key_rows + key_block * round_up(key_size, kPanelFloats)),
        dvalue(dkey + key_block * round_up(key_size, kPanelFloats)),
        query_tiles(dvalue + key_block * round_up(value_size, kPanelFloats)),
        doutput_tiles(query_tiles + kTiles * key_size * kMaxTileRows),
        query_rows(doutput_tiles + kTiles * value_size * kMaxTileRows),
        doutput_rows(query_rows + kTiles * kMaxTileRows * round_up(key_size, kPanelFloats)),
        dquery_tiles(doutput_rows + kTiles * kMaxTileRows * round_up(value_size, kPanelFloats)),
        probabilities(dquery_tiles + kTiles * kMaxTileRows * round_up(key_size, kPanelFloats)),
        score_gradients(probabilities + kTiles * kScoreKeys * kMaxTileRows),
        zeros(score_gradients + kTiles * kScoreKeys * kMaxTileRows),
        floats(zeros + round_up(std::max(key_size, value_size), kPanelFloats)) {}
};

// Consecutive tasks that are worked on as one: either one task, or several small ones whose queries and keys follow on
// each other without a gap (short documents), so that they fill tiles and key panels together.
struct AttentionRun {
  size_t task_begin = 0;
  size_t task_end = 0;  // tasks [task_begin, task_end)
  int64_t q_begin = 0;
  int64_t q_end = 0;
  int64_t k_begin = 0;
  int64_t k_end = 0;
};

// The run that starts at tasks[first]. Several tasks are joined only up to `joined_limit` queries and as many keys.
AttentionRun next_run(std::span<const AttentionTask> tasks, size_t first, int64_t joined_limit);

struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// The query tokens of `run` that may see one of the keys [k_begin, k_end) of it. Exact for a run of one task.
TokenRange visible_queries(std::span<const AttentionTask> tasks, const AttentionRun& run, int64_t k_begin,
                           int64_t k_end);

// Which keys of a block the rows of a tile see: row r sees keys [begin[r], end[r]), counted from the block's first key.
struct TileKeys {
  alignas(64) std::array<int32_t, kMaxTileRows> begin;
  alignas(64) std::array<int32_t, kMaxTileRows> end;
  int32_t any_begin = 0;  // keys that at least one row may see
  int32_t any_end = 0;
  int32_t all_begin = 0;  // keys that every row sees (empty: begin >= end)
  int32_t all_end = 0;
};

// Fills `keys` for `rows` rows of `run`, beginning with head `first_head` (within the group of `group` query heads) of
// query token `first_token`, and the key block [k_begin, k_end). Lanes from `rows` up to kMaxTileRows repeat the last
// row.
void find_tile_keys(std::span<const AttentionTask> tasks, const AttentionRun& run, int64_t first_token,
                    int64_t first_head, int64_t group, int64_t rows, int64_t k_begin, int64_t k_end, TileKeys& keys);

// Recomputes any_* and all_* from begin and end of the first `rows` rows.
void summarize_tile_keys(int64_t rows, TileKeys& keys);

}  // namespace ithaca::cpu
