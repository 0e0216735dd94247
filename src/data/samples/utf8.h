// UTF-8: where a text stops being it. Thread-safety: a pure function.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace ithaca {

// The offset of the first byte that no well-formed sequence begins at (Unicode 15, table
// 3-7: neither overlong forms, surrogates nor values above U+10FFFF); nothing when all of `text` is UTF-8.
std::optional<int64_t> find_invalid_utf8(std::string_view text);

}  // namespace ithaca
