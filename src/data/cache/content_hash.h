// ContentHash: 128 bits that change when any byte changes. For telling contents apart and finding damage, not against
// an adversary.
//
// Four 64-bit lanes over blocks of 32 bytes, each lane a bijection of its word, mixed together at the end; the result
// depends on the bytes alone, not on how they are cut into pieces. Thread-safety: values; one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ithaca {

struct ContentDigest {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const ContentDigest&) const = default;
  // 32 hexadecimal digits.
  std::string text() const;
};

class ContentHash {
 public:
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text) { add(std::as_bytes(std::span(text.data(), text.size()))); }
  // A number, or a text with its length before it, so that neighbours cannot run into each other.
  void add_number(uint64_t value) { add(std::as_bytes(std::span(&value, 1))); }
  void add_text(std::string_view text) {
    add_number(text.size());
    add(text);
  }
  ContentDigest digest() const;

 private:
  static constexpr size_t kBlock = 32;
  void add_block(const std::byte* block);

  std::array<uint64_t, 4> lanes_{0x60EA27EEADC0B5D6ull, 0xC2B2AE3D27D4EB4Full, 0x165667B19E3779F9ull,
                                 0x9E3779B185EBCA87ull};
  std::array<std::byte, kBlock> rest_{};  // of the last, unfinished block
  size_t rest_size_ = 0;
  uint64_t total_ = 0;
};

// Of a whole file as it lies on disk, in bounded memory. Throws FileError.
ContentDigest hash_file(const std::string& path);

}  // namespace ithaca
