#include "comm/nccl_plan.h"

#include <set>

namespace ithaca {

namespace {

// Fills the steps of one rank.
class Planner {
 public:
  Planner(const CollectiveCall& call, int rank, int size, const AllocateRoom& allocate)
      : call_(call), rank_(rank), size_(size), allocate_(allocate) {}

  std::vector<ExchangeStep> plan() {
    steps_.emplace_back();
    switch (call_.collective) {
      case Collective::all_to_all:
        copy_own(block(call_.send, rank_), block(call_.receive, rank_));
        for (const int peer : others()) send(peer, packed(block(call_.send, peer)));
        for (const int peer : others()) receive(peer, block(call_.receive, peer));
        break;
      case Collective::all_gather:
        copy_own(call_.send.front(), block(call_.receive, rank_));
        send_to_others(call_.send.front());
        for (const int peer : others()) receive(peer, block(call_.receive, peer));
        break;
      case Collective::reduce_scatter:
        for (const int peer : others()) send(peer, packed(block(call_.send, peer)));
        receive_terms(block(call_.send, rank_), call_.receive.front());
        break;
      case Collective::all_reduce:
        plan_all_reduce();
        break;
      case Collective::broadcast:
        if (rank_ == call_.root) {
          send_to_others(call_.send.front());
        } else {
          receive(call_.root, call_.receive.front());
        }
        break;
      case Collective::send_receive:
        if (call_.to == rank_) {
          copy_own(call_.send.front(), call_.receive.front());
          break;
        }
        if (call_.to >= 0) send(call_.to, packed(call_.send.front()));
        if (call_.from >= 0) receive(call_.from, call_.receive.front());
        break;
      case Collective::barrier:
      case Collective::split:
        break;
    }
    return std::move(steps_);
  }

 private:
  static const Tensor& block(const std::vector<Tensor>& blocks, int rank) { return blocks[static_cast<size_t>(rank)]; }
  static bool is_empty(const Tensor& block) { return block_elements(block) == 0; }
  ExchangeStep& step() { return steps_.back(); }

  // Beginning with the next rank, so that not everybody begins with the same one.
  std::vector<int> others() const {
    std::vector<int> result;
    for (int ahead = 1; ahead < size_; ++ahead) result.push_back((rank_ + ahead) % size_);
    return result;
  }

  void copy_own(const Tensor& from, const Tensor& to) {
    if (!is_empty(from)) step().before.push_back({from, to});
  }

  // The block itself when it is contiguous, and else a copy of it that is.
  Tensor packed(const Tensor& from) {
    if (is_empty(from) || from.is_contiguous()) return from;
    const Tensor room = allocate_("blocks to send", from.dtype, from.element_count());
    step().before.push_back({from, room});
    return room;
  }

  void send(int peer, const Tensor& contiguous) {
    if (!is_empty(contiguous)) step().sends.push_back({peer, contiguous});
  }

  void send_to_others(const Tensor& from) {
    if (size_ == 1) return;
    const Tensor contiguous = packed(from);
    for (const int peer : others()) send(peer, contiguous);
  }

  void receive(int peer, const Tensor& to) {
    if (is_empty(to)) return;
    Tensor room = to;
    if (!to.is_contiguous()) {
      room = allocate_("blocks to receive", to.dtype, to.element_count());
      step().after.push_back({room, to});
    }
    step().receives.push_back({peer, room});
  }

  // sum = everybody's terms, of which `own` is at hand.
  void receive_terms(const Tensor& own, const Tensor& sum) {
    if (is_empty(sum)) return;
    const int64_t count = sum.element_count();
    Tensor room;
    if (size_ > 1) room = allocate_("terms of a sum", sum.dtype, count * (size_ - 1));
    int64_t begin = 0;
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) {
        step().terms.push_back(own);
        continue;
      }
      const Tensor term = room.slice(0, begin, begin + count).reshape(sum.extents);
      begin += count;
      step().terms.push_back(term);
      step().receives.push_back({rank, term});
    }
    step().sum = sum;
  }

  // Nobody's slice is overwritten before it has been sent: a rank adds to its own slice alone in the first step, and
  // the others' come in the second.
  void plan_all_reduce() {
    const int64_t count = block_elements(call_.send.front());
    if (count == 0) return;
    const Tensor data = call_.send.front().reshape({count});
    const auto slice_of = [&](int rank) {
      const ElementRange range = even_slice(count, rank, size_);
      return data.slice(0, range.begin, range.end);
    };
    for (const int peer : others()) send(peer, slice_of(peer));
    receive_terms(slice_of(rank_), slice_of(rank_));
    if (size_ == 1) return;
    steps_.emplace_back();
    send_to_others(slice_of(rank_));
    for (const int peer : others()) receive(peer, slice_of(peer));
  }

  const CollectiveCall& call_;
  int rank_;
  int size_;
  const AllocateRoom& allocate_;
  std::vector<ExchangeStep> steps_;
};

}  // namespace

std::vector<ExchangeStep> plan_exchange(const CollectiveCall& call, int rank, int size, const AllocateRoom& allocate) {
  return Planner(call, rank, size, allocate).plan();
}

std::vector<int> exchange_partners(std::span<const ExchangeStep> steps) {
  std::set<int> partners;
  for (const ExchangeStep& step : steps) {
    for (const DeviceMessage& message : step.sends) partners.insert(message.peer);
    for (const DeviceMessage& message : step.receives) partners.insert(message.peer);
  }
  return {partners.begin(), partners.end()};
}

}  // namespace ithaca
