#include "backend/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <vector>

#include "backend/backend.h"
#include "base/error.h"
#include "base/text.h"

#if defined(__SANITIZE_ADDRESS__)
#define ITHACA_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ITHACA_ADDRESS_SANITIZER 1
#endif
#endif
#ifdef ITHACA_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace ithaca {
namespace {

#ifdef ITHACA_ADDRESS_SANITIZER
constexpr bool kGuards = true;
void poison(void* begin, int64_t bytes) {
  ASAN_POISON_MEMORY_REGION(begin, static_cast<size_t>(bytes));
}
void unpoison(void* begin, int64_t bytes) {
  ASAN_UNPOISON_MEMORY_REGION(begin, static_cast<size_t>(bytes));
}
#else
constexpr bool kGuards = false;
void poison(void* /*begin*/, int64_t /*bytes*/) {}
void unpoison(void* /*begin*/, int64_t /*bytes*/) {}
#endif

}  // namespace

// ---- Buffer ----

Buffer::Buffer(Buffer&& other) noexcept
    : arena_(std::exchange(other.arena_, nullptr)),
      stream_(std::exchange(other.stream_, nullptr)),
      offset_(std::exchange(other.offset_, 0)),
      tensor_(std::exchange(other.tensor_, Tensor{})) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  release();
  arena_ = std::exchange(other.arena_, nullptr);
  stream_ = std::exchange(other.stream_, nullptr);
  offset_ = std::exchange(other.offset_, 0);
  tensor_ = std::exchange(other.tensor_, Tensor{});
  return *this;
}

Buffer::~Buffer() {
  release();
}

void Buffer::release() noexcept {
  if (arena_ == nullptr) return;
  arena_->free(offset_, *stream_);
  arena_ = nullptr;
  stream_ = nullptr;
  offset_ = 0;
  tensor_ = Tensor{};
}

void Buffer::rebook(MemoryClass memory_class) {
  if (arena_ != nullptr) arena_->rebook(offset_, memory_class);
}

// ---- Arena ----

Arena::Arena(Backend& backend, Tier tier, void* base, int64_t capacity, Addressing addressing)
    : backend_(backend), tier_(tier), base_(base), addressing_(addressing), offsets_(capacity, kAlignment) {}

Arena::~Arena() {
  // The range may become somebody else's memory.
  if (kGuards && addressing_ == Addressing::host && base_ != nullptr) unpoison(base_, high_water_);
}

Buffer Arena::allocate(std::string_view name, MemoryClass memory_class, DType dtype, const Extents& extents,
                       Stream& stream) {
  Tensor tensor = Tensor::contiguous(nullptr, dtype, extents);
  int64_t bytes = 0;
  if (__builtin_mul_overflow(tensor.element_count(), element_size(dtype), &bytes) || bytes > offsets_.capacity()) {
    throw_out_of_memory(name, memory_class, tensor);
  }
  const std::optional<int64_t> offset = offsets_.allocate(bytes);
  if (!offset) throw_out_of_memory(name, memory_class, tensor);
  const int64_t size = offsets_.rounded(bytes);
  try {
    order_after_previous_use(*offset, *offset + size, stream);
    unguard(*offset, bytes, size, stream);
    blocks_.insert_or_assign(*offset, Block{std::string(name), memory_class, bytes, size});
  } catch (...) {  // a failed stream: the block was not handed out
    offsets_.free(*offset);
    throw;
  }
  usage_.add(memory_class, size);
  high_water_ = std::max(high_water_, *offset + size);
  if (base_ != nullptr) tensor.data = static_cast<std::byte*>(base_) + *offset;

  Buffer buffer;
  buffer.arena_ = this;
  buffer.stream_ = &stream;
  buffer.offset_ = *offset;
  buffer.tensor_ = tensor;
  return buffer;
}

void Arena::rebook(int64_t offset, MemoryClass memory_class) {
  Block& block = blocks_.at(offset);
  usage_.rebook(block.memory_class, memory_class, block.size);
  block.memory_class = memory_class;
}

void Arena::free(int64_t offset, Stream& stream) noexcept {
  const auto block = blocks_.find(offset);
  usage_.remove(block->second.memory_class, block->second.size);
  const int64_t end = offset + block->second.size;
  guard(offset, end, stream);
  try {
    remember_freed(offset, end, stream, backend_.record(stream));
  } catch (...) {
    // Only a failed stream cannot be recorded: it runs nothing more, so there is nothing to wait for.
    freed_.erase(offset);
  }
  blocks_.erase(block);
  offsets_.free(offset);
}

