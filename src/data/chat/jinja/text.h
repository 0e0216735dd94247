// Unicode text as Python's str sees it: code points of valid UTF-8, whitespace, line breaks, upper and lower case.
//
// Thread-safety: pure functions. All of them require valid UTF-8 (valid_utf8 makes it so) and give valid UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ithaca::jinja {

// The same text with every byte that is not part of valid UTF-8 replaced by U+FFFD.
std::string valid_utf8(std::string_view bytes);

// The code point that starts at byte `position` of the text, which moves behind it.
char32_t next_code_point(std::string_view text, size_t& position);
std::u32string code_points(std::string_view text);
std::string to_utf8(std::u32string_view text);
// Where code point `index` starts; text.size() when there are fewer.
size_t byte_offset(std::string_view text, int64_t index);

// str.isspace of one character: what strip(), split() and \s take.
bool is_space(char32_t code_point);
// What splitlines() splits at.
bool is_line_break(char32_t code_point);
// \w: letters, digits, marks of identifiers, underscore.
bool is_word(char32_t code_point);
// What repr() writes as it is.
bool is_printable(char32_t code_point);

// The Unicode classes that the methods of str ask for.
enum class CharacterClass { kAlphabetic, kDecimal, kDigit, kNumeric, kUpper, kLower, kTitle };
bool is_in(char32_t code_point, CharacterClass character_class);

// With the mappings to several letters (U+00DF becomes "SS"), and the final sigma.
std::string upper_case(std::string_view text);
std::string lower_case(std::string_view text);
std::string fold_case(std::string_view text);
std::string title_case(std::string_view text);   // str.title
std::string capitalized(std::string_view text);  // str.capitalize
std::string swapped_case(std::string_view text);

// strip() of one or both sides, of whitespace or of the characters of `characters`.
std::string_view stripped(std::string_view text, bool left, bool right);
std::string_view stripped(std::string_view text, bool left, bool right, std::string_view characters);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

}  // namespace ithaca::jinja
