#include "attention/ring_work.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/evenly_spaced.h"
#include "base/integer.h"

namespace ithaca {
namespace {

// So many ranks are looked at closely, those with most tiles, and so many hops of a striped ring.
constexpr int kRanks = 4;
constexpr int kStripedHops = 4;
// So many documents of a striped ring.
constexpr int64_t kStripedDocuments = 1024;

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

// Pairs that a call computes, and what it costs besides.
double work_of_call(const std::vector<AttentionTask>& tasks, int64_t keys) {
  // Half for the queries, half for the keys, of which all of the shard have gradients that travel and are added.
  double work = 0.5 * static_cast<double>(queries_of(tasks) + keys) * static_cast<double>(kKeysOfACall);
  for (const AttentionTask& task : tasks) {
    const double doublings = std::log2(static_cast<double>(task.k_end - task.k_begin) / kKeysInCache);
    work += static_cast<double>(visible_tiles({&task, 1}, kWorkTile)) * static_cast<double>(kWorkTile * kWorkTile) *
            (1.0 + kSlowdownOfADoubling * std::max(0.0, doublings));
  }
  return work;
}

// Of one rank with the keys of `owners`.
RingWork work_of_rank(const std::vector<Shard>& shards, int64_t rank, const std::vector<int64_t>& owners,
                      const Documents& documents, const MaskRule& mask) {
  RingWork work;
  for (const int64_t owner : owners) {
    const Shard& keys = shards[static_cast<size_t>(owner)];
    const std::vector<AttentionTask> tasks = attention_tasks(shards[static_cast<size_t>(rank)], keys, documents, mask);
    if (tasks.empty()) continue;
    work.pairs += work_of_call(tasks, keys.size());
    if (owner != rank) ++work.hops;
  }
  return work;
}

// Ranks of a striped ring see part of every document in every hop, and are alike: the last rank, some hops and some
// documents speak for all.
RingWork striped_work(const Documents& documents, const MaskRule& mask, int ring_size) {
  std::vector<int64_t> lengths;
  for (const int64_t document : evenly_spaced(documents.count(), kStripedDocuments)) {
    lengths.push_back(documents.end(document) - documents.begin(document));
  }
  const Documents some(lengths);
  const std::vector<Shard> shards = ring_shards(Layout::striped, some.total_tokens(), ring_size);
  const std::vector<int64_t> owners = evenly_spaced(ring_size, kStripedHops);
  RingWork work = work_of_rank(shards, ring_size - 1, owners, some, mask);
  work.pairs *= static_cast<double>(ring_size) / static_cast<double>(owners.size());
  if (some.total_tokens() > 0) {
    work.pairs *= static_cast<double>(documents.total_tokens()) / static_cast<double>(some.total_tokens());
  }
  // The own keys are among those looked at, and are no hop.
  const auto others = std::max<int64_t>(1, static_cast<int64_t>(owners.size()) - 1);
  work.hops = static_cast<int>(ceiling_divide(int64_t{work.hops} * (ring_size - 1), others));
  return work;
}

}  // namespace

RingWork busiest_ring_work(Layout layout, const Documents& documents, const MaskRule& mask, int ring_size) {
  if (layout == Layout::striped) return striped_work(documents, mask, ring_size);
  const std::vector<Shard> shards = ring_shards(layout, documents.total_tokens(), ring_size);
  std::vector<int64_t> ranks = evenly_spaced(ring_size, ring_size);
  if (ring_size > kRanks) {
    const Shard all = ring_shard(Layout::contiguous, documents.total_tokens(), 0, 1);
    std::vector<std::pair<int64_t, int64_t>> by_tiles;
    for (const int64_t rank : ranks) {
      const std::vector<AttentionTask> tasks = attention_tasks(shards[static_cast<size_t>(rank)], all, documents, mask);
      by_tiles.emplace_back(-visible_tiles(tasks, kWorkTile), rank);
    }
    std::sort(by_tiles.begin(), by_tiles.end());
    ranks.clear();
    for (int index = 0; index < kRanks; ++index) ranks.push_back(by_tiles[static_cast<size_t>(index)].second);
  }
  const std::vector<int64_t> owners = evenly_spaced(ring_size, ring_size);
  RingWork busiest;
  for (const int64_t rank : ranks) {
    const RingWork work = work_of_rank(shards, rank, owners, documents, mask);
    if (work.pairs > busiest.pairs) busiest = work;
  }
  return busiest;
}

}  // namespace ithaca
