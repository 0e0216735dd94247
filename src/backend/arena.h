// Arena: all memory of one tier of one rank, handed out by name.
//
// Memory is freed in stream order: a block that was last used on stream A and is handed to stream B makes B wait for
// the point of A at which it was freed. So an owner may let go of memory as soon as the last work that uses it has been
// enqueued. When nothing fits, OutOfMemoryError names the tensor, its size, the totals by class and the advice that was
// set with advise(). Builds with AddressSanitizer find uses of blocks that were given back. Thread-safety: the thread
// of the rank that owns the backend.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "backend/stream.h"
#include "tensor/memory.h"
#include "tensor/tensor.h"

namespace ithaca {

class Backend;
class Arena;

// Owns one block of an arena; gives it back when destroyed, in the order of the stream that used it last. Movable. Must
// be destroyed before the arena.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  bool is_empty() const { return arena_ == nullptr; }
  // The whole block as a row-major tensor.
  const Tensor& tensor() const { return tensor_; }
  // From now on the block is freed in the order of `stream` (by default: the stream it was allocated for). Work of
  // other streams that uses the block must be ordered before that point by events.
  void last_used_on(Stream& stream) { stream_ = &stream; }
  // Books the block under another class from now on (workspace that turns out to be kept, say).
  void rebook(MemoryClass memory_class);
  // Gives the block back now.
  void release() noexcept;

 private:
  friend class Arena;
  Arena* arena_ = nullptr;
  Stream* stream_ = nullptr;
  int64_t offset_ = 0;
  Tensor tensor_;
};

class Arena {
 public:
  // Says, from what is in use, which option would help most.
  using Advice = std::function<std::string(const MemoryUsage&)>;

  // Blocks begin at multiples of this many bytes (from `base`), and take a multiple of it.
  static constexpr int64_t kAlignment = 256;

  // Who may touch the bytes: `host` memory is guarded against use after it was given back in builds that can.
  enum class Addressing : uint8_t { host, device_only };

  // Serves [base, base + capacity). `base` may be null when nothing is ever read or written (meta backend); then
  // tensors have no data. `backend` must outlive the arena.
  Arena(Backend& backend, Tier tier, void* base, int64_t capacity, Addressing addressing = Addressing::device_only);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // A row-major tensor for use on `stream`. Its content is undefined. `name` appears in reports and errors.
  Buffer allocate(std::string_view name, MemoryClass memory_class, DType dtype, const Extents& extents, Stream& stream);

  const MemoryUsage& usage() const { return usage_; }
  // Starts a new measurement of the peaks at the present use.
  void reset_peak();
  Tier tier() const { return tier_; }
  int64_t capacity() const { return offsets_.capacity(); }
  // What an out-of-memory error should recommend ("memory.recompute: full ...").
  void advise(Advice advice) { advice_ = std::move(advice); }

 private:
  friend class Buffer;
  struct Block {
    std::string name;
    MemoryClass memory_class;
    int64_t bytes;
    int64_t size;  // `bytes` as taken from the arena
  };
  // A freed range that streams other than `stream` may use only after `freed`.
  struct FreedRange {
    int64_t end;
    Stream* stream;
    Event freed;
  };

  void rebook(int64_t offset, MemoryClass memory_class);
  void free(int64_t offset, Stream& stream) noexcept;
  void remember_freed(int64_t begin, int64_t end, Stream& stream, Event freed);
  void order_after_previous_use(int64_t begin, int64_t end, Stream& stream);
  void guard(int64_t begin, int64_t end, Stream& stream) noexcept;
  void unguard(int64_t begin, int64_t bytes, int64_t size, Stream& stream);
  [[noreturn]] void throw_out_of_memory(std::string_view name, MemoryClass memory_class, const Tensor& wanted) const;

  Backend& backend_;
  Tier tier_;
  void* base_;
  Addressing addressing_;
  OffsetAllocator offsets_;
  MemoryUsage usage_;
  Advice advice_;
  int64_t high_water_ = 0;                     // end of the highest block ever handed out
  std::unordered_map<int64_t, Block> blocks_;  // offset -> block
  std::map<int64_t, FreedRange> freed_;        // begin -> range; disjoint, and only where nothing is in use
};

}  // namespace ithaca
