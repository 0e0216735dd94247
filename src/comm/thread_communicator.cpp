#include "comm/thread_communicator.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/collective_call.h"
#include "comm/host_movement.h"

namespace ithaca {

namespace {

const Tensor& at(const std::vector<Tensor>& blocks, int rank) {
  return blocks[static_cast<size_t>(rank)];
}

// 1 for every rank but this one that `reads` says so of.
template <typename Predicate>
std::vector<int> one_read_each(const MeetingTicket& ticket, const Predicate& reads) {
  std::vector<int> result(static_cast<size_t>(ticket.seats()), 0);
  for (int peer = 0; peer < ticket.seats(); ++peer) {
    if (peer != ticket.seat() && reads(peer)) result[static_cast<size_t>(peer)] = 1;
  }
  return result;
}

// Reads every other rank in turn, starting with the next one, so that ranks do not all read the same one at a time.
// `read(peer, its call)` copies; `wants(peer)` tells whether there is anything to copy.
template <typename Wants, typename Read>
void read_others(MeetingTicket& ticket, int phase, const Wants& wants, const Read& read) {
  for (int step = 1; step < ticket.seats(); ++step) {
    const int peer = (ticket.seat() + step) % ticket.seats();
    if (!wants(peer)) continue;
    const MeetingReading reading = ticket.read({&peer, 1}, phase);
    read(peer, ticket.call_of(peer));
  }
}

void run_all_to_all(MeetingTicket& ticket) {
  const WithdrawAtEnd end(&ticket);
  const int own = ticket.seat();
  const CollectiveCall& call = ticket.call_of(own);
  ticket.open();
  copy_elements(at(call.send, own), at(call.receive, own));
  read_others(
      ticket, 0, [&](int peer) { return block_elements(at(call.receive, peer)) > 0; },
      [&](int peer, const CollectiveCall& theirs) { copy_elements(at(theirs.send, own), at(call.receive, peer)); });
  ticket.close(one_read_each(ticket, [&](int peer) { return block_elements(at(call.send, peer)) > 0; }));
}

void run_all_gather(MeetingTicket& ticket) {
  const WithdrawAtEnd end(&ticket);
  const int own = ticket.seat();
  const CollectiveCall& call = ticket.call_of(own);
  ticket.open();
  copy_elements(call.send.front(), at(call.receive, own));
  read_others(
      ticket, 0, [&](int peer) { return block_elements(at(call.receive, peer)) > 0; },
      [&](int peer, const CollectiveCall& theirs) { copy_elements(theirs.send.front(), at(call.receive, peer)); });
  ticket.close(one_read_each(ticket, [&](int) { return block_elements(call.send.front()) > 0; }));
}

std::vector<int> all_others(const MeetingTicket& ticket) {
  std::vector<int> others;
  for (int peer = 0; peer < ticket.seats(); ++peer) {
    if (peer != ticket.seat()) others.push_back(peer);
  }
  return others;
}

void run_reduce_scatter(MeetingTicket& ticket) {
  const WithdrawAtEnd end(&ticket);
  const int own = ticket.seat();
  const CollectiveCall& call = ticket.call_of(own);
  ticket.open();
  if (block_elements(call.receive.front()) > 0) {
    const MeetingReading reading = ticket.read(all_others(ticket));
    std::vector<Tensor> parts;
    parts.reserve(static_cast<size_t>(ticket.seats()));
    for (int rank = 0; rank < ticket.seats(); ++rank) parts.push_back(at(ticket.call_of(rank).send, own));
    sum_elements(parts, call.receive.front());
  }
  ticket.close(one_read_each(ticket, [&](int peer) { return block_elements(at(call.send, peer)) > 0; }));
}

// Phase 0: a rank's own terms may be read. Phase 1: the sum of its slice may be read. Each rank sums its slice over all
// ranks and then copies the slices of the others; nobody writes a slice that another one still reads, because only its
// owner reads the terms of a slice.
void run_all_reduce(MeetingTicket& ticket) {
  const WithdrawAtEnd end(&ticket);
  const int own = ticket.seat();
  const Tensor& data = ticket.call_of(own).send.front();
  const int64_t count = block_elements(data);
  const auto slice_of = [&](int rank) { return even_slice(count, rank, ticket.seats()); };
  const auto slice_view = [&](int owner, int of_rank) {
    const Tensor& whole = ticket.call_of(of_rank).send.front();
    const ElementRange range = slice_of(owner);
    return whole.reshape({count}).slice(0, range.begin, range.end);
  };
  ticket.open(0);
  if (slice_of(own).count() > 0) {
    const MeetingReading reading = ticket.read(all_others(ticket), 0);
    std::vector<Tensor> parts;
    parts.reserve(static_cast<size_t>(ticket.seats()));
    for (int rank = 0; rank < ticket.seats(); ++rank) parts.push_back(slice_view(own, rank));
    sum_elements(parts, slice_view(own, own));
  }
  ticket.open(1);
  read_others(
      ticket, 1, [&](int peer) { return slice_of(peer).count() > 0; },
      [&](int peer, const CollectiveCall&) { copy_elements(slice_view(peer, peer), slice_view(peer, own)); });
  std::vector<int> reads(static_cast<size_t>(ticket.seats()), 0);
  for (const int peer : all_others(ticket)) {
    reads[static_cast<size_t>(peer)] = (slice_of(peer).count() > 0 ? 1 : 0) + (slice_of(own).count() > 0 ? 1 : 0);
  }
  ticket.close(reads);
}

void run_broadcast(MeetingTicket& ticket) {
  const WithdrawAtEnd end(&ticket);
  const int own = ticket.seat();
  const CollectiveCall& call = ticket.call_of(own);
  const bool has_data = block_elements(call.send.front()) > 0;
  ticket.open();
  if (own == call.root) return ticket.close(one_read_each(ticket, [&](int) { return has_data; }));
  if (has_data) {
    const MeetingReading reading = ticket.read({&call.root, 1});
    copy_elements(ticket.call_of(call.root).send.front(), call.receive.front());
  }
  ticket.close();
}

// Either ticket may be null. The data goes out while the other comes in, and neither side waits for more than its peer.
void run_send_receive(MeetingTicket* outgoing, MeetingTicket* incoming) {
  const WithdrawAtEnd end(outgoing, incoming);
  if (outgoing != nullptr) outgoing->open();
  if (incoming != nullptr) {
    incoming->open();
    {
      const MeetingReading reading = incoming->read({&kSenderSeat, 1});
      copy_elements(incoming->call_of(kSenderSeat).send.front(), incoming->call_of(kReceiverSeat).receive.front());
    }
    incoming->close();
  }
  if (outgoing != nullptr) {
    const std::vector<int> reads = {0, 1};
    outgoing->close(reads);
  }
}

void run(MeetingTicket& ticket, Collective collective) {
  switch (collective) {
    case Collective::all_to_all:
      return run_all_to_all(ticket);
    case Collective::all_gather:
      return run_all_gather(ticket);
    case Collective::reduce_scatter:
      return run_reduce_scatter(ticket);
    case Collective::all_reduce:
      return run_all_reduce(ticket);
    case Collective::broadcast:
      return run_broadcast(ticket);
    case Collective::send_receive:
    case Collective::barrier:
    case Collective::split:
      break;
  }
  throw ContractError("this operation is no collective of a stream");
}

}  // namespace

ThreadCommunicator::ThreadCommunicator(std::shared_ptr<MeetingBoard> board, int rank, Backend& backend,
                                       ExchangeFlows flows)
    : BoardCommunicator(std::move(board), rank, backend, std::move(flows)) {}

void ThreadCommunicator::enqueue(Stream& stream, std::shared_ptr<CollectiveCall> call,
                                 std::shared_ptr<MeetingTicket> ticket) {
  backend().enqueue(stream, [ticket = std::move(ticket), collective = call->collective] { run(*ticket, collective); });
}

void ThreadCommunicator::enqueue_messages(Stream& stream, std::shared_ptr<CollectiveCall> /*call*/,
                                          std::shared_ptr<MeetingTicket> outgoing,
                                          std::shared_ptr<MeetingTicket> incoming) {
  backend().enqueue(stream, [outgoing = std::move(outgoing), incoming = std::move(incoming)] {
    run_send_receive(outgoing.get(), incoming.get());
  });
}

void ThreadCommunicator::enqueue_own_message(Stream& stream, std::shared_ptr<CollectiveCall> call) {
  backend().enqueue(stream, [call = std::move(call)] { copy_elements(call->send.front(), call->receive.front()); });
}

std::unique_ptr<Communicator> ThreadCommunicator::make_group(std::shared_ptr<MeetingBoard> board, int rank,
                                                             ExchangeFlows flows) const {
  return std::make_unique<ThreadCommunicator>(std::move(board), rank, backend(), std::move(flows));
}

}  // namespace ithaca
