#include "attention/schedule.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "attention/communication_cost.h"
#include "attention/head_deal.h"
#include "attention/head_exchange.h"
#include "attention/sequence_attention.h"
#include "backend/trace_scope.h"
#include "base/error.h"

namespace ithaca {
namespace {

class ShardedSchedule;

struct ShardedPlan : AttentionPlan {
  explicit ShardedPlan(HeadDeal heads) : deal(std::move(heads)) {}
  const Shard& shard() const override { return own_shard; }
  Extents log_sum_exp_extents() const override { return {token_begin.back(), query_heads}; }
  int64_t visible_pairs_times_heads() const override { return pairs * query_heads; }

  const ShardedSchedule* owner = nullptr;
  Shard own_shard;
  SequencePlan sequence;
  std::vector<int64_t> token_begin;  // of every ulysses rank within the ring part, and its end
  HeadDeal deal;                     // with the groups that suit the number of tokens
  int64_t query_heads = 0;           // that this rank computes
  int64_t pairs = 0;
};

void check_tensor(const Tensor& tensor, const char* name, DType dtype, int64_t tokens, int64_t heads, int64_t size) {
  if (tensor.dtype == dtype && tensor.extents == Extents{tokens, heads, size} && tensor.stride(2) == 1) return;
  throw ContractError(fmt::format("attention schedule: {} is {}, expected {} [{}, {}, {}] with a last stride of 1",
                                  name, tensor.describe(), dtype_name(dtype), tokens, heads, size));
}

// Every kind of schedule: heads are exchanged among the ulysses ranks (where there are several), and inside of that a
// SequenceAttention runs over the ring ranks.
class ShardedSchedule : public AttentionSchedule {
 public:
  ShardedSchedule(ScheduleKind kind, Layout layout, const HeadShape& heads, Backend& backend, Mesh& mesh)
      : sizes_{kind, mesh.sizes().ulysses, mesh.sizes().ring},
        layout_(layout),
        heads_(heads),
        backend_(backend),
        mesh_(mesh),
        deal_(head_deal(sizes_, heads)),
        inner_(kind == ScheduleKind::all_gather ? make_gather_attention(heads, backend, mesh.ring())
                                                : make_ring_attention(heads, backend, mesh.ring())) {}

  ScheduleKind kind() const override { return sizes_.kind; }

  std::unique_ptr<AttentionPlan> plan(const Documents& documents, const MaskRule& mask) const override {
    const MeshCoordinates& here = mesh_.coordinates();
    // The same on all ranks, which exchange groups with each other.
    const int64_t rows = part_begin(documents.total_tokens(), 1, sizes_.ring_size) * deal_.most_query_heads();
    auto plan = std::make_unique<ShardedPlan>(
        head_deal(sizes_, heads_, head_group_count(rows, backend_.preferred_attention_rows(), kLargestHeadGroups)));
    plan->owner = this;
    plan->own_shard = sequence_shard(layout_, documents.total_tokens(), here.ring, sizes_.ring_size, here.ulysses,
                                     sizes_.ulysses_size);
    plan->sequence = make_sequence_plan(layout_, documents, mask, here.ring, sizes_.ring_size);
    const int64_t part = plan->sequence.tokens[static_cast<size_t>(here.ring)];
    for (int rank = 0; rank <= sizes_.ulysses_size; ++rank) {
      plan->token_begin.push_back(part_begin(part, rank, sizes_.ulysses_size));
    }
    plan->query_heads = own_queries().count();
    for (const auto& tasks : plan->sequence.tasks) plan->pairs += visible_pairs(tasks);
    return plan;
  }

  void forward(const AttentionPlan& plan, const ShardedQkv& qkv, const Tensor& output,
               const Tensor& log_sum_exp) override {
    const ShardedPlan& own = checked(plan, qkv, log_sum_exp);
    const int64_t tokens = own.own_shard.size();
    check_tensor(output, "output", backend_.compute_dtype(), tokens, heads_.query_heads, heads_.value_size);
    backend_.wait(communication(), backend_.record(compute()));
    if (sizes_.ulysses_size == 1) {
      inner_->forward(own.sequence, own_queries(), qkv, output, log_sum_exp, [] {});
    } else {
      forward_by_heads(own, qkv, output, log_sum_exp);
    }
    backend_.wait(compute(), backend_.record(communication()));
  }

