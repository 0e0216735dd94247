// Which options were given, and where. Defaults are not given. Thread-safety: values.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/error.h"

namespace ithaca {

class GivenOptions {
 public:
  // `full_name` is "section.name"; `where` is "run.yaml:3:5" or "--set parallel.sp_size=4".
  void add(const std::string& full_name, const std::string& where) { where_[full_name] = where; }
  bool contains(const std::string& full_name) const { return where_.contains(full_name); }
  // Where it was given; empty when it was not.
  std::string where(const std::string& full_name) const {
    const auto found = where_.find(full_name);
    return found == where_.end() ? std::string() : found->second;
  }

  // Texts about an option begin with its full name: `text` behind the place where that was given, or the first of the
  // options `or_else` that was. Unchanged where none was, and where a place is there already.
  std::string located(const std::string& text, const std::vector<std::string>& or_else = {}) const;

 private:
  std::map<std::string, std::string> where_;
};

// Runs `action`; the text of a ConfigurationError that it throws is located.
template <typename Action>
auto with_places(const GivenOptions& given, const Action& action, const std::vector<std::string>& or_else = {}) {
  try {
    return action();
  } catch (const ConfigurationError& error) {
    throw ConfigurationError(given.located(error.what(), or_else));
  }
}

}  // namespace ithaca
