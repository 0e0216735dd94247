#include "comm/rank_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "base/error.h"
#include "comm/board.h"
#include "comm/stall_clock.h"

namespace ithaca {

namespace {

std::string exception_text(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

template <typename Type>
void throw_if_type(const std::exception_ptr& exception, const std::string& text) {
  bool is_type = false;
  try {
    std::rethrow_exception(exception);
  } catch (const Type&) {
    is_type = true;
  } catch (...) {
    is_type = false;
  }
  if (is_type) throw Type(text);
}

// Keeps a waiter where it is found while it waits.
class Listed {
 public:
  Listed(std::list<MeetingWaiter*>& list, Meeting::Seat& seat, MeetingWaiter& waiter)
      : list_(list), at_(list.insert(list.end(), &waiter)), seat_(seat) {
    seat_.waiter = &waiter;
  }
  Listed(const Listed&) = delete;
  Listed& operator=(const Listed&) = delete;
  ~Listed() {
    seat_.waiter = nullptr;
    list_.erase(at_);
  }

 private:
  std::list<MeetingWaiter*>& list_;
  std::list<MeetingWaiter*>::iterator at_;
  Meeting::Seat& seat_;
};

}  // namespace

RankWorld::RankWorld(int size, double timeout_seconds, std::string timeout_name)
    : returned_(static_cast<size_t>(size), false),
      timeout_seconds_(timeout_seconds),
      timeout_name_(std::move(timeout_name)) {}

void RankWorld::fail(int rank, const std::exception_ptr& exception) {
  const std::string text = exception_text(exception);
  const std::lock_guard<std::mutex> lock(mutex_);
  set_cause(CauseKind::thrown, rank, text, exception);
}

void RankWorld::abort(int rank, std::string_view reason) noexcept {
  try {
    std::string text(reason);
    const std::lock_guard<std::mutex> lock(mutex_);
    set_cause(CauseKind::aborted, rank, std::move(text), nullptr);
  } catch (...) {  // no memory for the text: end without it
    const std::lock_guard<std::mutex> lock(mutex_);
    set_cause(CauseKind::aborted, rank, std::string(), nullptr);
  }
}

void RankWorld::found(int rank, std::string text) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  set_cause(CauseKind::found, rank, std::move(text), nullptr);
}

void RankWorld::leave(int rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  returned_[static_cast<size_t>(rank)] = true;
  wake_everybody();
}

bool RankWorld::has_failed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return cause_kind_ != CauseKind::none;
}

void RankWorld::throw_if_failed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  throw_if_failed_locked();
}

void RankWorld::throw_if_failed_locked() const {
  switch (cause_kind_) {
    case CauseKind::none:
      return;
    case CauseKind::thrown:
      throw CommunicationError(fmt::format("rank {} failed: {}", cause_rank_, cause_text_));
    case CauseKind::aborted:
      throw CommunicationError(fmt::format("rank {} aborted: {}", cause_rank_, cause_text_));
    case CauseKind::found:
      throw CommunicationError(cause_text_);
  }
}

void RankWorld::throw_first_cause() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (cause_kind_ == CauseKind::none) return;
  const std::string text = fmt::format("rank {}: {}", cause_rank_, cause_text_);
  if (cause_kind_ != CauseKind::thrown) throw CommunicationError(text);
  throw_if_type<ConfigurationError>(cause_exception_, text);
  throw_if_type<InputError>(cause_exception_, text);
  throw_if_type<FileError>(cause_exception_, text);
  throw_if_type<CommunicationError>(cause_exception_, text);
  throw_if_type<OutOfMemoryError>(cause_exception_, text);
  throw_if_type<ContractError>(cause_exception_, text);
  throw Error(text);
}

void RankWorld::set_cause(CauseKind kind, int rank, std::string text, std::exception_ptr exception) noexcept {
  if (cause_kind_ != CauseKind::none) return;
  cause_kind_ = kind;
  cause_rank_ = rank;
  cause_text_ = std::move(text);
  cause_exception_ = std::move(exception);
  wake_everybody();
}

void RankWorld::fail_found(int rank, std::string text) {
  set_cause(CauseKind::found, rank, std::move(text), nullptr);
  throw_if_failed_locked();
  std::terminate();  // not reached: there is a cause now
}

void RankWorld::wake_everybody() noexcept {
  for (MeetingWaiter* waiter : waiters_) waiter->wake.notify_one();
}

