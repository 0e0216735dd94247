#include "backend/cuda/attention_calls.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace ithaca::cuda {
namespace {

int64_t rows_of(const AttentionTask& task) {
  return task.q_end - task.q_begin;
}
int64_t columns_of(const AttentionTask& task) {
  return task.k_end - task.k_begin;
}
bool has_lower(const AttentionTask& task) {
  return task.lower > -rows_of(task);
}
bool has_upper(const AttentionTask& task) {
  return task.upper < columns_of(task) - 1;
}

// See normalised_tasks. False when nothing is visible.
bool normalise(AttentionTask& task) {
  const int64_t rows = rows_of(task);
  const int64_t columns = columns_of(task);
  if (rows <= 0 || columns <= 0) return false;
  // Diagonals run from 1 - rows to columns - 1.
  const int64_t lower = std::clamp(task.lower, -rows, columns - 1);
  const int64_t upper = std::clamp(task.upper, -rows, columns - 1);
  if (lower >= upper) return false;
  // Row i sees columns [i + lower + 1, i + upper]; column j is seen by rows [j - upper, j - lower - 1].
  const int64_t first_row = std::max<int64_t>(0, -upper);
  const int64_t end_row = std::min(rows, columns - 1 - lower);
  const int64_t first_column = std::max<int64_t>(0, lower + 1);
  const int64_t end_column = std::min(columns, rows + upper);
  if (first_row >= end_row || first_column >= end_column) return false;
  const int64_t shift = first_row - first_column;
  task.q_end = task.q_begin + end_row;
  task.q_begin += first_row;
  task.k_end = task.k_begin + end_column;
  task.k_begin += first_column;
  task.lower = std::max(lower + shift, -rows_of(task));
  task.upper = std::min(upper + shift, columns_of(task) - 1);
  return true;
}

// The part of a task within some rows and columns, normalised; nothing when it has no visible pair.
std::optional<AttentionTask> cut(const AttentionTask& task, TokenRange queries, TokenRange keys) {
  AttentionTask part{queries.begin, queries.end, keys.begin, keys.end, task.lower, task.upper};
  const int64_t shift = (queries.begin - task.q_begin) - (keys.begin - task.k_begin);
  part.lower += shift;
  part.upper += shift;
  if (!normalise(part)) return std::nullopt;
  return part;
}

// Side by side: the same queries see the keys of both.
bool are_beside(const AttentionTask& left, const AttentionTask& right) {
  return left.q_begin == right.q_begin && left.q_end == right.q_end && left.k_end == right.k_begin;
}
// One above the other, beginning with the same key. The lower one may see more: that is how a causal square looks that
// a layout has cut between its queries.
bool are_stacked(const AttentionTask& upper, const AttentionTask& lower) {
  return upper.q_end == lower.q_begin && upper.k_begin == lower.k_begin && upper.k_end <= lower.k_end;
}

// One task of the same pairs as two that are beside each other or stacked, if there is one: the bounds come from
// whichever of the two has them.
std::optional<AttentionTask> join(const AttentionTask& first, const AttentionTask& second) {
  AttentionTask whole = first;
  whole.q_end = second.q_end;
  whole.k_end = second.k_end;
  // Diagonals of `second` counted from the corner of `first`.
  const int64_t shift = (second.k_begin - first.k_begin) - (second.q_begin - first.q_begin);
  whole.lower = has_lower(first) ? first.lower : has_lower(second) ? second.lower + shift : -rows_of(whole);
  whole.upper = has_upper(first) ? first.upper : has_upper(second) ? second.upper + shift : columns_of(whole) - 1;
  whole.lower = std::max(whole.lower, -rows_of(whole));
  whole.upper = std::min(whole.upper, columns_of(whole) - 1);
  // What a stacked task does not see of the whole's keys must be hidden there too.
  const bool is_beside = are_beside(first, second);
  const auto part = [&](const AttentionTask& like) {
    return cut(whole, {like.q_begin, like.q_end}, {like.k_begin, is_beside ? like.k_end : whole.k_end});
  };
  if (part(first) != first || part(second) != second) return std::nullopt;
  return whole;
}

// Joins neighbours of a list in which those that may be joined follow each other.
template <typename AreNeighbours>
void join_neighbours(std::vector<AttentionTask>& tasks, const AreNeighbours& are_neighbours) {
  std::vector<AttentionTask> joined;
  for (const AttentionTask& task : tasks) {
    const bool candidate = !joined.empty() && are_neighbours(joined.back(), task);
    const auto whole = candidate ? join(joined.back(), task) : std::nullopt;
    if (whole) {
      joined.back() = *whole;
    } else {
      joined.push_back(task);
    }
  }
  tasks = std::move(joined);
}

void sort_by_queries(std::vector<AttentionTask>& tasks) {
  std::sort(tasks.begin(), tasks.end(), [](const AttentionTask& left, const AttentionTask& right) {
    return std::tie(left.q_begin, left.q_end, left.k_begin) < std::tie(right.q_begin, right.q_end, right.k_begin);
  });
}

void join_all(std::vector<AttentionTask>& tasks) {
  for (size_t before = tasks.size() + 1; tasks.size() < before;) {
    before = tasks.size();
    // Keys first: a query that all its keys are joined for needs no merging.
    sort_by_queries(tasks);
    join_neighbours(tasks, are_beside);
    std::sort(tasks.begin(), tasks.end(), [](const AttentionTask& left, const AttentionTask& right) {
      return std::tie(left.k_begin, left.q_begin) < std::tie(right.k_begin, right.q_begin);
    });
    join_neighbours(tasks, are_stacked);
  }
  sort_by_queries(tasks);
}

// Rectangles of one mask, by what a fused kernel must be told.
using MaskGroups = std::map<std::pair<AttentionMask, int64_t>, std::vector<AttentionEntry>>;

AttentionEntry entry_of(const AttentionTask& task) {
  return {task.q_begin, rows_of(task), task.k_begin, columns_of(task)};
}

// Puts a task into the group of its mask. Causal bands that are aligned to neither corner are cut into a rectangle that
// is and a full one. False when no mask fits.
bool classify(const AttentionTask& task, MaskGroups& groups) {
  const int64_t window = has_lower(task) ? task.upper - task.lower : 0;
  if (!has_upper(task)) {
    if (has_lower(task)) return false;
    groups[{AttentionMask::full, 0}].push_back(entry_of(task));
    return true;
  }
  if (task.upper == 0) {
    groups[{AttentionMask::causal, window}].push_back(entry_of(task));
    return true;
  }
  const int64_t corner = columns_of(task) - rows_of(task);
  if (task.upper == corner) {
    groups[{AttentionMask::causal_bottom_right, window}].push_back(entry_of(task));
    return true;
  }
  if (window > 0 || task.upper < corner) return false;
  // The later rows see everything.
  const int64_t split = task.q_begin + columns_of(task) - task.upper;
  const auto upper_part = cut(task, {task.q_begin, split}, {task.k_begin, task.k_end});
  const auto lower_part = cut(task, {split, task.q_end}, {task.k_begin, task.k_end});
  return upper_part && lower_part && classify(*upper_part, groups) && classify(*lower_part, groups);
}

// Squares have two names; they take the one that saves a call.
void rename_squares(MaskGroups& groups) {
  for (auto& [key, squares] : groups) {
    if (key.first != AttentionMask::causal) continue;
    const auto other = groups.find({AttentionMask::causal_bottom_right, key.second});
    const bool all_square = std::all_of(squares.begin(), squares.end(),
                                        [](const AttentionEntry& entry) { return entry.q_length == entry.k_length; });
    if (other == groups.end() || !all_square) continue;
    other->second.insert(other->second.end(), squares.begin(), squares.end());
    squares.clear();
  }
}

// Calls whose queries and keys are disjoint and in one order, as few as first-fit finds.
std::vector<AttentionCall> disjoint_calls(AttentionMask mask, int64_t window, std::vector<AttentionEntry> entries) {
  std::sort(entries.begin(), entries.end(), [](const AttentionEntry& left, const AttentionEntry& right) {
    return std::tie(left.q_begin, left.k_begin) < std::tie(right.q_begin, right.k_begin);
  });
  std::vector<AttentionCall> calls;
  for (const AttentionEntry& entry : entries) {
    const auto fitting = std::find_if(calls.begin(), calls.end(), [&](const AttentionCall& call) {
      return call.entries.back().q_end() <= entry.q_begin && call.entries.back().k_end() <= entry.k_begin;
    });
    AttentionCall& call = fitting != calls.end() ? *fitting : calls.emplace_back();
    call.mask = mask;
    call.window = window;
    call.entries.push_back(entry);
  }
  return calls;
}

bool can_be_dense(const AttentionEntry& entry, const AttentionCallRules& rules) {
  return entry.q_length % rules.dense_multiple == 0 && entry.k_length % rules.dense_multiple == 0;
}

bool is_dense_batch(const AttentionCall& call, const AttentionCallRules& rules) {
  const std::vector<AttentionEntry>& entries = call.entries;
  const AttentionEntry& first = entries.front();
  if (!can_be_dense(first, rules)) return false;
  for (size_t i = 1; i < entries.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    AttentionEntry expected = first;
    expected.q_begin += index * (entries[1].q_begin - first.q_begin);
    expected.k_begin += index * (entries[1].k_begin - first.k_begin);
    if (!(entries[i] == expected)) return false;
  }
  return true;
}

bool is_large(const AttentionEntry& entry, const AttentionCallRules& rules) {
  return can_be_dense(entry, rules) && entry.q_length * rules.query_heads >= rules.large_entry_rows;
}

// Decides the form of fused calls, cutting calls where that is quicker or needed: the largest rectangles have dense
// calls of their own, which are quicker than their share of a ragged one.
std::vector<AttentionCall> with_forms(const AttentionCall& call, const AttentionCallRules& rules) {
  std::vector<AttentionCall> result;
  const auto add = [&](AttentionForm form, std::vector<AttentionEntry> entries) {
    AttentionCall part;
    part.form = form;
    part.mask = call.mask;
    part.window = call.window;
    part.entries = std::move(entries);
    result.push_back(std::move(part));
  };
  if (is_dense_batch(call, rules)) {
    add(AttentionForm::dense, call.entries);
    return result;
  }
  std::vector<int64_t> large;  // rows, largest first
  for (const AttentionEntry& entry : call.entries) {
    if (is_large(entry, rules)) large.push_back(entry.q_length);
  }
  std::sort(large.begin(), large.end(), std::greater<>());
  large.resize(std::min(large.size(), static_cast<size_t>(rules.most_large_entries)));
  std::vector<AttentionEntry> others;
  size_t alone = 0;
  for (const AttentionEntry& entry : call.entries) {
    if (alone < large.size() && is_large(entry, rules) && entry.q_length >= large.back()) {
      add(AttentionForm::dense, {entry});
      ++alone;
    } else {
      others.push_back(entry);
    }
  }
  for (size_t begin = 0; begin < others.size();) {
    const size_t end = std::min(others.size(), begin + static_cast<size_t>(rules.most_entries));
    const auto at = [&](size_t index) { return others.begin() + static_cast<std::ptrdiff_t>(index); };
    add(AttentionForm::ragged, {at(begin), at(end)});
    begin = end;
  }
  return result;
}

AttentionTask task_of(const AttentionCall& call, const AttentionEntry& entry) {
  AttentionTask task{entry.q_begin, entry.q_end(), entry.k_begin, entry.k_end(), -entry.q_length, entry.k_length - 1};
  if (call.mask == AttentionMask::causal) task.upper = 0;
  if (call.mask == AttentionMask::causal_bottom_right) task.upper = entry.k_length - entry.q_length;
  if (call.window > 0) task.lower = std::max(task.lower, task.upper - call.window);
  task.upper = std::min(task.upper, entry.k_length - 1);
  return task;
}

// Pairs of rows x columns with column - row <= diagonal, for a diagonal within [-rows, columns - 1].
int64_t pairs_up_to(int64_t rows, int64_t columns, int64_t diagonal) {
  // Row i has clamp(i + diagonal + 1, 0, columns) of them: nothing, then one more each row, then all.
  const int64_t first = std::clamp<int64_t>(-diagonal - 1, 0, rows);
  const int64_t full = std::clamp<int64_t>(columns - diagonal - 1, first, rows);
  const int64_t growing = full - first;
  const int64_t smallest = first + diagonal + 1;
  return growing * smallest + growing * (growing - 1) / 2 + (rows - full) * columns;
}

std::vector<TokenRange> joined(std::vector<TokenRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const TokenRange& left, const TokenRange& right) { return left.begin < right.begin; });
  std::vector<TokenRange> result;
  for (const TokenRange& range : ranges) {
    if (range.begin >= range.end) continue;
    if (!result.empty() && range.begin <= result.back().end) {
      result.back().end = std::max(result.back().end, range.end);
    } else {
      result.push_back(range);
    }
  }
  return result;
}

