#include "base/utf8.h"

#include <algorithm>
#include <cstring>

namespace ithaca {

namespace {

// Length of the well-formed character at the beginning of `text`, or minus the length of its maximal subpart.
int64_t well_formed_length(std::string_view text) {
  const auto byte = [&](size_t index) {
    return index < text.size() ? static_cast<unsigned char>(text[index]) : static_cast<unsigned char>(0);
  };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return -1;
  // Bounds of the second byte (Unicode standard, table 3-7).
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  const int64_t length = utf8_length(static_cast<char>(lead));
  if (byte(1) < low || byte(1) > high) return -1;
  for (int64_t index = 2; index < length; ++index) {
    if ((byte(static_cast<size_t>(index)) & 0xC0U) != 0x80U) return -index;
  }
  return length;
}

}  // namespace

char32_t last_code_point(std::string_view text) {
  return first_code_point(text.substr(character_begin(text, text.size() - 1)));
}

int64_t code_point_count(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return !is_continuation(byte); });
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0U | code_point >> 6U);
    put(0x80U | (code_point & 0x3FU));
  } else if (code_point < 0x10000) {
    put(0xE0U | code_point >> 12U);
    put(0x80U | (code_point >> 6U & 0x3FU));
    put(0x80U | (code_point & 0x3FU));
  } else {
    put(0xF0U | code_point >> 18U);
    put(0x80U | (code_point >> 12U & 0x3FU));
    put(0x80U | (code_point >> 6U & 0x3FU));
    put(0x80U | (code_point & 0x3FU));
  }
}

int64_t skip_ascii(std::string_view text, int64_t begin) {
  auto index = static_cast<size_t>(begin);
  while (index + sizeof(uint64_t) <= text.size()) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, text.data() + index, sizeof(bytes));
    if ((bytes & 0x8080808080808080ULL) != 0) break;
    index += sizeof(uint64_t);
  }
  while (index < text.size() && static_cast<unsigned char>(text[index]) < 0x80) ++index;
  return static_cast<int64_t>(index);
}

int64_t valid_character_length(std::string_view text) {
  return std::max<int64_t>(well_formed_length(text), 0);
}

int64_t valid_utf8_prefix(std::string_view text) {
  int64_t index = skip_ascii(text, 0);
  while (index < static_cast<int64_t>(text.size())) {
    const int64_t length = well_formed_length(text.substr(static_cast<size_t>(index)));
    if (length < 0) return index;
    index = length == 1 ? skip_ascii(text, index) : index + length;
  }
  return index;
}

int64_t invalid_utf8_length(std::string_view text) {
  return -well_formed_length(text);
}

std::string valid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const auto valid = static_cast<size_t>(valid_utf8_prefix(text));
    result.append(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) break;
    result += kReplacementCharacter;
    text.remove_prefix(static_cast<size_t>(invalid_utf8_length(text)));
  }
  return result;
}

}  // namespace ithaca
