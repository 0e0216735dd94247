#include "base/given_options.h"

#include <algorithm>
#include <cctype>

namespace ithaca {

std::string GivenOptions::located(const std::string& text, const std::vector<std::string>& or_else) const {
  const auto is_of_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
  };
  for (const auto& [name, place] : where_) {
    if (text.starts_with(place + ": ")) return text;
  }
  std::string place = where(std::string(text.begin(), std::find_if_not(text.begin(), text.end(), is_of_name)));
  for (const std::string& name : or_else) {
    if (place.empty()) place = where(name);
  }
  return place.empty() ? text : place + ": " + text;
}

}  // namespace ithaca
