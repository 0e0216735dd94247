// Best-fit decreasing bin packing: longest first, each item into the fullest bin that has room for it.
// Thread-safety: pure functions and values.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace ithaca {

struct FitItem {
  int64_t length = 0;
  uint32_t document = 0;
};

// Which documents share a bin. Bins are numbered in the order in which they were opened; the longest document of each
// comes first.
class FitBins {
 public:
  FitBins() : starts_{0} {}
  FitBins(std::vector<uint32_t> starts, std::vector<uint32_t> documents)
      : starts_(std::move(starts)), documents_(std::move(documents)) {}

  int64_t size() const { return static_cast<int64_t>(starts_.size()) - 1; }
  std::span<const uint32_t> documents_of(int64_t bin) const {
    const auto at = static_cast<size_t>(bin);
    return std::span(documents_).subspan(starts_[at], starts_[at + 1] - starts_[at]);
  }

 private:
  std::vector<uint32_t> starts_;  // of each bin in documents_; one more for the end
  std::vector<uint32_t> documents_;
};

// Items of 1 to `capacity`, fewer than 2^32 of them. Of equal lengths the smaller document number comes first, so the
// result does not depend on the order of the items. O(n log n).
FitBins best_fit_decreasing(std::vector<FitItem> items, int64_t capacity);

}  // namespace ithaca
