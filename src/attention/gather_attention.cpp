#include <algorithm>
#include <optional>
#include <utility>

#include "attention/local_attention.h"
#include "attention/sequence_attention.h"
#include "backend/trace_scope.h"

namespace ithaca {
namespace {

// One tensor per ring rank: the others' in one buffer, the own one where it is.
struct GatheredTensor {
  Buffer buffer;
  std::vector<Tensor> parts;
};

// Keys and values of some heads, of all ring ranks.
struct GatheredKeys {
  GatheredTensor key;
  GatheredTensor value;
  Event arrived;
};

class GatherAttention : public SequenceAttention {
 public:
  GatherAttention(const HeadShape& heads, Backend& backend, Communicator& ring)
      : heads_(heads), backend_(backend), ring_(ring) {}

  void forward(const SequencePlan& plan, const HeadRange& query_heads, const ShardedQkv& qkv, const Tensor& output,
               const Tensor& log_sum_exp, const EnqueueNext& enqueue_next) override {
    for_each_group(plan, query_heads, qkv, enqueue_next, [&](const CallHeads& group, GatheredKeys& keys) {
      const Tensor query = heads_of(qkv.query, group.query);
      RunningAttention running(backend_, heads_, group.query_heads, heads_of(output, group.query),
                               heads_of(log_sum_exp, group.query));
      for (int hop = 0; hop < plan.ring_size; ++hop) {
        const auto owner = static_cast<size_t>(plan.owner_at(hop));
        if (hop == 1) backend_.wait(compute(), keys.arrived);
        running.add(query, keys.key.parts[owner], keys.value.parts[owner], plan.tasks[owner]);
      }
      running.finish();
    });
  }

  void backward(const SequencePlan& plan, const HeadRange& query_heads, const ShardedQkv& qkv, const Tensor& output,
                const Tensor& log_sum_exp, const Tensor& doutput, const ShardedQkvGradient& gradient,
                KeyGradients key_gradients, const EnqueueNext& enqueue_next) override {
    // Of the previous group: kept while this one is enqueued, which would get its memory and wait for the sums; given
    // back before the sums of this one, so that nobody who gets it has to wait for those.
    GatheredTensor previous_dkey;
    GatheredTensor previous_dvalue;
    const bool sums = plan.needs_exchange();
    std::optional<GradientSum> dkey_sum;
    std::optional<GradientSum> dvalue_sum;
    if (sums) {
      dkey_sum.emplace(backend_, "all-gather own dK", MemoryClass::communication, gradient.dkey, compute());
      dvalue_sum.emplace(backend_, "all-gather own dV", MemoryClass::communication, gradient.dvalue, compute());
    }
    for_each_group(plan, query_heads, qkv, enqueue_next, [&](const CallHeads& group, GatheredKeys& keys) {
      const Tensor own_dkey = heads_of(sums ? dkey_sum->tensor() : gradient.dkey, group.key);
      const Tensor own_dvalue = heads_of(sums ? dvalue_sum->tensor() : gradient.dvalue, group.key);
      const Tensor dquery = heads_of(gradient.dquery, group.query);
      std::optional<GradientSum> dquery_sum;
      if (sums) dquery_sum.emplace(backend_, "all-gather dQ", MemoryClass::workspace, dquery, compute());
      GatheredTensor dkey = allocate("all-gather dK", plan, own_dkey, compute());
      GatheredTensor dvalue = allocate("all-gather dV", plan, own_dvalue, compute());
      for (int hop = 0; hop < plan.ring_size; ++hop) {
        const auto owner = static_cast<size_t>(plan.owner_at(hop));
        if (hop == 1) backend_.wait(compute(), keys.arrived);
        add_attention_gradients(
            backend_, heads_, group.query_heads,
            {.query = heads_of(qkv.query, group.query),
             .key = keys.key.parts[owner],
             .value = keys.value.parts[owner],
             .output = heads_of(output, group.query),
             .log_sum_exp = heads_of(log_sum_exp, group.query),
             .doutput = heads_of(doutput, group.query),
             .tasks = plan.tasks[owner],
             .dquery = sums ? dquery_sum->tensor() : dquery,
             .dkey = dkey.parts[owner],
             .dvalue = dvalue.parts[owner],
             .overwrites_dquery = hop == 0,
             .overwrites_dkey_dvalue = hop == 0 ? key_gradients == KeyGradients::overwritten : sums});
      }
      if (!sums) return;
      dquery_sum->finish();
      previous_dkey.buffer.release();
      previous_dvalue.buffer.release();
      backend_.wait(communication(), backend_.record(compute()));
      ring_.reduce_scatter(communication(), dkey.parts, own_dkey);
      ring_.reduce_scatter(communication(), dvalue.parts, own_dvalue);
      dkey.buffer.last_used_on(communication());
      dvalue.buffer.last_used_on(communication());
      previous_dkey = std::move(dkey);
      previous_dvalue = std::move(dvalue);
    });
    if (!sums) return;
    backend_.wait(compute(), backend_.record(communication()));
    dkey_sum->finish();
    dvalue_sum->finish();
  }

