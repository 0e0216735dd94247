#include <utility>

#include "attention/local_attention.h"
#include "attention/sequence_attention.h"
#include "backend/trace_scope.h"

namespace ithaca {
namespace {

// Keys and values, or their gradients, of one shard.
struct KeyValueViews {
  Tensor key;
  Tensor value;
};
struct KeyValueBuffers {
  Buffer key;
  Buffer value;

  bool is_empty() const { return key.is_empty(); }
  KeyValueViews views() const { return {key.tensor(), value.tensor()}; }
  void release_on(Stream& stream) {
    for (Buffer* buffer : {&key, &value}) {
      buffer->last_used_on(stream);
      buffer->release();
    }
  }
};

// What the two travelling things have in common: this rank's place in the ring and the shapes of shards.
class RingTravel {
 public:
  RingTravel(Backend& backend, Communicator& ring, const SequencePlan& plan, KeyValueViews own)
      : backend_(backend), ring_(ring), plan_(plan), own_(own) {}

 protected:
  KeyValueBuffers allocate(std::string_view key_name, std::string_view value_name, DType dtype, int owner,
                           Stream& stream) {
    const int64_t tokens = plan_.tokens[static_cast<size_t>(owner)];
    Arena& arena = backend_.arena(Tier::device);
    const auto one = [&](std::string_view name, const Tensor& like) {
      return arena.allocate(name, MemoryClass::communication, dtype, {tokens, like.extent(1), like.extent(2)}, stream);
    };
    return {one(key_name, own_.key), one(value_name, own_.value)};
  }
  // `send` (if any) goes to rank `to`, `receive` (if any) comes from rank `from`.
  void exchange(const KeyValueViews* send, int to, const KeyValueBuffers* receive, int from) {
    if (send == nullptr && receive == nullptr) return;
    const KeyValueViews none;
    const KeyValueViews arriving = receive == nullptr ? none : receive->views();
    const KeyValueViews& leaving = send == nullptr ? none : *send;
    ring_.send_receive(communication(), leaving.key, to, arriving.key, from);
    ring_.send_receive(communication(), leaving.value, to, arriving.value, from);
  }
  Stream& compute() { return backend_.compute_stream(); }
  Stream& communication() { return backend_.communication_stream(); }
  int rank() const { return plan_.ring_rank; }
  int rank_ahead(int hops) const { return (plan_.ring_rank + hops) % plan_.ring_size; }

  Backend& backend_;
  Communicator& ring_;
  const SequencePlan& plan_;
  KeyValueViews own_;
};

// Keys and values on their way around the ring. Hop by hop: send_ahead, use, advance.
class TravellingKeys : RingTravel {
 public:
  TravellingKeys(Backend& backend, Communicator& ring, const SequencePlan& plan, const ShardedQkv& qkv)
      : RingTravel(backend, ring, plan, {qkv.key, qkv.value}), present_(own_) {}

  // Enqueues the exchanges that bring the shards of hop `hop` + 1, while those of `hop` are at hand.
  void send_ahead(int hop) {
    const int held = plan_.owner_at(hop);
    const int coming = plan_.owner_at(hop + 1);
    const bool passes_on = plan_.is_needed(held, hop) && plan_.is_needed(held, hop + 1);
    const bool sends_own = !plan_.is_needed(rank(), hop) && plan_.is_needed(rank(), hop + 1);
    const bool arrives = plan_.is_needed(coming, hop + 1);
    const bool is_from_neighbour = plan_.is_needed(coming, hop);
    if (arrives) next_ = allocate("ring keys", "ring values", own_.key.dtype, coming, communication());
    exchange(passes_on ? &present_ : nullptr, rank_ahead(1), arrives && is_from_neighbour ? &next_ : nullptr,
             rank_ahead(plan_.ring_size - 1));
    exchange(sends_own ? &own_ : nullptr, rank_ahead(hop + 1), arrives && !is_from_neighbour ? &next_ : nullptr,
             coming);
    if (arrives) next_arrived_ = backend_.record(communication());
  }

  // The keys and values of the present hop, for use on the compute stream.
  const KeyValueViews& use() {
    if (!arrived_.is_empty()) backend_.wait(compute(), std::exchange(arrived_, Event()));
    return present_;
  }

  // The compute work of the present hop has been enqueued.
  void advance() {
    if (!here_.is_empty()) {
      // Read by both streams: the communication stream frees it when compute is done with it too.
      backend_.wait(communication(), backend_.record(compute()));
      here_.release_on(communication());
    }
    here_ = std::move(next_);
    present_ = here_.views();
    arrived_ = std::exchange(next_arrived_, Event());
  }

