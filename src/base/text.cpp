#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <numeric>
#include <system_error>
#include <vector>

namespace ithaca {

std::string format_bytes(int64_t bytes) {
  constexpr std::array<const char*, 6> units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  // 1023.995 and above would print as "1024.00": move on to the next unit first.
  while (std::abs(value) >= (unit == 0 ? 1024.0 : 1023.995) && unit + 1 < units.size()) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, units[unit]);
}

std::string format_count(int64_t count) {
  std::string digits = fmt::format("{}", count);
  const size_t first = digits.front() == '-' ? 1 : 0;
  for (size_t position = digits.size(); position > first + 3;) {
    position -= 3;
    digits.insert(position, 1, ',');
  }
  return digits;
}

std::string format_short(double value) {
  constexpr std::array<const char*, 5> units = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  // 999.5 and above would print as "1000": move on to the next unit first.
  while (std::abs(value) >= 999.5 && unit + 1 < units.size()) {
    value /= 1000.0;
    ++unit;
  }
  const double magnitude = std::abs(value);
  // The digit before the point counts after rounding: 9.996 is "10.0".
  const int decimals = unit == 0 && value == std::floor(value) ? 0 : magnitude < 9.995 ? 2 : magnitude < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", value, decimals, units[unit]);
}

std::string format_duration(double seconds) {
  if (!(seconds >= 0.0 && seconds < 1e15)) return "?";  // NaN too
  if (seconds < 59.95) return fmt::format("{:.1f}s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{}h {:02}m", whole / 3600, whole % 3600 / 60);
  return fmt::format("{}d {:02}h", whole / 86400, whole % 86400 / 3600);
}

std::string escape_man_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out;
}

std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./,:+@%=";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos) return std::string(text);
  std::string word = "'";
  for (const char c : text) {
    if (c == '\'') {
      word += "'\\''";
    } else {
      word += c;
    }
  }
  return word + "'";
}

namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitution = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitution});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string> known) {
  std::string best;
  size_t best_distance = std::string::npos;
  for (const std::string& candidate : known) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  const size_t limit = std::max<size_t>(1, std::max(name.size(), best.size()) / 3);
  return best_distance <= limit ? best : std::string();
}

NumberFault read_integer(std::string_view text, int64_t& value) {
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_' && i > 0 && i + 1 < text.size() && std::isdigit(static_cast<unsigned char>(text[i - 1])) != 0) {
      continue;
    }
    digits += text[i];
  }
  if (!digits.empty() && digits.front() == '+') digits.erase(0, 1);
  const size_t first = !digits.empty() && digits.front() == '-' ? 1 : 0;
  // 010 is 8 to some YAML readers and 10 to others.
  if (digits.size() > first + 1 && digits[first] == '0') return NumberFault::not_a_number;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc::result_out_of_range) return NumberFault::too_large;
  if (error != std::errc() || end != digits.data() + digits.size()) return NumberFault::not_a_number;
  return NumberFault::none;
}

NumberFault read_real(std::string_view text, double& value) {
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) return NumberFault::too_large;
  if (error != std::errc() || end != text.data() + text.size()) return NumberFault::not_a_number;
  return NumberFault::none;
}

}  // namespace ithaca