// `tasks` sorted by the side that range_of(task) returns.
template <typename RangeOf>
TiledTasks tiled(std::span<const AttentionTask> tasks, int64_t tile, const RangeOf& range_of) {
  TiledTasks result;
  result.tasks.assign(tasks.begin(), tasks.end());
  std::stable_sort(result.tasks.begin(), result.tasks.end(),
                   [&](const AttentionTask& left, const AttentionTask& right) {
                     return range_of(left).begin < range_of(right).begin;
                   });
  std::map<int64_t, TaskTile> tiles;
  for (size_t i = 0; i < result.tasks.size(); ++i) {
    const TokenRange range = range_of(result.tasks[i]);
    const auto index = static_cast<int32_t>(i);
    for (int64_t begin = range.begin / tile * tile; begin < range.end; begin += tile) {
      TaskTile& found = tiles.try_emplace(begin, TaskTile{begin, index, 0}).first->second;
      found.count = index + 1 - found.first;
    }
  }
  for (const auto& [begin, found] : tiles) result.tiles.push_back(found);
  return result;
}

}  // namespace

std::vector<AttentionTask> tasks_of(const AttentionCall& call) {
  if (call.form == AttentionForm::tasks) return call.tasks;
  std::vector<AttentionTask> tasks;
  tasks.reserve(call.entries.size());
  for (const AttentionEntry& entry : call.entries) tasks.push_back(task_of(call, entry));
  return tasks;
}

