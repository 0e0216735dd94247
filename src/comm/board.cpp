#include "comm/board.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace ithaca {

// ---- Meeting ----

bool Meeting::is_called_by_all() const {
  return std::all_of(seats.begin(), seats.end(), [](const Seat& seat) { return seat.call != nullptr; });
}

bool Meeting::is_met(int own_seat, const MeetingNeed& need, size_t entry) const {
  switch (need.kind) {
    case MeetingNeed::Kind::called:
      return seats[entry].call != nullptr;
    case MeetingNeed::Kind::opened: {
      const Seat& other = seats[static_cast<size_t>(need.seats[entry])];
      return !other.withdrawn && other.open_phase >= need.phase;
    }
    case MeetingNeed::Kind::read:
      return entry >= need.reads.size() || seats[static_cast<size_t>(own_seat)].reads[entry] >= need.reads[entry];
  }
  return true;
}

size_t Meeting::first_unmet(int own_seat, const MeetingNeed& need, size_t from) const {
  while (from < entries(need) && is_met(own_seat, need, from)) ++from;
  return from;
}

std::vector<int> Meeting::missing(int own_seat, const MeetingNeed& need) const {
  std::vector<int> result;
  for (size_t entry = first_unmet(own_seat, need); entry < entries(need);
       entry = first_unmet(own_seat, need, entry + 1)) {
    result.push_back(need.kind == MeetingNeed::Kind::opened ? need.seats[entry] : static_cast<int>(entry));
  }
  return result;
}

// ---- MeetingReading ----

MeetingReading::~MeetingReading() {
  if (meeting_ == nullptr) return;  // moved from
  const std::lock_guard<std::mutex> lock(world_->mutex_);
  for (const int owner : owners_) {
    Meeting::Seat& seat = meeting_->seats[static_cast<size_t>(owner)];
    --seat.readers_inside;
    ++seat.reads[static_cast<size_t>(seat_)];
    if (seat.withdrawn) world_->reading_ended_.notify_all();
    RankWorld::waiter_changed(seat.waiter);  // nobody else waits for readers of this seat
  }
}

// ---- MeetingTicket ----

MeetingTicket::MeetingTicket(std::shared_ptr<MeetingBoard> board, std::shared_ptr<Meeting> meeting, int seat)
    : board_(std::move(board)), meeting_(std::move(meeting)), seat_(seat) {}

MeetingTicket::~MeetingTicket() {
  withdraw();
}

const CollectiveCall& MeetingTicket::call_of(int seat) const {
  return *meeting_->seats[static_cast<size_t>(seat)].call;
}

std::string MeetingTicket::describe() const {
  return board_->describe_meeting(*meeting_, seat_);
}

void MeetingTicket::wait_for_calls() {
  RankWorld& world = board_->world();
  std::unique_lock<std::mutex> lock(world.mutex_);
  world.wait(lock, *board_, *meeting_, seat_, {MeetingNeed::Kind::called, {}, 0, {}});
}

void MeetingTicket::open(int phase) {
  RankWorld& world = board_->world();
  const std::lock_guard<std::mutex> lock(world.mutex_);
  world.throw_if_failed_locked();
  meeting_->seats[static_cast<size_t>(seat_)].open_phase = phase;
  world.meeting_changed(*meeting_);
}

MeetingReading MeetingTicket::read(std::span<const int> owners, int phase) {
  RankWorld& world = board_->world();
  MeetingReading reading(world, nullptr, seat_, owners);
  std::unique_lock<std::mutex> lock(world.mutex_);
  world.wait(lock, *board_, *meeting_, seat_, {MeetingNeed::Kind::opened, owners, phase, {}});
  for (const int owner : owners) ++meeting_->seats[static_cast<size_t>(owner)].readers_inside;
  reading.meeting_ = meeting_;
  return reading;
}

void MeetingTicket::close(std::span<const int> reads) {
  RankWorld& world = board_->world();
  std::unique_lock<std::mutex> lock(world.mutex_);
  world.wait(lock, *board_, *meeting_, seat_, {MeetingNeed::Kind::read, {}, 0, reads});
  complete_ = true;
}

