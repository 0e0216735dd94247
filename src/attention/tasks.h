// From layout, documents and mask to attention tasks. Only this file knows them all; kernels know only tasks.
//
// The work grows with the documents and segments that two shards share, not with tokens or with pairs of documents.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/documents.h"
#include "attention/layout.h"
#include "backend/operations.h"

namespace ithaca {

// Which keys a query may see within its document.
struct MaskRule {
  bool causal = true;
  int64_t window = 0;  // > 0: only the last `window` keys, the query's own included (causal only); 0: no limit
  bool operator==(const MaskRule&) const = default;
};

// The tasks between one query shard and one key shard, in the shards' local indices: sorted by (q_begin, k_begin),
// disjoint, none empty, no visible pair missing and no invisible pair included. Every row and every column of a task
// has a visible pair, and a bound that cuts nothing off is kNoLower/kNoUpper, so a fully visible rectangle carries
// neither. Empty when nothing is visible. Throws ContractError for a window without causality and for shards that reach
// past the documents.
std::vector<AttentionTask> attention_tasks(const Shard& queries, const Shard& keys, const Documents& documents,
                                           const MaskRule& mask);

// Whether attention_tasks would find any, without building them.
bool any_attention(const Shard& queries, const Shard& keys, const Documents& documents, const MaskRule& mask);

// Visible query-key pairs of a list: the true area, for FLOP counts and balance.
int64_t visible_pairs(std::span<const AttentionTask> tasks);
// Tiles of `tile` x `tile` pairs that hold a visible one, where each task has tiles of its own, from its first row and
// column on: what a kernel with such tiles computes.
int64_t visible_tiles(std::span<const AttentionTask> tasks, int64_t tile);

}  // namespace ithaca
