#include "train/benchmark_prediction.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string_view>

#include "attention/head_deal.h"
#include "attention/sequence_attention.h"
#include "base/error.h"
#include "base/integer.h"
#include "comm/thread_ranks.h"
#include "train/benchmark_tensors.h"

namespace ithaca {

namespace {

// One rank of a group whose other ranks are not there: keys and values that would come from them are copies of the own
// ones. The speed of a GPU depends on the numbers that it computes with, and what nobody has written may be zeros.
class LoneCommunicator final : public Communicator {
 public:
  LoneCommunicator(Backend& backend, int rank, int size) : backend_(backend), rank_(rank), size_(size) {}

  // Keys or values that a send_receive receives where nothing is sent: those of as large heads.
  void stand_in(const Tensor& key, const Tensor& value) { own_ = {key, value}; }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_to_all(Stream& /*stream*/, std::span<const Tensor> /*send*/, std::span<const Tensor> /*receive*/) override {}
  void all_gather(Stream& stream, const Tensor& send, std::span<const Tensor> receive) override {
    for (int other = 0; other < size_; ++other) {
      if (other != rank_) copy(stream, send, receive[static_cast<size_t>(other)]);
    }
  }
  void reduce_scatter(Stream& /*stream*/, std::span<const Tensor> /*send*/, const Tensor& /*receive*/) override {}
  void all_reduce(Stream& /*stream*/, const Tensor& /*data*/) override {}
  void broadcast(Stream& /*stream*/, const Tensor& /*data*/, int /*root*/) override {}
  void send_receive(Stream& stream, const Tensor& send, int /*to*/, const Tensor& receive, int /*from*/) override {
    if (!send.is_absent() || receive.is_absent()) return copy(stream, send, receive);
    for (const Tensor& own : own_) {
      if (own.dtype != receive.dtype || own.extent(1) < receive.extent(1) || own.extent(2) != receive.extent(2))
        continue;
      return copy(stream, own.slice(1, 0, receive.extent(1)), receive);
    }
  }
  void barrier() override {}
  std::unique_ptr<Communicator> split(int /*color*/, int /*key*/, std::string_view /*name*/) override {
    throw ContractError("a group whose other ranks are not there cannot be split");
  }
  void abort(std::string_view /*reason*/) noexcept override {}
  const Traffic& traffic() const override { return traffic_; }

 private:
  // As many tokens as both have: shards differ by one.
  void copy(Stream& stream, const Tensor& from, const Tensor& to) {
    if (from.is_absent() || to.is_absent()) return;
    const int64_t tokens = std::min(from.extent(0), to.extent(0));
    backend_.copy(stream, {.from = from.slice(0, 0, tokens), .to = to.slice(0, 0, tokens)});
  }

  Backend& backend_;
  int rank_;
  int size_;
  std::vector<Tensor> own_;
  Traffic traffic_;
};

// The rate at the largest measured size that is not above `bytes`, or at the smallest.
double rate_at(const std::vector<LinkRate>& rates, int64_t bytes) {
  require(!rates.empty(), "a prediction needs the rate of a link");
  double rate = rates.front().bytes_per_second;
  for (const LinkRate& each : rates) {
    if (each.bytes <= bytes) rate = each.bytes_per_second;
  }
  require(rate > 0.0, "the rate of a link must be positive");
  return rate;
}

// What one group of heads computes with, in head shards of a ring part.
struct GroupTensors {
  HeadGroup heads;
  Buffer query, output, log_sum_exp, doutput, dquery;
};

class BusiestRank {
 public:
  BusiestRank(Backend& backend, const ScheduleSizes& sizes, const HeadShape& shape, const SequencePlan& plan)
      : backend_(backend),
        shape_(shape),
        plan_(plan),
        ring_(backend, plan.ring_rank, plan.ring_size),
        attention_(sizes.kind == ScheduleKind::all_gather ? make_gather_attention(shape, backend, ring_)
                                                          : make_ring_attention(shape, backend, ring_)),
        by_heads_(sizes.ulysses_size > 1) {
    const int64_t tokens = plan.tokens[static_cast<size_t>(plan.ring_rank)];
    const int64_t rows = tokens * head_deal(sizes, shape).most_query_heads();
    const HeadDeal deal =
        head_deal(sizes, shape, head_group_count(rows, backend.preferred_attention_rows(), kLargestHeadGroups));
    const DType compute = backend.compute_dtype();
    keys_ = deal.key_heads(0);
    key_ = make(compute, tokens, keys_.count(), shape.key_size, true);
    value_ = make(compute, tokens, keys_.count(), shape.value_size, true);
    ring_.stand_in(key_.tensor(), value_.tensor());
    const DType key_gradients = by_heads_ ? DType::float32 : compute;  // added to, or overwritten
    dkey_ = make(key_gradients, tokens, keys_.count(), shape.key_size, false);
    dvalue_ = make(key_gradients, tokens, keys_.count(), shape.value_size, false);
    head_groups_ = by_heads_ ? deal.groups() : 1;
    for (int index = 0; index < head_groups_; ++index) {
      GroupTensors group;
      group.heads = by_heads_ ? deal.group(0, index) : HeadGroup{deal.query_heads(0), keys_, keys_, keys_};
      const int64_t queries = group.heads.query.count();
      if (queries == 0) continue;
      group.query = make(compute, tokens, queries, shape.key_size, true);
      group.output = make(compute, tokens, queries, shape.value_size, false);
      group.log_sum_exp = make(DType::float32, tokens, queries, 1, false);
      group.doutput = make(compute, tokens, queries, shape.value_size, true);
      group.dquery = make(compute, tokens, queries, shape.key_size, false);
      groups_.push_back(std::move(group));
    }
  }

