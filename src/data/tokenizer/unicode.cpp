#include "data/tokenizer/unicode.h"

#include <utf8proc.h>

#include <vector>

#include "data/tokenizer/unicode_tables.h"

namespace ithaca::tokenizer_internal {

namespace {

utf8proc_category_t category(char32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

bool holds(const std::vector<CodePointRange>& ranges, char32_t code_point) {
  return find_range(ranges, code_point) != nullptr;
}

bool has_mark_category(char32_t code_point) {
  const utf8proc_category_t kind = category(code_point);
  return kind >= UTF8PROC_CATEGORY_MN && kind <= UTF8PROC_CATEGORY_ME;
}

}  // namespace

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
