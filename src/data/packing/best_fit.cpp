#include "data/packing/best_fit.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"

namespace ithaca {

namespace {

constexpr uint32_t kNoBin = std::numeric_limits<uint32_t>::max();

// Open bins by the room they have left. Bins with the same room are as good as each other: they form a stack.
class OpenBins {
 public:
  void add(uint32_t bin, int64_t room) {
    if (bin >= next_.size()) next_.resize(static_cast<size_t>(bin) + 1, kNoBin);
    uint32_t& top = top_by_room_.try_emplace(room, kNoBin).first->second;
    next_[bin] = top;
    top = bin;
  }

  // Takes out the fullest bin with room for `length`; kNoBin when there is none.
  std::pair<uint32_t, int64_t> take(int64_t length) {
    const auto found = top_by_room_.lower_bound(length);
    if (found == top_by_room_.end()) return {kNoBin, 0};
    const uint32_t bin = found->second;
    const int64_t room = found->first;
    found->second = next_[bin];
    if (found->second == kNoBin) top_by_room_.erase(found);
    return {bin, room};
  }

 private:
  std::map<int64_t, uint32_t> top_by_room_;
  std::vector<uint32_t> next_;  // of each bin in its stack
};

}  // namespace

FitBins best_fit_decreasing(std::vector<FitItem> items, int64_t capacity) {
  require(items.size() < kNoBin, "bins are numbered in 32 bits");
  std::sort(items.begin(), items.end(), [](const FitItem& a, const FitItem& b) {
    return a.length != b.length ? a.length > b.length : a.document < b.document;
  });
  OpenBins open;
  std::vector<uint32_t> bin_of;
  bin_of.reserve(items.size());
  uint32_t bins = 0;
  const int64_t smallest = items.empty() ? 0 : items.back().length;
  for (const FitItem& item : items) {
    require(item.length > 0 && item.length <= capacity, "an item must fit into an empty bin");
    auto [bin, room] = open.take(item.length);
    if (bin == kNoBin) {
      bin = bins++;
      room = capacity;
    }
    bin_of.push_back(bin);
    // What has no room for the smallest item is closed.
    if (room - item.length >= smallest) open.add(bin, room - item.length);
  }

  std::vector<uint32_t> starts(static_cast<size_t>(bins) + 1, 0);
  for (const uint32_t bin : bin_of) ++starts[static_cast<size_t>(bin) + 1];
  for (size_t bin = 1; bin < starts.size(); ++bin) starts[bin] += starts[bin - 1];
  std::vector<uint32_t> documents(items.size());
  std::vector<uint32_t> filled(starts.begin(), starts.end() - 1);
  for (size_t item = 0; item < items.size(); ++item) documents[filled[bin_of[item]]++] = items[item].document;
  return {std::move(starts), std::move(documents)};
}

}  // namespace ithaca
