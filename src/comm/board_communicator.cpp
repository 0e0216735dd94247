#include "comm/board_communicator.h"

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "backend/trace_scope.h"
#include "comm/collective_call.h"

namespace ithaca {

namespace {

std::vector<Tensor> blocks_of(std::span<const Tensor> blocks) {
  return {blocks.begin(), blocks.end()};
}

}  // namespace

BoardCommunicator::BoardCommunicator(std::shared_ptr<MeetingBoard> board, int rank, Backend& backend,
                                     ExchangeFlows flows)
    : board_(std::move(board)),
      rank_(rank),
      backend_(backend),
      flows_(std::move(flows)),
      exceptions_in_flight_(std::uncaught_exceptions()) {}

BoardCommunicator::~BoardCommunicator() {
  // Torn down by an exception: operations that this rank's streams still wait in must end now, for the backend is torn
  // down next and joins its streams, while the cause reaches the other ranks only when the rank's body is left.
  if (std::uncaught_exceptions() > exceptions_in_flight_ || std::current_exception() != nullptr) board_->abandon(rank_);
}

std::shared_ptr<CollectiveCall> BoardCommunicator::begin(Collective collective) const {
  std::shared_ptr<CollectiveCall> call = make_call();
  call->collective = collective;
  return call;
}

ScopeName BoardCommunicator::count(const CollectiveCall& call) {
  check_call(call, rank_, size());
  const auto index = static_cast<size_t>(call.collective);
  ++traffic_.calls[index];
  const ScopeName name = flows_.next(call, rank_, size());
  traffic_.bytes_sent[index] += name.bytes;
  return name;
}

void BoardCommunicator::call_collective(Stream& stream, std::shared_ptr<CollectiveCall> call) {
  const TraceScope scope(backend_, count(*call));
  auto ticket = board_->meet(rank_, call);
  enqueue(stream, std::move(call), std::move(ticket));
}

void BoardCommunicator::all_to_all(Stream& stream, std::span<const Tensor> send, std::span<const Tensor> receive) {
  auto call = begin(Collective::all_to_all);
  call->send = blocks_of(send);
  call->receive = blocks_of(receive);
  call_collective(stream, std::move(call));
}

void BoardCommunicator::all_gather(Stream& stream, const Tensor& send, std::span<const Tensor> receive) {
  auto call = begin(Collective::all_gather);
  call->send = {send};
  call->receive = blocks_of(receive);
  call_collective(stream, std::move(call));
}

void BoardCommunicator::reduce_scatter(Stream& stream, std::span<const Tensor> send, const Tensor& receive) {
  auto call = begin(Collective::reduce_scatter);
  call->send = blocks_of(send);
  call->receive = {receive};
  call_collective(stream, std::move(call));
}

void BoardCommunicator::all_reduce(Stream& stream, const Tensor& data) {
  auto call = begin(Collective::all_reduce);
  call->send = {data};
  call->receive = {data};
  call_collective(stream, std::move(call));
}

void BoardCommunicator::broadcast(Stream& stream, const Tensor& data, int root) {
  auto call = begin(Collective::broadcast);
  call->send = {data};
  call->receive = {data};
  call->root = root;
  call_collective(stream, std::move(call));
}

void BoardCommunicator::send_receive(Stream& stream, const Tensor& send, int to, const Tensor& receive, int from) {
  auto call = begin(Collective::send_receive);
  call->send = {send};
  call->receive = {receive};
  // A side that is there names its peer, so -1 is out of range then.
  call->to = send.is_absent() ? -1 : to;
  call->from = receive.is_absent() ? -1 : from;
  const TraceScope scope(backend_, count(*call));
  if (call->to == rank_) {  // and `from` too: a group of one, say
    board_->world().throw_if_failed();
    enqueue_own_message(stream, std::move(call));
    return;
  }
  std::shared_ptr<MeetingTicket> outgoing;
  std::shared_ptr<MeetingTicket> incoming;
  if (call->to >= 0) outgoing = board_->meet_pair(rank_, call->to, true, call);
  if (call->from >= 0) incoming = board_->meet_pair(rank_, call->from, false, call);
  if (outgoing == nullptr && incoming == nullptr) return;
  enqueue_messages(stream, std::move(call), std::move(outgoing), std::move(incoming));
}

void BoardCommunicator::barrier() {
  const auto call = begin(Collective::barrier);
  static_cast<void>(count(*call));
  const auto ticket = board_->meet(rank_, call);
  ticket->wait_for_calls();
  ticket->close();
}

std::unique_ptr<Communicator> BoardCommunicator::split(int color, int key, std::string_view name) {
  const auto call = begin(Collective::split);
  call->color = color;
  call->key = key;
  static_cast<void>(count(*call));
  const auto ticket = board_->meet(rank_, call);
  ticket->wait_for_calls();
  auto [board, rank] = ticket->split_group(std::string(name));
  ticket->close();
  return make_group(std::move(board), rank, flows_.of_split(color));
}

void BoardCommunicator::abort(std::string_view reason) noexcept {
  board_->world().abort(world_rank(), reason);
}

}  // namespace ithaca
