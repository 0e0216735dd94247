#include "data/samples/quoted_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/utf8.h"

namespace ithaca {

std::string quoted_text(std::string_view text) {
  using Json = nlohmann::json;
  return Json(std::string(text)).dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::string quoted_text_around(std::string_view text, int64_t offset, int64_t bytes) {
  const auto size = static_cast<int64_t>(text.size());
  const size_t begin = character_begin(text, static_cast<size_t>(std::clamp<int64_t>(offset - bytes, 0, size)));
  const size_t end = character_begin(text, static_cast<size_t>(std::clamp<int64_t>(offset + bytes, 0, size)));
  return quoted_text(text.substr(begin, std::max(begin, end) - begin));
}

}  // namespace ithaca
