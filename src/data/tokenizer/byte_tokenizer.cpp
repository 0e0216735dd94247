#include "base/error.h"
#include "data/tokenizer/bpe_tables.h"
#include "data/tokenizer/tokenizer.h"

namespace ithaca {

namespace {

constexpr int64_t kBytes = 256;

class ByteTokenizer : public Tokenizer {
 public:
  Encoding encode(std::string_view text, const EncodeOptions& options) const override {
    Encoding encoding;
    encoding.ids.reserve(text.size());
    for (const char byte : text) encoding.ids.push_back(static_cast<unsigned char>(byte));
    // No byte is changed, so each stands for itself, even within a character.
    for (int64_t place = 0; options.spans && place < static_cast<int64_t>(text.size()); ++place) {
      encoding.spans.push_back({place, place + 1});
    }
    return encoding;
  }
  std::string decode(std::span<const int64_t> ids, const DecodeOptions&) const override {
    std::string text;
    text.reserve(ids.size());
    for (const int64_t id : ids) {
      if (id < 0 || id >= kBytes) {
        throw InputError("the byte tokenizer has no token with the id " + std::to_string(id) + "; ids are below 256");
      }
      text.push_back(static_cast<char>(static_cast<unsigned char>(id)));
    }
    return text;
  }
  int64_t vocabulary_size() const override { return kBytes; }
  std::optional<int64_t> token_id(std::string_view token) const override {
    if (token.size() != 1) return std::nullopt;
    return static_cast<unsigned char>(token[0]);
  }
  std::string token_text(int64_t id) const override {
    if (id < 0 || id >= kBytes) return "";
    return {static_cast<char>(static_cast<unsigned char>(id))};
  }
  std::optional<int64_t> end_of_text_id() const override { return std::nullopt; }
  std::optional<int64_t> beginning_of_text_id() const override { return std::nullopt; }
  uint64_t content_hash() const override { return tokenizer_internal::hash_bytes("ithaca byte tokenizer"); }
};

}  // namespace

std::unique_ptr<Tokenizer> byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

}  // namespace ithaca