// An empty event has happened already: nothing to remember. Neighbours of the same stream become one range with the
// later of their events, which keeps the list as short as the list of gaps.
void Arena::remember_freed(int64_t begin, int64_t end, Stream& stream, Event freed) {
  if (freed.is_empty()) return;
  const auto next = freed_.find(end);
  if (next != freed_.end() && next->second.stream == &stream) {
    end = next->second.end;
    freed_.erase(next);
  }
  const auto after = freed_.lower_bound(begin);
  if (after != freed_.begin()) {
    FreedRange& previous = std::prev(after)->second;
    if (previous.end == begin && previous.stream == &stream) {
      previous.end = end;
      previous.freed = std::move(freed);
      return;
    }
  }
  freed_.insert_or_assign(begin, FreedRange{end, &stream, std::move(freed)});
}

void Arena::order_after_previous_use(int64_t begin, int64_t end, Stream& stream) {
  auto range = freed_.upper_bound(begin);
  if (range != freed_.begin() && std::prev(range)->second.end > begin) --range;
  while (range != freed_.end() && range->first < end) {
    const int64_t range_begin = range->first;
    const FreedRange previous = range->second;
    if (previous.stream != &stream) backend_.wait(stream, previous.freed);
    range = freed_.erase(range);
    if (range_begin < begin) freed_.insert_or_assign(range_begin, FreedRange{begin, previous.stream, previous.freed});
    if (previous.end > end) {
      freed_.insert_or_assign(end, FreedRange{previous.end, previous.stream, previous.freed});
      break;
    }
  }
}

// Guards go up and down in stream order, like the uses that they watch. What an exception gives back stays open: the
// code that would have ordered this stream after the others was skipped, and an exchange that other ranks still take
// part in may be reading it. Nobody uses what comes of that: the step has failed.
void Arena::guard(int64_t begin, int64_t end, Stream& stream) noexcept {
  if (!kGuards || addressing_ != Addressing::host || base_ == nullptr || std::uncaught_exceptions() > 0) return;
  try {
    std::byte* const first = static_cast<std::byte*>(base_) + begin;
    backend_.enqueue(stream, [first, bytes = end - begin] { poison(first, bytes); });
  } catch (...) {
    return;  // a failed stream runs nothing more; the range just stays unguarded
  }
}

// The rest of a block behind its elements stays guarded: it catches writes just beyond the end.
void Arena::unguard(int64_t begin, int64_t bytes, int64_t size, Stream& stream) {
  if (!kGuards || addressing_ != Addressing::host || base_ == nullptr) return;
  std::byte* const first = static_cast<std::byte*>(base_) + begin;
  backend_.enqueue(stream, [first, bytes, size] {
    unpoison(first, bytes);
    poison(first + bytes, size - bytes);
  });
}

void Arena::reset_peak() {
  usage_.peak = usage_.current;
  usage_.peak_by_class = usage_.current_by_class;
}

void Arena::throw_out_of_memory(std::string_view name, MemoryClass memory_class, const Tensor& wanted) const {
  const int64_t free_bytes = offsets_.capacity() - offsets_.used();
  int64_t bytes = 0;
  const bool fits_int64 = !__builtin_mul_overflow(wanted.element_count(), element_size(wanted.dtype), &bytes);
  std::string text =
      fmt::format("out of {} memory: no room for \"{}\" ({}, {}); {} of {} are free, {} of them in one piece.",
                  tier_name(tier_), name, wanted.describe(), fits_int64 ? format_bytes(bytes) : "more than 8 EiB",
                  format_bytes(free_bytes), format_bytes(offsets_.capacity()), format_bytes(offsets_.largest_gap()));
  text += " In use (highest so far):";
  for (int index = 0; index < kMemoryClasses; ++index) {
    const auto position = static_cast<size_t>(index);
    text += fmt::format("{} {} {} ({})", index == 0 ? "" : ",", memory_class_name(static_cast<MemoryClass>(index)),
                        format_bytes(usage_.current_by_class[position]), format_bytes(usage_.peak_by_class[position]));
  }
  std::vector<const Block*> largest;
  for (const auto& [offset, block] : blocks_) largest.push_back(&block);
  const size_t shown = std::min<size_t>(5, largest.size());
  std::partial_sort(
      largest.begin(), largest.begin() + static_cast<std::ptrdiff_t>(shown), largest.end(),
      [](const Block* a, const Block* b) { return a->size != b->size ? a->size > b->size : a->name < b->name; });
  if (shown > 0) text += ". Largest blocks:";
  for (size_t index = 0; index < shown; ++index) {
    text +=
        fmt::format("{} \"{}\" {}", index == 0 ? "" : ",", largest[index]->name, format_bytes(largest[index]->size));
  }
  text += ".";
  if (advice_) {
    // With what there was no room for: it says best what the memory is for.
    MemoryUsage usage = usage_;
    int64_t& of_class = usage.current_by_class[static_cast<size_t>(memory_class)];
    if (!fits_int64 || __builtin_add_overflow(of_class, bytes, &of_class)) of_class = INT64_MAX / kMemoryClasses;
    text += " What would help: " + advice_(usage);
  }
  throw OutOfMemoryError(text);
}

}  // namespace ithaca
