// RankWorld: what all ranks of one process share whatever groups they form: the first failure, who has returned, and
// who waits for whom.
//
// Failing is once and for all: the first cause stays, every pending and future wait of every group ends with
// CommunicationError. One mutex guards the world and all meetings in it; it is held for bookkeeping only, never while
// bytes move. Thread-safety: any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <list>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ithaca {

struct Meeting;
class MeetingBoard;

// What a rank waits for at a meeting.
struct MeetingNeed {
  enum class Kind : uint8_t {
    called,  // every seat has made its call
    opened,  // `seats` have opened their buffers as of `phase`
    read     // seat s has read this rank's buffers reads[s] times
  };
  Kind kind = Kind::called;
  std::span<const int> seats;
  int phase = 0;
  std::span<const int> reads;
};

// One wait of one rank, while it lasts; guarded by RankWorld's mutex.
struct MeetingWaiter {
  const Meeting* meeting = nullptr;
  const MeetingBoard* board = nullptr;
  int seat = 0;
  MeetingNeed need;
  size_t met = 0;  // so many entries of the need, from the first on, were met when it last looked
  std::condition_variable wake;
};

class RankWorld {
 public:
  // A wait longer than `timeout_seconds`, by a StallClock, fails the world; 0: never. `timeout_name`: what sets it, for
  // texts; may be empty.
  RankWorld(int size, double timeout_seconds, std::string timeout_name = {});
  RankWorld(const RankWorld&) = delete;
  RankWorld& operator=(const RankWorld&) = delete;

  int size() const { return static_cast<int>(returned_.size()); }

  // The body of `rank` threw.
  void fail(int rank, const std::exception_ptr& exception);
  // `rank` wants the world to end.
  void abort(int rank, std::string_view reason) noexcept;
  // What `rank` was found to have done, or to suffer, by somebody who does not wait for it.
  void found(int rank, std::string text) noexcept;
  // The body of `rank` has ended: it makes no more calls. Whoever waits for one fails.
  void leave(int rank);

  double timeout_seconds() const { return timeout_seconds_; }
  // "600 s (parallel.comm_timeout_seconds)".
  std::string describe_timeout() const;
  // Between the two, time does not count against anybody's timeout.
  void begin_host_work() noexcept { ++host_work_; }
  void end_host_work() noexcept { --host_work_; }
  bool has_host_work() const { return host_work_ > 0; }
  bool has_failed() const;
  // Throws CommunicationError with the first cause as other ranks see it.
  void throw_if_failed() const;
  // Throws the first cause as the caller of all ranks sees it: "rank 2: ..." in the type it was thrown in.
  void throw_first_cause() const;

 private:
  friend class MeetingBoard;
  friend class MeetingTicket;
  friend class MeetingReading;

  enum class CauseKind : uint8_t { none, thrown, aborted, found };

  // The functions below require mutex_ to be held.
  void throw_if_failed_locked() const;
  void set_cause(CauseKind kind, int rank, std::string text, std::exception_ptr exception) noexcept;
  // Records `text`, found out by `rank`, unless there is a cause already; throws what the cause is then.
  [[noreturn]] void fail_found(int rank, std::string text);
  void wake_everybody() noexcept;
  // Wakes those whose wait at `meeting` is over.
  void meeting_changed(const Meeting& meeting) noexcept;
  // Wakes the waiter, which may be null, if its wait is over.
  static void waiter_changed(MeetingWaiter* waiter) noexcept;
  // Returns when `need` is met at `meeting`.
  void wait(std::unique_lock<std::mutex>& lock, const MeetingBoard& board, Meeting& meeting, int seat,
            const MeetingNeed& need);
  // "rank 3, which waits in ..." for a stall's text.
  std::string describe_absence(const MeetingBoard& board, const Meeting& meeting, int seat) const;

  mutable std::mutex mutex_;
  // Owners of buffers who are leaving wait here for the last reader.
  std::condition_variable reading_ended_;
  std::list<MeetingWaiter*> waiters_;
  std::vector<bool> returned_;
  double timeout_seconds_;
  std::string timeout_name_;
  std::atomic<int> host_work_ = 0;  // ranks that are at it
  CauseKind cause_kind_ = CauseKind::none;
  int cause_rank_ = -1;
  std::string cause_text_;
  std::exception_ptr cause_exception_;
};

}  // namespace ithaca
