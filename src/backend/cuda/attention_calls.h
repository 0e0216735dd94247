// From a task list to the calls that compute it: which tasks a fused kernel can take together, and which are left to
// the task kernels.
//
// Knows nothing of CUDA or cuDNN, so that it can be tested anywhere. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/operations.h"

namespace ithaca::cuda {

// The masks of fused kernels, for a rectangle of n queries x m keys.
enum class AttentionMask : uint8_t {
  full,
  causal,               // query i sees keys j <= i
  causal_bottom_right,  // query i sees keys j <= i + m - n
};

// One rectangle of a fused call; every query sees a key and every key is seen.
struct AttentionEntry {
  int64_t q_begin = 0;
  int64_t q_length = 0;
  int64_t k_begin = 0;
  int64_t k_length = 0;
  int64_t q_end() const { return q_begin + q_length; }
  int64_t k_end() const { return k_begin + k_length; }
  bool operator==(const AttentionEntry&) const = default;
};

enum class AttentionForm : uint8_t {
  dense,   // a batch of equal rectangles at equal distances: lengths are part of a plan
  ragged,  // any rectangles: lengths are data
  tasks,   // own kernels, any tasks
};

struct AttentionCall {
  AttentionForm form = AttentionForm::tasks;
  AttentionMask mask = AttentionMask::full;
  // With a causal mask: keys seen to the left of the diagonal, the diagonal's own included; 0: all.
  int64_t window = 0;
  // dense, ragged: sorted; queries are disjoint, and so are keys.
  std::vector<AttentionEntry> entries;
  // tasks: sorted by queries, normalised (see below). Bounds that cut nothing off are finite.
  std::vector<AttentionTask> tasks;
};

struct AttentionCallRules {
  // Whether a fused kernel takes these heads and this dtype at all.
  bool fused = true;
  int64_t query_heads = 1;
  // Calls of fewer visible pairs times query heads go to the task kernels.
  int64_t smallest_fused_work = 0;
  // Dense rectangles have sides that are multiples of this.
  int64_t dense_multiple = 128;
  // Queries times query heads from which a rectangle fills the device alone, so that a call of its own is quickest.
  int64_t large_entry_rows = 1 << 17;
  // Most such calls beside a ragged one.
  int64_t most_large_entries = 3;
  // Most rectangles of one ragged call.
  int64_t most_entries = 4096;
  // Most fused calls of one list; what is beyond the largest ones goes to the task kernels.
  int64_t most_fused_calls = 8;
};

// The calls of a list. Together they hold every visible pair of `tasks` exactly once. Tasks without a visible pair are
// dropped. Neighbouring rectangles that are one mask together (the pieces of a document that a layout has cut) are
// joined first.
std::vector<AttentionCall> attention_calls(std::span<const AttentionTask> tasks, const AttentionCallRules& rules);

// The same tasks without rows and columns that have no visible pair, and with finite bounds that cut nothing off where
// there was no bound: -rows and columns - 1. Empty tasks are dropped.
std::vector<AttentionTask> normalised_tasks(std::span<const AttentionTask> tasks);

// What a call computes, as normalised tasks sorted by queries.
std::vector<AttentionTask> tasks_of(const AttentionCall& call);

// For the task kernels: the tasks sorted by one side, and for every tile of that side (64 tokens, say) that has any,
// which of them may touch it.
struct TaskTile {
  int64_t begin = 0;  // first token
  int32_t first = 0;  // tasks [first, first + count)
  int32_t count = 0;
  bool operator==(const TaskTile&) const = default;
};
struct TiledTasks {
  std::vector<AttentionTask> tasks;
  std::vector<TaskTile> tiles;
};
TiledTasks tiled_by_queries(std::span<const AttentionTask> tasks, int64_t tile);
TiledTasks tiled_by_keys(std::span<const AttentionTask> tasks, int64_t tile);

// Visible pairs of a normalised task.
int64_t visible_pairs(const AttentionTask& task);
// Visible pairs of a call.
int64_t visible_pairs(const AttentionCall& call);

// Disjoint, sorted, joined where they touch: the queries that a call writes.
struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const TokenRange&) const = default;
};
std::vector<TokenRange> covered_queries(const AttentionCall& call);
std::vector<TokenRange> covered_keys(const AttentionCall& call);
// The union of two such lists.
std::vector<TokenRange> joined_ranges(std::span<const TokenRange> first, std::span<const TokenRange> second);
bool are_disjoint(std::span<const TokenRange> first, std::span<const TokenRange> second);

}  // namespace ithaca::cuda
