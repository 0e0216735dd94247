// ThreadCommunicator: the Communicator among threads of one process whose tensors lie in host memory.
//
// Each operation meets its peers on a MeetingBoard when the stream gets to it, reads their tensors in place, and leaves
// when its own have been read. Only ranks that exchange data wait for each other. Thread-safety: as Communicator.
#pragma once

#include <memory>

#include "comm/board_communicator.h"

namespace ithaca {

class ThreadCommunicator final : public BoardCommunicator {
 public:
  // Rank `rank` of the board's group. `backend` must outlive the communicator.
  ThreadCommunicator(std::shared_ptr<MeetingBoard> board, int rank, Backend& backend, ExchangeFlows flows = {});

 private:
  void enqueue(Stream& stream, std::shared_ptr<CollectiveCall> call, std::shared_ptr<MeetingTicket> ticket) override;
  void enqueue_messages(Stream& stream, std::shared_ptr<CollectiveCall> call, std::shared_ptr<MeetingTicket> outgoing,
                        std::shared_ptr<MeetingTicket> incoming) override;
  void enqueue_own_message(Stream& stream, std::shared_ptr<CollectiveCall> call) override;
  std::unique_ptr<Communicator> make_group(std::shared_ptr<MeetingBoard> board, int rank,
                                           ExchangeFlows flows) const override;
};

}  // namespace ithaca
