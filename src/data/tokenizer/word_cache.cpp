#include "data/tokenizer/word_cache.h"

namespace ithaca::tokenizer_internal {

void WordCache::insert(std::string_view word, uint64_t hash, std::span<const TokenOfWord> tokens) {
  if (slots_.empty() || count_ == kMostWords) {
    slots_.assign(kSlots, Slot());
    text_.clear();
    tokens_.clear();
    count_ = 0;
  }
  size_t slot = hash & kMask;
  while (slots_[slot].count > 0) slot = (slot + 1) & kMask;
  slots_[slot] = {hash, static_cast<uint32_t>(text_.size()), static_cast<uint32_t>(tokens_.size()),
                  static_cast<uint16_t>(word.size()), static_cast<uint16_t>(tokens.size())};
  text_.append(word);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  ++count_;
}

}  // namespace ithaca::tokenizer_internal