  // Groups of heads that are exchanged one after the other.
  int head_groups() const { return head_groups_; }

  void forward() {
    order_streams();
    for (const GroupTensors& group : groups_) {
      attention_->forward(plan_, group.heads.query, inputs(group), group.output.tensor(), log_sum_exp(group), [] {});
    }
    backend_.wait(backend_.compute_stream(), backend_.record(backend_.communication_stream()));
  }

  void backward() {
    order_streams();
    if (by_heads_) {
      backend_.fill(backend_.compute_stream(), {.to = dkey_.tensor()});
      backend_.fill(backend_.compute_stream(), {.to = dvalue_.tensor()});
    }
    for (const GroupTensors& group : groups_) {
      attention_->backward(
          plan_, group.heads.query, inputs(group), group.output.tensor(), log_sum_exp(group), group.doutput.tensor(),
          {group.dquery.tensor(), keys_of(dkey_, group), keys_of(dvalue_, group)},
          by_heads_ ? SequenceAttention::KeyGradients::added_to : SequenceAttention::KeyGradients::overwritten, [] {});
    }
    backend_.wait(backend_.compute_stream(), backend_.record(backend_.communication_stream()));
  }

 private:
  Buffer make(DType dtype, int64_t tokens, int64_t heads, int64_t size, bool fill) {
    Buffer buffer = backend_.arena(Tier::device)
                        .allocate("attention prediction", MemoryClass::workspace, dtype, {tokens, heads, size},
                                  backend_.compute_stream());
    if (fill) fill_random(backend_, buffer.tensor(), ++seed_);
    return buffer;
  }
  void order_streams() { backend_.wait(backend_.communication_stream(), backend_.record(backend_.compute_stream())); }
  Tensor keys_of(const Buffer& buffer, const GroupTensors& group) const {
    const HeadRange local = group.heads.key.from(keys_.begin);
    return buffer.tensor().slice(1, local.begin, local.end);
  }
  ShardedQkv inputs(const GroupTensors& group) const {
    return {group.query.tensor(), keys_of(key_, group), keys_of(value_, group)};
  }
  static Tensor log_sum_exp(const GroupTensors& group) { return group.log_sum_exp.tensor().select(2, 0); }

