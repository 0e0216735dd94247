#include "data/cache/content_hash.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "base/regular_file.h"

namespace ithaca {

namespace {

// Odd, so that multiplying is a bijection.
constexpr uint64_t kFirstFactor = 0xC2B2AE3D27D4EB4Full;
constexpr uint64_t kSecondFactor = 0x9E3779B185EBCA87ull;

uint64_t advanced(uint64_t lane, uint64_t word) {
  return std::rotl(lane + word * kFirstFactor, 31) * kSecondFactor;
}

}  // namespace

std::string ContentDigest::text() const {
  return fmt::format("{:016x}{:016x}", high, low);
}

void ContentHash::add_block(const std::byte* block) {
  std::array<uint64_t, 4> words{};
  std::memcpy(words.data(), block, kBlock);
  for (size_t lane = 0; lane < 4; ++lane) lanes_[lane] = advanced(lanes_[lane], words[lane]);
}

void ContentHash::add(std::span<const std::byte> bytes) {
  total_ += bytes.size();
  if (rest_size_ > 0) {
    const size_t taken = std::min(kBlock - rest_size_, bytes.size());
    std::copy_n(bytes.begin(), taken, rest_.begin() + static_cast<std::ptrdiff_t>(rest_size_));
    rest_size_ += taken;
    bytes = bytes.subspan(taken);
    if (rest_size_ < kBlock) return;
    add_block(rest_.data());
    rest_size_ = 0;
  }
  for (; bytes.size() >= kBlock; bytes = bytes.subspan(kBlock)) add_block(bytes.data());
  std::copy(bytes.begin(), bytes.end(), rest_.begin());
  rest_size_ = bytes.size();
}

ContentDigest ContentHash::digest() const {
  ContentHash last = *this;
  // The total is mixed in below, so that the zeros that fill the last block are not mistaken for content.
  std::fill(last.rest_.begin() + static_cast<std::ptrdiff_t>(rest_size_), last.rest_.end(), std::byte{0});
  last.add_block(last.rest_.data());
  ContentDigest result{mix_bits(total_), mix_bits(~total_)};
  for (const uint64_t lane : last.lanes_) {
    result.high = mix_bits(result.high ^ lane);
    result.low = mix_bits(std::rotl(result.low, 23) + lane * kSecondFactor);
  }
  return result;
}

ContentDigest hash_file(const std::string& path) {
  struct Descriptor {
    int value;
    ~Descriptor() {
      if (value >= 0) ::close(value);
    }
  };
  const Descriptor file{open_regular_file(path)};
  ::posix_fadvise(file.value, 0, 0, POSIX_FADV_SEQUENTIAL);
  std::vector<std::byte> block(size_t{1} << 20);
  ContentHash hash;
  while (true) {
    const ssize_t count = ::read(file.value, block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw FileError(fmt::format("{}: cannot read: {}", path, std::strerror(errno)));
    if (count == 0) return hash.digest();
    hash.add(std::span(block).first(static_cast<size_t>(count)));
  }
}

}  // namespace ithaca