void MeetingTicket::withdraw() noexcept {
  if (complete_) return;
  complete_ = true;
  RankWorld& world = board_->world();
  std::unique_lock<std::mutex> lock(world.mutex_);
  Meeting::Seat& seat = meeting_->seats[static_cast<size_t>(seat_)];
  seat.withdrawn = true;
  // Whoever waits for this rank must look again: it may have returned already.
  world.wake_everybody();
  world.reading_ended_.wait(lock, [&seat] { return seat.readers_inside == 0; });
}

std::pair<std::shared_ptr<MeetingBoard>, int> MeetingTicket::split_group(const std::string& name) {
  const std::lock_guard<std::mutex> lock(board_->world().mutex_);
  const int color = call_of(seat_).color;
  // (key, rank) of those with this rank's colour.
  std::vector<std::pair<int, int>> ranks;
  for (int rank = 0; rank < seats(); ++rank) {
    if (call_of(rank).color == color) ranks.emplace_back(call_of(rank).key, rank);
  }
  std::sort(ranks.begin(), ranks.end());
  int own_rank = 0;
  std::vector<int> world_ranks;
  for (const auto& [key, rank] : ranks) {
    if (rank == seat_) own_rank = static_cast<int>(world_ranks.size());
    world_ranks.push_back(board_->world_ranks()[static_cast<size_t>(rank)]);
  }
  std::shared_ptr<MeetingBoard>& board = meeting_->split_groups[color];
  if (board == nullptr) board = std::make_shared<MeetingBoard>(board_->world_, name, std::move(world_ranks));
  return {board, own_rank};
}

// ---- MeetingBoard ----

MeetingBoard::MeetingBoard(std::shared_ptr<RankWorld> world, std::string name, std::vector<int> world_ranks)
    : world_(std::move(world)),
      name_(std::move(name)),
      world_ranks_(std::move(world_ranks)),
      members_(world_ranks_.size()) {}

std::shared_ptr<MeetingTicket> MeetingBoard::meet(int rank, std::shared_ptr<const CollectiveCall> call) {
  std::unique_lock<std::mutex> lock(world_->mutex_);
  world_->throw_if_failed_locked();
  Member& member = members_[static_cast<size_t>(rank)];
  const int64_t number = member.collectives;
  check_messages_before(rank, number, *call);
  std::shared_ptr<Meeting>& entry = unmatched_[number];
  if (entry == nullptr) {
    entry = std::make_shared<Meeting>();
    entry->number = number;
    entry->seats.resize(world_ranks_.size());
    for (size_t seat = 0; seat < entry->seats.size(); ++seat) entry->seats[seat].rank = static_cast<int>(seat);
  }
  const std::shared_ptr<Meeting> meeting = entry;
  for (int other = 0; other < size(); ++other) {
    const CollectiveCall* other_call = meeting->seats[static_cast<size_t>(other)].call.get();
    if (other_call == nullptr) continue;
    const std::string mismatch = find_mismatch(*other_call, other, *call, rank, world_ranks_);
    if (!mismatch.empty()) {
      world_->fail_found(world_ranks_[static_cast<size_t>(rank)],
                         fmt::format("operation {} of {}: {}", number, describe(), mismatch));
    }
  }
  ++member.collectives;
  member.last_call = call;
  take_seat(*meeting, rank, number, std::move(call));
  lock.unlock();  // a ticket locks it itself when it goes
  return std::make_shared<MeetingTicket>(shared_from_this(), meeting, rank);
}

std::shared_ptr<MeetingTicket> MeetingBoard::meet_pair(int rank, int peer, bool sends,
                                                       std::shared_ptr<const CollectiveCall> call) {
  std::unique_lock<std::mutex> lock(world_->mutex_);
  world_->throw_if_failed_locked();
  const auto pair = sends ? std::make_pair(rank, peer) : std::make_pair(peer, rank);
  Channel& channel = channels_[pair];
  int64_t& called = sends ? channel.sent : channel.received;
  std::shared_ptr<Meeting>& entry = channel.unmatched[called];
  if (entry == nullptr) {
    entry = std::make_shared<Meeting>();
    entry->number = called;
    entry->is_message = true;
    entry->seats.resize(2);
    entry->seats[0].rank = pair.first;
    entry->seats[1].rank = pair.second;
  }
  const std::shared_ptr<Meeting> meeting = entry;
  ++called;
  Member& member = members_[static_cast<size_t>(rank)];
  member.last_call = call;
  const int seat = sends ? 0 : 1;
  take_seat(*meeting, seat, member.collectives, std::move(call));
  check_message(*meeting, seat);
  lock.unlock();
  return std::make_shared<MeetingTicket>(shared_from_this(), meeting, seat);
}

