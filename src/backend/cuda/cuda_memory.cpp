#include "backend/cuda/cuda_memory.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "backend/cuda/cuda_check.h"
#include "base/error.h"

namespace ithaca::cuda {

DeviceMemory::DeviceMemory(int64_t bytes) : size_(bytes) {
  if (bytes > 0) ITHACA_CUDA_CHECK(cudaMalloc(&data_, static_cast<size_t>(bytes)));
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) static_cast<void>(cudaFree(data_));
}

PinnedMemory::PinnedMemory(int64_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  void* data = nullptr;
  // Portable: page-locked for every device of the process.
  ITHACA_CUDA_CHECK(cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocPortable));
  data_ = static_cast<std::byte*>(data);
}

PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) static_cast<void>(cudaFreeHost(data_));
}

namespace {
constexpr int64_t kPieceAlignment = 256;
}

StagingRing::StagingRing(int64_t capacity, std::function<bool(const Event&)> has_happened,
                         std::function<void(const Event&)> finish)
    : capacity_(capacity), has_happened_(std::move(has_happened)), finish_(std::move(finish)) {}

std::byte* StagingRing::take(int64_t bytes) {
  require(bytes >= 0 && bytes <= largest_piece(), "StagingRing: a piece larger than the ring allows");
  if (memory_.data() == nullptr) memory_ = PinnedMemory(capacity_);
  const int64_t size = (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
  int64_t begin = head_;
  const int64_t left_of_round = capacity_ - begin % capacity_;
  if (size > left_of_round) begin += left_of_round;  // a piece never wraps around
  // Events of pieces that are free are free too: a step's small pieces do not add up to a ring full of events.
  while (!pieces_.empty() && has_happened_(pieces_.front().free_after)) drop_oldest();
  while (begin + size - tail_ > capacity_) {
    finish_(pieces_.front().free_after);
    drop_oldest();
  }
  head_ = begin + size;
  pieces_.push_back({head_, {}});
  return memory_.data() + begin % capacity_;
}

void StagingRing::drop_oldest() {
  tail_ = pieces_.front().end;
  pieces_.pop_front();
}

void StagingRing::used_until(const Event& event) {
  pieces_.back().free_after = event;
}

}  // namespace ithaca::cuda
