// ReasonCounter: the records that data.on_error: skip left out, grouped by what was wrong with them.
//
// Thread-safety: one thread at a time; threads count for themselves and merge.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/samples/sample.h"

namespace ithaca {

class ReasonCounter {
 public:
  struct Group {
    std::string reason;
    std::string first_place;    // of the first record that was counted
    std::string first_problem;  // what was wrong with it
    int64_t count = 0;
  };

  void add(const RecordError& error) { add(error.reason(), error.place(), error.problem()); }
  void add(const std::string& reason, const std::string& place, const std::string& problem, int64_t count = 1);
  // Adds the counts of a counter whose records come after this one's.
  void merge(const ReasonCounter& later);

  int64_t count() const;
  bool empty() const { return groups_.empty(); }
  // In the order of their first record.
  const std::vector<Group>& groups() const { return groups_; }
  // For reports, without a line end after the last line; empty when nothing was skipped:
  //   3 records skipped:
  //     2 x the role of a message is not known, first chat.jsonl:17: messages[0]: ...
  //     1 x not valid JSON, first chat.jsonl:90:4: ...
  std::string text() const;

 private:
  std::vector<Group> groups_;
};

}  // namespace ithaca
