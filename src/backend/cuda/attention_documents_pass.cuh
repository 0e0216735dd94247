// What the warpgroups of the document kernel (attention_documents.cuh) share: its arguments, passes over keys, masks,
// and the plan of shared memory. Internal to backend/cuda.
#pragma once

#include <cstdint>

#ifdef ITHACA_EMULATED_WARPGROUPS
#include "backend/cuda/warpgroup_emulation.h"
#else
#include "backend/cuda/warpgroup_mma.cuh"
#endif
#include "backend/cuda/attention_tasks.cuh"

namespace ithaca::cuda {

inline constexpr int kDocumentThreads = 384;
inline constexpr int kWarpgroup = 128;
inline constexpr int kDocumentTile = 64;   // queries of a tile, keys of a warpgroup
inline constexpr int kDocumentKeys = 128;  // of a pass
inline constexpr int kDocumentStages = 3;  // tiles of queries on their way
inline constexpr int kDocumentPasses = 3;  // descriptions of passes

struct DocumentArguments {
  HeadsView<const BFloat> query;
  HeadsView<const BFloat> key;
  HeadsView<const BFloat> value;
  HeadsView<const BFloat> output;
  HeadsView<const BFloat> doutput;
  RowsView log_sum_exp;
  RowsView sums;  // workspace: dO . O of every row
  const AttentionTask* tasks;
  int64_t task_count;
  int64_t key_heads;
  int group;  // query heads of one key head
  float scale;
  int* next;        // the queue: items taken so far
  float4* waiting;  // dQ that more passes add to: [block][query head of the group][query tile][half][word][thread]
  int64_t waiting_tiles;  // query tiles of the longest document
};

// 128 keys of a document and a key head, and the tiles of queries that see them.
struct DocumentPass {
  int64_t q_begin;
  int64_t k_begin;
  int query_count;
  int key_count;
  int lower;
  int upper;
  int key_head;
  int key_begin;   // of the pass, in the document
  int first_tile;  // of queries: [first_tile, end_tile)
  int end_tile;
  bool is_backwards;  // through the heads of the group: those that the pass before has read last come first
  bool is_there;      // there was work left

  // The first pass of the next item of the queue.
  __device__ void take(const DocumentArguments& arguments) {
    const int64_t item = atomicAdd(arguments.next, 1);
    is_there = item < arguments.task_count * arguments.key_heads;
    if (!is_there) return;
    const AttentionTask task = arguments.tasks[item / arguments.key_heads];
    q_begin = task.q_begin;
    k_begin = task.k_begin;
    query_count = static_cast<int>(task.q_end - task.q_begin);
    key_count = static_cast<int>(task.k_end - task.k_begin);
    lower = static_cast<int>(task.lower);
    upper = static_cast<int>(task.upper);
    key_head = static_cast<int>(item % arguments.key_heads);
    begin(0);
  }
  // The pass of the keys from `key` on.
  __device__ void begin(int key) {
    key_begin = key;
    is_backwards = key / kDocumentKeys % 2 == 1;
    const int keys = min(key_count - key, kDocumentKeys);
    first_tile = max(0, key - upper) / kDocumentTile;
    end_tile = (min(query_count, key + keys - 1 - lower) - 1) / kDocumentTile + 1;
  }
  __device__ int next_key() const { return key_begin + kDocumentKeys; }

  __device__ int head_of_group(int i, int group) const { return is_backwards ? group - 1 - i : i; }
  __device__ int rows(int tile) const { return min(query_count - tile * kDocumentTile, kDocumentTile); }
  // Keys of a warpgroup.
  __device__ int keys(int warpgroup) const {
    return max(0, min(key_count - key_begin - warpgroup * kDocumentTile, kDocumentTile));
  }
  // Whether this is the first (last) pass that a tile of queries sees keys of.
  __device__ bool is_first(int tile) const {
    return max(0, tile * kDocumentTile + lower + 1) / kDocumentKeys * kDocumentKeys == key_begin;
  }
  __device__ bool is_last(int tile) const {
    const int last_row = min(query_count, (tile + 1) * kDocumentTile) - 1;
    return min(key_count - 1, last_row + upper) / kDocumentKeys * kDocumentKeys == key_begin;
  }
};

// What a tile of queries sees of the keys of a warpgroup. Key r sees query c iff lower < r - c <= upper.
struct DocumentMask {
  int queries;
  int keys;
  int lower;
  int upper;

  __device__ DocumentMask(const DocumentPass& pass, int warpgroup, int tile) {
    const int shift = pass.key_begin + warpgroup * kDocumentTile - tile * kDocumentTile;
    queries = pass.rows(tile);
    keys = pass.keys(warpgroup);
    lower = pass.lower - shift;
    upper = pass.upper - shift;
  }
  __device__ bool is_any_visible() const { return keys > 0 && keys - 1 > lower && 1 - queries <= upper; }
  // Queries that are not there have a log-sum-exp of +inf.
  __device__ bool is_all_visible() const {
    return keys == kDocumentTile && 1 - kDocumentTile > lower && kDocumentTile - 1 <= upper;
  }
};

// Shared memory, from an address that is a multiple of 1,024.
template <int kSize>
struct DocumentMemory {
  static constexpr uint32_t kTile = kSize / 64 * kPanelBytes;
  static constexpr uint32_t kKeys = 0;  // of two warpgroups
  static constexpr uint32_t kValues = kKeys + 2 * kTile;
  static constexpr uint32_t kQueries = kValues + 2 * kTile;  // of all stages
  static constexpr uint32_t kDoutputs = kQueries + kDocumentStages * kTile;
  static constexpr uint32_t kOutput = kDoutputs + kDocumentStages * kTile;
  static constexpr uint32_t kDscores = kOutput + kTile;  // [step % 2][warpgroup] panels of [key][query]
  // [stage] 64 log-sum-exps, in units of log2(e), +inf for rows that are not there or have seen no key; 64 row sums
  static constexpr uint32_t kRows = kDscores + 4 * kPanelBytes;
  static constexpr uint32_t kRowsOfStage = 2 * kDocumentTile * sizeof(float);
  static constexpr uint32_t kBarriers = kRows + kDocumentStages * kRowsOfStage;
  static constexpr uint32_t kFull = kBarriers;  // [stage]
  static constexpr uint32_t kEmpty = kFull + 8 * kDocumentStages;
  static constexpr uint32_t kKeysFull = kEmpty + 8 * kDocumentStages;
  static constexpr uint32_t kKeysEmpty = kKeysFull + 8;
  static constexpr uint32_t kDscoresFull = kKeysEmpty + 8;  // [step % 2][warpgroup]
  static constexpr uint32_t kPasses = kDscoresFull + 8 * 4;
  static constexpr uint32_t kBytes = kPasses + kDocumentPasses * sizeof(DocumentPass);
  static constexpr int kAllocatedBytes = static_cast<int>(kBytes) + 1023;
};

// The stage of a step, and the phase of its barriers: 0 and 1 by turns, every time that the stage is used.
struct DocumentStage {
  int index = 0;
  int phase = 0;
  __device__ void advance() {
    if (++index == kDocumentStages) {
      index = 0;
      phase ^= 1;
    }
  }
};

}  // namespace ithaca::cuda
