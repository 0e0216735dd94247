// The properties of code points that tokenizers ask for, with the meanings that Hugging Face's library (Rust's char and
// regex) gives them.
//
// Thread-safety: pure functions.
#pragma once

namespace ithaca::tokenizer_internal {

bool is_white_space(char32_t code_point);         // the property White_Space
bool is_numeric(char32_t code_point);             // categories Nd, Nl, No
bool is_punctuation(char32_t code_point);         // ASCII punctuation and the categories P*, as of Unicode 8
bool is_mark(char32_t code_point);                // categories M*, as of Unicode 9
bool is_word_character(char32_t code_point);      // \w of Rust's regex
char32_t simple_lower_case(char32_t code_point);  // U+0130 excepted, the whole mapping

}  // namespace ithaca::tokenizer_internal
