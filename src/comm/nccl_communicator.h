// NcclCommunicator: the Communicator among threads of one process whose tensors lie on devices, one device each, and
// whose bytes NCCL moves.
//
// Everything is made of sends and receives (comm/nccl_plan.h): results have the same bits as in the other forms, and a
// call waits for no rank that it exchanges nothing with. Ranks meet on a MeetingBoard where their streams issue work,
// so a mismatch, a lost rank or a stall is found on the host, before anything waits on a device for it; what goes wrong
// after that is the watch of NcclWorld. Beside Communicator's rules there is one more: ranks must call the operations
// of ALL groups and streams in orders that agree, as a program does that all ranks run (comm/nccl_order.h).
// Thread-safety: as Communicator.
#pragma once

#include <memory>
#include <vector>

#include "backend/device_movement.h"
#include "comm/board_communicator.h"
#include "comm/nccl_plan.h"
#include "comm/nccl_world.h"

namespace ithaca {

class NcclCommunicator final : public BoardCommunicator {
 public:
  // Rank `rank` of the board's group; this rank has been connected in `nccl`. `backend`, `movement`, which enqueues on
  // the backend's streams, and `nccl` must outlive the communicator, and `nccl` the backend too.
  NcclCommunicator(std::shared_ptr<MeetingBoard> board, int rank, Backend& backend, DeviceMovement& movement,
                   NcclWorld& nccl, ExchangeFlows flows = {});

  // A meeting of this rank, and the seats that must have come to it before anything is issued.
  struct Appointment {
    std::shared_ptr<MeetingTicket> ticket;
    std::vector<int> partners;
  };

 private:
  // The steps of a call, with the room for them.
  std::vector<ExchangeStep> plan(Stream& stream, const CollectiveCall& call, std::vector<Buffer>& room) const;
  void issue(Stream& stream, std::vector<ExchangeStep> steps, std::vector<Appointment> appointments);
  void enqueue(Stream& stream, std::shared_ptr<CollectiveCall> call, std::shared_ptr<MeetingTicket> ticket) override;
  void enqueue_messages(Stream& stream, std::shared_ptr<CollectiveCall> call, std::shared_ptr<MeetingTicket> outgoing,
                        std::shared_ptr<MeetingTicket> incoming) override;
  void enqueue_own_message(Stream& stream, std::shared_ptr<CollectiveCall> call) override;
  std::unique_ptr<Communicator> make_group(std::shared_ptr<MeetingBoard> board, int rank,
                                           ExchangeFlows flows) const override;

  DeviceMovement& movement_;
  NcclWorld& nccl_;
};

}  // namespace ithaca
