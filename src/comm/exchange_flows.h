// ExchangeFlows: the names that one rank's calls of a communicator have in traces.
//
// In a trace an arrow leads from the exchange of the rank that gives data to that of the rank that gets it; its two
// ends meet by a number that both ranks compute on their own. Messages go from their sender to their receiver;
// collectives, in which all ranks exchange with all, are tied around from each rank to the next one.
// Thread-safety: the rank's own thread.
#pragma once

#include <cstdint>
#include <map>

#include "backend/trace_scope.h"
#include "comm/collective_call.h"

namespace ithaca {

class ExchangeFlows {
 public:
  // Of the world.
  ExchangeFlows() = default;

  // The scope of the next call of `rank` in this group of `size`. Every call must be named, in order.
  ScopeName next(const CollectiveCall& call, int rank, int size);
  // Of the group that the last call of this one, a split, gave a rank of `color`.
  ExchangeFlows of_split(int color) const;

 private:
  uint64_t number(int from, int to, int64_t count, bool is_message) const;

  uint64_t group_ = 1;
  int64_t collectives_ = 0;
  std::map<int, int64_t> sent_;  // messages, by peer
  std::map<int, int64_t> received_;
};

}  // namespace ithaca