void MeetingBoard::take_seat(Meeting& meeting, int seat, int64_t collectives_before,
                             std::shared_ptr<const CollectiveCall> call) {
  Meeting::Seat& state = meeting.seats[static_cast<size_t>(seat)];
  state.reads.assign(meeting.seats.size(), 0);
  state.collectives_before = collectives_before;
  state.call = std::move(call);
  if (meeting.is_called_by_all()) {  // nobody looks it up any more; tickets keep it
    if (meeting.is_message) {
      channels_[{meeting.seats[0].rank, meeting.seats[1].rank}].unmatched.erase(meeting.number);
    } else {
      unmatched_.erase(meeting.number);
    }
  }
  world_->meeting_changed(meeting);
}

void MeetingBoard::check_messages_before(int rank, int64_t collective, const CollectiveCall& call) {
  for (const auto& [pair, channel] : channels_) {
    if (pair.first != rank && pair.second != rank) continue;
    const int own_seat = pair.first == rank ? 0 : 1;
    for (const auto& [number, meeting] : channel.unmatched) {
      const Meeting::Seat& other = meeting->seats[static_cast<size_t>(1 - own_seat)];
      if (other.call == nullptr || other.collectives_before > collective) continue;
      const int own_name = world_ranks_[static_cast<size_t>(rank)];
      world_->fail_found(own_name,
                         fmt::format("{}: rank {} calls {}, but rank {} calls {} (operation {} of the group) first",
                                     describe_meeting(*meeting, 1 - own_seat), world_rank(*meeting, 1 - own_seat),
                                     describe_call(*other.call), own_name, describe_call(call), collective));
    }
  }
}

void MeetingBoard::check_message(const Meeting& meeting, int seat) {
  const Meeting::Seat& own = meeting.seats[static_cast<size_t>(seat)];
  const Meeting::Seat& other = meeting.seats[static_cast<size_t>(1 - seat)];
  const int own_name = world_rank(meeting, seat);
  const int64_t other_collectives =
      other.call != nullptr ? other.collectives_before : members_[static_cast<size_t>(other.rank)].collectives;
  const bool is_out_of_order =
      other.call != nullptr ? other_collectives != own.collectives_before : other_collectives > own.collectives_before;
  if (is_out_of_order) {
    world_->fail_found(
        own_name,
        fmt::format("{}: rank {} calls {} after {} other operations of the group, but rank {} has called {} of them {}",
                    describe_meeting(meeting, seat), own_name, describe_call(*own.call), own.collectives_before,
                    world_rank(meeting, 1 - seat), other_collectives,
                    other.call != nullptr ? "before its side" : "without its side"));
  }
  if (other.call == nullptr) return;
  const std::string mismatch = find_mismatch(*meeting.seats[0].call, meeting.seats[0].rank, *meeting.seats[1].call,
                                             meeting.seats[1].rank, world_ranks_);
  if (!mismatch.empty()) {
    world_->fail_found(own_name, fmt::format("{}: {}", describe_meeting(meeting, seat), mismatch));
  }
}

void MeetingBoard::abandon(int rank) {
  const std::lock_guard<std::mutex> lock(world_->mutex_);
  members_[static_cast<size_t>(rank)].abandoned = true;
  world_->wake_everybody();
}

std::string MeetingBoard::describe() const {
  return fmt::format("group {}{}({})", name_, name_.empty() ? "" : " ", name_ranks(world_ranks_));
}

std::string MeetingBoard::describe_meeting(const Meeting& meeting, int seat) const {
  if (meeting.is_message) {
    return fmt::format("send_receive (message {} from rank {} to rank {} in {})", meeting.number,
                       world_rank(meeting, 0), world_rank(meeting, 1), describe());
  }
  return fmt::format("{} (operation {} of {})",
                     collective_name(meeting.seats[static_cast<size_t>(seat)].call->collective), meeting.number,
                     describe());
}

int MeetingBoard::world_rank(const Meeting& meeting, int seat) const {
  return world_ranks_[static_cast<size_t>(meeting.seats[static_cast<size_t>(seat)].rank)];
}

}  // namespace ithaca
