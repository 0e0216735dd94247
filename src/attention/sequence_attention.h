// Attention of a group of heads over tokens that are spread over the ranks of a ring: the inner half of every schedule.
// The outer half (head_exchange.h) brings the heads together.
//
// Requirements on the caller: the compute stream and the communication stream are both ordered behind the writing of
// every argument, and the compute stream is made to wait for the communication stream before an argument is freed or
// overwritten in compute order. Thread-safety: the rank's own thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "attention/head_deal.h"
#include "attention/schedule.h"
#include "comm/communicator.h"

namespace ithaca {

// What documents, mask and layout mean for one ring rank.
struct SequencePlan {
  int ring_rank = 0;
  int ring_size = 1;
  std::vector<int64_t> tokens;                    // of every ring rank
  std::vector<std::vector<AttentionTask>> tasks;  // [p]: this rank's queries with ring rank p's keys
  // [p][hop]: whether ring rank p + hop needs ring rank p's keys; the own ones (hop 0) count as needed. The same on all
  // ranks.
  std::vector<std::vector<bool>> needed;

  bool is_needed(int owner, int hop) const {
    return hop < ring_size && needed[static_cast<size_t>(owner)][static_cast<size_t>(hop)];
  }
  // Whether any rank needs another rank's keys.
  bool needs_exchange() const;
  // The ring rank whose keys this rank holds after `hop` hops.
  int owner_at(int hop) const { return (ring_rank - hop % ring_size + ring_size) % ring_size; }
};

// Tokens that a ring rank sends: keys and values in each of forward and backward, and dK and dV in backward.
struct RingTraffic {
  int64_t key_tokens = 0;
  int64_t gradient_tokens = 0;
};
// By the rank of the plan. `gathers`: by all_gather, which sends all or nothing, not by a ring.
RingTraffic ring_traffic(const SequencePlan& plan, bool gathers);

SequencePlan make_sequence_plan(Layout layout, const Documents& documents, const MaskRule& mask, int ring_rank,
                                int ring_size);

class SequenceAttention {
 public:
  SequenceAttention() = default;
  SequenceAttention(const SequenceAttention&) = delete;
  SequenceAttention& operator=(const SequenceAttention&) = delete;
  virtual ~SequenceAttention() = default;

  // Enqueues the caller's next exchange. Called once, behind the exchange that this call needs first and before its
  // first computation, so that what is needed first travels first and both are hidden.
  using EnqueueNext = std::function<void()>;

  // The tensors hold the model's query heads `query_heads` and the key heads that those use, for this ring rank's
  // tokens. output and log_sum_exp [tokens, query heads] are overwritten.
  virtual void forward(const SequencePlan& plan, const HeadRange& query_heads, const ShardedQkv& qkv,
                       const Tensor& output, const Tensor& log_sum_exp, const EnqueueNext& enqueue_next) = 0;
  // Overwrites dquery (compute dtype); overwrites dkey and dvalue (compute dtype), or adds to them (float32).
  enum class KeyGradients { overwritten, added_to };
  virtual void backward(const SequencePlan& plan, const HeadRange& query_heads, const ShardedQkv& qkv,
                        const Tensor& output, const Tensor& log_sum_exp, const Tensor& doutput,
                        const ShardedQkvGradient& gradient, KeyGradients key_gradients,
                        const EnqueueNext& enqueue_next) = 0;
};

// Keys and values travel around the ring, each hop hidden behind the attention to the shard at hand. A shard goes only
// to ranks that need it: from neighbour to neighbour where both do, and straight from its owner to a rank whose
// predecessor does not. In backward float32 dK and dV follow one hop behind, from neighbour to neighbour where both
// contribute, and straight home from the last of such a chain. At most two shards of keys and values, and three of
// their gradients, are here at a time, besides what has come home and what the hops give to dQ, which are added to the
// own ones at the end.
std::unique_ptr<SequenceAttention> make_ring_attention(const HeadShape& heads, Backend& backend, Communicator& ring);

// Keys and values are gathered from all ranks, some key heads at a time (at most kLargestGatherGroups groups, two of
// them here at a time); dK and dV are reduce-scattered in float32. Nothing is exchanged when no rank needs another
// rank's keys.
inline constexpr int kLargestGatherGroups = 8;
std::unique_ptr<SequenceAttention> make_gather_attention(const HeadShape& heads, Backend& backend, Communicator& ring);

}  // namespace ithaca
