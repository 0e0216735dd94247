// MeetingBoard: where the ranks of one group, threads of one process, meet for an operation.
//
// Keeps rendezvous, matching and failing apart from how bytes move (comm/host_movement.h), so that a form that moves
// them on a device can meet here too. An operation goes through two stages:
//
//   call     on the rank's own thread, in the order of the program: meet() or meet_pair() gives the operation its
//   number
//            and compares the arguments with those of the ranks that have called it already. A mismatch ends everything
//            here, before a byte has moved. Collectives are numbered per group, messages per pair of ranks, so groups,
//            streams and pairs do not disturb each other.
//   running  on whatever thread the stream runs: the ticket opens the rank's buffers to readers, reads those of others
//            once they are open, and closes, which waits until everybody who has to has read.
//
// Buffers are never left while someone reads them, on no path: a ticket that ends early shuts its seat and waits for
// readers in the middle of a copy. Thread-safety: call stage: the rank's thread; one thread per ticket.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/collective_call.h"
#include "comm/rank_world.h"

namespace ithaca {

// One operation that ranks meet for; guarded by RankWorld's mutex. A collective has a seat for each rank of the group,
// a message has two: 0 sends, 1 receives.
struct Meeting {
  struct Seat {
    int rank = 0;                                // of the group
    std::shared_ptr<const CollectiveCall> call;  // null until the rank has called
    int64_t collectives_before = 0;              // how many collectives of the group the rank had called before it
    int open_phase = -1;                         // readers of phases up to this may read
    bool withdrawn = false;                      // ended without having done its part
    int readers_inside = 0;
    std::vector<int> reads;           // by seat: how often it has read this seat's buffers
    MeetingWaiter* waiter = nullptr;  // the rank's wait at this meeting, while it lasts: one thread has the ticket
  };
  int64_t number = 0;  // of the collective in its group; of the message between its two ranks
  bool is_message = false;
  std::vector<Seat> seats;
  // split: the new groups by colour, made by the first rank that leaves the meeting.
  std::map<int, std::shared_ptr<MeetingBoard>> split_groups;

  bool is_called_by_all() const;
  // A need is met when each of its entries is. The number of the first entry at or behind `from` that is not; their
  // count where there is none. An entry that is met stays so, unless its seat is withdrawn.
  size_t first_unmet(int own_seat, const MeetingNeed& need, size_t from = 0) const;
  // The seats of all entries that are not met.
  std::vector<int> missing(int own_seat, const MeetingNeed& need) const;
  // Every seat has one, except where a need lists seats.
  size_t entries(const MeetingNeed& need) const {
    return need.kind == MeetingNeed::Kind::opened ? need.seats.size() : seats.size();
  }

 private:
  bool is_met(int own_seat, const MeetingNeed& need, size_t entry) const;
};

// While it lives, this rank reads the open buffers of others.
class MeetingReading {
 public:
  MeetingReading(MeetingReading&& other) noexcept = default;
  MeetingReading& operator=(MeetingReading&&) = delete;
  MeetingReading(const MeetingReading&) = delete;
  MeetingReading& operator=(const MeetingReading&) = delete;
  ~MeetingReading();

 private:
  friend class MeetingTicket;
  MeetingReading(RankWorld& world, std::shared_ptr<Meeting> meeting, int seat, std::span<const int> owners)
      : world_(&world), meeting_(std::move(meeting)), seat_(seat), owners_(owners.begin(), owners.end()) {}

  RankWorld* world_;
  std::shared_ptr<Meeting> meeting_;
  int seat_;
  std::vector<int> owners_;
};

// One rank's part in one meeting. Destroyed before it is complete, it counts as withdrawn: the others learn of it when
// the rank has returned or failed.
class MeetingTicket {
 public:
  MeetingTicket(std::shared_ptr<MeetingBoard> board, std::shared_ptr<Meeting> meeting, int seat);
  MeetingTicket(const MeetingTicket&) = delete;
  MeetingTicket& operator=(const MeetingTicket&) = delete;
  ~MeetingTicket();

