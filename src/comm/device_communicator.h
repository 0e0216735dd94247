// DeviceCommunicator: the Communicator among threads of one process whose tensors lie on devices, one or several.
//
// Ranks meet on a MeetingBoard where their streams issue work, so a rank waits on the host only for ranks that it
// exchanges data with, and nobody waits for a device. What is left behind on the streams is events and copies: a
// reader's stream waits for the event behind which the data is ready and copies it over; the owner's stream waits for
// the readers' events before anything that follows may change it. Thread-safety: as Communicator.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "backend/device_movement.h"
#include "comm/board.h"
#include "comm/communicator.h"
#include "comm/exchange_flows.h"

namespace ithaca {

class DeviceCommunicator final : public Communicator {
 public:
  // Rank `rank` of the board's group, all of whose ranks have this form. `backend` and `movement`, which enqueues on
  // the backend's streams, must outlive the communicator.
  DeviceCommunicator(std::shared_ptr<MeetingBoard> board, int rank, Backend& backend, DeviceMovement& movement,
                     ExchangeFlows flows = {});
  ~DeviceCommunicator() override;

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

  std::shared_ptr<MeetingBoard> board_;
  int rank_;
  Backend& backend_;
  DeviceMovement& movement_;
  Traffic traffic_;
  ExchangeFlows flows_;
  int exceptions_in_flight_;  // when this was made
};

}  // namespace ithaca
