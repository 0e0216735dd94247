#include "backend/cpu/attention_blocks.h"

#include <algorithm>

namespace ithaca::cpu {

namespace {

bool is_empty(const AttentionTask& task) {
  return task.q_begin >= task.q_end || task.k_begin >= task.k_end;
}

// The band cut to the diagonals that the rectangle has, so that sums with it cannot overflow.
struct Band {
  int64_t lower;
  int64_t upper;
};

Band band_of(const AttentionTask& task) {
  const int64_t queries = task.q_end - task.q_begin;
  const int64_t keys = task.k_end - task.k_begin;
  return {std::clamp(task.lower, -queries, keys), std::clamp(task.upper, -queries, keys)};
}

}  // namespace

AttentionRun next_run(std::span<const AttentionTask> tasks, size_t first, int64_t joined_limit) {
  const AttentionTask& head = tasks[first];
  AttentionRun run{first, first + 1, head.q_begin, head.q_end, head.k_begin, head.k_end};
  if (is_empty(head)) return run;
  while (run.task_end < tasks.size()) {
    const AttentionTask& next = tasks[run.task_end];
    if (is_empty(next) || next.q_begin != run.q_end || next.k_begin != run.k_end) break;
    if (next.q_end - run.q_begin > joined_limit || next.k_end - run.k_begin > joined_limit) break;
    run.q_end = next.q_end;
    run.k_end = next.k_end;
    ++run.task_end;
  }
  return run;
}

TokenRange visible_queries(std::span<const AttentionTask> tasks, const AttentionRun& run, int64_t k_begin,
                           int64_t k_end) {
  if (run.task_end - run.task_begin != 1) return {run.q_begin, run.q_end};
  // lower < key - query <= upper with both counted from the rectangle's corner.
  const Band band = band_of(tasks[run.task_begin]);
  const int64_t first = std::max<int64_t>(0, (k_begin - run.k_begin) - band.upper);
  const int64_t last = std::min(run.q_end - run.q_begin - 1, (k_end - 1 - run.k_begin) - band.lower - 1);
  if (first > last || band.lower >= band.upper) return {run.q_begin, run.q_begin};
  return {run.q_begin + first, run.q_begin + last + 1};
}

void find_tile_keys(std::span<const AttentionTask> tasks, const AttentionRun& run, int64_t first_token,
                    int64_t first_head, int64_t group, int64_t rows, int64_t k_begin, int64_t k_end, TileKeys& keys) {
  size_t task_index = run.task_begin;
  int64_t token = first_token;
  int64_t head = first_head;
  int64_t row = 0;
  while (row < rows) {
    while (token >= tasks[task_index].q_end) ++task_index;
    const AttentionTask& task = tasks[task_index];
    const Band band = band_of(task);
    const int64_t diagonal = task.k_begin + (token - task.q_begin);
    const int64_t first = std::max(task.k_begin, diagonal + band.lower + 1);
    const int64_t last = std::min(task.k_end, diagonal + band.upper + 1);
    const auto begin = static_cast<int32_t>(std::clamp(first, k_begin, k_end) - k_begin);
    const auto end = static_cast<int32_t>(std::clamp(last, k_begin, k_end) - k_begin);
    for (; head < group && row < rows; ++head, ++row) {
      keys.begin[static_cast<size_t>(row)] = begin < end ? begin : 0;
      keys.end[static_cast<size_t>(row)] = begin < end ? end : 0;
    }
    head = 0;
    ++token;
  }
  for (; row < kMaxTileRows; ++row) {
    keys.begin[static_cast<size_t>(row)] = keys.begin[static_cast<size_t>(rows - 1)];
    keys.end[static_cast<size_t>(row)] = keys.end[static_cast<size_t>(rows - 1)];
  }
  summarize_tile_keys(rows, keys);
}

void summarize_tile_keys(int64_t rows, TileKeys& keys) {
  keys.any_begin = INT32_MAX;
  keys.any_end = 0;
  keys.all_begin = 0;
  keys.all_end = INT32_MAX;
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    if (keys.begin[row] < keys.end[row]) {
      keys.any_begin = std::min(keys.any_begin, keys.begin[row]);
      keys.any_end = std::max(keys.any_end, keys.end[row]);
    }
    keys.all_begin = std::max(keys.all_begin, keys.begin[row]);
    keys.all_end = std::min(keys.all_end, keys.end[row]);
  }
  if (keys.any_end == 0) keys.any_begin = 0;
}

}  // namespace ithaca::cpu