void RankWorld::meeting_changed(const Meeting& meeting) noexcept {
  for (const Meeting::Seat& seat : meeting.seats) waiter_changed(seat.waiter);
}

void RankWorld::waiter_changed(MeetingWaiter* waiter) noexcept {
  if (waiter == nullptr) return;
  const Meeting& meeting = *waiter->meeting;
  waiter->met = meeting.first_unmet(waiter->seat, waiter->need, waiter->met);
  if (waiter->met == meeting.entries(waiter->need)) waiter->wake.notify_one();
}

void RankWorld::wait(std::unique_lock<std::mutex>& lock, const MeetingBoard& board, Meeting& meeting, int seat,
                     const MeetingNeed& need) {
  const int own_rank = board.world_rank(meeting, seat);
  StallClock clock(timeout_seconds_);
  MeetingWaiter waiter;
  waiter.meeting = &meeting;
  waiter.board = &board;
  waiter.seat = seat;
  waiter.need = need;
  const Listed listed(waiters_, meeting.seats[static_cast<size_t>(seat)], waiter);

  bool is_late = false;
  while (true) {
    throw_if_failed_locked();
    waiter.met = meeting.first_unmet(seat, need);
    if (waiter.met == meeting.entries(need)) return;
    if (board.members_[static_cast<size_t>(meeting.seats[static_cast<size_t>(seat)].rank)].abandoned) {
      throw CommunicationError(
          fmt::format("{} ended, because rank {} is failing", board.describe_meeting(meeting, seat), own_rank));
    }
    const std::vector<int> missing = meeting.missing(seat, need);
    for (const int other : missing) {
      const Meeting::Seat& state = meeting.seats[static_cast<size_t>(other)];
      const int rank = board.world_rank(meeting, other);
      if (!returned_[static_cast<size_t>(rank)] || (state.call != nullptr && !state.withdrawn)) continue;
      fail_found(rank, fmt::format("{}: rank {} waits for rank {}, which has returned {}",
                                   board.describe_meeting(meeting, seat), own_rank, rank,
                                   state.call == nullptr ? "without calling it" : "before its call has run"));
    }
    if (is_late) {
      std::vector<int> ranks;
      std::string absences;
      for (const int other : missing) {
        ranks.push_back(board.world_rank(meeting, other));
        absences += "; " + describe_absence(board, meeting, other);
      }
      fail_found(own_rank, fmt::format("{}: rank {} has waited {} for {}{}", board.describe_meeting(meeting, seat),
                                       own_rank, describe_timeout(), name_ranks(ranks), absences));
    }
    if (clock.has_limit()) {
      waiter.wake.wait_for(lock, clock.until_next_look());
      is_late = clock.look(has_host_work());
    } else {
      waiter.wake.wait(lock);
    }
  }
}

std::string RankWorld::describe_timeout() const {
  return fmt::format("{:g} s{}", timeout_seconds_, timeout_name_.empty() ? "" : fmt::format(" ({})", timeout_name_));
}

std::string RankWorld::describe_absence(const MeetingBoard& board, const Meeting& meeting, int seat) const {
  const Meeting::Seat& state = meeting.seats[static_cast<size_t>(seat)];
  const int rank = board.world_rank(meeting, seat);
  std::string text;
  if (state.call == nullptr) {
    const CollectiveCall* last = board.members_[static_cast<size_t>(state.rank)].last_call.get();
    text = fmt::format("rank {} has not called it and ", rank) +
           (last == nullptr ? "has called nothing in this group yet" : "last called " + describe_call(*last));
  } else if (state.withdrawn) {
    text = fmt::format("rank {} has ended its part early", rank);
  } else if (state.open_phase < 0) {
    text = fmt::format("rank {} has called it, but its stream has not come to it", rank);
  } else {
    text = fmt::format("rank {} has not finished its part", rank);
  }
  for (const MeetingWaiter* waiter : waiters_) {
    if (waiter->meeting == &meeting || waiter->board->world_rank(*waiter->meeting, waiter->seat) != rank) continue;
    std::vector<int> ranks;
    for (const int other : waiter->meeting->missing(waiter->seat, waiter->need)) {
      ranks.push_back(waiter->board->world_rank(*waiter->meeting, other));
    }
    if (ranks.empty()) continue;  // its wait is over, and it has not run since
    text += fmt::format(", it waits for {} in {}", name_ranks(ranks),
                        waiter->board->describe_meeting(*waiter->meeting, waiter->seat));
  }
  return text;
}

}  // namespace ithaca
