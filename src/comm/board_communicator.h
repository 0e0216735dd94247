// BoardCommunicator: what the communicators of ranks that meet on a MeetingBoard have in common, however bytes move.
//
// Checks, counts and names each call, calls it on the board, and gives the form its ticket. Internal to comm.
// Thread-safety: as Communicator.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "comm/board.h"
#include "comm/communicator.h"
#include "comm/exchange_flows.h"

namespace ithaca {

class BoardCommunicator : public Communicator {
 public:
  ~BoardCommunicator() override;

  int rank() const final { return rank_; }
  int size() const final { return board_->size(); }

  void all_to_all(Stream& stream, std::span<const Tensor> send, std::span<const Tensor> receive) final;
  void all_gather(Stream& stream, const Tensor& send, std::span<const Tensor> receive) final;
  void reduce_scatter(Stream& stream, std::span<const Tensor> send, const Tensor& receive) final;
  void all_reduce(Stream& stream, const Tensor& data) final;
  void broadcast(Stream& stream, const Tensor& data, int root) final;
  void send_receive(Stream& stream, const Tensor& send, int to, const Tensor& receive, int from) final;
  void barrier() final;

  std::unique_ptr<Communicator> split(int color, int key, std::string_view name = {}) final;
  void abort(std::string_view reason) noexcept final;
  void begin_host_work() noexcept final { board_->world().begin_host_work(); }
  void end_host_work() noexcept final { board_->world().end_host_work(); }

  const Traffic& traffic() const final { return traffic_; }

 protected:
  // Rank `rank` of the board's group, all of whose ranks have the same form. `backend` must outlive the communicator.
  BoardCommunicator(std::shared_ptr<MeetingBoard> board, int rank, Backend& backend, ExchangeFlows flows);

  // A call of the form's own type, to be filled in.
  virtual std::shared_ptr<CollectiveCall> make_call() const { return std::make_shared<CollectiveCall>(); }
  // Enqueues a collective other than barrier and split. `call` is what make_call gave.
  virtual void enqueue(Stream& stream, std::shared_ptr<CollectiveCall> call, std::shared_ptr<MeetingTicket> ticket) = 0;
  // Enqueues send_receive; one of the tickets may be null.
  virtual void enqueue_messages(Stream& stream, std::shared_ptr<CollectiveCall> call,
                                std::shared_ptr<MeetingTicket> outgoing, std::shared_ptr<MeetingTicket> incoming) = 0;
  // Enqueues a message to itself.
  virtual void enqueue_own_message(Stream& stream, std::shared_ptr<CollectiveCall> call) = 0;
  // The same form for rank `rank` of another board.
  virtual std::unique_ptr<Communicator> make_group(std::shared_ptr<MeetingBoard> board, int rank,
                                                   ExchangeFlows flows) const = 0;

  MeetingBoard& board() const { return *board_; }
  int world_rank() const { return board_->world_ranks()[static_cast<size_t>(rank_)]; }
  Backend& backend() const { return backend_; }

 private:
  std::shared_ptr<CollectiveCall> begin(Collective collective) const;
  // Checks and counts the call, and names it for traces.
  ScopeName count(const CollectiveCall& call);
  void call_collective(Stream& stream, std::shared_ptr<CollectiveCall> call);

  std::shared_ptr<MeetingBoard> board_;
  int rank_;
  Backend& backend_;
  Traffic traffic_;
  ExchangeFlows flows_;
  int exceptions_in_flight_;  // when this was made
};

// Shuts tickets' seats at the end of their work, unless they were closed in order. Either may be null.
class WithdrawAtEnd {
 public:
  explicit WithdrawAtEnd(MeetingTicket* first, MeetingTicket* second = nullptr) : first_(first), second_(second) {}
  WithdrawAtEnd(const WithdrawAtEnd&) = delete;
  WithdrawAtEnd& operator=(const WithdrawAtEnd&) = delete;
  ~WithdrawAtEnd() {
    if (first_ != nullptr) first_->withdraw();
    if (second_ != nullptr) second_->withdraw();
  }

 private:
  MeetingTicket* first_;
  MeetingTicket* second_;
};

// The seats of the two sides of a message.
inline constexpr int kSenderSeat = 0;
inline constexpr int kReceiverSeat = 1;

}  // namespace ithaca
