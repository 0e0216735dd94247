#include "tensor/memory.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/error.h"

namespace ithaca {

std::string_view memory_class_name(MemoryClass memory_class) {
  switch (memory_class) {
    case MemoryClass::weights:
      return "weights";
    case MemoryClass::gradients:
      return "gradients";
    case MemoryClass::optimizer:
      return "optimizer";
    case MemoryClass::saved:
      return "saved";
    case MemoryClass::workspace:
      return "workspace";
    case MemoryClass::communication:
      return "communication";
  }
  throw ContractError("memory_class_name: unknown class");
}

std::string_view tier_name(Tier tier) {
  switch (tier) {
    case Tier::device:
      return "device";
    case Tier::host:
      return "host";
    case Tier::disk:
      return "disk";
  }
  throw ContractError("tier_name: unknown tier");
}

void MemoryUsage::add(MemoryClass memory_class, int64_t bytes) {
  const auto index = static_cast<size_t>(memory_class);
  current += bytes;
  peak = std::max(peak, current);
  current_by_class[index] += bytes;
  peak_by_class[index] = std::max(peak_by_class[index], current_by_class[index]);
}

void MemoryUsage::remove(MemoryClass memory_class, int64_t bytes) {
  current -= bytes;
  current_by_class[static_cast<size_t>(memory_class)] -= bytes;
}

void MemoryUsage::rebook(MemoryClass from, MemoryClass to, int64_t bytes) {
  const auto target = static_cast<size_t>(to);
  current_by_class[static_cast<size_t>(from)] -= bytes;
  current_by_class[target] += bytes;
  peak_by_class[target] = std::max(peak_by_class[target], current_by_class[target]);
}

OffsetAllocator::OffsetAllocator(int64_t capacity, int64_t alignment) : capacity_(capacity), alignment_(alignment) {
  require(alignment > 0 && capacity >= 0, "OffsetAllocator needs a positive alignment and a capacity of at least 0");
  capacity_ = capacity / alignment * alignment;
  if (capacity_ > 0) gaps_.emplace(0, capacity_);
}

int64_t OffsetAllocator::rounded(int64_t bytes) const {
  require(bytes >= 0 && bytes <= INT64_MAX - alignment_, "OffsetAllocator: size out of range");
  return std::max<int64_t>(1, (bytes + alignment_ - 1) / alignment_) * alignment_;
}

std::optional<int64_t> OffsetAllocator::allocate(int64_t bytes) {
  const int64_t needed = rounded(bytes);
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    if (gap->second < needed) continue;
    const auto [offset, size] = *gap;
    gaps_.erase(gap);
    if (size > needed) gaps_.emplace(offset + needed, size - needed);
    in_use_.emplace(offset, needed);
    used_ += needed;
    return offset;
  }
  return std::nullopt;
}

void OffsetAllocator::free(int64_t offset) {
  const auto entry = in_use_.find(offset);
  if (entry == in_use_.end())
    throw ContractError("OffsetAllocator: offset " + std::to_string(offset) + " is not in use");
  int64_t begin = offset;
  int64_t size = entry->second;
  used_ -= size;
  in_use_.erase(entry);
  auto next = gaps_.lower_bound(begin);
  if (next != gaps_.end() && begin + size == next->first) {
    size += next->second;
    next = gaps_.erase(next);
  }
  if (next != gaps_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      begin = previous->first;
      size += previous->second;
      gaps_.erase(previous);
    }
  }
  gaps_.emplace(begin, size);
}

int64_t OffsetAllocator::largest_gap() const {
  int64_t largest = 0;
  for (const auto& [offset, size] : gaps_) largest = std::max(largest, size);
  return largest;
}

}  // namespace ithaca
