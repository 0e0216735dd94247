// EpochOrder: in which order an epoch sees the sequences: a permutation that is a function of a seed and a name.
//
// Up to a few million sequences it is a Fisher-Yates shuffle, uniform over all orders that the generator can tell
// apart, kept as a list. Beyond that it is a Feistel network over the next power of four, walked until it falls into
// the range (Black and Rogaway 2002), which needs no memory. Thread-safety: immutable after construction.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace ithaca {

class EpochOrder {
 public:
  static constexpr int64_t kLargestList = int64_t{1} << 22;
  // Longer orders than `largest_list` are not kept as lists.
  EpochOrder(int64_t count, int64_t seed, std::string_view name, int64_t largest_list = kLargestList);

  // The sequence that comes at place `index` (0 <= index < count).
  int64_t at(int64_t index) const;

 private:
  uint64_t mixed(uint64_t value) const;

  int64_t count_;
  std::vector<int64_t> list_;
  // Of the network: its halves have `half_bits_` bits each.
  int half_bits_ = 0;
  std::array<uint64_t, 8> keys_{};
};

}  // namespace ithaca
