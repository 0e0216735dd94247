#include "data/chat/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "base/utf8.h"

namespace ithaca::jinja {
namespace {

struct SpecialCase {
  char32_t code_point;
  const char* text;
};
struct CodePointRange {
  char32_t first;
  char32_t last;
};
#include "data/chat/jinja/case_tables.inc"

template <size_t N>
const char* special(const SpecialCase (&table)[N], char32_t code_point) {
  const auto* found =
      std::lower_bound(std::begin(table), std::end(table), code_point,
                       [](const SpecialCase& entry, char32_t value) { return entry.code_point < value; });
  return found != std::end(table) && found->code_point == code_point ? found->text : nullptr;
}

template <size_t N>
bool within(const CodePointRange (&table)[N], char32_t code_point) {
  const auto* found = std::lower_bound(std::begin(table), std::end(table), code_point,
                                       [](const CodePointRange& range, char32_t value) { return range.last < value; });
  return found != std::end(table) && found->first <= code_point;
}

utf8proc_category_t category(char32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

bool is_cased(char32_t code_point) {
  return is_in(code_point, CharacterClass::kUpper) || is_in(code_point, CharacterClass::kLower) ||
         is_in(code_point, CharacterClass::kTitle);
}

// Unicode's Case_Ignorable: marks, modifiers, format characters, and what stands inside of words.
bool is_case_ignorable(char32_t code_point) {
  switch (category(code_point)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default: {
      constexpr std::u32string_view kInsideWords =
          U"'.:\u00b7\u0387\u055f\u05f4\u2018\u2019\u2024\u2027\ufe13\ufe52\ufe55\uff07\uff0e\uff1a";
      return kInsideWords.find(code_point) != std::u32string_view::npos;
    }
  }
}

// A capital sigma becomes the final form behind a letter and before no letter.
bool is_final_sigma(std::u32string_view text, size_t index) {
  size_t before = index;
  while (before > 0 && is_case_ignorable(text[before - 1])) --before;
  if (before == 0 || !is_cased(text[before - 1])) return false;
  size_t after = index + 1;
  while (after < text.size() && is_case_ignorable(text[after])) ++after;
  return after == text.size() || !is_cased(text[after]);
}

void append_lower(std::string& result, std::u32string_view text, size_t index) {
  const char32_t code_point = text[index];
  if (code_point == 0x130) {
    result += "i\xcc\x87";
  } else if (code_point == 0x3a3) {
    append_utf8(result, is_final_sigma(text, index) ? 0x3c2 : 0x3c3);
  } else {
    append_utf8(result, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point))));
  }
}

void append_upper(std::string& result, char32_t code_point) {
  if (const char* text = special(kSpecialUpper, code_point)) {
    result += text;
  } else {
    append_utf8(result, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code_point))));
  }
}

void append_title(std::string& result, char32_t code_point) {
  if (const char* text = special(kSpecialTitle, code_point)) {
    result += text;
  } else {
    append_utf8(result, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code_point))));
  }
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

char ascii_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
char ascii_upper(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}

template <typename Stop>
std::string_view stripped_until(std::string_view text, bool left, bool right, const Stop& stop) {
  size_t begin = 0;
  while (left && begin < text.size()) {
    size_t next = begin;
    if (stop(next_code_point(text, next))) break;
    begin = next;
  }
  size_t end = text.size();
  while (right && end > begin) {
    const size_t start = character_begin(text, end - 1);
    if (stop(first_code_point(text.substr(start)))) break;
    end = start;
  }
  return text.substr(begin, end - begin);
}

}  // namespace

std::string valid_utf8(std::string_view bytes) {
  std::string result;
  result.reserve(bytes.size());
  while (true) {
    const auto valid = static_cast<size_t>(valid_utf8_prefix(bytes));
    result += bytes.substr(0, valid);
    if (valid == bytes.size()) return result;
    result += kReplacementCharacter;
    bytes.remove_prefix(valid + 1);
  }
}

char32_t next_code_point(std::string_view text, size_t& position) {
  const char32_t code_point = first_code_point(text.substr(position));
  position += static_cast<size_t>(utf8_length(text[position]));
  return code_point;
}

std::u32string code_points(std::string_view text) {
  std::u32string result;
  result.reserve(text.size());
  for (size_t position = 0; position < text.size();) result += next_code_point(text, position);
  return result;
}

std::string to_utf8(std::u32string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char32_t code_point : text) append_utf8(result, code_point);
  return result;
}

size_t byte_offset(std::string_view text, int64_t index) {
  size_t position = 0;
  for (; position < text.size(); ++position) {
    if (!is_continuation(text[position]) && index-- == 0) break;
  }
  return position;
}

bool is_space(char32_t code_point) {
  if (code_point < 0x80) return (code_point >= 9 && code_point <= 13) || (code_point >= 0x1c && code_point <= 0x20);
  return code_point == 0x85 || code_point == 0xa0 || code_point == 0x1680 ||
         (code_point >= 0x2000 && code_point <= 0x200a) || code_point == 0x2028 || code_point == 0x2029 ||
         code_point == 0x202f || code_point == 0x205f || code_point == 0x3000;
}

