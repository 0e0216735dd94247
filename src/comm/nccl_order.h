// NcclOrder: the order in which one rank's exchanges are issued to its device, whatever streams and groups they are of.
//
// Kernels of exchanges wait on the device for those of other ranks, so two of them that are issued in one order here
// and in another order there may wait for each other for ever. Therefore a rank has one order for all of its groups and
// streams, which is that of its program: each exchange takes a turn when it is called, is issued when all earlier ones
// have been, and runs on the device behind the one before it, across streams by an event. Ranks must call the
// operations of all groups in orders that agree; those that do not wait for each other on the host, and end by the
// timeout.
//
// Also remembers what has been issued and has not run, for those who watch. Internal to comm. Thread-safety: take_turn:
// the rank's own thread; enqueue_behind_last, issued: the thread whose turn it is; the others: any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "backend/device_movement.h"
#include "comm/board.h"
#include "comm/stall_clock.h"

namespace ithaca {

class NcclOrder;

// One exchange's place in the order. Over at its end, or when it is destroyed without having been issued.
class NcclTurn {
 public:
  NcclTurn(NcclOrder& order, int64_t number) : order_(order), number_(number) {}
  NcclTurn(const NcclTurn&) = delete;
  NcclTurn& operator=(const NcclTurn&) = delete;
  ~NcclTurn() { end(); }

  // Waits until all earlier turns are over.
  void wait();
  void end() noexcept;

 private:
  NcclOrder& order_;
  int64_t number_;
  bool is_over_ = false;
};

class NcclOrder {
 public:
  NcclOrder() = default;
  NcclOrder(const NcclOrder&) = delete;
  NcclOrder& operator=(const NcclOrder&) = delete;

  std::shared_ptr<NcclTurn> take_turn();
  // The issuer's stream waits for the exchange that was issued last.
  void wait_for_last(DeviceIssuer& issuer) const;
  // The exchange of `ticket` lies between two points of a stream.
  void issued(Event begin, Event end, std::shared_ptr<MeetingTicket> ticket);

  // Forgets exchanges that have run. Then what the oldest one is called that the device has begun and not ended for
  // `timeout_seconds`, as a StallClock counts the looks; nothing when there is none. `is_excused`: of that look.
  std::optional<std::string> find_stalled(DeviceExchange& exchange, double timeout_seconds, bool is_excused);
  // What the oldest exchange is called that had not run when find_stalled last looked; empty when there was none.
  std::string describe_oldest() const;

 private:
  friend class NcclTurn;
  struct Pending {
    Event begin;
    Event end;
    std::shared_ptr<MeetingTicket> ticket;
    std::optional<StallClock> begun;  // since it was first seen
  };

  int64_t turns_ = 0;
  Event last_;

  mutable std::mutex mutex_;
  std::condition_variable turn_over_;
  std::set<int64_t> open_turns_;
  std::deque<Pending> pending_;
};

}  // namespace ithaca
