// VocabularyTokenizer: what the tokenizers of files have in common: the vocabulary of a model, tokens added to it, and
// a decoder that makes text of their spellings.
//
// Thread-safety: as Tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/decoder.h"
#include "data/tokenizer/pattern.h"
#include "data/tokenizer/scratch_pool.h"
#include "data/tokenizer/tokenizer.h"

namespace ithaca::tokenizer_internal {

class VocabularyTokenizer : public Tokenizer {
 public:
  std::string decode(std::span<const int64_t> ids, const DecodeOptions& options) const final;

  int64_t vocabulary_size() const final;
  std::optional<int64_t> token_id(std::string_view token) const final;
  std::string token_text(int64_t id) const final;
  std::optional<int64_t> end_of_text_id() const final { return end_; }
  std::optional<int64_t> beginning_of_text_id() const final { return beginning_; }
  uint64_t content_hash() const final { return hash_; }

 protected:
  // `where`: the file, for errors.
  explicit VocabularyTokenizer(std::string where) : where_(std::move(where)) {}

  // The vocabulary without the added tokens; model_size() is one more than its largest id, and the spelling of an id
  // that it does not have is empty.
  virtual int64_t model_size() const = 0;
  virtual bool model_has(int64_t id) const = 0;
  virtual std::optional<int64_t> model_id(std::string_view token) const = 0;
  virtual std::string model_text(int64_t id) const = 0;

  bool has_token(int64_t id) const { return added_.token_of(id) != nullptr || model_has(id); }
  // The id of a special token that the settings name by its spelling or its id.
  std::optional<int64_t> special_id(const std::optional<std::string>& token, std::optional<int64_t> id) const;
  // Makes `text` count for content_hash().
  void mix(std::string_view text);

  std::string where_;
  AddedTokens added_;
  std::unique_ptr<Decoder> decoder_;  // null: nobody knows what the spellings stand for
  std::optional<int64_t> beginning_;
  std::optional<int64_t> end_;
  uint64_t hash_ = 0;
  mutable ScratchPool<PatternScratch> patterns_;
};

}  // namespace ithaca::tokenizer_internal
