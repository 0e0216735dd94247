#include "comm/nccl_communicator.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace ithaca {

namespace {

using Appointment = NcclCommunicator::Appointment;

// One call on its way to the device.
class Exchange {
 public:
  Exchange(NcclWorld& nccl, int rank, std::vector<Appointment> appointments, std::vector<ExchangeStep> steps)
      : nccl_(nccl),
        rank_(rank),
        turn_(nccl.order(rank).take_turn()),
        appointments_(std::move(appointments)),
        steps_(std::move(steps)) {}

  // Where the stream issues.
  void issue(DeviceIssuer& issuer) {
    const WithdrawAtEnd end(appointments_.front().ticket.get(), appointments_.back().ticket.get());
    turn_->wait();
    come_to(kHasCome);
    come_to(kWillIssue);
    for (const ExchangeStep& step : steps_) run(step, issuer);
    for (const Appointment& each : appointments_) each.ticket->close();
    turn_->end();
  }

 private:
  // A partner that has come may still be waiting for one of its own, and never issue anything: this rank's device must
  // not begin to wait for it. So a rank says a second time that it will, when all of its partners have come.
  static constexpr int kHasCome = 0;
  static constexpr int kWillIssue = 1;

  // Says so, and waits until all partners have.
  void come_to(int phase) {
    for (const Appointment& each : appointments_) each.ticket->open(phase);
    for (const Appointment& each : appointments_) static_cast<void>(each.ticket->read(each.partners, phase));
  }

  void run(const ExchangeStep& step, DeviceIssuer& issuer) {
    for (const auto& [from, to] : step.before) issuer.copy_elements(from, to);
    if (!step.sends.empty() || !step.receives.empty()) exchange(step, issuer);
    if (!step.terms.empty()) issuer.sum_elements(step.terms, step.sum);
    for (const auto& [from, to] : step.after) issuer.copy_elements(from, to);
  }

  void exchange(const ExchangeStep& step, DeviceIssuer& issuer) {
    const std::shared_ptr<MeetingTicket>& ticket = appointments_.front().ticket;
    NcclOrder& order = nccl_.order(rank_);
    order.wait_for_last(issuer);
    Event begin = issuer.record();
    try {
      issuer.exchange(nccl_.exchange(), rank_, step.sends, step.receives);
    } catch (const CommunicationError& error) {
      // Others wait for this on their devices: they must learn of it now, not when this rank has noticed.
      nccl_.world().found(rank_, fmt::format("{}: {}", ticket->describe(), error.what()));
      nccl_.world().throw_if_failed();
    }
    order.issued(std::move(begin), issuer.record(), ticket);
  }

  NcclWorld& nccl_;
  int rank_;  // of the world
  std::shared_ptr<NcclTurn> turn_;
  std::vector<Appointment> appointments_;  // one or two
  std::vector<ExchangeStep> steps_;
};

// Peers become ranks of the world.
void rename_peers(std::vector<ExchangeStep>& steps, const std::vector<int>& world_ranks) {
  for (ExchangeStep& step : steps) {
    for (std::vector<DeviceMessage>* messages : {&step.sends, &step.receives}) {
      for (DeviceMessage& message : *messages) message.peer = world_ranks[static_cast<size_t>(message.peer)];
    }
  }
}

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<MeetingBoard> board, int rank, Backend& backend,
                                   DeviceMovement& movement, NcclWorld& nccl, ExchangeFlows flows)
    : BoardCommunicator(std::move(board), rank, backend, std::move(flows)), movement_(movement), nccl_(nccl) {}

std::vector<ExchangeStep> NcclCommunicator::plan(Stream& stream, const CollectiveCall& call,
                                                 std::vector<Buffer>& room) const {
  const AllocateRoom allocate = [&](std::string_view name, DType dtype, int64_t elements) {
    Arena& arena = backend().arena(Tier::device);
    room.push_back(arena.allocate(name, MemoryClass::communication, dtype, {elements}, stream));
    return room.back().tensor();
  };
  return plan_exchange(call, rank(), size(), allocate);
}

void NcclCommunicator::issue(Stream& stream, std::vector<ExchangeStep> steps, std::vector<Appointment> appointments) {
  rename_peers(steps, board().world_ranks());
  const auto exchange = std::make_shared<Exchange>(nccl_, world_rank(), std::move(appointments), std::move(steps));
  movement_.issue(stream, [exchange](DeviceIssuer& issuer) { exchange->issue(issuer); });
}

void NcclCommunicator::enqueue(Stream& stream, std::shared_ptr<CollectiveCall> call,
                               std::shared_ptr<MeetingTicket> ticket) {
  std::vector<Buffer> room;  // given back behind the work
  std::vector<ExchangeStep> steps = plan(stream, *call, room);
  std::vector<int> partners = exchange_partners(steps);
  issue(stream, std::move(steps), {{std::move(ticket), std::move(partners)}});
}

void NcclCommunicator::enqueue_messages(Stream& stream, std::shared_ptr<CollectiveCall> call,
                                        std::shared_ptr<MeetingTicket> outgoing,
                                        std::shared_ptr<MeetingTicket> incoming) {
  std::vector<Buffer> room;
  std::vector<ExchangeStep> steps = plan(stream, *call, room);
  std::vector<Appointment> appointments;
  if (outgoing != nullptr) appointments.push_back({std::move(outgoing), {kReceiverSeat}});
  if (incoming != nullptr) appointments.push_back({std::move(incoming), {kSenderSeat}});
  issue(stream, std::move(steps), std::move(appointments));
}

void NcclCommunicator::enqueue_own_message(Stream& stream, std::shared_ptr<CollectiveCall> call) {
  movement_.issue(stream, [call = std::move(call)](DeviceIssuer& issuer) {
    if (block_elements(call->send.front()) == 0) return;
    issuer.copy_elements(call->send.front(), call->receive.front());
  });
}

std::unique_ptr<Communicator> NcclCommunicator::make_group(std::shared_ptr<MeetingBoard> board, int rank,
                                                           ExchangeFlows flows) const {
  return std::make_unique<NcclCommunicator>(std::move(board), rank, backend(), movement_, nccl_, std::move(flows));
}

}  // namespace ithaca
