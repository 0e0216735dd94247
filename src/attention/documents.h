// Documents of one token axis: runs of tokens that attend only to themselves. Always given, never guessed from
// positions. Thread-safety: immutable values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ithaca {

class Documents {
 public:
  // No tokens, no documents.
  Documents() : starts_{0} {}
  // Documents of these lengths, laid end to end. Lengths of 0 are dropped; negative ones throw ContractError.
  explicit Documents(std::span<const int64_t> lengths);
  // One document of `tokens` tokens.
  static Documents single(int64_t tokens);

  int64_t total_tokens() const { return starts_.back(); }
  int64_t count() const { return static_cast<int64_t>(starts_.size()) - 1; }
  int64_t begin(int64_t document) const { return starts_[static_cast<size_t>(document)]; }
  int64_t end(int64_t document) const { return starts_[static_cast<size_t>(document) + 1]; }
  // The document that holds token `token` (0 <= token < total_tokens()).
  int64_t document_of(int64_t token) const;
  bool operator==(const Documents&) const = default;

 private:
  std::vector<int64_t> starts_;  // count() + 1 increasing values from 0 to total_tokens()
};

}  // namespace ithaca
