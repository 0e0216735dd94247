// PreTokenizer: how a tokenizer.json cuts a text into the pieces that the model then looks at one by one.
//
// Pieces are handed on as they are found, so that a long text is never held as a list of pieces. Thread-safety: const
// functions may be called from several threads at once, each with a scratch of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/aligned_text.h"
#include "data/tokenizer/pattern.h"

namespace ithaca::tokenizer_internal {

// Bytes [begin, begin + text.size()) of `whole`.
struct Piece {
  std::string_view text;
  const AlignedText* whole = nullptr;
  int64_t begin = 0;
  bool first = false;  // whether the original text begins with it
  bool bytes = false;  // whether the model is to see each byte as a character of the byte-level alphabet
};

class PieceSink {
 public:
  PieceSink() = default;
  PieceSink(const PieceSink&) = delete;
  PieceSink& operator=(const PieceSink&) = delete;
  virtual ~PieceSink() = default;
  // The piece is valid during the call only.
  virtual void take(const Piece& piece) = 0;
};

class PreTokenizer {
 public:
  PreTokenizer() = default;
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;
  virtual ~PreTokenizer() = default;
  // Hands the parts of the piece to the sink, in order, none of them empty.
  virtual void split(const Piece& piece, PieceSink& sink, PatternScratch& scratch) const = 0;
};

// Pre-tokenizers one after the other, each cutting what the one before has made; none: the text is one piece.
class PreTokenizerChain {
 public:
  // Null: an empty chain. Throws InputError that names `where` and the component that is not known.
  PreTokenizerChain(const nlohmann::ordered_json& description, const std::string& where);
  PreTokenizerChain(PreTokenizerChain&&) noexcept;
  ~PreTokenizerChain();
  void split(const Piece& piece, PieceSink& sink, PatternScratch& scratch) const;

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

}  // namespace ithaca::tokenizer_internal
