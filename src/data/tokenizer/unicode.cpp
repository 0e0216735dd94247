#include "data/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "data/tokenizer/unicode_tables.h"

namespace ithaca::tokenizer_internal {

namespace {

utf8proc_category_t category(char32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

bool holds(const std::vector<CodePointRange>& ranges, char32_t code_point) {
  const auto range = std::lower_bound(ranges.begin(), ranges.end(), code_point,
                                      [](const CodePointRange& a, char32_t value) { return a.last < value; });
  return range != ranges.end() && range->first <= code_point;
}

bool has_mark_category(char32_t code_point) {
  const utf8proc_category_t kind = category(code_point);
  return kind >= UTF8PROC_CATEGORY_MN && kind <= UTF8PROC_CATEGORY_ME;
}

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
  size_t begin = text.size() - 1;
  while (begin > 0 && is_continuation(text[begin])) --begin;
  return first_code_point(text.substr(begin));
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
    append_utf8(result, 0xFFFD);
    text.remove_prefix(static_cast<size_t>(invalid_utf8_length(text)));
  }
  return result;
}

bool is_white_space(char32_t code_point) {
  if (code_point < 0x80) return code_point == ' ' || (code_point >= 0x09 && code_point <= 0x0D);
  switch (code_point) {
    case 0x85:
    case 0xA0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202F:
    case 0x205F:
    case 0x3000:
      return true;
    default:
      return code_point >= 0x2000 && code_point <= 0x200A;
  }
}

bool is_numeric(char32_t code_point) {
  if (code_point < 0x80) return code_point >= '0' && code_point <= '9';
  const utf8proc_category_t kind = category(code_point);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO ||
         (kind == UTF8PROC_CATEGORY_CN && holds(new_numbers(), code_point));
}

bool is_punctuation(char32_t code_point) {
  if (code_point < 0x80) {
    return (code_point >= 0x21 && code_point <= 0x2F) || (code_point >= 0x3A && code_point <= 0x40) ||
           (code_point >= 0x5B && code_point <= 0x60) || (code_point >= 0x7B && code_point <= 0x7E);
  }
  const utf8proc_category_t kind = category(code_point);
  if (code_point == 0x166D || code_point == 0x111C9) return true;  // punctuation in Unicode 8, not later
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO && !holds(young_to_punctuation(), code_point);
}

bool is_mark(char32_t code_point) {
  if (code_point == 0x1CF2 || code_point == 0x1CF3) return true;  // marks in Unicode 9, not later
  return has_mark_category(code_point) && !holds(young_to_accents(), code_point);
}

bool is_word_character(char32_t code_point) {
  if (code_point < 0x80) {
    return (code_point >= '0' && code_point <= '9') || (code_point >= 'A' && code_point <= 'Z') ||
           (code_point >= 'a' && code_point <= 'z') || code_point == '_';
  }
  // Alphabetic is L, Nl and Other_Alphabetic; of these only the circled letters are neither L, M nor Nl.
  if ((code_point >= 0x24B6 && code_point <= 0x24E9) || (code_point >= 0x1F130 && code_point <= 0x1F149) ||
      (code_point >= 0x1F150 && code_point <= 0x1F169) || (code_point >= 0x1F170 && code_point <= 0x1F189) ||
      code_point == 0x200C || code_point == 0x200D) {
    return true;
  }
  const utf8proc_category_t kind = category(code_point);
  return (kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO) || has_mark_category(code_point) ||
         kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_PC ||
         (kind == UTF8PROC_CATEGORY_CN && holds(new_word_characters(), code_point));
}

char32_t simple_lower_case(char32_t code_point) {
  if (code_point < 0x80) return code_point >= 'A' && code_point <= 'Z' ? code_point + 32 : code_point;
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point)));
}

}  // namespace ithaca::tokenizer_internal
