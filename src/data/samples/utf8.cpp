#include "data/samples/utf8.h"

#include <cstring>

namespace ithaca {

namespace {

// How many bytes the sequence has that `lead` begins, and what its second byte may be; size 0: none begins so.
struct Sequence {
  size_t size;
  unsigned char second_lowest;
  unsigned char second_highest;
};

Sequence sequence_of(unsigned char lead) {
  if (lead >= 0xC2 && lead <= 0xDF) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead >= 0xE1 && lead <= 0xEF) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead >= 0xF1 && lead <= 0xF3) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

std::optional<int64_t> find_invalid_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    // Eight ASCII characters at once.
    uint64_t word = 0;
    if (text.size() - i >= sizeof(word)) {
      std::memcpy(&word, text.data() + i, sizeof(word));
      if ((word & 0x8080808080808080ull) == 0) {
        i += sizeof(word);
        continue;
      }
    }
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const Sequence sequence = sequence_of(lead);
    if (sequence.size == 0) return static_cast<int64_t>(i);
    for (size_t k = 1; k < sequence.size; ++k) {
      const unsigned char lowest = k == 1 ? sequence.second_lowest : 0x80;
      const unsigned char highest = k == 1 ? sequence.second_highest : 0xBF;
      const bool continues = i + k < text.size() && static_cast<unsigned char>(text[i + k]) >= lowest &&
                             static_cast<unsigned char>(text[i + k]) <= highest;
      if (!continues) return static_cast<int64_t>(i);
    }
    i += sequence.size;
  }
  return std::nullopt;
}

}  // namespace ithaca
