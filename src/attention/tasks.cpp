#include "attention/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "base/integer.h"

namespace ithaca {
namespace {

// A segment together with the local index of its first token.
struct PlacedSegment {
  Segment segment;
  int64_t local = 0;

  int64_t last() const { return segment.begin + (segment.count - 1) * segment.stride; }
  PlacedSegment single(int64_t index) const { return {{segment.begin + index * segment.stride, 1, 1}, local + index}; }
};

// Cuts off rows and columns without a visible pair and drops bounds that cut nothing off. False when nothing is left.
bool normalise(AttentionTask& task) {
  const int64_t rows = task.q_end - task.q_begin;
  const int64_t columns = task.k_end - task.k_begin;
  if (rows <= 0 || columns <= 0) return false;
  // Diagonals run from 1 - rows to columns - 1; bounds beyond them say the same as bounds just beyond.
  const int64_t lower = std::clamp(task.lower, -rows, columns);
  const int64_t upper = std::clamp(task.upper, -rows - 1, columns - 1);
  if (lower >= upper) return false;
  // Row i sees columns [i + lower + 1, i + upper]; column j is seen by rows [j - upper, j - lower - 1].
  const int64_t first_row = std::max<int64_t>(0, -upper);
  const int64_t end_row = std::min(rows, columns - 1 - lower);
  const int64_t first_column = std::max<int64_t>(0, lower + 1);
  const int64_t end_column = std::min(columns, rows + upper);
  if (first_row >= end_row || first_column >= end_column) return false;
  const int64_t shift = first_row - first_column;
  const int64_t rows_left = end_row - first_row;
  const int64_t columns_left = end_column - first_column;
  task.q_end = task.q_begin + end_row;
  task.q_begin += first_row;
  task.k_end = task.k_begin + end_column;
  task.k_begin += first_column;
  task.lower = lower + shift <= -rows_left ? kNoLower : lower + shift;
  task.upper = upper + shift >= columns_left - 1 ? kNoUpper : upper + shift;
  return true;
}

// Calls visit(task) for every task of two segments of equal stride; stops and returns false as soon as visit does.
template <typename Visit>
bool visit_pair(const PlacedSegment& query, const PlacedSegment& key, int64_t stride, const Documents& documents,
                const MaskRule& mask, const Visit& visit) {
  // Documents are intervals: one that reaches both spans reaches their overlap, or, where they do not overlap, holds
  // the end of the left span and the begin of the right one. So candidates are one run of neighbouring documents.
  const int64_t later_begin = std::max(query.segment.begin, key.segment.begin);
  const int64_t earlier_last = std::min(query.last(), key.last());
  const int64_t first_document = documents.document_of(std::min(later_begin, earlier_last));
  const int64_t last_document = documents.document_of(std::max(later_begin, earlier_last));
  if (later_begin > earlier_last && first_document != last_document) return true;
  if (mask.causal && query.last() < key.segment.begin) return true;

  const int64_t distance = query.segment.begin - key.segment.begin;
  const int64_t upper = mask.causal ? floor_divide(distance, stride) : kNoUpper;
  const int64_t window = std::min(mask.window, documents.total_tokens());
  const int64_t lower = mask.window > 0 ? floor_divide(distance - window, stride) : kNoLower;
  for (int64_t document = first_document; document <= last_document; ++document) {
    // The indices within a segment whose positions the document holds.
    const auto index = [&](const Segment& segment, int64_t position) {
      return std::clamp<int64_t>(ceiling_divide(position - segment.begin, stride), 0, segment.count);
    };
    const int64_t query_index = index(query.segment, documents.begin(document));
    const int64_t key_index = index(key.segment, documents.begin(document));
    AttentionTask task;
    task.q_begin = query.local + query_index;
    task.q_end = query.local + index(query.segment, documents.end(document));
    task.k_begin = key.local + key_index;
    task.k_end = key.local + index(key.segment, documents.end(document));
    if (mask.window > 0) task.lower = lower + query_index - key_index;
    if (mask.causal) task.upper = upper + query_index - key_index;
    if (normalise(task) && !visit(task)) return false;
  }
  return true;
}

std::vector<PlacedSegment> place(const Shard& shard) {
  std::vector<PlacedSegment> placed;
  placed.reserve(shard.segments().size());
  int64_t local = 0;
  for (const Segment& segment : shard.segments()) {
    placed.push_back({segment, local});
    local += segment.count;
  }
  return placed;
}

// Calls visit(task) for every task of two shards, in no particular order, until it returns false.
template <typename Visit>
void visit_tasks(const Shard& queries, const Shard& keys, const Documents& documents, const MaskRule& mask,
                 const Visit& visit) {
  require(mask.window >= 0, fmt::format("attention window {}: must be 0 (no limit) or positive", mask.window));
  require(mask.window == 0 || mask.causal, "an attention window needs a causal mask");
  const std::vector<PlacedSegment> placed_queries = place(queries);
  const std::vector<PlacedSegment> placed_keys = place(keys);
  for (const auto* placed : {&placed_queries, &placed_keys}) {
    for (const PlacedSegment& part : *placed) {
      require(
          part.last() < documents.total_tokens(),
          fmt::format("a shard holds position {}, but the documents end at {}", part.last(), documents.total_tokens()));
    }
  }
  for (const PlacedSegment& query : placed_queries) {
    for (const PlacedSegment& key : placed_keys) {
      const Segment& first = query.segment;
      const Segment& second = key.segment;
      if (first.stride == second.stride || first.count == 1 || second.count == 1) {
        // A single token has no stride of its own.
        const int64_t stride = first.count == 1 ? second.stride : first.stride;
        if (!visit_pair(query, key, stride, documents, mask, visit)) return;
      } else if (first.count <= second.count) {
        // Diagonals of two different strides are no bands: take the shorter side token by token.
        for (int64_t index = 0; index < first.count; ++index) {
          if (!visit_pair(query.single(index), key, second.stride, documents, mask, visit)) return;
        }
      } else {
        for (int64_t index = 0; index < second.count; ++index) {
          if (!visit_pair(query, key.single(index), first.stride, documents, mask, visit)) return;
        }
      }
    }
  }
}

// Pairs of rows x columns with column - row <= diagonal.
int64_t pairs_up_to(int64_t rows, int64_t columns, int64_t diagonal) {
  diagonal = std::clamp(diagonal, -rows, columns - 1);
  // Row i has clamp(i + diagonal + 1, 0, columns) of them: nothing, then one more each row, then all.
  const int64_t first = std::clamp<int64_t>(-diagonal - 1, 0, rows);
  const int64_t full = std::clamp<int64_t>(columns - diagonal - 1, first, rows);
  const int64_t growing = full - first;
  const int64_t smallest = first + diagonal + 1;
  return growing * smallest + growing * (growing - 1) / 2 + (rows - full) * columns;
}

}  // namespace

std::vector<AttentionTask> attention_tasks(const Shard& queries, const Shard& keys, const Documents& documents,
                                           const MaskRule& mask) {
  std::vector<AttentionTask> tasks;
  visit_tasks(queries, keys, documents, mask, [&](const AttentionTask& task) {
    tasks.push_back(task);
    return true;
  });
  std::sort(tasks.begin(), tasks.end(), [](const AttentionTask& left, const AttentionTask& right) {
    return std::tie(left.q_begin, left.k_begin) < std::tie(right.q_begin, right.k_begin);
  });
  return tasks;
}

bool any_attention(const Shard& queries, const Shard& keys, const Documents& documents, const MaskRule& mask) {
  bool found = false;
  visit_tasks(queries, keys, documents, mask, [&](const AttentionTask&) {
    found = true;
    return false;
  });
  return found;
}

int64_t visible_pairs(std::span<const AttentionTask> tasks) {
  return visible_tiles(tasks, 1);
}

int64_t visible_tiles(std::span<const AttentionTask> tasks, int64_t tile) {
  require(tile > 0, "visible_tiles: a tile has a row");
  int64_t tiles = 0;
  for (const AttentionTask& task : tasks) {
    const int64_t rows = ceiling_divide(task.q_end - task.q_begin, tile);
    const int64_t columns = ceiling_divide(task.k_end - task.k_begin, tile);
    // Bounds are clamped to where they cut nothing off, so that what follows cannot overflow.
    const int64_t upper = std::clamp(task.upper, -rows * tile - 1, columns * tile);
    const int64_t lower = std::clamp(task.lower, -rows * tile - 1, columns * tile);
    // Of a row of tiles, the last row sees the rightmost key, and the first row the leftmost.
    tiles += pairs_up_to(rows, columns, floor_divide(upper + tile - 1, tile)) -
             pairs_up_to(rows, columns, floor_divide(lower + 1, tile) - 1);
  }
  return tiles;
}

}  // namespace ithaca
