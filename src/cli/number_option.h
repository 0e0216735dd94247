// Numbers of command lines, read as those of recipes are. CLI11 itself takes 010 for 8 and the largest integer for
// whatever is larger. Thread-safety: one thread.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/text.h"

namespace ithaca {

template <typename Value>
struct NumberOf {
  using Type = Value;
};
template <typename Value>
struct NumberOf<std::optional<Value>> {
  using Type = Value;
};
template <typename Value>
struct NumberOf<std::vector<Value>> {
  using Type = Value;
};

// What is wrong with `text` as a Number, or nothing; then `text` is as CLI11 reads it.
template <typename Number>
std::string read_number(std::string& text) {
  if (text.empty()) return {};  // refused with all other empty values, whatever they are of
  if constexpr (std::is_integral_v<Number>) {
    int64_t value = 0;
    const NumberFault fault = read_integer(text, value);
    if (fault == NumberFault::not_a_number) return fmt::format("\"{}\" is not a whole number", text);
    if (fault == NumberFault::too_large || value > int64_t{std::numeric_limits<Number>::max()} ||
        value < int64_t{std::numeric_limits<Number>::min()}) {
      return fmt::format("{} is out of range: a whole number from {} to {} is needed", text,
                         std::numeric_limits<Number>::min(), std::numeric_limits<Number>::max());
    }
    text = fmt::format("{}", value);
  } else {
    double value = 0.0;
    const NumberFault fault = read_real(text, value);
    if (fault == NumberFault::not_a_number) return fmt::format("\"{}\" is not a number", text);
    if (fault == NumberFault::too_large || !std::isfinite(value)) {
      return fmt::format("{} is not a finite number that a double can hold", text);
    }
    text = fmt::format("{}", value);
  }
  return {};
}

// An option that holds an integer or a double, or several, or perhaps one.
template <typename Value>
CLI::Option* add_number(CLI::App* command, const std::string& name, Value& value, const std::string& help) {
  return command->add_option(name, value, help)
      ->transform(
          CLI::Validator([](std::string& text) { return read_number<typename NumberOf<Value>::Type>(text); }, ""));
}

}  // namespace ithaca
