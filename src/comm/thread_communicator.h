// ThreadCommunicator: the Communicator among threads of one process whose tensors lie in host memory.
//
// Each operation meets its peers on a MeetingBoard when the stream gets to it, reads their tensors in place, and leaves
// when its own have been read. Only ranks that exchange data wait for each other. Thread-safety: as Communicator.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "comm/board.h"
#include "comm/communicator.h"
#include "comm/exchange_flows.h"

namespace ithaca {

class ThreadCommunicator final : public Communicator {
 public:
  // Rank `rank` of the board's group. `backend` must outlive the communicator.
  ThreadCommunicator(std::shared_ptr<MeetingBoard> board, int rank, Backend& backend, ExchangeFlows flows = {});
  ~ThreadCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return board_->size(); }

  void all_to_all(Stream& stream, std::span<const Tensor> send, std::span<const Tensor> receive) override;
  void all_gather(Stream& stream, const Tensor& send, std::span<const Tensor> receive) override;
  void reduce_scatter(Stream& stream, std::span<const Tensor> send, const Tensor& receive) override;
  void all_reduce(Stream& stream, const Tensor& data) override;
  void broadcast(Stream& stream, const Tensor& data, int root) override;
  void send_receive(Stream& stream, const Tensor& send, int to, const Tensor& receive, int from) override;
  void barrier() override;

  std::unique_ptr<Communicator> split(int color, int key, std::string_view name = {}) override;
  void abort(std::string_view reason) noexcept override;

  const Traffic& traffic() const override { return traffic_; }

 private:
  // Checks and counts the call, and names it for traces.
  ScopeName begin(const CollectiveCall& call);
  // A collective: calls it on the board and runs `work` on its ticket when the stream gets there.
  void enqueue(Stream& stream, CollectiveCall call, void (*work)(MeetingTicket& ticket));

  std::shared_ptr<MeetingBoard> board_;
  int rank_;
  Backend& backend_;
  Traffic traffic_;
  ExchangeFlows flows_;
  int exceptions_in_flight_;  // when this was made
};

}  // namespace ithaca
