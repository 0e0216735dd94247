#include "data/samples/skipped.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace ithaca {

void ReasonCounter::add(const std::string& reason, const std::string& place, const std::string& problem,
                        int64_t count) {
  const auto same = [&reason](const Group& group) { return group.reason == reason; };
  const auto found = std::find_if(groups_.begin(), groups_.end(), same);
  if (found != groups_.end()) {
    found->count += count;
  } else {
    groups_.push_back({reason, place, problem, count});
  }
}

void ReasonCounter::merge(const ReasonCounter& later) {
  for (const Group& group : later.groups_) add(group.reason, group.first_place, group.first_problem, group.count);
}

int64_t ReasonCounter::count() const {
  int64_t sum = 0;
  for (const Group& group : groups_) sum += group.count;
  return sum;
}

std::string ReasonCounter::text() const {
  if (groups_.empty()) return {};
  std::string result = fmt::format("{} record{} skipped:", format_count(count()), count() == 1 ? "" : "s");
  for (const Group& group : groups_) {
    result += fmt::format("\n  {} x {}, first {}: {}", format_count(group.count), group.reason, group.first_place,
                          group.first_problem);
  }
  return result;
}

}  // namespace ithaca
