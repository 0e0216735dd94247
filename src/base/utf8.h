// UTF-8: what is well-formed, the code points of a text, and the borders of its characters.
//
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ithaca {

// What stands for something that is no character.
constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// Bytes of the UTF-8 character whose first byte is `lead`; 1 for bytes that begin none.
inline int64_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  if (byte < 0xC0) return 1;
  if (byte < 0xE0) return 2;
  return byte < 0xF0 ? 3 : 4;
}

// Whether a character goes on with this byte.
inline bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

// The beginning of the character that byte `offset` is in; the size of the text and more stay what they are.
inline size_t character_begin(std::string_view text, size_t offset) {
  while (offset > 0 && offset < text.size() && is_continuation(text[offset])) --offset;
  return offset;
}

// The code point at the beginning of `text`, which is valid UTF-8 and not empty.
inline char32_t first_code_point(std::string_view text) {
  const auto byte = [&](size_t index) { return static_cast<char32_t>(static_cast<unsigned char>(text[index])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return lead;
  if (lead < 0xE0) return (lead & 0x1FU) << 6U | (byte(1) & 0x3FU);
  if (lead < 0xF0) return (lead & 0x0FU) << 12U | (byte(1) & 0x3FU) << 6U | (byte(2) & 0x3FU);
  return (lead & 0x07U) << 18U | (byte(1) & 0x3FU) << 12U | (byte(2) & 0x3FU) << 6U | (byte(3) & 0x3FU);
}

// The last code point of `text`, which is valid UTF-8 and not empty.
char32_t last_code_point(std::string_view text);

// How many code points `text` has, which is valid UTF-8.
int64_t code_point_count(std::string_view text);

void append_utf8(std::string& text, char32_t code_point);

// Bytes of the well-formed character at the beginning of `text`, which is not empty; 0 where there is none (Unicode 15,
// table 3-7: neither overlong forms, surrogates nor values above U+10FFFF).
int64_t valid_character_length(std::string_view text);
// The bytes at the beginning of `text` that are valid UTF-8 (all of them: the text is valid).
int64_t valid_utf8_prefix(std::string_view text);
// How many bytes at the beginning of `text`, where valid_utf8_prefix is 0, become one U+FFFD: the longest beginning of
// a well-formed character, or one byte (the Unicode standard's "maximal subpart", as Rust and Python replace).
int64_t invalid_utf8_length(std::string_view text);
// `text` with invalid bytes replaced by U+FFFD.
std::string valid_utf8(std::string_view text);

// The index of the first byte at or after `begin` that is not ASCII; the size when there is none.
int64_t skip_ascii(std::string_view text, int64_t begin);

}  // namespace ithaca
