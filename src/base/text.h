// Numbers and names as people read them: sizes, durations, counts, and the nearest known name to a misspelt one.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ithaca {

// 1536 -> "1.50 KiB". Exact below 1 KiB ("17 B").
std::string format_bytes(int64_t bytes);

// 1234567 -> "1,234,567".
std::string format_count(int64_t count);

// 12345678 -> "12.3M": three significant digits with k, M, G, T.
std::string format_short(double value);

// Seconds -> "3m 20s", "1h 02m", "12.5s".
std::string format_duration(double seconds);

// Text as a line of a manual page's groff source: backslashes, hyphens and what would begin a macro are escaped.
std::string escape_man_text(std::string_view text);

// Text as one word of a command line for a shell, in quotes where it needs them.
std::string shell_word(std::string_view text);

// The member of `known` with the smallest edit distance to `name`, or empty when nothing is near (more than a third of
// the letters differ).
std::string nearest_name(std::string_view name, std::span<const std::string> known);

enum class NumberFault : uint8_t { none, not_a_number, too_large };
// Numbers as recipes and command lines have them. Integers are decimal, with '_' between digits allowed as in
// 1_000_000, and have no zeros before them: 010 is 8 to some readers and 10 to others.
NumberFault read_integer(std::string_view text, int64_t& value);
// too_large: beyond what a double holds, tiny numbers too. Infinities and NaN are read.
NumberFault read_real(std::string_view text, double& value);

}  // namespace ithaca
