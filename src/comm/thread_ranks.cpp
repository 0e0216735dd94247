#include "comm/thread_ranks.h"

#include <fmt/format.h>

#include <exception>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/board.h"
#include "comm/device_communicator.h"
#include "comm/nccl_communicator.h"
#include "comm/nccl_world.h"
#include "comm/thread_communicator.h"

namespace ithaca {

namespace {

class ConnectedThreadRank final : public ThreadRank {
 public:
  // `nccl` is null where another transport is used. `memory` will hold the memory of the rank's device.
  ConnectedThreadRank(std::shared_ptr<MeetingBoard> board, int rank, NcclWorld* nccl,
                      std::shared_ptr<const void>& memory)
      : board_(std::move(board)), rank_(rank), nccl_(nccl), memory_(memory) {}

  int rank() const override { return rank_; }
  int size() const override { return board_->size(); }
  std::unique_ptr<Communicator> connect(Backend& backend) override {
    if (auto* const movement = dynamic_cast<DeviceMovement*>(&backend)) return connect(backend, *movement);
    connect_once();
    if (nccl_ != nullptr) {
      throw ConfigurationError(
          fmt::format("NCCL moves the memory of devices, but the {} backend's is the host's; transport: peer works",
                      backend.name()));
    }
    return std::make_unique<ThreadCommunicator>(board_, rank_, backend);
  }
  std::unique_ptr<Communicator> connect(Backend& backend, DeviceMovement& movement) override {
    connect_once();
    if (size() > movement.most_sum_parts()) {
      throw ConfigurationError(fmt::format("{} ranks in one process exchange device memory; at most {} can", size(),
                                           movement.most_sum_parts()));
    }
    memory_ = movement.hold_memory();
    if (nccl_ == nullptr) return std::make_unique<DeviceCommunicator>(board_, rank_, backend, movement);
    nccl_->connect(rank_, movement);
    return std::make_unique<NcclCommunicator>(board_, rank_, backend, movement, *nccl_);
  }

 private:
  void connect_once() {
    require(!is_connected_, "ThreadRank::connect is called once per rank");
    is_connected_ = true;
  }

  std::shared_ptr<MeetingBoard> board_;
  int rank_;
  NcclWorld* nccl_;
  std::shared_ptr<const void>& memory_;
  bool is_connected_ = false;
};

}  // namespace

void run_thread_ranks(int size, const ThreadRankOptions& options, const std::function<void(ThreadRank&)>& body) {
  require(size >= 1, fmt::format("a run needs at least 1 rank, not {}", size));
  require(options.timeout_seconds >= 0.0,
          fmt::format("timeout_seconds must be 0 (never) or positive, not {}", options.timeout_seconds));
  const auto world = std::make_shared<RankWorld>(size, options.timeout_seconds, options.timeout_name);
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto board = std::make_shared<MeetingBoard>(world, "world", std::move(ranks));
  // Outlives all ranks and their backends.
  std::unique_ptr<NcclWorld> nccl;
  if (options.transport == Transport::nccl) nccl = std::make_unique<NcclWorld>(world);

  // Of every rank, until all of them have ended: a backend waits for its own device before it goes, so by then nobody
  // reads what another one has left.
  std::vector<std::shared_ptr<const void>> memories(static_cast<size_t>(size));

  const auto run_rank = [&](int rank) noexcept {
    try {
      ConnectedThreadRank self(board, rank, nccl.get(), memories[static_cast<size_t>(rank)]);
      body(self);
    } catch (...) {
      world->fail(rank, std::current_exception());
    }
    world->leave(rank);
  };

  {
    std::vector<std::jthread> threads;  // joined on every way out
    threads.reserve(static_cast<size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      try {
        threads.emplace_back([&run_rank, rank] { run_rank(rank); });
      } catch (const std::exception& error) {
        const Error failure(fmt::format("the thread cannot be started: {}", error.what()));
        world->fail(rank, std::make_exception_ptr(failure));
        break;
      }
    }
  }
  nccl.reset();
  world->throw_first_cause();
}

}  // namespace ithaca