bool is_line_break(char32_t code_point) {
  return (code_point >= 10 && code_point <= 13) || (code_point >= 0x1c && code_point <= 0x1e) || code_point == 0x85 ||
         code_point == 0x2028 || code_point == 0x2029;
}

bool is_word(char32_t code_point) {
  if (code_point == '_') return true;
  return is_in(code_point, CharacterClass::kAlphabetic) || is_in(code_point, CharacterClass::kNumeric);
}

bool is_printable(char32_t code_point) {
  if (code_point < 0x80) return code_point >= 0x20 && code_point < 0x7f;
  switch (category(code_point)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_in(char32_t code_point, CharacterClass character_class) {
  const auto kind = category(code_point);
  switch (character_class) {
    case CharacterClass::kAlphabetic:
      return kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LL || kind == UTF8PROC_CATEGORY_LT ||
             kind == UTF8PROC_CATEGORY_LM || kind == UTF8PROC_CATEGORY_LO;
    case CharacterClass::kDecimal:
      return kind == UTF8PROC_CATEGORY_ND;
    case CharacterClass::kDigit:
      return kind == UTF8PROC_CATEGORY_ND || within(kDigitsBeyondDecimal, code_point);
    case CharacterClass::kNumeric:
      return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO ||
             within(kNumericLetters, code_point);
    case CharacterClass::kUpper:
      return kind == UTF8PROC_CATEGORY_LU || within(kUpperBeyondLetters, code_point);
    case CharacterClass::kLower:
      return kind == UTF8PROC_CATEGORY_LL || within(kLowerBeyondLetters, code_point);
    case CharacterClass::kTitle:
      return kind == UTF8PROC_CATEGORY_LT;
  }
  return false;
}

std::string upper_case(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  if (is_ascii(text)) {
    std::transform(text.begin(), text.end(), std::back_inserter(result), ascii_upper);
    return result;
  }
  for (size_t position = 0; position < text.size();) append_upper(result, next_code_point(text, position));
  return result;
}

std::string lower_case(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  if (is_ascii(text)) {
    std::transform(text.begin(), text.end(), std::back_inserter(result), ascii_lower);
    return result;
  }
  const std::u32string wide = code_points(text);
  for (size_t i = 0; i < wide.size(); ++i) append_lower(result, wide, i);
  return result;
}

std::string fold_case(std::string_view text) {
  std::string result;
  for (size_t position = 0; position < text.size();) {
    const char32_t code_point = next_code_point(text, position);
    utf8proc_int32_t folded[8];
    int boundary = 0;
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), folded, 8, UTF8PROC_CASEFOLD, &boundary);
    if (count <= 0 || count > 8) append_utf8(result, code_point);
    for (utf8proc_ssize_t i = 0; i < std::min<utf8proc_ssize_t>(count, 8); ++i) {
      append_utf8(result, static_cast<char32_t>(folded[i]));
    }
  }
  return result;
}

std::string title_case(std::string_view text) {
  std::string result;
  const std::u32string wide = code_points(text);
  bool inside_word = false;
  for (size_t i = 0; i < wide.size(); ++i) {
    if (inside_word) {
      append_lower(result, wide, i);
    } else {
      append_title(result, wide[i]);
    }
    inside_word = is_cased(wide[i]);
  }
  return result;
}

std::string capitalized(std::string_view text) {
  std::string result;
  const std::u32string wide = code_points(text);
  for (size_t i = 0; i < wide.size(); ++i) {
    if (i == 0) {
      append_title(result, wide[i]);
    } else {
      append_lower(result, wide, i);
    }
  }
  return result;
}

std::string swapped_case(std::string_view text) {
  std::string result;
  const std::u32string wide = code_points(text);
  for (size_t i = 0; i < wide.size(); ++i) {
    if (is_in(wide[i], CharacterClass::kUpper)) {
      append_lower(result, wide, i);
    } else if (is_in(wide[i], CharacterClass::kLower)) {
      append_upper(result, wide[i]);
    } else {
      append_utf8(result, wide[i]);
    }
  }
  return result;
}

std::string_view stripped(std::string_view text, bool left, bool right) {
  return stripped_until(text, left, right, [](char32_t code_point) { return !is_space(code_point); });
}

std::string_view stripped(std::string_view text, bool left, bool right, std::string_view characters) {
  const std::u32string wide = code_points(characters);
  return stripped_until(text, left, right,
                        [&](char32_t code_point) { return wide.find(code_point) == std::u32string::npos; });
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  size_t position = 0;
  while (position < text.size()) {
    const size_t break_begin = position;
    const char32_t code_point = next_code_point(text, position);
    if (!is_line_break(code_point)) continue;
    if (code_point == '\r' && position < text.size() && text[position] == '\n') ++position;
    lines.push_back(text.substr(begin, (keep_ends ? position : break_begin) - begin));
    begin = position;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

}  // namespace ithaca::jinja
