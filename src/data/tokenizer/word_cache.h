// WordCache: what short pieces of text became, in bounded memory.
//
// Thread-safety: one thread at a time; every thread that encodes has its own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/bpe_tables.h"

namespace ithaca::tokenizer_internal {

// A token and the bytes of its word that it stands for.
struct TokenOfWord {
  int32_t token = 0;
  int32_t begin = 0;
  int32_t end = 0;
};

class WordCache {
 public:
  // Longer words are not kept.
  static constexpr size_t kLongestWord = 48;

  // The tokens of a word, valid until the next insert(); empty when it is not there.
  std::span<const TokenOfWord> find(std::string_view word, uint64_t hash) const {
    if (slots_.empty()) return {};
    for (size_t slot = hash & kMask; slots_[slot].count > 0; slot = (slot + 1) & kMask) {
      const Slot& candidate = slots_[slot];
      if (candidate.hash == hash && word == std::string_view(text_).substr(candidate.text, candidate.length)) {
        return {tokens_.data() + candidate.tokens, candidate.count};
      }
    }
    return {};
  }
  // `tokens` is not empty, the word is not there and not longer than kLongestWord.
  void insert(std::string_view word, uint64_t hash, std::span<const TokenOfWord> tokens);

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t text = 0;
    uint32_t tokens = 0;
    uint16_t length = 0;
    uint16_t count = 0;  // 0: free
  };
  static constexpr size_t kSlots = size_t{1} << 17U;
  static constexpr size_t kMask = kSlots - 1;
  // When so many words are there, all are forgotten: a few MiB.
  static constexpr size_t kMostWords = kSlots / 2;

  std::vector<Slot> slots_;
  std::string text_;
  std::vector<TokenOfWord> tokens_;
  size_t count_ = 0;
};

}  // namespace ithaca::tokenizer_internal
