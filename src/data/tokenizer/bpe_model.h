// BpeModel: byte pair encoding as Hugging Face runs it, from a piece of text to tokens.
//
// Merges happen lowest rank first and, of equal ranks, leftmost first; pieces of any length take n log n steps.
// Thread-safety: const functions may be called from several threads at once, each with a scratch of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer/bpe_tables.h"
#include "data/tokenizer/word_cache.h"

namespace ithaca::tokenizer_internal {

struct BpeSettings {
  std::optional<std::string> unknown_token;
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
  bool fuse_unknown = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
};

// What one thread needs to encode: memory that is used again and again, and what words became before.
struct BpeScratch {
  struct Symbol {
    int32_t token = 0;  // -1: merged into one on its left
    int32_t previous = -1;
    int32_t next = -1;
    int32_t begin = 0;
    int32_t end = 0;
  };
  std::vector<Symbol> symbols;
  std::vector<uint64_t> queue;
  std::string text;
  std::vector<TokenOfWord> tokens;
  WordCache words;
};

class TokenSink {
 public:
  TokenSink() = default;
  TokenSink(const TokenSink&) = delete;
  TokenSink& operator=(const TokenSink&) = delete;
  virtual ~TokenSink() = default;
  // Tokens of the word that begins at byte `begin` of the piece; valid during the call only.
  virtual void take(std::span<const TokenOfWord> tokens, int64_t begin) = 0;
};

class BpeModel {
 public:
  // `vocabulary`: spellings and ids. `merges`: pairs of spellings, lowest rank first. Throws InputError that begins
  // with `where`.
  BpeModel(const std::vector<std::pair<std::string, int32_t>>& vocabulary,
           const std::vector<std::pair<std::string, std::string>>& merges, BpeSettings settings, std::string where);

  // Hands the tokens of `piece`, valid UTF-8, to the sink. `bytes`: every byte is a character of the byte-level
  // alphabet. Throws InputError for pieces of 2 GiB and more.
  void encode(std::string_view piece, bool bytes, BpeScratch& scratch, TokenSink& sink) const;

  std::optional<int32_t> token_id(std::string_view spelling) const { return vocabulary_.find(spelling); }
  const TokenVocabulary& vocabulary() const { return vocabulary_; }

 private:
  void encode_word(std::string_view word, bool bytes, BpeScratch& scratch) const;
  void make_symbols(std::string_view word, bool bytes, BpeScratch& scratch) const;
  void make_symbol(std::string_view unit, int32_t begin, int32_t end, BpeScratch& scratch, TokenOfWord& unknown) const;
  void merge_short(BpeScratch& scratch) const;
  void merge_long(BpeScratch& scratch) const;
  bool may_cut(char32_t left, char32_t right) const;
  int32_t token_of_character(char32_t code_point) const;

  std::string where_;
  BpeSettings settings_;
  TokenVocabulary vocabulary_;
  MergeTable merges_;
  std::vector<int32_t> result_of_rank_;
  std::optional<int32_t> unknown_;
  std::vector<int32_t> byte_tokens_;       // of <0x00> .. <0xFF>; -1 where there is none
  std::vector<int32_t> alphabet_tokens_;   // of each byte's character
  std::vector<int32_t> character_tokens_;  // of code points below 0x10000
  int64_t longest_spelling_ = 0;
  // Long texts without a pre-tokenizer are cut where no merge can reach across: between characters x and y where no
  // merge joins a token that ends with x to one that begins with y.
  bool cuts_ = false;
  bool cuts_at_unknown_ = false;
  std::vector<bool> ascii_joints_;  // x * 128 + y
  PairSet joints_;
};

}  // namespace ithaca::tokenizer_internal
