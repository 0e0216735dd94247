// What a schedule sends, in closed form. Tests hold measured traffic to these formulas.
//
// s = tokens per rank, e = bytes per element, Hq/Hkv = query/key heads, Dqk/Dv = head sizes, U = ulysses ranks, R =
// ring ranks, hq_r and c_r = query and key heads that ulysses rank r computes (head_deal.h), C = sum of c_r. Bytes that
// rank r sends to others for one layer:
//   head exchange (U > 1)
//     forward   s e [(Hq - hq_r) Dqk + (C - c_r) (Dqk + Dv) + (U-1) hq_r Dv]
//     backward  s e [(Hq - hq_r) (Dqk + 2 Dv) + (C - c_r) (Dqk + Dv) + (U-1) hq_r Dqk] + 4 s (U-1) c_r (Dqk + Dv)
//               (queries, output and its gradient, keys and values again; then dQ, and float32 dK and dV)
//   ring or gathering of keys (R > 1)
//     forward   U s c_r (Dqk + Dv) e
//     backward  U s c_r (Dqk + Dv) (e + 4)
//               (keys and values again; float32 dK, dV)
// Causality on a contiguous layout, documents and windows let ring hops be skipped: then less is sent. What a plan says
// that a rank sends takes the place of U s where it is given.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>

#include "attention/head_deal.h"
#include "attention/schedule.h"
#include "attention/sequence_attention.h"

namespace ithaca {

struct ScheduleSizes {
  ScheduleKind kind = ScheduleKind::ulysses;
  int ulysses_size = 1;
  int ring_size = 1;
  bool operator==(const ScheduleSizes&) const = default;
};

// Throws ConfigurationError, naming sizes that would work, when the schedule cannot run with these sizes.
void check_schedule_sizes(const ScheduleSizes& sizes, const HeadShape& heads);

// How the ulysses ranks share `heads`, in `most_groups` groups at most. Only without a ring outside may groups cut the
// query heads of a key head.
HeadDeal head_deal(const ScheduleSizes& sizes, const HeadShape& heads, int most_groups = kLargestHeadGroups);

// Of ulysses rank `ulysses_rank`; the same for all its ring ranks.
CommunicationCost communication_cost(const ScheduleSizes& sizes, const HeadShape& heads, int ulysses_rank,
                                     int64_t tokens_per_rank, int64_t element_bytes);
// The same with head_deal(sizes, heads), which takes a while to make for many ranks.
CommunicationCost communication_cost(const ScheduleSizes& sizes, const HeadShape& heads, const HeadDeal& deal,
                                     int ulysses_rank, int64_t tokens_per_rank, int64_t element_bytes);
// The same of a ring rank that sends `ring`. Exchanges are counted as if no hop were skipped.
CommunicationCost communication_cost(const ScheduleSizes& sizes, const HeadShape& heads, int ulysses_rank,
                                     int64_t tokens_per_rank, int64_t element_bytes, const RingTraffic& ring);

// What hides the last trip of dK and dV home, as a share of the attention of one hop: half of the heads' attention to
// the own keys, which a ring keeps for that where a call has several key heads. Otherwise nothing does.
double share_behind_way_home(const ScheduleSizes& sizes, const HeadShape& heads);

// What a rank sends in exchanges of heads.
struct ExchangeBytes {
  int64_t forward_bytes = 0;
  int64_t backward_bytes = 0;
};
// Of rank `ulysses_rank`, for the first group of heads before its attention, and for the last group behind it: no other
// group's attention hides them. Key heads come with the first group that needs them, and their gradients go with the
// last one.
ExchangeBytes seen_exchanges(const HeadDeal& deal, const HeadShape& heads, int ulysses_rank, int64_t tokens_per_rank,
                             int64_t element_bytes);

// What a rank exchanges and what it computes meanwhile, all in one unit: seconds, or bytes that it could send.
struct CommunicationTimes {
  double seen_exchanges = 0.0;  // of heads
  double hop = 0.0;             // of the ring: it hides behind the attention of the shard at hand
  int hops = 0;
  double attention = 0.0;        // of all hops
  double way_home = 0.0;         // of the last dK and dV
  double behind_way_home = 0.0;  // the attention that is kept for it
};
// The part that nothing hides.
double exposed_communication(const CommunicationTimes& times);

}  // namespace ithaca
