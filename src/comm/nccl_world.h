// NcclWorld: what the ranks of one process share whose bytes NCCL moves: the exchange between their devices, each
// rank's order of using it, and a thread that watches over both.
//
// One exchange serves all groups: ranks of a group are ranks of the world, a rank's exchanges have one order anyway
// (comm/nccl_order.h), and connections are made once. The watching thread ends everything when any rank has failed,
// when the exchange reports a failure of its own, and when a device has waited for longer than the world's timeout: it
// fails every rank's backend, so that whoever waits for it on the host gets the first cause, and aborts the exchange,
// so that no device waits any more. Internal to comm. Thread-safety: connect: each rank's own thread; the rest: any
// thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/device_movement.h"
#include "comm/board.h"
#include "comm/nccl_order.h"
#include "comm/rank_world.h"

namespace ithaca {

class NcclWorld {
 public:
  // Nothing is connected yet.
  explicit NcclWorld(std::shared_ptr<RankWorld> world);
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;
  // All backends must be gone.
  ~NcclWorld();

  // Returns when all ranks have come and are connected; ends like a collective when one fails. All ranks agree on the
  // host before the library is called, and rank 0 calls it for all, so none can hang there for want of another.
  void connect(int rank, DeviceMovement& movement);

  // After connect().
  DeviceExchange& exchange() const { return *exchange_; }
  NcclOrder& order(int rank) { return orders_[static_cast<size_t>(rank)]; }
  RankWorld& world() const { return *world_; }

 private:
  struct Rank {
    DeviceMovement* movement = nullptr;
    std::function<void(std::exception_ptr)> fail;
  };

  void watch();
  // Fails the world when there is a reason to.
  void look_for_failures();
  void end_everything() noexcept;

  std::shared_ptr<RankWorld> world_;
  std::shared_ptr<MeetingBoard> board_;  // where ranks meet to be connected
  std::vector<Rank> ranks_;
  std::deque<NcclOrder> orders_;

  std::mutex mutex_;  // of what follows, until the ranks are connected
  std::condition_variable changed_;
  bool is_stopping_ = false;
  std::unique_ptr<DeviceExchange> exchange_;
  std::thread watcher_;
};

}  // namespace ithaca