  int seat() const { return seat_; }
  int seats() const { return static_cast<int>(meeting_->seats.size()); }
  // The call of a seat that has called: always true of one whose buffers are being read.
  const CollectiveCall& call_of(int seat) const;
  // "all_reduce (operation 3 of group world (ranks 0-3))".
  std::string describe() const;

  // Waits until every rank has called.
  void wait_for_calls();
  // From now on others may read what `phase` promises.
  void open(int phase = 0);
  // Waits until all `owners` have opened `phase`, then reads them, all at once.
  MeetingReading read(std::span<const int> owners, int phase = 0);
  // Waits until each seat s has read this rank's buffers reads[s] times; an empty list waits for nobody. This rank's
  // part is complete then.
  void close(std::span<const int> reads = {});
  // Shuts the seat, unless it is complete: nobody starts to read any more, and who reads has finished. Never throws.
  void withdraw() noexcept;
  // After wait_for_calls() of a split: the board of this rank's new group, and its rank there.
  std::pair<std::shared_ptr<MeetingBoard>, int> split_group(const std::string& name);

 private:
  std::shared_ptr<MeetingBoard> board_;
  std::shared_ptr<Meeting> meeting_;
  int seat_;
  bool complete_ = false;
};

class MeetingBoard : public std::enable_shared_from_this<MeetingBoard> {
 public:
  // `world_ranks[r]` is rank r of this group; texts name ranks by it.
  MeetingBoard(std::shared_ptr<RankWorld> world, std::string name, std::vector<int> world_ranks);

  int size() const { return static_cast<int>(world_ranks_.size()); }
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  RankWorld& world() const { return *world_; }

  // `rank` (of the group) calls its next collective.
  std::shared_ptr<MeetingTicket> meet(int rank, std::shared_ptr<const CollectiveCall> call);
  // `rank` sends its next message to `peer`, or receives its next one from it.
  std::shared_ptr<MeetingTicket> meet_pair(int rank, int peer, bool sends, std::shared_ptr<const CollectiveCall> call);
  // The communicator of `rank` is being torn down by an exception whose cause the world will learn in a moment: its
  // pending operations end, so that the streams which run them can be torn down too.
  void abandon(int rank);

 private:
  friend class RankWorld;
  friend class MeetingTicket;

  struct Member {
    int64_t collectives = 0;                          // called so far
    std::shared_ptr<const CollectiveCall> last_call;  // of any kind
    bool abandoned = false;
  };
  // Messages from one rank to another.
  struct Channel {
    int64_t sent = 0;
    int64_t received = 0;
    std::map<int64_t, std::shared_ptr<Meeting>> unmatched;
  };

  // "group world (ranks 0-3)".
  std::string describe() const;
  // "all_reduce (operation 3 of group world (ranks 0-3))", as `seat` has called it.
  std::string describe_meeting(const Meeting& meeting, int seat) const;
  int world_rank(const Meeting& meeting, int seat) const;
  // The functions below require the world's mutex to be held.
  // Writes the call into its seat of the meeting.
  void take_seat(Meeting& meeting, int seat, int64_t collectives_before, std::shared_ptr<const CollectiveCall> call);
  // Fails when `rank`, about to call collective number `collective`, has left out a message before it.
  void check_messages_before(int rank, int64_t collective, const CollectiveCall& call);
  // Fails when the two sides of a message do not match, or do not lie between the same collectives.
  void check_message(const Meeting& meeting, int seat);

  std::shared_ptr<RankWorld> world_;
  std::string name_;
  std::vector<int> world_ranks_;
  std::vector<Member> members_;
  std::map<int64_t, std::shared_ptr<Meeting>> unmatched_;  // collectives that not every rank has called
  std::map<std::pair<int, int>, Channel> channels_;        // (from, to)
};

}  // namespace ithaca
