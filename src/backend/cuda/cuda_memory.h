// Owners of memory that CUDA allocates, the page-locked ring that host copies pass through, and where workspace comes
// from. Internal to backend/cuda: includes CUDA headers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string_view>

#include "backend/stream.h"

namespace ithaca::cuda {

// `bytes` bytes of device memory for work on `stream`, aligned to 256 bytes, content undefined. The memory goes back,
// in the order of `stream`, when the last copy of the pointer is destroyed. `name` is a string literal.
using WorkspaceProvider =
    std::function<std::shared_ptr<void>(std::string_view name, int64_t bytes, cudaStream_t stream)>;

// Memory of the current device; nullptr for 0 bytes. Frees itself on the device it came from.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(int64_t bytes);
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();

  void* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  int64_t size_ = 0;
};

// Page-locked memory of the host, which every device can copy from and to without the host's help.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(int64_t bytes);
  PinnedMemory(PinnedMemory&& other) noexcept;
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory();

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

// Hands out pieces of page-locked memory in turn; a piece is used again when the event behind its last use has
// happened. The memory is allocated when the first piece is taken. Thread-safety: one thread.
class StagingRing {
 public:
  // `has_happened` looks at an event that has been issued, `finish` makes the host wait for one.
  StagingRing(int64_t capacity, std::function<bool(const Event&)> has_happened,
              std::function<void(const Event&)> finish);

  // The most bytes that one piece can have.
  int64_t largest_piece() const { return capacity_ / 4; }
  // `bytes` <= largest_piece(). Waits on the host only when the ring is full of pieces still in use. The piece stays
  // this caller's until used_until() is called for it, which must come before the next take().
  std::byte* take(int64_t bytes);
  void used_until(const Event& event);

 private:
  struct Piece {
    int64_t end;
    Event free_after;
  };

  void drop_oldest();

  int64_t capacity_;
  std::function<bool(const Event&)> has_happened_;
  std::function<void(const Event&)> finish_;
  PinnedMemory memory_;
  // Positions only grow; the place in the ring is the position modulo the capacity.
  int64_t head_ = 0;
  int64_t tail_ = 0;
  std::deque<Piece> pieces_;
};

}  // namespace ithaca::cuda