 private:
  Stream& compute() { return backend_.compute_stream(); }
  Stream& communication() { return backend_.communication_stream(); }

  // Room for the other ranks' tensors like `own` (none when nothing is exchanged), and views of all.
  GatheredTensor allocate(std::string_view name, const SequencePlan& plan, const Tensor& own, Stream& stream) {
    GatheredTensor result;
    result.parts.resize(static_cast<size_t>(plan.ring_size));
    if (plan.needs_exchange()) {
      int64_t others = 0;
      for (int rank = 0; rank < plan.ring_size; ++rank) {
        if (rank != plan.ring_rank) others += plan.tokens[static_cast<size_t>(rank)];
      }
      result.buffer =
          backend_.arena(Tier::device)
              .allocate(name, MemoryClass::communication, own.dtype, {others, own.extent(1), own.extent(2)}, stream);
      int64_t begin = 0;
      for (int rank = 0; rank < plan.ring_size; ++rank) {
        if (rank == plan.ring_rank) continue;
        const int64_t end = begin + plan.tokens[static_cast<size_t>(rank)];
        result.parts[static_cast<size_t>(rank)] = result.buffer.tensor().slice(0, begin, end);
        begin = end;
      }
    }
    result.parts[static_cast<size_t>(plan.ring_rank)] = own;
    return result;
  }

  GatheredKeys gather(const SequencePlan& plan, const ShardedQkv& qkv, const CallHeads& group) {
    GatheredKeys keys;
    const Tensor own_key = heads_of(qkv.key, group.key);
    const Tensor own_value = heads_of(qkv.value, group.key);
    keys.key = allocate("all-gather keys", plan, own_key, communication());
    keys.value = allocate("all-gather values", plan, own_value, communication());
    if (!plan.needs_exchange()) return keys;
    ring_.all_gather(communication(), own_key, keys.key.parts);
    ring_.all_gather(communication(), own_value, keys.value.parts);
    keys.arrived = backend_.record(communication());
    return keys;
  }

  // Calls work(group, keys) for every group, with the gathering of the following group enqueued before.
  template <typename Work>
  void for_each_group(const SequencePlan& plan, const HeadRange& query_heads, const ShardedQkv& qkv,
                      const EnqueueNext& enqueue_next, const Work& work) {
    // As many groups on all ranks, whose parts may differ by a token.
    const int64_t rows = *std::min_element(plan.tokens.begin(), plan.tokens.end()) * query_heads.count();
    // Fewer groups than heads are exchanged in: on two GPUs calls of half the size were slower by 1 to 2%, and all that
    // is seen of the exchanges is one group's.
    const std::vector<CallHeads> all = parted_heads(
        heads_, query_heads, head_group_count(rows, 2 * backend_.preferred_attention_rows(), kLargestGatherGroups));
    std::optional<GatheredKeys> next = gather(plan, qkv, all.front());
    for (size_t index = 0; index < all.size(); ++index) {
      const TraceScope scope(backend_, {.name = "head group", .index = static_cast<int64_t>(index)});
      GatheredKeys keys = std::move(*next);
      if (index + 1 < all.size()) next = gather(plan, qkv, all[index + 1]);
      if (index == 0) enqueue_next();
      work(all[index], keys);
      keys.key.buffer.last_used_on(compute());
      keys.value.buffer.last_used_on(compute());
    }
  }

  HeadShape heads_;
  Backend& backend_;
  Communicator& ring_;
};

}  // namespace

std::unique_ptr<SequenceAttention> make_gather_attention(const HeadShape& heads, Backend& backend, Communicator& ring) {
  return std::make_unique<GatherAttention>(heads, backend, ring);
}

}  // namespace ithaca
