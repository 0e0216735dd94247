// DeviceCommunicator: the Communicator among threads of one process whose tensors lie on devices, one or several.
//
// Ranks meet on a MeetingBoard where their streams issue work, so a rank waits on the host only for ranks that it
// exchanges data with, and nobody waits for a device. What is left behind on the streams is events and copies: a
// reader's stream waits for the event behind which the data is ready and copies it over; the owner's stream waits for
// the readers' events before anything that follows may change it. Thread-safety: as Communicator.
#pragma once

#include <memory>

#include "backend/device_movement.h"
#include "comm/board_communicator.h"

namespace ithaca {

class DeviceCommunicator final : public BoardCommunicator {
 public:
  // Rank `rank` of the board's group, all of whose ranks have this form. `backend` and `movement`, which enqueues on
  // the backend's streams, must outlive the communicator. At most movement.most_sum_parts() ranks.
  DeviceCommunicator(std::shared_ptr<MeetingBoard> board, int rank, Backend& backend, DeviceMovement& movement,
                     ExchangeFlows flows = {});

 private:
  std::shared_ptr<CollectiveCall> make_call() const override;
  void enqueue(Stream& stream, std::shared_ptr<CollectiveCall> call, std::shared_ptr<MeetingTicket> ticket) override;
  void enqueue_messages(Stream& stream, std::shared_ptr<CollectiveCall> call, std::shared_ptr<MeetingTicket> outgoing,
                        std::shared_ptr<MeetingTicket> incoming) override;
  void enqueue_own_message(Stream& stream, std::shared_ptr<CollectiveCall> call) override;
  std::unique_ptr<Communicator> make_group(std::shared_ptr<MeetingBoard> board, int rank,
                                           ExchangeFlows flows) const override;

  DeviceMovement& movement_;
};

}  // namespace ithaca
