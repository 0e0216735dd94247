#include "comm/device_communicator.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/collective_call.h"

namespace ithaca {

namespace {

// What one rank calls, with the points of its stream that others wait for. Written where the rank's stream issues:
// `ready` before the rank opens its buffers, the others while it holds the reading that they end.
struct Call : CollectiveCall {
  Event ready;   // behind it, `send` may be read
  Event summed;  // all_reduce: behind it, the sum of this rank's slice may be read, and others' terms have been read
  Event done;    // behind it, this rank has read what it reads of others
};

const Call& call_of(const MeetingTicket& ticket, int seat) {
  return static_cast<const Call&>(ticket.call_of(seat));  // all ranks of the board have the device form
}

const Tensor& at(const std::vector<Tensor>& blocks, int rank) {
  return blocks[static_cast<size_t>(rank)];
}

// The ranks other than the own one that `belongs` says so of, beginning with the next one.
template <typename Predicate>
std::vector<int> others_where(const MeetingTicket& ticket, const Predicate& belongs) {
  std::vector<int> others;
  for (int step = 1; step < ticket.seats(); ++step) {
    const int peer = (ticket.seat() + step) % ticket.seats();
    if (belongs(peer)) others.push_back(peer);
  }
  return others;
}

std::vector<int> all_others(const MeetingTicket& ticket) {
  return others_where(ticket, [](int) { return true; });
}

void copy(DeviceIssuer& issuer, const Tensor& from, const Tensor& to) {
  if (block_elements(from) > 0) issuer.copy_elements(from, to);
}

void wait_until_ready(DeviceIssuer& issuer, const MeetingTicket& ticket, std::span<const int> ranks) {
  for (const int rank : ranks) issuer.wait(call_of(ticket, rank).ready);
}

// Completes this rank's part when each of `readers` has read once; the stream waits until they have done so.
void close(DeviceIssuer& issuer, MeetingTicket& ticket, std::span<const int> readers) {
  std::vector<int> reads(static_cast<size_t>(ticket.seats()), 0);
  for (const int reader : readers) reads[static_cast<size_t>(reader)] = 1;
  ticket.close(reads);
  for (const int reader : readers) issuer.wait(call_of(ticket, reader).done);
}

void run_all_to_all(MeetingTicket& ticket, Call& call, DeviceIssuer& issuer) {
  const int own = ticket.seat();
  ticket.open();
  copy(issuer, at(call.send, own), at(call.receive, own));
  const auto senders = others_where(ticket, [&](int peer) { return block_elements(at(call.receive, peer)) > 0; });
  if (!senders.empty()) {
    const MeetingReading reading = ticket.read(senders);
    wait_until_ready(issuer, ticket, senders);
    for (const int peer : senders) copy(issuer, at(call_of(ticket, peer).send, own), at(call.receive, peer));
    call.done = issuer.record();
  }
  close(issuer, ticket, others_where(ticket, [&](int peer) { return block_elements(at(call.send, peer)) > 0; }));
}

void run_all_gather(MeetingTicket& ticket, Call& call, DeviceIssuer& issuer) {
  ticket.open();
  copy(issuer, call.send.front(), at(call.receive, ticket.seat()));
  const auto senders = others_where(ticket, [&](int peer) { return block_elements(at(call.receive, peer)) > 0; });
  if (!senders.empty()) {
    const MeetingReading reading = ticket.read(senders);
    wait_until_ready(issuer, ticket, senders);
    for (const int peer : senders) copy(issuer, call_of(ticket, peer).send.front(), at(call.receive, peer));
    call.done = issuer.record();
  }
  close(issuer, ticket, others_where(ticket, [&](int) { return block_elements(call.send.front()) > 0; }));
}

void run_reduce_scatter(MeetingTicket& ticket, Call& call, DeviceIssuer& issuer) {
  ticket.open();
  if (block_elements(call.receive.front()) > 0) {
    const std::vector<int> others = all_others(ticket);
    const MeetingReading reading = ticket.read(others);
    wait_until_ready(issuer, ticket, others);
    std::vector<Tensor> parts;
    for (int rank = 0; rank < ticket.seats(); ++rank) parts.push_back(at(call_of(ticket, rank).send, ticket.seat()));
    issuer.sum_elements(parts, call.receive.front());
    call.done = issuer.record();
  }
  close(issuer, ticket, others_where(ticket, [&](int peer) { return block_elements(at(call.send, peer)) > 0; }));
}

// Phase 0: a rank's own terms may be read. Phase 1: the sum of its slice may be read. Each rank sums its slice over all
// ranks and then copies the slices of the others; nobody writes a slice that another one still reads, because only its
// owner reads the terms of a slice, and its sum is copied behind the owner's event.
void run_all_reduce(MeetingTicket& ticket, Call& call, DeviceIssuer& issuer) {
  const int own = ticket.seat();
  const int64_t count = block_elements(call.send.front());
  const auto slice_of = [&](int rank) { return even_slice(count, rank, ticket.seats()); };
  const auto slice_view = [&](int owner, int of_rank) {
    const ElementRange range = slice_of(owner);
    return call_of(ticket, of_rank).send.front().reshape({count}).slice(0, range.begin, range.end);
  };
  const std::vector<int> others = all_others(ticket);
  const bool has_slice = slice_of(own).count() > 0;
  ticket.open(0);
  if (has_slice) {
    const MeetingReading reading = ticket.read(others, 0);
    wait_until_ready(issuer, ticket, others);
    std::vector<Tensor> parts;
    for (int rank = 0; rank < ticket.seats(); ++rank) parts.push_back(slice_view(own, rank));
    issuer.sum_elements(parts, slice_view(own, own));
    call.summed = issuer.record();
  }
  ticket.open(1);
  const auto owners = others_where(ticket, [&](int peer) { return slice_of(peer).count() > 0; });
  if (!owners.empty()) {
    const MeetingReading reading = ticket.read(owners, 1);
    for (const int owner : owners) {
      issuer.wait(call_of(ticket, owner).summed);
      copy(issuer, slice_view(owner, owner), slice_view(owner, own));
    }
    call.done = issuer.record();
  }
  std::vector<int> reads(static_cast<size_t>(ticket.seats()), 0);
  for (const int peer : others) {
    reads[static_cast<size_t>(peer)] = (slice_of(peer).count() > 0 ? 1 : 0) + (has_slice ? 1 : 0);
  }
  ticket.close(reads);
  // A peer's reading of this rank's terms is over for this stream already: it has waited for the peer's sum.
  for (const int peer : others) {
    if (has_slice) issuer.wait(call_of(ticket, peer).done);
  }
}

void run_broadcast(MeetingTicket& ticket, Call& call, DeviceIssuer& issuer) {
  const bool has_data = block_elements(call.send.front()) > 0;
  ticket.open();
  if (ticket.seat() == call.root) return close(issuer, ticket, others_where(ticket, [&](int) { return has_data; }));
  if (has_data) {
    const MeetingReading reading = ticket.read({&call.root, 1});
    wait_until_ready(issuer, ticket, {&call.root, 1});
    copy(issuer, call_of(ticket, call.root).send.front(), call.receive.front());
    call.done = issuer.record();
  }
  ticket.close();
}

// Either ticket may be null. Neither side waits for more than its peer.
void run_send_receive(MeetingTicket* outgoing, MeetingTicket* incoming, Call& call, DeviceIssuer& issuer) {
  if (outgoing != nullptr) outgoing->open();
  if (incoming != nullptr) {
    incoming->open();
    {
      const MeetingReading reading = incoming->read({&kSenderSeat, 1});
      wait_until_ready(issuer, *incoming, {&kSenderSeat, 1});
      copy(issuer, call_of(*incoming, kSenderSeat).send.front(), call.receive.front());
      call.done = issuer.record();
    }
    incoming->close();
  }
  if (outgoing != nullptr) close(issuer, *outgoing, {&kReceiverSeat, 1});
}

void run(MeetingTicket& ticket, Call& call, DeviceIssuer& issuer) {
  switch (call.collective) {
    case Collective::all_to_all:
      return run_all_to_all(ticket, call, issuer);
    case Collective::all_gather:
      return run_all_gather(ticket, call, issuer);
    case Collective::reduce_scatter:
      return run_reduce_scatter(ticket, call, issuer);
    case Collective::all_reduce:
      return run_all_reduce(ticket, call, issuer);
    case Collective::broadcast:
      return run_broadcast(ticket, call, issuer);
    case Collective::send_receive:
    case Collective::barrier:
    case Collective::split:
      break;
  }
  throw ContractError("this operation is no collective of a stream");
}

}  // namespace

DeviceCommunicator::DeviceCommunicator(std::shared_ptr<MeetingBoard> board, int rank, Backend& backend,
                                       DeviceMovement& movement, ExchangeFlows flows)
    : BoardCommunicator(std::move(board), rank, backend, std::move(flows)), movement_(movement) {}

std::shared_ptr<CollectiveCall> DeviceCommunicator::make_call() const {
  return std::make_shared<Call>();
}

void DeviceCommunicator::enqueue(Stream& stream, std::shared_ptr<CollectiveCall> call,
                                 std::shared_ptr<MeetingTicket> ticket) {
  movement_.issue(stream, [ticket = std::move(ticket), call = std::move(call)](DeviceIssuer& issuer) {
    const WithdrawAtEnd end(ticket.get());
    auto& own = static_cast<Call&>(*call);
    own.ready = issuer.record();
    run(*ticket, own, issuer);
  });
}

void DeviceCommunicator::enqueue_messages(Stream& stream, std::shared_ptr<CollectiveCall> call,
                                          std::shared_ptr<MeetingTicket> outgoing,
                                          std::shared_ptr<MeetingTicket> incoming) {
  movement_.issue(stream, [outgoing = std::move(outgoing), incoming = std::move(incoming),
                           call = std::move(call)](DeviceIssuer& issuer) {
    const WithdrawAtEnd end(outgoing.get(), incoming.get());
    auto& own = static_cast<Call&>(*call);
    own.ready = issuer.record();
    run_send_receive(outgoing.get(), incoming.get(), own, issuer);
  });
}

void DeviceCommunicator::enqueue_own_message(Stream& stream, std::shared_ptr<CollectiveCall> call) {
  movement_.issue(stream, [call = std::move(call)](DeviceIssuer& issuer) {
    copy(issuer, call->send.front(), call->receive.front());
  });
}

std::unique_ptr<Communicator> DeviceCommunicator::make_group(std::shared_ptr<MeetingBoard> board, int rank,
                                                             ExchangeFlows flows) const {
  return std::make_unique<DeviceCommunicator>(std::move(board), rank, backend(), movement_, std::move(flows));
}

}  // namespace ithaca
