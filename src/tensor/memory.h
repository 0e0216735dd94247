// How memory is booked: tiers, classes, and the offset allocator under every arena.
//
// Thread-safety: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

namespace ithaca {

// Where bytes live.
enum class Tier : uint8_t { device, host, disk };

// What bytes are for. Peak by class is a metric of every run.
enum class MemoryClass : uint8_t { weights, gradients, optimizer, saved, workspace, communication };
inline constexpr int kMemoryClasses = 6;

// "weights", "gradients", ...
std::string_view memory_class_name(MemoryClass memory_class);
std::string_view tier_name(Tier tier);

// Bytes in use, now and at the highest point, in total and by class. `peak_by_class` is each class's own highest point,
// so its sum may exceed `peak`.
struct MemoryUsage {
  int64_t current = 0;
  int64_t peak = 0;
  std::array<int64_t, kMemoryClasses> current_by_class{};
  std::array<int64_t, kMemoryClasses> peak_by_class{};

  void add(MemoryClass memory_class, int64_t bytes);
  void remove(MemoryClass memory_class, int64_t bytes);
  // Moves bytes between classes; the total and its peak do not change.
  void rebook(MemoryClass from, MemoryClass to, int64_t bytes);
};

// Hands out offsets of an address range without touching it: lowest fitting offset first, neighbours joined when freed.
// Sizes are rounded up to `alignment`. Offsets and sizes are exact int64; the range may be far larger than memory.
class OffsetAllocator {
 public:
  OffsetAllocator(int64_t capacity, int64_t alignment);

  // The offset of `bytes` free bytes (0 bytes are served as `alignment`), or nothing when no gap is large enough.
  std::optional<int64_t> allocate(int64_t bytes);
  // Returns what allocate() gave. `offset` must be one that is in use; throws ContractError otherwise.
  void free(int64_t offset);

  int64_t capacity() const { return capacity_; }
  int64_t used() const { return used_; }
  int64_t largest_gap() const;
  // Bytes that allocate(bytes) takes.
  int64_t rounded(int64_t bytes) const;

 private:
  int64_t capacity_;
  int64_t alignment_;
  int64_t used_ = 0;
  std::map<int64_t, int64_t> gaps_;    // offset -> bytes
  std::map<int64_t, int64_t> in_use_;  // offset -> bytes
};

}  // namespace ithaca
