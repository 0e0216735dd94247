#include "data/tokenizer/byte_level.h"

#include "base/utf8.h"

namespace ithaca::tokenizer_internal {

namespace {

constexpr char32_t kFirstMoved = 0x100;
constexpr size_t kMoved = 68;

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<uint8_t, kMoved> moved{};  // the byte of U+0100 + index

  Alphabet() {
    size_t count = 0;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      if (!printable) moved[count] = static_cast<uint8_t>(byte);
      append_utf8(characters[byte], printable ? byte : kFirstMoved + static_cast<char32_t>(count++));
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet result;
  return result;
}

}  // namespace

const std::array<std::string, 256>& byte_characters() {
  return alphabet().characters;
}

std::optional<uint8_t> byte_of_character(char32_t code_point) {
  if (code_point >= kFirstMoved) {
    if (code_point >= kFirstMoved + kMoved) return std::nullopt;
    return alphabet().moved[code_point - kFirstMoved];
  }
  std::string character;
  append_utf8(character, code_point);
  if (alphabet().characters[code_point] != character) return std::nullopt;
  return static_cast<uint8_t>(code_point);
}

}  // namespace ithaca::tokenizer_internal
