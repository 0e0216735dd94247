// The alphabet of byte-level tokenizers: every byte as one printable character, as GPT-2 introduced it.
//
// Bytes 0x21-0x7E, 0xA1-0xAC and 0xAE-0xFF stand for themselves (as Latin-1), the other 68 are, in their order, U+0100
// and up. Thread-safety: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace ithaca::tokenizer_internal {

// The character of each byte, as UTF-8.
const std::array<std::string, 256>& byte_characters();
// The byte of a character, if it is one of the alphabet.
std::optional<uint8_t> byte_of_character(char32_t code_point);

}  // namespace ithaca::tokenizer_internal
