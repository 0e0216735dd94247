#include "data/epoch_order.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/random.h"

namespace ithaca {

EpochOrder::EpochOrder(int64_t count, int64_t seed, std::string_view name, int64_t largest_list) : count_(count) {
  const RandomStream random(static_cast<uint64_t>(seed), name);
  if (count <= largest_list) {
    list_.resize(static_cast<size_t>(count));
    std::iota(list_.begin(), list_.end(), int64_t{0});
    for (size_t last = list_.size(); last > 1; --last) {
      std::swap(list_[last - 1], list_[random.bits(last) % last]);
    }
    return;
  }
  while ((uint64_t{1} << (2 * half_bits_)) < static_cast<uint64_t>(count)) ++half_bits_;
  for (size_t round = 0; round < keys_.size(); ++round) keys_[round] = random.bits(round);
}

uint64_t EpochOrder::mixed(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (const uint64_t key : keys_) {
    const uint64_t next = left ^ (mix_bits(right ^ key) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

int64_t EpochOrder::at(int64_t index) const {
  if (index < 0 || index >= count_) throw ContractError(fmt::format("place {} of an order of {}", index, count_));
  if (!list_.empty()) return list_[static_cast<size_t>(index)];
  // The network permutes a range at most four times as large: the walk from inside comes back inside.
  auto value = static_cast<uint64_t>(index);
  do {
    value = mixed(value);
  } while (value >= static_cast<uint64_t>(count_));
  return static_cast<int64_t>(value);
}

}  // namespace ithaca
