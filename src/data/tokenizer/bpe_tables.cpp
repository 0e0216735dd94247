#include "data/tokenizer/bpe_tables.h"

#include <algorithm>
#include <cstring>

namespace ithaca::tokenizer_internal {

namespace {

size_t power_of_two(int64_t at_least) {
  size_t size = 16;
  while (static_cast<int64_t>(size) < at_least) size *= 2;
  return size;
}

}  // namespace

uint64_t hash_bytes(std::string_view bytes) {
  constexpr uint64_t kFactor = 0x9FB21C651E98DF25ULL;
  uint64_t hash = bytes.size() * 0x9E3779B97F4A7C15ULL;
  const auto mix = [&](uint64_t word) {
    hash ^= word;
    hash *= kFactor;
    hash ^= hash >> 32U;
  };
  while (bytes.size() >= sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof(word));
    mix(word);
    bytes.remove_prefix(sizeof(word));
  }
  if (!bytes.empty()) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), bytes.size());
    mix(word);
  }
  hash *= kFactor;
  return hash ^ hash >> 29U;
}

void TokenVocabulary::grow() {
  slots_.assign(power_of_two(static_cast<int64_t>(slots_.size()) * 2), -1);
  for (size_t index = 0; index < entries_.size(); ++index) {
    size_t slot = entries_[index].hash & (slots_.size() - 1);
    while (slots_[slot] >= 0) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = static_cast<int32_t>(index);
  }
}

void TokenVocabulary::add(std::string_view spelling, int32_t id) {
  if (slots_.size() < entries_.size() * 2 + 2) grow();
  const uint64_t hash = hash_bytes(spelling);
  const size_t mask = slots_.size() - 1;
  size_t slot = hash & mask;
  while (slots_[slot] >= 0) {
    const Entry& entry = entries_[static_cast<size_t>(slots_[slot])];
    if (entry.hash == hash && text_of(entry) == spelling) break;
    slot = (slot + 1) & mask;
  }
  if (slots_[slot] < 0) {
    slots_[slot] = static_cast<int32_t>(entries_.size());
    entries_.push_back({static_cast<int64_t>(text_.size()), static_cast<int32_t>(spelling.size()), id, hash});
    text_ += spelling;
  } else {
    Entry& entry = entries_[static_cast<size_t>(slots_[slot])];
    if (by_id_[static_cast<size_t>(entry.id)] == slots_[slot]) by_id_[static_cast<size_t>(entry.id)] = -1;
    entry.id = id;
  }
  if (id >= end()) by_id_.resize(static_cast<size_t>(id) + 1, -1);
  by_id_[static_cast<size_t>(id)] = slots_[slot];
}

std::optional<int32_t> TokenVocabulary::find(std::string_view spelling) const {
  if (slots_.empty()) return std::nullopt;
  const uint64_t hash = hash_bytes(spelling);
  const size_t mask = slots_.size() - 1;
  for (size_t slot = hash & mask; slots_[slot] >= 0; slot = (slot + 1) & mask) {
    const Entry& entry = entries_[static_cast<size_t>(slots_[slot])];
    if (entry.hash == hash && text_of(entry) == spelling) return entry.id;
  }
  return std::nullopt;
}

std::string_view TokenVocabulary::spelling(int64_t id) const {
  return has(id) ? text_of(entries_[static_cast<size_t>(by_id_[static_cast<size_t>(id)])]) : std::string_view();
}

void MergeTable::reserve(int64_t count) {
  slots_.assign(power_of_two(count * 2), Slot());
  mask_ = slots_.size() - 1;
}

void MergeTable::set(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = key_of(left, right);
  size_t slot = place_of(key);
  while (slots_[slot].merge.rank >= 0 && slots_[slot].key != key) slot = (slot + 1) & mask_;
  slots_[slot] = {key, merge};
}

void PairSet::reserve(int64_t count) {
  keys_.assign(power_of_two(count * 2), kFree);
  mask_ = keys_.size() - 1;
}

void PairSet::insert(char32_t left, char32_t right) {
  const uint64_t key = key_of(left, right);
  size_t slot = place_of(key);
  while (keys_[slot] != kFree && keys_[slot] != key) slot = (slot + 1) & mask_;
  keys_[slot] = key;
}

}  // namespace ithaca::tokenizer_internal
