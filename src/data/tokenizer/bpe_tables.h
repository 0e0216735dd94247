// The tables of byte pair encoding: spellings of tokens, ranks of merges, pairs of characters.
//
// Thread-safety: const functions may be called from several threads at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ithaca::tokenizer_internal {

// A hash of short byte strings that does not depend on the machine.
uint64_t hash_bytes(std::string_view bytes);

// Spellings to ids and back.
class TokenVocabulary {
 public:
  // Later ids replace earlier ones of the same spelling, and later spellings earlier ones of the same id. Ids are not
  // negative.
  void add(std::string_view spelling, int32_t id);
  std::optional<int32_t> find(std::string_view spelling) const;
  // Empty, and has() false, where there is none.
  std::string_view spelling(int64_t id) const;
  bool has(int64_t id) const { return id >= 0 && id < end() && by_id_[static_cast<size_t>(id)] >= 0; }
  // One more than the largest id.
  int64_t end() const { return static_cast<int64_t>(by_id_.size()); }
  // How many different spellings.
  int64_t count() const { return static_cast<int64_t>(entries_.size()); }

 private:
  struct Entry {
    int64_t begin = 0;
    int32_t length = 0;
    int32_t id = 0;
    uint64_t hash = 0;
  };
  std::string_view text_of(const Entry& entry) const {
    return std::string_view(text_).substr(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.length));
  }
  void grow();

  std::string text_;
  std::vector<Entry> entries_;
  std::vector<int32_t> slots_;  // indices of entries, -1 where free; a power of two of them
  std::vector<int32_t> by_id_;  // index of the entry, -1 for none
};

// Pairs of tokens to the rank of their merge and the token that it makes.
class MergeTable {
 public:
  struct Merge {
    int32_t rank = -1;  // -1: there is none
    int32_t token = 0;
  };
  void reserve(int64_t count);
  // A later merge of the same pair replaces an earlier one.
  void set(int32_t left, int32_t right, Merge merge);
  Merge find(int32_t left, int32_t right) const {
    if (slots_.empty()) return {};
    const uint64_t key = key_of(left, right);
    for (size_t slot = place_of(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].merge;
      if (slots_[slot].merge.rank < 0) return {};
    }
  }

 private:
  struct Slot {
    uint64_t key = ~uint64_t{0};
    Merge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32U | static_cast<uint32_t>(right);
  }
  size_t place_of(uint64_t key) const {
    key *= 0x9E3779B97F4A7C15ULL;
    return static_cast<size_t>((key ^ key >> 32U) * 0xD6E8FEB86659FD93ULL >> 20U) & mask_;
  }

  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

// A set of pairs of code points.
class PairSet {
 public:
  void reserve(int64_t count);
  void insert(char32_t left, char32_t right);
  bool contains(char32_t left, char32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t slot = place_of(key);; slot = (slot + 1) & mask_) {
      if (keys_[slot] == key) return true;
      if (keys_[slot] == kFree) return false;
    }
  }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  static uint64_t key_of(char32_t left, char32_t right) {
    return static_cast<uint64_t>(left) << 32U | static_cast<uint64_t>(right);
  }
  size_t place_of(uint64_t key) const {
    key *= 0x9E3779B97F4A7C15ULL;
    return static_cast<size_t>(key >> 24U ^ key >> 44U) & mask_;
  }

  std::vector<uint64_t> keys_ = {kFree};
  size_t mask_ = 0;
};

}  // namespace ithaca::tokenizer_internal
