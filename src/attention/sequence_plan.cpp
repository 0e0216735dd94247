#include <algorithm>
#include <utility>

#include "attention/sequence_attention.h"

namespace ithaca {

bool SequencePlan::needs_exchange() const {
  return std::any_of(needed.begin(), needed.end(), [](const std::vector<bool>& hops) {
    return std::find(hops.begin() + 1, hops.end(), true) != hops.end();
  });
}

SequencePlan make_sequence_plan(Layout layout, const Documents& documents, const MaskRule& mask, int ring_rank,
                                int ring_size) {
  std::vector<Shard> shards;
  for (int rank = 0; rank < ring_size; ++rank) {
    shards.push_back(ring_shard(layout, documents.total_tokens(), rank, ring_size));
  }
  const auto shard = [&](int rank) -> const Shard& { return shards[static_cast<size_t>(rank)]; };
  SequencePlan plan;
  plan.ring_rank = ring_rank;
  plan.ring_size = ring_size;
  for (int owner = 0; owner < ring_size; ++owner) {
    plan.tokens.push_back(shard(owner).size());
    plan.tasks.push_back(attention_tasks(shard(ring_rank), shard(owner), documents, mask));
    std::vector<bool> needed{true};
    for (int hop = 1; hop < ring_size; ++hop) {
      needed.push_back(any_attention(shard((owner + hop) % ring_size), shard(owner), documents, mask));
    }
    plan.needed.push_back(std::move(needed));
  }
  return plan;
}

}  // namespace ithaca
