// Layouts: which positions of the token axis each cp rank holds, and in which order.
//
// The axis of S tokens is divided over `ring` ring ranks, and each ring part is then cut contiguously over its
// `ulysses` ranks:
//   contiguous  ring rank r holds [r S / R, (r+1) S / R)
//   zigzag      2R chunks [c S / 2R, (c+1) S / 2R); ring rank r holds chunk r and then chunk 2R-1-r, which balances
//               causal work
//   striped     ring rank r holds tokens r, r + R, r + 2R, ...
// Any S works: parts differ by a token or two where S does not divide, and may be empty. (Divisions round down.)
// Thread-safety: pure functions and immutable values.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace ithaca {

enum class Layout : uint8_t { contiguous, zigzag, striped };
std::string_view layout_name(Layout layout);

// `count` tokens at positions begin, begin + stride, begin + 2 stride, ...
struct Segment {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t stride = 1;
  bool operator==(const Segment&) const = default;
};

// The tokens of one rank: its local index i counts through the segments in order.
class Shard {
 public:
  Shard() = default;
  // Empty segments are dropped, a segment of one token gets stride 1, and neighbours of stride 1 that continue each
  // other are joined, so equal token lists of the layouts compare equal. Negative begins or counts and strides below 1
  // throw ContractError.
  explicit Shard(const std::vector<Segment>& segments);
  const std::vector<Segment>& segments() const { return segments_; }
  int64_t size() const { return size_; }
  // Position on the axis of local index i.
  int64_t position(int64_t local) const;
  // Local indices [begin, end) as a shard of their own.
  Shard slice(int64_t begin, int64_t end) const;
  // All positions in local order.
  std::vector<int64_t> positions() const;
  bool operator==(const Shard&) const = default;

 private:
  std::vector<Segment> segments_;
  int64_t size_ = 0;
};

// What ring rank `ring_rank` of `ring_size` holds (all its ulysses ranks together).
Shard ring_shard(Layout layout, int64_t total_tokens, int ring_rank, int ring_size);
// Of every ring rank.
std::vector<Shard> ring_shards(Layout layout, int64_t total_tokens, int ring_size);
// What one cp rank holds.
Shard sequence_shard(Layout layout, int64_t total_tokens, int ring_rank, int ring_size, int ulysses_rank,
                     int ulysses_size);
// Where part `part` (0 to parts) begins when `size` tokens are cut contiguously into `parts`: floor(size part / parts).
int64_t part_begin(int64_t size, int part, int parts);

}  // namespace ithaca
