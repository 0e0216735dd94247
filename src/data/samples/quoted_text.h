// Pieces of text as errors show them. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ithaca {

// In quotes, as a JSON string in ASCII has it ("\n", "\u00e9"); what is not UTF-8 as \ufffd.
std::string quoted_text(std::string_view text);
// The same of the bytes around `offset`, cut at the beginnings of characters: at most `bytes` on each side.
std::string quoted_text_around(std::string_view text, int64_t offset, int64_t bytes);

}  // namespace ithaca
