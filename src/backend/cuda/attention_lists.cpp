#include "backend/cuda/attention_lists.h"

#include <algorithm>
#include <utility>

namespace ithaca::cuda {
namespace {

constexpr int64_t kPoolBytes = int64_t{4} << 20;
constexpr int64_t kBlockAlignment = 256;
// What is kept at most; beyond it everything is forgotten and found again.
constexpr size_t kMostLists = 256;
constexpr int64_t kMostTasks = int64_t{1} << 20;

int64_t aligned(int64_t bytes) {
  return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

template <typename T>
int64_t bytes_of(int64_t count) {
  return aligned(count * static_cast<int64_t>(sizeof(T)));
}

// See PreparedCall::longest_document.
int64_t longest_document(std::vector<AttentionTask> tasks) {
  int64_t longest = 0;
  int64_t q_end = 0;
  for (const AttentionTask& task : tasks) {  // sorted by queries
    if (task.q_begin < q_end) return 0;
    q_end = task.q_end;
    longest = std::max(longest, task.q_end - task.q_begin);
    if (std::max(longest, task.k_end - task.k_begin) > kLongestDocument) return 0;
  }
  std::sort(tasks.begin(), tasks.end(),
            [](const AttentionTask& left, const AttentionTask& right) { return left.k_begin < right.k_begin; });
  for (size_t i = 1; i < tasks.size(); ++i) {
    if (tasks[i].k_begin < tasks[i - 1].k_end) return 0;
  }
  return longest;
}

// Everything that attention_calls() depends on.
std::string content_of(std::span<const AttentionTask> tasks, const AttentionCallRules& rules) {
  const int64_t numbers[] = {rules.fused ? 1 : 0,    rules.query_heads,       rules.smallest_fused_work,
                             rules.dense_multiple,   rules.large_entry_rows,  rules.most_entries,
                             rules.most_fused_calls, rules.most_large_entries};
  std::string content(reinterpret_cast<const char*>(numbers), sizeof(numbers));
  content.append(reinterpret_cast<const char*>(tasks.data()), tasks.size_bytes());
  return content;
}

}  // namespace

std::vector<PreparedCall>& AttentionLists::find(std::span<const AttentionTask> tasks, const AttentionCallRules& rules) {
  std::string content = content_of(tasks, rules);
  const auto known = lists_.find(content);
  if (known != lists_.end()) return known->second;
  if (lists_.size() >= kMostLists || tasks_kept_ > kMostTasks) {
    lists_.clear();
    tasks_kept_ = 0;
    pool_used_ = 0;
    ++generation_;
  }
  std::vector<PreparedCall> calls;
  for (AttentionCall& call : attention_calls(tasks, rules)) {
    PreparedCall prepared;
    prepared.queries = covered_queries(call);
    prepared.keys = covered_keys(call);
    prepared.pairs = visible_pairs(call);
    std::vector<AttentionTask> call_tasks = tasks_of(call);
    prepared.task_count = static_cast<int64_t>(call_tasks.size());
    for (const AttentionTask& task : call_tasks) {
      prepared.largest_task_pairs = std::max(prepared.largest_task_pairs, visible_pairs(task));
    }
    prepared.longest_document = longest_document(std::move(call_tasks));
    prepared.call = std::move(call);
    calls.push_back(std::move(prepared));
  }
  tasks_kept_ += static_cast<int64_t>(tasks.size());
  return lists_.emplace(std::move(content), std::move(calls)).first->second;
}

bool AttentionLists::provide(IndexBlock& block, int64_t bytes, cudaStream_t stream) {
  if (block.own != nullptr || (block.address != nullptr && block.generation == generation_)) return false;
  ++uploads_;
  if (bytes > kPoolBytes / 2) {
    block.own = workspace_("attention.large_task_list", bytes, stream);
    block.address = static_cast<std::byte*>(block.own.get());
    return true;
  }
  if (pool_ == nullptr) pool_ = workspace_("attention.task_lists", kPoolBytes, stream);
  if (pool_used_ + bytes > kPoolBytes) {
    pool_used_ = 0;
    ++generation_;
  }
  block.address = static_cast<std::byte*>(pool_.get()) + pool_used_;
  block.generation = generation_;
  pool_used_ += bytes;
  return true;
}

CudnnRaggedArrays AttentionLists::ragged_arrays(PreparedCall& prepared, const RaggedTokenStrides& strides,
                                                int64_t batch, int64_t first_query, int64_t first_key,
                                                cudaStream_t stream) {
  IndexBlock& block = prepared.ragged[{strides, batch, first_query, first_key}];
  const int64_t lengths_bytes = bytes_of<int32_t>(batch);
  const int64_t offsets_bytes = bytes_of<int64_t>(batch + 1);
  const bool is_new = provide(block, 2 * lengths_bytes + 5 * offsets_bytes, stream);
  std::byte* next = block.address;
  const auto take = [&]<typename T>(int64_t bytes, T*& address) {
    address = reinterpret_cast<T*>(next);
    next += bytes;
  };
  RaggedArrayAddresses arrays;
  take(lengths_bytes, arrays.query_lengths);
  take(lengths_bytes, arrays.key_lengths);
  take(offsets_bytes, arrays.query);
  take(offsets_bytes, arrays.key);
  take(offsets_bytes, arrays.value);
  take(offsets_bytes, arrays.output);
  take(offsets_bytes, arrays.log_sum_exp);
  if (is_new) write_ragged_arrays(prepared.call.entries, batch, first_query, first_key, strides, arrays, stream);
  return {arrays.query_lengths, arrays.key_lengths, arrays.query,      arrays.key,
          arrays.value,         arrays.output,      arrays.log_sum_exp};
}

AttentionLists::Tiles AttentionLists::tiles(PreparedCall& prepared, cudaStream_t stream) {
  TiledTasks by_query;
  TiledTasks by_key;
  if (prepared.query_tiles == 0) {
    const std::vector<AttentionTask> tasks = tasks_of(prepared.call);
    by_query = tiled_by_queries(tasks, kTaskTile);
    by_key = tiled_by_keys(tasks, kTaskTile);
    prepared.query_tiles = static_cast<int64_t>(by_query.tiles.size());
    prepared.key_tiles = static_cast<int64_t>(by_key.tiles.size());
  }
  const int64_t tasks_bytes = bytes_of<AttentionTask>(prepared.task_count);
  const int64_t query_tiles_bytes = bytes_of<TaskTile>(prepared.query_tiles);
  const int64_t bytes = 2 * tasks_bytes + query_tiles_bytes + bytes_of<TaskTile>(prepared.key_tiles);
  const bool is_new = provide(prepared.tasks, bytes, stream);
  std::byte* const query_tasks = prepared.tasks.address;
  std::byte* const key_tasks = query_tasks + tasks_bytes;
  std::byte* const query_tiles = key_tasks + tasks_bytes;
  std::byte* const key_tiles = query_tiles + query_tiles_bytes;
  if (is_new) {
    if (by_query.tasks.empty()) {  // uploaded before, and the pool has been started over since
      const std::vector<AttentionTask> tasks = tasks_of(prepared.call);
      by_query = tiled_by_queries(tasks, kTaskTile);
      by_key = tiled_by_keys(tasks, kTaskTile);
    }
    upload_bytes(std::as_bytes(std::span(by_query.tasks)), query_tasks, stream);
    upload_bytes(std::as_bytes(std::span(by_key.tasks)), key_tasks, stream);
    upload_bytes(std::as_bytes(std::span(by_query.tiles)), query_tiles, stream);
    upload_bytes(std::as_bytes(std::span(by_key.tiles)), key_tiles, stream);
  }
  return {{reinterpret_cast<const AttentionTask*>(query_tasks), reinterpret_cast<const TaskTile*>(query_tiles),
           prepared.query_tiles},
          {reinterpret_cast<const AttentionTask*>(key_tasks), reinterpret_cast<const TaskTile*>(key_tiles),
           prepared.key_tiles}};
}

DocumentTasks AttentionLists::documents(PreparedCall& prepared, cudaStream_t stream) {
  if (provide(prepared.documents, bytes_of<AttentionTask>(prepared.task_count), stream)) {
    std::vector<AttentionTask> tasks = tasks_of(prepared.call);
    std::stable_sort(tasks.begin(), tasks.end(), [](const AttentionTask& left, const AttentionTask& right) {
      return visible_pairs(left) > visible_pairs(right);
    });
    upload_bytes(std::as_bytes(std::span(tasks)), prepared.documents.address, stream);
  }
  return {reinterpret_cast<const AttentionTask*>(prepared.documents.address), prepared.task_count,
          prepared.longest_document};
}

}  // namespace ithaca::cuda
