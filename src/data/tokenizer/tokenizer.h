// Tokenizer: text to token ids and back, exactly as Hugging Face does it.
//
// Thread-safety: all functions are const and may be called from several threads at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ithaca {

// Bytes [begin, end) of a text.
struct TextSpan {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const TextSpan&) const = default;
};

struct EncodeOptions {
  // What the post-processor adds around a text (<s>, </s>, ...). Special tokens that are written in the text itself
  // are always recognised.
  bool add_special_tokens = false;
  // Whether Encoding::spans is wanted.
  bool spans = false;
};

struct Encoding {
  std::vector<int64_t> ids;
  // With EncodeOptions::spans: the bytes of the given text that each id stands for; empty ranges for added special
  // tokens. Tokens that share a character (parts of one code point) all have the whole character's range.
  std::vector<TextSpan> spans;
};

struct DecodeOptions {
  bool skip_special_tokens = false;
};

class Tokenizer {
 public:
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  virtual ~Tokenizer() = default;

  // Any bytes are taken; ones that are not UTF-8 become U+FFFD first, as a Hugging Face program would see them.
  virtual Encoding encode(std::string_view text, const EncodeOptions& options) const = 0;
  // Throws InputError for an id that the vocabulary does not have.
  virtual std::string decode(std::span<const int64_t> ids, const DecodeOptions& options) const = 0;

  // One more than the largest id.
  virtual int64_t vocabulary_size() const = 0;
  // Of a token as the vocabulary spells it.
  virtual std::optional<int64_t> token_id(std::string_view token) const = 0;
  // The spelling of an id; empty when there is none.
  virtual std::string token_text(int64_t id) const = 0;
  // The token that ends a document (tokenizer_config.json: eos_token; generation_config.json or config.json:
  // eos_token_id), and the one that begins it, where the model has them.
  virtual std::optional<int64_t> end_of_text_id() const = 0;
  virtual std::optional<int64_t> beginning_of_text_id() const = 0;
  // A hash of everything that decides the ids: the key of token caches.
  virtual uint64_t content_hash() const = 0;
};

// From tokenizer.json, or tokenizer.model where there is none, with tokenizer_config.json beside it. Throws InputError
// naming the file and the component that is not known, FileError when there is no tokenizer.
std::unique_ptr<Tokenizer> open_tokenizer(const std::filesystem::path& model_directory);

// Every byte its own token, ids 0..255: for models trained from nothing.
std::unique_ptr<Tokenizer> byte_tokenizer();

}  // namespace ithaca
