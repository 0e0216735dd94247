// Regular expressions in Oniguruma's Ruby syntax, as tokenizer.json files hold them, rewritten for PCRE2.
//
// The two differ in more than one would think: what \s, \w, \h and \p{Han} stand for, sets within sets, ^ and $, the
// letters of inline options, possessive intervals. What cannot be rewritten exactly is an error. The result is meant
// for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE with LF as newline. Thread-safety: pure function.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ithaca::tokenizer_internal {

// An expression as errors show it, in quotes: of a long one about 80 bytes around `place`, cut between characters.
std::string brief_expression(std::string_view expression, size_t place);

// Throws InputError that begins with `where`.
std::string pcre_from_oniguruma(std::string_view expression, const std::string& where);

}  // namespace ithaca::tokenizer_internal
