#include "attention/communication_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "attention/head_deal.h"
#include "attention/sequence_attention.h"
#include "base/error.h"

namespace ithaca {
namespace {

constexpr int64_t kKeyGradientBytes = 4;  // float32

// The largest ulysses size that divides `ranks` and leaves every rank a query head.
int largest_ulysses_size(int ranks, int64_t query_heads) {
  int largest = 1;
  for (int size = 1; size <= ranks; ++size) {
    if (ranks % size == 0 && size <= query_heads) largest = size;
  }
  return largest;
}

// Heads that a rank sends others some of its tokens of, before attention, and that it sends others' tokens of behind
// it.
struct HeadsSent {
  int64_t queries_out = 0;
  int64_t keys_out = 0;
  int64_t queries_back = 0;
  int64_t keys_back = 0;
};

// Forward: queries, keys and values out, the output back. Backward: these, the output and its gradient out; dQ, and
// float32 dK and dV back.
ExchangeBytes bytes_of(const HeadsSent& sent, const HeadShape& heads, int64_t tokens_per_rank, int64_t element_bytes) {
  const int64_t key_value_size = heads.key_size + heads.value_size;
  const int64_t keys_out = sent.keys_out * key_value_size;
  return {tokens_per_rank * element_bytes *
              (sent.queries_out * heads.key_size + keys_out + sent.queries_back * heads.value_size),
          tokens_per_rank * element_bytes *
                  (sent.queries_out * (heads.key_size + 2 * heads.value_size) + keys_out +
                   sent.queries_back * heads.key_size) +
              tokens_per_rank * kKeyGradientBytes * sent.keys_back * key_value_size};
}

}  // namespace

void check_schedule_sizes(const ScheduleSizes& sizes, const HeadShape& heads) {
  require(sizes.ulysses_size >= 1 && sizes.ring_size >= 1,
          fmt::format("ulysses_size {} and ring_size {} must be positive", sizes.ulysses_size, sizes.ring_size));
  require(
      heads.query_heads > 0 && heads.key_heads > 0 && heads.query_heads % heads.key_heads == 0,
      fmt::format("{} query heads are not a positive multiple of {} key heads", heads.query_heads, heads.key_heads));
  require(heads.key_size > 0 && heads.value_size > 0, "attention heads need a positive key size and value size");
  const int ranks = sizes.ulysses_size * sizes.ring_size;
  if (ranks == 1) return;
  if (sizes.kind == ScheduleKind::ulysses && sizes.ring_size != 1) {
    throw ConfigurationError(
        fmt::format("parallel.schedule: ulysses runs with ring_size 1, not {}; use schedule hybrid for ulysses_size {} "
                    "x ring_size {}, or ulysses_size {} with ring_size 1",
                    sizes.ring_size, sizes.ulysses_size, sizes.ring_size, ranks));
  }
  if ((sizes.kind == ScheduleKind::ring || sizes.kind == ScheduleKind::all_gather) && sizes.ulysses_size != 1) {
    throw ConfigurationError(
        fmt::format("parallel.schedule: {} runs with ulysses_size 1, not {}; use schedule hybrid for ulysses_size {} x "
                    "ring_size {}, or ring_size {} with ulysses_size 1",
                    schedule_name(sizes.kind), sizes.ulysses_size, sizes.ulysses_size, sizes.ring_size, ranks));
  }
  if (sizes.ulysses_size > heads.query_heads) {
    const int fits = largest_ulysses_size(ranks, heads.query_heads);
    const std::string instead =
        fits == 1 ? fmt::format("schedule ring with ring_size {}", ranks)
                  : fmt::format("schedule hybrid with ulysses_size {} and ring_size {}", fits, ranks / fits);
    throw ConfigurationError(
        fmt::format("parallel.ulysses_size: {} ulysses ranks cannot share {} query heads, each needs at least one; {} "
                    "would fit the same {} ranks (hybrid puts ulysses inside a ring)",
                    sizes.ulysses_size, heads.query_heads, instead, ranks));
  }
}

double share_behind_way_home(const ScheduleSizes& sizes, const HeadShape& heads) {
  if (sizes.kind == ScheduleKind::all_gather) return 0.0;
  const HeadDeal deal = head_deal(sizes, heads);
  return deal.key_heads(0).count() >= 2 * int64_t{deal.groups()} ? 0.5 : 0.0;
}

HeadDeal head_deal(const ScheduleSizes& sizes, const HeadShape& heads, int most_groups) {
  return HeadDeal(heads.query_heads, heads.key_heads, sizes.ulysses_size, sizes.ring_size == 1, most_groups);
}

ExchangeBytes seen_exchanges(const HeadDeal& deal, const HeadShape& heads, int ulysses_rank, int64_t tokens_per_rank,
                             int64_t element_bytes) {
  const int64_t others = deal.ranks() - 1;
  const HeadGroup last = deal.group(ulysses_rank, deal.groups() - 1);
  HeadsSent sent;
  sent.queries_back = others * last.query.count();
  sent.keys_back = others * last.key_leaves.count();
  for (int rank = 0; rank < deal.ranks(); ++rank) {
    if (rank == ulysses_rank) continue;
    const HeadGroup first = deal.group(rank, 0);
    sent.queries_out += first.query.count();
    sent.keys_out += first.key_arrives.count();
  }
  return bytes_of(sent, heads, tokens_per_rank, element_bytes);
}

double exposed_communication(const CommunicationTimes& times) {
  if (times.hops == 0) return times.seen_exchanges;
  const double at_hand = times.attention / (times.hops + 1);
  return times.seen_exchanges + times.hops * std::max(0.0, times.hop - at_hand) +
         std::max(0.0, times.way_home - times.behind_way_home);
}

namespace {

CommunicationCost cost_with(const ScheduleSizes& sizes, const HeadShape& heads, const HeadDeal& deal, int ulysses_rank,
                            int64_t tokens_per_rank, int64_t element_bytes, const RingTraffic& ring) {
  const int64_t query_heads = deal.query_heads(ulysses_rank).count();
  const int64_t key_heads = deal.key_heads(ulysses_rank).count();
  const int64_t key_value_size = heads.key_size + heads.value_size;
  const int64_t others = sizes.ulysses_size - 1;
  CommunicationCost cost;
  if (others > 0) {
    const HeadsSent sent{heads.query_heads - query_heads, deal.key_head_copies() - key_heads, others * query_heads,
                         others * key_heads};
    const ExchangeBytes bytes = bytes_of(sent, heads, tokens_per_rank, element_bytes);
    cost.forward_bytes += bytes.forward_bytes;
    cost.backward_bytes += bytes.backward_bytes;
    for (int group = 0; group < deal.groups(); ++group) {
      cost.forward_exchanges += 2 + (deal.any_key_arrives(group) ? 2 : 0);
      cost.backward_exchanges += 4 + (deal.any_key_arrives(group) ? 2 : 0) + (deal.any_key_leaves(group) ? 2 : 0);
    }
  }
  const int64_t hops = sizes.ring_size - 1;
  if (hops > 0) {
    const int64_t token_elements = key_heads * key_value_size;
    cost.forward_bytes += ring.key_tokens * token_elements * element_bytes;
    cost.backward_bytes +=
        token_elements * (ring.key_tokens * element_bytes + ring.gradient_tokens * kKeyGradientBytes);
    // The calls for one group of heads: keys and values of every hop, or two gatherings.
    const int64_t calls = sizes.kind == ScheduleKind::all_gather ? 2 : 2 * hops;
    int64_t groups = 0;
    if (sizes.kind == ScheduleKind::all_gather) {
      groups = std::min<int64_t>(kLargestGatherGroups, key_heads);
    } else {
      for (int group = 0; group < deal.groups(); ++group) groups += deal.group(ulysses_rank, group).query.count() > 0;
    }
    cost.forward_exchanges += groups * calls;
    cost.backward_exchanges += groups * 2 * calls;
  }
  return cost;
}

}  // namespace

CommunicationCost communication_cost(const ScheduleSizes& sizes, const HeadShape& heads, int ulysses_rank,
                                     int64_t tokens_per_rank, int64_t element_bytes) {
  check_schedule_sizes(sizes, heads);
  return communication_cost(sizes, heads, head_deal(sizes, heads), ulysses_rank, tokens_per_rank, element_bytes);
}

CommunicationCost communication_cost(const ScheduleSizes& sizes, const HeadShape& heads, const HeadDeal& deal,
                                     int ulysses_rank, int64_t tokens_per_rank, int64_t element_bytes) {
  const int64_t of_all_hops = (int64_t{sizes.ring_size} - 1) * sizes.ulysses_size * tokens_per_rank;
  return cost_with(sizes, heads, deal, ulysses_rank, tokens_per_rank, element_bytes, {of_all_hops, of_all_hops});
}

CommunicationCost communication_cost(const ScheduleSizes& sizes, const HeadShape& heads, int ulysses_rank,
                                     int64_t tokens_per_rank, int64_t element_bytes, const RingTraffic& ring) {
  check_schedule_sizes(sizes, heads);
  return cost_with(sizes, heads, head_deal(sizes, heads), ulysses_rank, tokens_per_rank, element_bytes, ring);
}

}  // namespace ithaca