 private:
  KeyValueViews present_;
  KeyValueBuffers here_;  // behind `present_`, from the first hop on
  Event arrived_;
  KeyValueBuffers next_;
  Event next_arrived_;
};

// dK and dV on their way home, one hop behind the keys. Hop by hop: transfer what the previous hop finished, start,
// compute, collect.
class TravellingGradients : RingTravel {
 public:
  TravellingGradients(Backend& backend, Communicator& ring, const SequencePlan& plan,
                      const ShardedQkvGradient& gradient)
      : RingTravel(backend, ring, plan, {gradient.dkey, gradient.dvalue}) {}

  // Tensors for the contributions of `hop` > 0, to be overwritten.
  KeyValueViews start(int hop) {
    here_ = allocate("ring dK here", "ring dV here", DType::float32, plan_.owner_at(hop), compute());
    return here_.views();
  }

  // Enqueues the exchanges of what this and other ranks have after `hop` > 0: on to a neighbour that adds to it, or
  // home.
  void transfer(int hop) {
    const int held = plan_.owner_at(hop);
    const int coming = plan_.owner_at(hop + 1);
    const bool is_mine = plan_.is_needed(held, hop);
    const bool goes_on = is_mine && plan_.is_needed(held, hop + 1);
    const bool arrives = plan_.is_needed(coming, hop) && plan_.is_needed(coming, hop + 1);
    const bool comes_home = plan_.is_needed(rank(), hop) && !plan_.is_needed(rank(), hop + 1);
    if (is_mine) backend_.wait(communication(), backend_.record(compute()));
    if (arrives) arriving_ = allocate("ring dK arriving", "ring dV arriving", DType::float32, coming, communication());
    if (comes_home) coming_ = allocate("ring dK home", "ring dV home", DType::float32, rank(), communication());
    const KeyValueViews here = here_.views();
    exchange(goes_on ? &here : nullptr, rank_ahead(1), arrives ? &arriving_ : nullptr, rank_ahead(plan_.ring_size - 1));
    exchange(is_mine && !goes_on ? &here : nullptr, held, comes_home ? &coming_ : nullptr, rank_ahead(hop));
    if (arrives || comes_home) arrived_ = backend_.record(communication());
    sent_ = std::move(here_);
  }

  // Adds what has arrived, after the compute work that hid it has been enqueued.
  void collect() {
    if (!sent_.is_empty()) sent_.release_on(communication());
    if (arriving_.is_empty() && coming_.is_empty()) return;
    backend_.wait(compute(), std::exchange(arrived_, Event()));
    if (!arriving_.is_empty()) add(arriving_, here_.views());
    if (home_.is_empty()) {
      home_ = std::move(coming_);
    } else if (!coming_.is_empty()) {
      add(coming_, home_.views());
    }
  }

  // After the last collect(): what has come home is added to what the own queries give.
  void finish() {
    if (!home_.is_empty()) add(home_, own_);
  }

 private:
  void add(KeyValueBuffers& from, const KeyValueViews& to) {
    backend_.add(compute(), {.from = from.key.tensor(), .to = to.key});
    backend_.add(compute(), {.from = from.value.tensor(), .to = to.value});
    from.release_on(compute());
  }

  KeyValueBuffers here_;
  KeyValueBuffers sent_;  // kept while the next hop is enqueued, which would get its memory and wait for the sending
  KeyValueBuffers arriving_;
  KeyValueBuffers coming_;  // home
  KeyValueBuffers home_;    // what has come home, from all chains so far
  Event arrived_;
};

class RingAttention : public SequenceAttention {
 public:
  RingAttention(const HeadShape& heads, Backend& backend, Communicator& ring)
      : heads_(heads), backend_(backend), ring_(ring) {}

  void forward(const SequencePlan& plan, const HeadRange& query_heads, const ShardedQkv& qkv, const Tensor& output,
               const Tensor& log_sum_exp, const EnqueueNext& enqueue_next) override {
    RunningAttention running(backend_, heads_, query_heads, output, log_sum_exp);
    TravellingKeys keys(backend_, ring_, plan, qkv);
    for (int hop = 0; hop < plan.ring_size; ++hop) {
      const TraceScope scope(backend_, {.name = "hop", .index = hop});
      keys.send_ahead(hop);
      if (hop == 0) enqueue_next();
      const auto& tasks = plan.tasks[static_cast<size_t>(plan.owner_at(hop))];
      if (!tasks.empty()) {
        const KeyValueViews& here = keys.use();
        running.add(qkv.query, here.key, here.value, tasks);
      }
      keys.advance();
    }
    running.finish();
  }

