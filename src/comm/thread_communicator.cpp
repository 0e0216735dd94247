#include "comm/thread_communicator.h"

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "comm/collective_call.h"
#include "comm/host_movement.h"

namespace ithaca {

namespace {

// Shuts a ticket's seat at the end of its work, unless it was closed in order.
class WithdrawAtEnd {
 public:
  explicit WithdrawAtEnd(MeetingTicket& ticket) : ticket_(ticket) {}
  WithdrawAtEnd(const WithdrawAtEnd&) = delete;
  WithdrawAtEnd& operator=(const WithdrawAtEnd&) = delete;
  ~WithdrawAtEnd() { ticket_.withdraw(); }

 private:
  MeetingTicket& ticket_;
};

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
  const WithdrawAtEnd end(ticket);
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
  const WithdrawAtEnd end(ticket);
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
  const WithdrawAtEnd end(ticket);
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
  const WithdrawAtEnd end(ticket);
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
  const WithdrawAtEnd end(ticket);
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
  constexpr int kSender = 0;
  constexpr int kReceiver = 1;
  struct WithdrawBoth {
    MeetingTicket* outgoing;
    MeetingTicket* incoming;
    ~WithdrawBoth() {
      if (outgoing != nullptr) outgoing->withdraw();
      if (incoming != nullptr) incoming->withdraw();
    }
  } const end{outgoing, incoming};
  if (outgoing != nullptr) outgoing->open();
  if (incoming != nullptr) {
    incoming->open();
    {
      const MeetingReading reading = incoming->read({&kSender, 1});
      copy_elements(incoming->call_of(kSender).send.front(), incoming->call_of(kReceiver).receive.front());
    }
    incoming->close();
  }
  if (outgoing != nullptr) {
    const std::vector<int> reads = {0, 1};
    outgoing->close(reads);
  }
}

std::vector<Tensor> blocks_of(std::span<const Tensor> blocks) {
  return {blocks.begin(), blocks.end()};
}

}  // namespace

ThreadCommunicator::ThreadCommunicator(std::shared_ptr<MeetingBoard> board, int rank, Backend& backend,
                                       ExchangeFlows flows)
    : board_(std::move(board)),
      rank_(rank),
      backend_(backend),
      flows_(std::move(flows)),
      exceptions_in_flight_(std::uncaught_exceptions()) {}

ThreadCommunicator::~ThreadCommunicator() {
  // Torn down by an exception: operations that this rank's streams still wait in must end now, for the backend is torn
  // down next and joins its streams, while the cause reaches the other ranks only when the rank's body is left.
  if (std::uncaught_exceptions() > exceptions_in_flight_ || std::current_exception() != nullptr) board_->abandon(rank_);
}

ScopeName ThreadCommunicator::begin(const CollectiveCall& call) {
  check_call(call, rank_, size());
  const auto index = static_cast<size_t>(call.collective);
  ++traffic_.calls[index];
  const ScopeName name = flows_.next(call, rank_, size());
  traffic_.bytes_sent[index] += name.bytes;
  return name;
}

void ThreadCommunicator::enqueue(Stream& stream, CollectiveCall call, void (*work)(MeetingTicket& ticket)) {
  const TraceScope scope(backend_, begin(call));
  auto ticket = board_->meet(rank_, std::make_shared<CollectiveCall>(std::move(call)));
  backend_.enqueue(stream, [ticket = std::move(ticket), work] { work(*ticket); });
}

void ThreadCommunicator::all_to_all(Stream& stream, std::span<const Tensor> send, std::span<const Tensor> receive) {
  CollectiveCall call;
  call.collective = Collective::all_to_all;
  call.send = blocks_of(send);
  call.receive = blocks_of(receive);
  enqueue(stream, std::move(call), run_all_to_all);
}

void ThreadCommunicator::all_gather(Stream& stream, const Tensor& send, std::span<const Tensor> receive) {
  CollectiveCall call;
  call.collective = Collective::all_gather;
  call.send = {send};
  call.receive = blocks_of(receive);
  enqueue(stream, std::move(call), run_all_gather);
}

void ThreadCommunicator::reduce_scatter(Stream& stream, std::span<const Tensor> send, const Tensor& receive) {
  CollectiveCall call;
  call.collective = Collective::reduce_scatter;
  call.send = blocks_of(send);
  call.receive = {receive};
  enqueue(stream, std::move(call), run_reduce_scatter);
}

void ThreadCommunicator::all_reduce(Stream& stream, const Tensor& data) {
  CollectiveCall call;
  call.collective = Collective::all_reduce;
  call.send = {data};
  call.receive = {data};
  enqueue(stream, std::move(call), run_all_reduce);
}

void ThreadCommunicator::broadcast(Stream& stream, const Tensor& data, int root) {
  CollectiveCall call;
  call.collective = Collective::broadcast;
  call.send = {data};
  call.receive = {data};
  call.root = root;
  enqueue(stream, std::move(call), run_broadcast);
}

void ThreadCommunicator::send_receive(Stream& stream, const Tensor& send, int to, const Tensor& receive, int from) {
  auto call = std::make_shared<CollectiveCall>();
  call->collective = Collective::send_receive;
  call->send = {send};
  call->receive = {receive};
  call->to = send.is_absent() ? -1 : to;
  call->from = receive.is_absent() ? -1 : from;
  // A side that is there names its peer, so -1 is out of range then.
  const TraceScope scope(backend_, begin(*call));
  if (call->to == rank_) {  // and `from` too: a group of one, say
    board_->world().throw_if_failed();
    backend_.enqueue(stream, [call] { copy_elements(call->send.front(), call->receive.front()); });
    return;
  }
  std::shared_ptr<MeetingTicket> outgoing;
  std::shared_ptr<MeetingTicket> incoming;
  if (call->to >= 0) outgoing = board_->meet_pair(rank_, call->to, true, call);
  if (call->from >= 0) incoming = board_->meet_pair(rank_, call->from, false, call);
  if (outgoing == nullptr && incoming == nullptr) return;
  backend_.enqueue(stream, [outgoing = std::move(outgoing), incoming = std::move(incoming)] {
    run_send_receive(outgoing.get(), incoming.get());
  });
}

void ThreadCommunicator::barrier() {
  CollectiveCall call;
  call.collective = Collective::barrier;
  static_cast<void>(begin(call));
  const auto ticket = board_->meet(rank_, std::make_shared<CollectiveCall>(std::move(call)));
  ticket->wait_for_calls();
  ticket->close();
}

std::unique_ptr<Communicator> ThreadCommunicator::split(int color, int key, std::string_view name) {
  CollectiveCall call;
  call.collective = Collective::split;
  call.color = color;
  call.key = key;
  static_cast<void>(begin(call));
  const auto ticket = board_->meet(rank_, std::make_shared<CollectiveCall>(std::move(call)));
  ticket->wait_for_calls();
  auto [board, rank] = ticket->split_group(std::string(name));
  ticket->close();
  return std::make_unique<ThreadCommunicator>(std::move(board), rank, backend_, flows_.of_split(color));
}

void ThreadCommunicator::abort(std::string_view reason) noexcept {
  board_->world().abort(board_->world_ranks()[static_cast<size_t>(rank_)], reason);
}

}  // namespace ithaca
