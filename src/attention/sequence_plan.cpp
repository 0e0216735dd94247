#include <algorithm>
#include <utility>

#include "attention/sequence_attention.h"

namespace ithaca {

bool SequencePlan::needs_exchange() const {
  return std::any_of(needed.begin(), needed.end(), [](const std::vector<bool>& hops) {
    return std::find(hops.begin() + 1, hops.end(), true) != hops.end();
  });
}

RingTraffic ring_traffic(const SequencePlan& plan, bool gathers) {
  const auto tokens_of = [&](int owner) { return plan.tokens[static_cast<size_t>(owner)]; };
  const int self = plan.ring_rank;
  RingTraffic traffic;
  if (gathers) {
    if (!plan.needs_exchange()) return traffic;
    for (int rank = 0; rank < plan.ring_size; ++rank) {
      if (rank == self) continue;
      traffic.key_tokens += tokens_of(self);
      traffic.gradient_tokens += tokens_of(rank);
    }
    return traffic;
  }
  for (int hop = 0; hop < plan.ring_size; ++hop) {
    const int held = plan.owner_at(hop);
    const bool is_held = plan.is_needed(held, hop);
    if (is_held && plan.is_needed(held, hop + 1)) traffic.key_tokens += tokens_of(held);
    if (!plan.is_needed(self, hop) && plan.is_needed(self, hop + 1)) traffic.key_tokens += tokens_of(self);
    // What the attention to a shard gives goes on to the neighbour or home.
    if (hop > 0 && is_held) traffic.gradient_tokens += tokens_of(held);
  }
  return traffic;
}

SequencePlan make_sequence_plan(Layout layout, const Documents& documents, const MaskRule& mask, int ring_rank,
                                int ring_size) {
  const std::vector<Shard> shards = ring_shards(layout, documents.total_tokens(), ring_size);
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