  // The last contributions to dK and dV travel home behind the attention of some heads to the own keys, which is kept
  // for that. What the hops give, and what comes home, is summed apart and added once, when all is there.
  void backward(const SequencePlan& plan, const HeadRange& query_heads, const ShardedQkv& qkv, const Tensor& output,
                const Tensor& log_sum_exp, const Tensor& doutput, const ShardedQkvGradient& gradient,
                KeyGradients key_gradients, const EnqueueNext& enqueue_next) override {
    const auto tasks_at = [&](int hop) -> const std::vector<AttentionTask>& {
      return plan.tasks[static_cast<size_t>(plan.owner_at(hop))];
    };
    const auto to_own_keys = [&](const CallHeads& heads) {
      add_attention_gradients(backend_, heads_, heads.query_heads,
                              {.query = heads_of(qkv.query, heads.query),
                               .key = heads_of(qkv.key, heads.key),
                               .value = heads_of(qkv.value, heads.key),
                               .output = heads_of(output, heads.query),
                               .log_sum_exp = heads_of(log_sum_exp, heads.query),
                               .doutput = heads_of(doutput, heads.query),
                               .tasks = tasks_at(0),
                               .dquery = heads_of(gradient.dquery, heads.query),
                               .dkey = heads_of(gradient.dkey, heads.key),
                               .dvalue = heads_of(gradient.dvalue, heads.key),
                               .overwrites_dquery = true,
                               .overwrites_dkey_dvalue = key_gradients == KeyGradients::overwritten});
    };
    const std::vector<CallHeads> parts = parted_heads(heads_, query_heads, plan.needs_exchange() ? 2 : 1);
    int hops_with_tasks = 0;
    for (int hop = 1; hop < plan.ring_size; ++hop) hops_with_tasks += tasks_at(hop).empty() ? 0 : 1;
    Buffer dquery_of_hops;
    TravellingKeys keys(backend_, ring_, plan, qkv);
    TravellingGradients gradients(backend_, ring_, plan, gradient);
    for (int hop = 0; hop < plan.ring_size; ++hop) {
      const TraceScope scope(backend_, {.name = "hop", .index = hop});
      keys.send_ahead(hop);
      if (hop == 0) enqueue_next();
      if (hop > 1) gradients.transfer(hop - 1);
      if (hop == 0) {
        to_own_keys(parts.front());
      } else if (!tasks_at(hop).empty()) {
        const KeyValueViews& here = keys.use();
        const KeyValueViews contributions = gradients.start(hop);
        const bool is_first = dquery_of_hops.is_empty();
        // One hop's gradient is written most directly in the compute dtype; those of several are summed in float32.
        const DType dtype = hops_with_tasks == 1 ? backend_.compute_dtype() : DType::float32;
        if (is_first) {
          dquery_of_hops =
              backend_.arena(Tier::device)
                  .allocate("ring dQ of hops", MemoryClass::workspace, dtype, gradient.dquery.extents, compute());
        }
        add_attention_gradients(backend_, heads_, query_heads,
                                {.query = qkv.query,
                                 .key = here.key,
                                 .value = here.value,
                                 .output = output,
                                 .log_sum_exp = log_sum_exp,
                                 .doutput = doutput,
                                 .tasks = tasks_at(hop),
                                 .dquery = dquery_of_hops.tensor(),
                                 .dkey = contributions.key,
                                 .dvalue = contributions.value,
                                 .overwrites_dquery = is_first,
                                 .overwrites_dkey_dvalue = true});
      }
      gradients.collect();
      keys.advance();
    }
    if (plan.ring_size > 1) gradients.transfer(plan.ring_size - 1);
    for (size_t part = 1; part < parts.size(); ++part) to_own_keys(parts[part]);
    if (!dquery_of_hops.is_empty()) {
      backend_.add(compute(), {.from = dquery_of_hops.tensor(), .to = gradient.dquery});
    }
    gradients.collect();
    gradients.finish();
  }

 private:
  Stream& compute() { return backend_.compute_stream(); }

  HeadShape heads_;
  Backend& backend_;
  Communicator& ring_;
};

}  // namespace

std::unique_ptr<SequenceAttention> make_ring_attention(const HeadShape& heads, Backend& backend, Communicator& ring) {
  return std::make_unique<RingAttention>(heads, backend, ring);
}

}  // namespace ithaca
