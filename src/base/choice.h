// parse_choice: one of a few named values, from its name. Thread-safety: pure.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <optional>
#include <string>

#include "base/error.h"

namespace ithaca {

template <typename Choice, typename Name>
std::optional<Choice> find_choice(const std::string& text, std::initializer_list<Choice> choices, Name name) {
  for (const Choice choice : choices) {
    if (name(choice) == text) return choice;
  }
  return std::nullopt;
}

template <typename Choice, typename Name>
[[noreturn]] void throw_unknown_choice(const char* option, const std::string& text, std::string known,
                                       std::initializer_list<Choice> choices, Name name) {
  for (const Choice choice : choices) known += (known.empty() ? "" : ", ") + std::string(name(choice));
  throw ConfigurationError(fmt::format("{}: '{}' is not one of {}", option, text, known));
}

// The choice whose `name` is `text`. Throws ConfigurationError that names `option` and all choices.
template <typename Choice, typename Name>
Choice parse_choice(const char* option, const std::string& text, std::initializer_list<Choice> choices, Name name) {
  const std::optional<Choice> found = find_choice(text, choices, name);
  if (!found) throw_unknown_choice(option, text, "", choices, name);
  return *found;
}

// The same, where "auto" is possible too: nothing.
template <typename Choice, typename Name>
std::optional<Choice> parse_choice_or_auto(const char* option, const std::string& text,
                                           std::initializer_list<Choice> choices, Name name) {
  if (text == "auto") return std::nullopt;
  const std::optional<Choice> found = find_choice(text, choices, name);
  if (!found) throw_unknown_choice(option, text, "auto", choices, name);
  return found;
}

}  // namespace ithaca
