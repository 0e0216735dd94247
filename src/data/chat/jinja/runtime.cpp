#include "data/chat/jinja/runtime.h"

#include <algorithm>
#include <limits>

#include "data/chat/jinja/format.h"

namespace ithaca::jinja {

Parameters::Parameters(const std::string& function, const Arguments& arguments, const std::vector<std::string>& names,
                       size_t required)
    : function_(function), names_(names), values_(names.size()) {
  if (arguments.positional.size() > names.size()) {
    throw Failure(function + "() takes at most " + std::to_string(names.size()) + " arguments, " +
                  std::to_string(arguments.positional.size()) + " are given");
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto place = std::find(names.begin(), names.end(), name);
    if (place == names.end()) throw Failure(function + "() got an unexpected keyword argument '" + name + "'");
    auto& held = values_[static_cast<size_t>(place - names.begin())];
    if (held) throw Failure(function + "() got multiple values for argument '" + name + "'");
    held = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!values_[i]) throw Failure(function + "() misses the argument '" + names[i] + "'");
  }
}

bool Parameters::truth(size_t index, bool otherwise) const {
  return values_[index] ? jinja::truth(*values_[index]) : otherwise;
}

int64_t Parameters::integer(size_t index, int64_t otherwise) const {
  if (!values_[index]) return otherwise;
  return small_integer(*values_[index], function_ + "(): the argument '" + names_[index] + "'");
}

std::string Parameters::text(size_t index, const std::string& otherwise) const {
  if (!values_[index]) return otherwise;
  require_defined(*values_[index]);
  if (!values_[index]->is_string()) {
    throw Failure(function_ + "(): the argument '" + names_[index] + "' must be str, not " +
                  type_name(*values_[index]));
  }
  return values_[index]->text();
}

int64_t small_integer(const Value& value, const std::string& name) {
  require_defined(value);
  const auto integer = value.integer();
  if (!integer) throw Failure(name + " must be int, not " + type_name(value));
  constexpr Integer kMost = std::numeric_limits<int64_t>::max() / 4;
  if (*integer > kMost || *integer < -kMost) throw Failure(name + " is too large: " + integer_text(*integer));
  return static_cast<int64_t>(*integer);
}

}  // namespace ithaca::jinja