TiledTasks tiled_by_queries(std::span<const AttentionTask> tasks, int64_t tile) {
  return tiled(tasks, tile, [](const AttentionTask& task) { return TokenRange{task.q_begin, task.q_end}; });
}

TiledTasks tiled_by_keys(std::span<const AttentionTask> tasks, int64_t tile) {
  return tiled(tasks, tile, [](const AttentionTask& task) { return TokenRange{task.k_begin, task.k_end}; });
}

std::vector<AttentionTask> normalised_tasks(std::span<const AttentionTask> tasks) {
  std::vector<AttentionTask> result;
  result.reserve(tasks.size());
  for (AttentionTask task : tasks) {
    if (normalise(task)) result.push_back(task);
  }
  return result;
}

int64_t visible_pairs(const AttentionTask& task) {
  const int64_t rows = rows_of(task);
  const int64_t columns = columns_of(task);
  return pairs_up_to(rows, columns, task.upper) - pairs_up_to(rows, columns, task.lower);
}

int64_t visible_pairs(const AttentionCall& call) {
  int64_t pairs = 0;
  for (const AttentionEntry& entry : call.entries) pairs += visible_pairs(task_of(call, entry));
  for (const AttentionTask& task : call.tasks) pairs += visible_pairs(task);
  return pairs;
}