  void backward(const AttentionPlan& plan, const ShardedQkv& qkv, const Tensor& output, const Tensor& log_sum_exp,
                const Tensor& doutput, const ShardedQkvGradient& gradient) override {
    const ShardedPlan& own = checked(plan, qkv, log_sum_exp);
    const int64_t tokens = own.own_shard.size();
    check_tensor(output, "output", backend_.compute_dtype(), tokens, heads_.query_heads, heads_.value_size);
    check_tensor(doutput, "doutput", backend_.compute_dtype(), tokens, heads_.query_heads, heads_.value_size);
    check_tensor(gradient.dquery, "dquery", backend_.compute_dtype(), tokens, heads_.query_heads, heads_.key_size);
    check_tensor(gradient.dkey, "dkey", backend_.compute_dtype(), tokens, heads_.key_heads, heads_.key_size);
    check_tensor(gradient.dvalue, "dvalue", backend_.compute_dtype(), tokens, heads_.key_heads, heads_.value_size);
    if (sizes_.ulysses_size == 1) {
      backend_.wait(communication(), backend_.record(compute()));
      inner_->backward(own.sequence, own_queries(), qkv, output, log_sum_exp, doutput, gradient,
                       SequenceAttention::KeyGradients::overwritten, [] {});
      backend_.wait(compute(), backend_.record(communication()));
    } else {
      backend_.wait(communication(), backend_.record(compute()));
      backward_by_heads(own, qkv, output, log_sum_exp, doutput, gradient);
    }
  }

  CommunicationCost cost(int64_t tokens_per_rank) const override {
    return communication_cost(sizes_, heads_, mesh_.coordinates().ulysses, tokens_per_rank,
                              element_size(backend_.compute_dtype()));
  }

 private:
  // This rank's keys and values of all its groups: a key head arrives once and stays until the last group is done.
  struct HeadKeys {
    Buffer key;
    Buffer value;
  };
  // What a group needs besides, in head shards.
  struct HeadInputs {
    Buffer query;
    Buffer output;   // backward only
    Buffer doutput;  // backward only
    Event arrived;
  };

  Stream& compute() const { return backend_.compute_stream(); }
  Stream& communication() const { return backend_.communication_stream(); }
  HeadRange own_queries() const { return deal_.query_heads(mesh_.coordinates().ulysses); }
  HeadRange own_keys() const { return deal_.key_heads(mesh_.coordinates().ulysses); }
  HeadGroup own_group(const HeadDeal& deal, int group) const { return deal.group(mesh_.coordinates().ulysses, group); }

  const ShardedPlan& checked(const AttentionPlan& plan, const ShardedQkv& qkv, const Tensor& log_sum_exp) const {
    const auto* own = dynamic_cast<const ShardedPlan*>(&plan);
    require(own != nullptr && own->owner == this, "attention schedule: the plan was made by another schedule");
    const int64_t tokens = own->own_shard.size();
    check_tensor(qkv.query, "query", backend_.compute_dtype(), tokens, heads_.query_heads, heads_.key_size);
    check_tensor(qkv.key, "key", backend_.compute_dtype(), tokens, heads_.key_heads, heads_.key_size);
    check_tensor(qkv.value, "value", backend_.compute_dtype(), tokens, heads_.key_heads, heads_.value_size);
    require(log_sum_exp.dtype == DType::float32 && log_sum_exp.extents == own->log_sum_exp_extents(),
            fmt::format("attention schedule: log_sum_exp is {}, expected float32 {}", log_sum_exp.describe(),
                        own->log_sum_exp_extents().to_string()));
    return *own;
  }

  Buffer allocate(std::string_view name, MemoryClass memory_class, DType dtype, int64_t tokens, int64_t heads,
                  int64_t size, Stream& stream) const {
    return backend_.arena(Tier::device).allocate(name, memory_class, dtype, {tokens, heads, size}, stream);
  }
  HeadKeys allocate_keys(std::string_view key_name, std::string_view value_name, DType dtype, int64_t tokens,
                         Stream& stream) const {
    const int64_t count = own_keys().count();
    return {allocate(key_name, MemoryClass::communication, dtype, tokens, count, heads_.key_size, stream),
            allocate(value_name, MemoryClass::communication, dtype, tokens, count, heads_.value_size, stream)};
  }
  Tensor key_heads(const Buffer& buffer, const HeadRange& keys) const {
    const HeadRange local = keys.from(own_keys().begin);
    return buffer.tensor().slice(1, local.begin, local.end);
  }
  Tensor query_heads_of(const Tensor& tensor, const HeadRange& queries) const {
    const HeadRange local = queries.from(own_queries().begin);
    return tensor.slice(1, local.begin, local.end);
  }
  ShardedQkv group_qkv(const HeadGroup& group, const HeadInputs& inputs, const HeadKeys& keys) const {
    return {inputs.query.tensor(), key_heads(keys.key, group.key), key_heads(keys.value, group.key)};
  }

