#include "data/tokenizer/component.h"

#include "base/utf8.h"

namespace ithaca::tokenizer_internal {

std::string Component::character(const char* key) const {
  std::string result = text(key);
  if (result.empty() || utf8_length(result[0]) != static_cast<int64_t>(result.size())) {
    throw InputError(where_ + "." + key + " is not one character");
  }
  return result;
}

}  // namespace ithaca::tokenizer_internal
