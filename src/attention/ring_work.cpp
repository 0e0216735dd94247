#include "attention/ring_work.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/integer.h"

namespace ithaca {
namespace {

constexpr int kMostRanks = 32;

// `most` numbers below `count`, the first and the last among them; all of them where there are no more.
std::vector<int> spread(int count, int most) {
  std::vector<int> numbers;
  for (int index = 0; index < std::min(count, most); ++index) {
    numbers.push_back(count <= most ? index : static_cast<int>(int64_t{index} * (count - 1) / (most - 1)));
  }
  return numbers;
}

// Queries in all tasks, which are sorted by their first one; those that several tasks share count once.
int64_t queries_of(const std::vector<AttentionTask>& tasks) {
  int64_t queries = 0;
  int64_t counted_to = 0;
  for (const AttentionTask& task : tasks) {
    queries += std::max<int64_t>(0, task.q_end - std::max(task.q_begin, counted_to));
    counted_to = std::max(counted_to, task.q_end);
  }
  return queries;
}

double work_of(const std::vector<AttentionTask>& tasks) {
  double work = 0.0;
  for (const AttentionTask& task : tasks) {
    const double doublings = std::log2(static_cast<double>(task.k_end - task.k_begin) / kKeysInCache);
    work += static_cast<double>(tiled_pairs({&task, 1}, kWorkTile)) *
            (1.0 + kSlowdownOfADoubling * std::max(0.0, doublings));
  }
  return work;
}

}  // namespace

RingWork busiest_ring_work(Layout layout, const Documents& documents, const MaskRule& mask, int ring_size) {
  std::vector<Shard> shards;
  for (int rank = 0; rank < ring_size; ++rank) {
    shards.push_back(ring_shard(layout, documents.total_tokens(), rank, ring_size));
  }
  // Striped shards see every document in every hop, and are alike: a few hops speak for all of them.
  const bool is_striped = layout == Layout::striped;
  const std::vector<int> owners = spread(ring_size, is_striped ? kMostRanks : ring_size);
  const double hops_for_one = static_cast<double>(ring_size) / static_cast<double>(owners.size());
  RingWork busiest;
  for (const int rank : spread(ring_size, is_striped ? 2 : kMostRanks)) {
    const Shard& queries = shards[static_cast<size_t>(rank)];
    double pairs = 0.0;
    int hops = 0;
    for (const int owner : owners) {
      const Shard& keys = shards[static_cast<size_t>(owner)];
      const std::vector<AttentionTask> tasks = attention_tasks(queries, keys, documents, mask);
      if (tasks.empty()) continue;
      // Half for the queries, half for the keys, of which all of the shard have gradients that travel and are added.
      pairs += work_of(tasks) + 0.5 * static_cast<double>((queries_of(tasks) + keys.size()) * kKeysOfACall);
      if (owner != rank) ++hops;
    }
    const double all_pairs = pairs * hops_for_one;
    if (all_pairs <= busiest.pairs) continue;
    busiest.pairs = all_pairs;
    // This rank's own keys are among those looked at, and are no hop.
    const auto others = std::max<int64_t>(1, static_cast<int64_t>(owners.size()) - 1);
    busiest.hops = static_cast<int>(ceiling_divide(int64_t{hops} * (ring_size - 1), others));
  }
  return busiest;
}

}  // namespace ithaca
