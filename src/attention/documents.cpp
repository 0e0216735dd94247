#include "attention/documents.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace ithaca {

Documents::Documents(std::span<const int64_t> lengths) : starts_{0} {
  starts_.reserve(lengths.size() + 1);
  for (size_t index = 0; index < lengths.size(); ++index) {
    const int64_t length = lengths[index];
    require(length >= 0, fmt::format("document {} has the negative length {}", index, length));
    if (length == 0) continue;
    int64_t end = 0;
    require(!__builtin_add_overflow(starts_.back(), length, &end), "the documents' lengths add up to more than int64");
    starts_.push_back(end);
  }
}

Documents Documents::single(int64_t tokens) {
  return Documents(std::span<const int64_t>(&tokens, 1));
}

int64_t Documents::document_of(int64_t token) const {
  require(0 <= token && token < total_tokens(),
          fmt::format("token {} is outside of documents of {} tokens", token, total_tokens()));
  return std::upper_bound(starts_.begin(), starts_.end(), token) - starts_.begin() - 1;
}

}  // namespace ithaca