  Backend& backend_;
  HeadShape shape_;
  const SequencePlan& plan_;
  LoneCommunicator ring_;
  std::unique_ptr<SequenceAttention> attention_;
  bool by_heads_;
  int head_groups_ = 1;
  uint32_t seed_ = 0;
  HeadRange keys_;
  Buffer key_, value_, dkey_, dvalue_;
  std::vector<GroupTensors> groups_;
};

// A plan looks at every pair of ranks, so only that of one rank is made.
SequencePlan busiest_plan(const ScheduleSizes& sizes, Layout layout, const Documents& documents, const MaskRule& mask) {
  const std::vector<Shard> shards = ring_shards(layout, documents.total_tokens(), sizes.ring_size);
  int busiest = 0;
  int64_t most = -1;
  for (int rank = 0; rank < sizes.ring_size; ++rank) {
    int64_t pairs = 0;
    for (const Shard& owner : shards) {
      pairs += visible_pairs(attention_tasks(shards[static_cast<size_t>(rank)], owner, documents, mask));
    }
    if (pairs <= most) continue;
    most = pairs;
    busiest = rank;
  }
  return make_sequence_plan(layout, documents, mask, busiest, sizes.ring_size);
}

}  // namespace

AttentionPrediction predict_attention(const ScheduleSizes& sizes, const HeadShape& heads, int64_t tokens,
                                      int64_t element_bytes, const RankAttention& attention, const LinkRates& links) {
  check_schedule_sizes(sizes, heads);
  const int64_t tokens_per_rank = ceiling_divide(tokens, int64_t{sizes.ulysses_size} * sizes.ring_size);
  const int64_t part = ceiling_divide(tokens, sizes.ring_size);
  const HeadDeal most_groups = head_deal(sizes, heads);
  const HeadDeal deal = head_deal(sizes, heads, attention.head_groups);
  const ScheduleSizes inside = {ScheduleKind::ulysses, sizes.ulysses_size, 1};
  const int hops = attention.hops;

  // What one pass exchanges, in seconds.
  struct Pass {
    int64_t exchange_bytes, exchanges, seen_bytes, hop_bytes;
    double compute_seconds;
  };
  const auto times_of = [&](const Pass& pass) {
    CommunicationTimes times;
    if (pass.exchange_bytes > 0) {
      // Counted for as many groups as there can be.
      const int64_t calls = std::max<int64_t>(1, pass.exchanges * deal.groups() / most_groups.groups());
      times.seen_exchanges =
          static_cast<double>(pass.seen_bytes) / rate_at(links.exchange, pass.exchange_bytes / calls);
    }
    times.hops = hops;
    if (hops > 0) {
      times.hop = static_cast<double>(pass.hop_bytes) / rate_at(links.hop, pass.hop_bytes / 2);  // keys, values
    }
    times.attention = pass.compute_seconds;
    return times;
  };

  double forward_exposed = 0.0;
  double backward_exposed = 0.0;
  for (int rank = 0; rank < sizes.ulysses_size; ++rank) {
    const CommunicationCost whole = communication_cost(sizes, heads, rank, tokens_per_rank, element_bytes);
    const CommunicationCost exchange = communication_cost(inside, heads, rank, tokens_per_rank, element_bytes);
    const int64_t others = std::max(1, sizes.ring_size - 1);
    const int64_t forward_hop = (whole.forward_bytes - exchange.forward_bytes) / others;
    const int64_t backward_hop = (whole.backward_bytes - exchange.backward_bytes) / others;
    const ExchangeBytes seen = seen_exchanges(deal, heads, rank, tokens_per_rank, element_bytes);
    const CommunicationTimes forward = times_of({exchange.forward_bytes, exchange.forward_exchanges, seen.forward_bytes,
                                                 forward_hop, attention.forward_seconds});
    CommunicationTimes backward = times_of({exchange.backward_bytes, exchange.backward_exchanges, seen.backward_bytes,
                                            backward_hop, attention.backward_seconds});
    if (hops > 0) {
      const int64_t bytes = 4 * part * deal.key_heads(rank).count() * (heads.key_size + heads.value_size);
      backward.way_home = static_cast<double>(bytes) / rate_at(links.hop, bytes / 2);
      backward.behind_way_home = share_behind_way_home(sizes, heads) * attention.backward_seconds / (hops + 1);
    }
    forward_exposed = std::max(forward_exposed, exposed_communication(forward));
    backward_exposed = std::max(backward_exposed, exposed_communication(backward));
  }
  AttentionPrediction prediction;
  prediction.forward_seconds = attention.forward_seconds + forward_exposed;
  prediction.backward_seconds = attention.backward_seconds + backward_exposed;
  prediction.exposed_seconds = forward_exposed + backward_exposed;
  return prediction;
}

RankAttention measure_rank_attention(const BackendChoice& choice, const ScheduleSizes& sizes, Layout layout,
                                     const HeadShape& heads, const Documents& documents, const MaskRule& mask,
                                     double seconds_per_measurement) {
  check_schedule_sizes(sizes, heads);
  const SequencePlan plan = busiest_plan(sizes, layout, documents, mask);
  RankAttention result;
  const bool gathers = sizes.kind == ScheduleKind::all_gather;  // from all ranks or from none
  for (int hop = 1; hop < plan.ring_size; ++hop) {
    if (gathers ? plan.needs_exchange() : !plan.tasks[static_cast<size_t>(plan.owner_at(hop))].empty()) ++result.hops;
  }
  run_thread_ranks(1, {}, [&](ThreadRank& thread) {
    const std::unique_ptr<Backend> backend = make_backend(choice, thread.rank(), thread.size(), 0);
    const std::unique_ptr<Communicator> world = thread.connect(*backend);
    BusiestRank rank(*backend, sizes, heads, plan);
    result.head_groups = rank.head_groups();
    result.forward_seconds = seconds_of_call(*backend, *world, seconds_per_measurement, [&] { rank.forward(); });
    result.backward_seconds = seconds_of_call(*backend, *world, seconds_per_measurement, [&] { rank.backward(); });
  });
  return result;
}

}  // namespace ithaca