  // Enqueues what group `group` needs before it can be computed. `output` and `doutput` are absent in forward.
  HeadInputs gather_group(HeadExchange& exchange, const HeadDeal& deal, int group, const ShardedQkv& qkv,
                          const HeadKeys& keys, const Tensor& output, const Tensor& doutput) const {
    const HeadGroup own = own_group(deal, group);
    const auto queries_of = [&](int rank) { return deal.group(rank, group).query; };
    const auto arriving_of = [&](int rank) { return deal.group(rank, group).key_arrives; };
    const auto bring = [&](std::string_view name, const Tensor& from) {
      Buffer buffer = allocate(name, MemoryClass::communication, from.dtype, exchange.part_tokens(), own.query.count(),
                               from.extent(2), communication());
      exchange.to_heads(from, queries_of, buffer.tensor());
      return buffer;
    };
    HeadInputs inputs;
    inputs.query = bring("ulysses queries", qkv.query);
    if (deal.any_key_arrives(group)) {
      exchange.to_heads(qkv.key, arriving_of, key_heads(keys.key, own.key_arrives));
      exchange.to_heads(qkv.value, arriving_of, key_heads(keys.value, own.key_arrives));
    }
    if (!output.is_absent()) inputs.output = bring("ulysses output", output);
    if (!doutput.is_absent()) inputs.doutput = bring("ulysses output gradient", doutput);
    inputs.arrived = backend_.record(communication());
    return inputs;
  }

  // Enqueues the exchange of a group's result: [part tokens, query heads of the group, size] to their heads of `to`.
  void return_group(HeadExchange& exchange, const HeadDeal& deal, int group, const Tensor& from,
                    const Tensor& to) const {
    std::vector<Tensor> views;
    for (int rank = 0; rank < deal.ranks(); ++rank) {
      const HeadRange heads = deal.group(rank, group).query;
      views.push_back(to.slice(1, heads.begin, heads.end));
    }
    exchange.to_tokens(from, views);
  }

  // Calls work(group, inputs, enqueue_next) for every group. enqueue_next() enqueues the exchange for the following
  // group; the work calls it before its computation, or leaves it to this function where it has none.
  template <typename Work>
  void for_each_group(HeadExchange& exchange, const HeadDeal& deal, const ShardedQkv& qkv, const HeadKeys& keys,
                      const Tensor& output, const Tensor& doutput, const Work& work) const {
    std::optional<HeadInputs> next = gather_group(exchange, deal, 0, qkv, keys, output, doutput);
    for (int group = 0; group < deal.groups(); ++group) {
      const TraceScope scope(backend_, {.name = "head group", .index = group});
      HeadInputs inputs = std::move(*next);
      next.reset();
      const SequenceAttention::EnqueueNext enqueue_next = [&, group] {
        if (group + 1 == deal.groups()) return;
        next = gather_group(exchange, deal, group + 1, qkv, keys, output, doutput);
      };
      if (own_group(deal, group).query.count() == 0) enqueue_next();
      backend_.wait(compute(), inputs.arrived);
      work(group, inputs, enqueue_next);
      for (Buffer* buffer : {&inputs.query, &inputs.output, &inputs.doutput}) buffer->last_used_on(compute());
    }
  }

