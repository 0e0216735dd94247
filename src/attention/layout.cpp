#include "attention/layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace ithaca {

std::string_view layout_name(Layout layout) {
  switch (layout) {
    case Layout::contiguous:
      return "contiguous";
    case Layout::zigzag:
      return "zigzag";
    case Layout::striped:
      return "striped";
  }
  throw ContractError("unknown layout");
}

Shard::Shard(const std::vector<Segment>& segments) {
  for (Segment segment : segments) {
    require(segment.begin >= 0 && segment.count >= 0 && segment.stride >= 1,
            fmt::format("segment of {} tokens from {} with stride {}: begin and count must be at least 0, stride at "
                        "least 1",
                        segment.count, segment.begin, segment.stride));
    if (segment.count == 0) continue;
    if (segment.count == 1) segment.stride = 1;
    size_ += segment.count;
    if (!segments_.empty()) {
      Segment& last = segments_.back();
      if (last.stride == 1 && segment.stride == 1 && last.begin + last.count == segment.begin) {
        last.count += segment.count;
        continue;
      }
    }
    segments_.push_back(segment);
  }
}

int64_t Shard::position(int64_t local) const {
  if (local < 0 || local >= size_) {
    throw ContractError(fmt::format("local index {} is outside of a shard of {} tokens", local, size_));
  }
  for (const Segment& segment : segments_) {
    if (local < segment.count) return segment.begin + local * segment.stride;
    local -= segment.count;
  }
  throw ContractError("a shard's segments do not add up to its size");
}

Shard Shard::slice(int64_t begin, int64_t end) const {
  require(0 <= begin && begin <= end && end <= size_,
          fmt::format("slice [{}, {}) of a shard of {} tokens", begin, end, size_));
  std::vector<Segment> parts;
  int64_t start = 0;
  for (const Segment& segment : segments_) {
    const int64_t first = std::clamp<int64_t>(begin - start, 0, segment.count);
    const int64_t last = std::clamp<int64_t>(end - start, 0, segment.count);
    if (first < last) parts.push_back({segment.begin + first * segment.stride, last - first, segment.stride});
    start += segment.count;
  }
  return Shard(parts);
}

std::vector<int64_t> Shard::positions() const {
  std::vector<int64_t> result;
  result.reserve(static_cast<size_t>(size_));
  for (const Segment& segment : segments_) {
    for (int64_t index = 0; index < segment.count; ++index) result.push_back(segment.begin + index * segment.stride);
  }
  return result;
}

int64_t part_begin(int64_t size, int part, int parts) {
  require(size >= 0 && parts >= 1 && 0 <= part && part <= parts,
          fmt::format("part {} of {} parts of {} tokens does not exist", part, parts, size));
  // floor(size * part / parts) without a product that could overflow.
  return size / parts * part + size % parts * part / parts;
}

Shard ring_shard(Layout layout, int64_t total_tokens, int ring_rank, int ring_size) {
  require(total_tokens >= 0 && ring_size >= 1 && 0 <= ring_rank && ring_rank < ring_size,
          fmt::format("ring rank {} of {} for {} tokens does not exist", ring_rank, ring_size, total_tokens));
  const auto chunk = [&](int index, int count) {
    const int64_t begin = part_begin(total_tokens, index, count);
    return Segment{begin, part_begin(total_tokens, index + 1, count) - begin, 1};
  };
  switch (layout) {
    case Layout::contiguous:
      return Shard({chunk(ring_rank, ring_size)});
    case Layout::zigzag:
      return Shard({chunk(ring_rank, 2 * ring_size), chunk(2 * ring_size - 1 - ring_rank, 2 * ring_size)});
    case Layout::striped: {
      const int64_t count = total_tokens <= ring_rank ? 0 : (total_tokens - ring_rank + ring_size - 1) / ring_size;
      return Shard({Segment{ring_rank, count, ring_size}});
    }
  }
  throw ContractError("unknown layout");
}

std::vector<Shard> ring_shards(Layout layout, int64_t total_tokens, int ring_size) {
  std::vector<Shard> shards;
  for (int rank = 0; rank < ring_size; ++rank) shards.push_back(ring_shard(layout, total_tokens, rank, ring_size));
  return shards;
}

Shard sequence_shard(Layout layout, int64_t total_tokens, int ring_rank, int ring_size, int ulysses_rank,
                     int ulysses_size) {
  require(ulysses_size >= 1 && 0 <= ulysses_rank && ulysses_rank < ulysses_size,
          fmt::format("ulysses rank {} of {} does not exist", ulysses_rank, ulysses_size));
  const Shard part = ring_shard(layout, total_tokens, ring_rank, ring_size);
  return part.slice(part_begin(part.size(), ulysses_rank, ulysses_size),
                    part_begin(part.size(), ulysses_rank + 1, ulysses_size));
}

}  // namespace ithaca
