// parse_choice: one of a few named values, from its name. Thread-safety: pure.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <string>

#include "base/error.h"

namespace ithaca {

// The choice whose `name` is `text`. Throws ConfigurationError that names `option` and all choices.
template <typename Choice, typename Name>
Choice parse_choice(const char* option, const std::string& text, std::initializer_list<Choice> choices, Name name) {
  std::string known;
  for (const Choice choice : choices) {
    if (name(choice) == text) return choice;
    known += (known.empty() ? "" : ", ") + std::string(name(choice));
  }
  throw ConfigurationError(fmt::format("{}: '{}' is not one of {}", option, text, known));
}

}  // namespace ithaca