  void forward_by_heads(const ShardedPlan& plan, const ShardedQkv& qkv, const Tensor& output,
                        const Tensor& log_sum_exp) {
    HeadExchange exchange(backend_, mesh_.ulysses(), plan.token_begin);
    const int64_t tokens = exchange.part_tokens();
    const HeadKeys keys =
        allocate_keys("ulysses keys", "ulysses values", backend_.compute_dtype(), tokens, communication());
    // The previous group's result is kept while the next group is enqueued, which would get its memory and wait for its
    // return; and is given back before the next return, so that nobody who gets it has to wait for that.
    Buffer previous;
    for_each_group(exchange, plan.deal, qkv, keys, {}, {},
                   [&](int group, const HeadInputs& inputs, const auto& enqueue_next) {
                     const HeadGroup own = own_group(plan.deal, group);
                     Buffer result = allocate("ulysses output", MemoryClass::communication, backend_.compute_dtype(),
                                              tokens, own.query.count(), heads_.value_size, compute());
                     if (own.query.count() > 0) {
                       inner_->forward(plan.sequence, own.query, group_qkv(own, inputs, keys), result.tensor(),
                                       query_heads_of(log_sum_exp, own.query), enqueue_next);
                     }
                     previous.release();
                     backend_.wait(communication(), backend_.record(compute()));
                     return_group(exchange, plan.deal, group, result.tensor(), output);
                     result.last_used_on(communication());
                     previous = std::move(result);
                   });
    // Both streams have read the keys; after the last exchange, which is behind the last attention, both are done.
  }

  void backward_by_heads(const ShardedPlan& plan, const ShardedQkv& qkv, const Tensor& output,
                         const Tensor& log_sum_exp, const Tensor& doutput, const ShardedQkvGradient& gradient) {
    HeadExchange exchange(backend_, mesh_.ulysses(), plan.token_begin);
    const int64_t tokens = exchange.part_tokens();
    const HeadKeys keys =
        allocate_keys("ulysses keys", "ulysses values", backend_.compute_dtype(), tokens, communication());
    HeadKeys dkeys = allocate_keys("ulysses dK", "ulysses dV", DType::float32, tokens, compute());
    backend_.fill(compute(), {.to = dkeys.key.tensor()});
    backend_.fill(compute(), {.to = dkeys.value.tensor()});
    KeyGradientReturn return_dkey(plan.deal, backend_, exchange, gradient.dkey);
    KeyGradientReturn return_dvalue(plan.deal, backend_, exchange, gradient.dvalue);
    Buffer previous;  // dQ, kept as in forward
    for_each_group(exchange, plan.deal, qkv, keys, output, doutput,
                   [&](int group, const HeadInputs& inputs, const auto& enqueue_next) {
                     const HeadGroup own = own_group(plan.deal, group);
                     Buffer dquery = allocate("ulysses dQ", MemoryClass::communication, backend_.compute_dtype(),
                                              tokens, own.query.count(), heads_.key_size, compute());
                     if (own.query.count() > 0) {
                       inner_->backward(
                           plan.sequence, own.query, group_qkv(own, inputs, keys), inputs.output.tensor(),
                           query_heads_of(log_sum_exp, own.query), inputs.doutput.tensor(),
                           {dquery.tensor(), key_heads(dkeys.key, own.key), key_heads(dkeys.value, own.key)},
                           SequenceAttention::KeyGradients::added_to, enqueue_next);
                     }
                     previous.release();
                     backend_.wait(communication(), backend_.record(compute()));
                     return_group(exchange, plan.deal, group, dquery.tensor(), gradient.dquery);
                     dquery.last_used_on(communication());
                     if (plan.deal.any_key_leaves(group)) {
                       return_dkey.exchange(group, key_heads(dkeys.key, own.key_leaves));
                       return_dvalue.exchange(group, key_heads(dkeys.value, own.key_leaves));
                     }
                     previous = std::move(dquery);
                   });
    dkeys.key.last_used_on(communication());
    dkeys.value.last_used_on(communication());
    backend_.wait(compute(), backend_.record(communication()));
    return_dkey.finish();
    return_dvalue.finish();
  }

  ScheduleSizes sizes_;
  Layout layout_;
  HeadShape heads_;
  Backend& backend_;
  Mesh& mesh_;
  HeadDeal deal_;  // for what does not depend on groups
  std::unique_ptr<SequenceAttention> inner_;
};

}  // namespace

std::string_view schedule_name(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::ulysses:
      return "ulysses";
    case ScheduleKind::ring:
      return "ring";
    case ScheduleKind::all_gather:
      return "all_gather";
    case ScheduleKind::hybrid:
      return "hybrid";
  }
  throw ContractError("unknown attention schedule");
}

std::unique_ptr<AttentionSchedule> make_schedule(ScheduleKind kind, Layout layout, const HeadShape& heads,
                                                 Backend& backend, Mesh& mesh) {
  check_schedule_sizes({kind, mesh.sizes().ulysses, mesh.sizes().ring}, heads);
  return std::make_unique<ShardedSchedule>(kind, layout, heads, backend, mesh);
}

}  // namespace ithaca