std::vector<AttentionCall> attention_calls(std::span<const AttentionTask> tasks, const AttentionCallRules& rules) {
  std::vector<AttentionTask> left = normalised_tasks(tasks);
  join_all(left);
  std::vector<AttentionCall> fused;
  AttentionCall rest;
  if (rules.fused) {
    MaskGroups groups;
    for (const AttentionTask& task : left) {
      MaskGroups own;
      if (!classify(task, own)) {
        rest.tasks.push_back(task);
        continue;
      }
      for (auto& [key, entries] : own) {
        std::vector<AttentionEntry>& group = groups[key];
        group.insert(group.end(), entries.begin(), entries.end());
      }
    }
    rename_squares(groups);
    for (auto& [key, entries] : groups) {
      std::vector<AttentionCall> calls = disjoint_calls(key.first, key.second, std::move(entries));
      std::move(calls.begin(), calls.end(), std::back_inserter(fused));
    }
    // Largest first: what is too small or too much is at the end.
    std::stable_sort(fused.begin(), fused.end(), [](const AttentionCall& first, const AttentionCall& second) {
      return visible_pairs(first) > visible_pairs(second);
    });
    std::vector<AttentionCall> kept;
    for (AttentionCall& call : fused) {
      if (static_cast<int64_t>(kept.size()) >= rules.most_fused_calls ||
          visible_pairs(call) * rules.query_heads < rules.smallest_fused_work) {
        for (const AttentionEntry& entry : call.entries) rest.tasks.push_back(task_of(call, entry));
      } else {
        kept.push_back(std::move(call));
      }
    }
    fused.clear();
    for (const AttentionCall& call : kept) {
      std::vector<AttentionCall> calls = with_forms(call, rules);
      std::move(calls.begin(), calls.end(), std::back_inserter(fused));
    }
  } else {
    rest.tasks = std::move(left);
  }
  if (!rest.tasks.empty()) {
    sort_by_queries(rest.tasks);
    fused.push_back(std::move(rest));
  }
  return fused;
}

std::vector<TokenRange> covered_queries(const AttentionCall& call) {
  std::vector<TokenRange> ranges;
  for (const AttentionEntry& entry : call.entries) ranges.push_back({entry.q_begin, entry.q_end()});
  for (const AttentionTask& task : call.tasks) ranges.push_back({task.q_begin, task.q_end});
  return joined(std::move(ranges));
}

std::vector<TokenRange> covered_keys(const AttentionCall& call) {
  std::vector<TokenRange> ranges;
  for (const AttentionEntry& entry : call.entries) ranges.push_back({entry.k_begin, entry.k_end()});
  for (const AttentionTask& task : call.tasks) ranges.push_back({task.k_begin, task.k_end});
  return joined(std::move(ranges));
}

std::vector<TokenRange> joined_ranges(std::span<const TokenRange> first, std::span<const TokenRange> second) {
  std::vector<TokenRange> ranges(first.begin(), first.end());
  ranges.insert(ranges.end(), second.begin(), second.end());
  return joined(std::move(ranges));
}

bool are_disjoint(std::span<const TokenRange> first, std::span<const TokenRange> second) {
  auto left = first.begin();
  auto right = second.begin();
  while (left != first.end() && right != second.end()) {
    if (left->end <= right->begin) {
      ++left;
    } else if (right->end <= left->begin) {
      ++right;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace ithaca::cuda
