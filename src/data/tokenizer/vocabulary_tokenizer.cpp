#include "data/tokenizer/vocabulary_tokenizer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/bpe_tables.h"

namespace ithaca::tokenizer_internal {

std::string VocabularyTokenizer::decode(std::span<const int64_t> ids, const DecodeOptions& options) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int64_t id : ids) {
    if (!has_token(id)) {
      throw InputError(where_ + ": there is no token with the id " + std::to_string(id) + "; ids are below " +
                       std::to_string(vocabulary_size()));
    }
    std::string token = token_text(id);
    if (options.skip_special_tokens && added_.is_special(token)) continue;
    tokens.push_back(std::move(token));
  }
  if (tokens.empty()) return "";
  std::string text;
  if (decoder_) {
    auto scratch = patterns_.borrow();
    decoder_->apply(tokens, *scratch);
    for (const std::string& token : tokens) text += token;
  } else {
    for (const std::string& token : tokens) text += (text.empty() ? "" : " ") + token;
  }
  return text;
}

int64_t VocabularyTokenizer::vocabulary_size() const {
  return std::max<int64_t>(model_size(), static_cast<int64_t>(added_.largest_id().value_or(-1)) + 1);
}

std::optional<int64_t> VocabularyTokenizer::token_id(std::string_view token) const {
  if (const auto id = added_.id_of(token)) return *id;
  return model_id(token);
}

std::string VocabularyTokenizer::token_text(int64_t id) const {
  if (const AddedToken* token = added_.token_of(id)) return token->content;
  return model_text(id);
}

std::optional<int64_t> VocabularyTokenizer::special_id(const std::optional<std::string>& token,
                                                       std::optional<int64_t> id) const {
  if (token) {
    if (const auto found = token_id(*token)) return found;
  }
  return id && has_token(*id) ? id : std::nullopt;
}

void VocabularyTokenizer::mix(std::string_view text) {
  hash_ = (hash_ ^ hash_bytes(text)) * 0x9E3779B97F4A7C15ULL;
}

}  // namespace ithaca::tokenizer_internal
