#include "data/tokenizer/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <utility>

#include "base/error.h"
#include "base/regular_file.h"
#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/aligned_text.h"
#include "data/tokenizer/bpe_tables.h"
#include "data/tokenizer/component.h"
#include "data/tokenizer/decoder.h"
#include "data/tokenizer/vocabulary_tokenizer.h"

namespace ithaca::tokenizer_internal {

namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581, how pieces spell a space
constexpr std::string_view kVersion = "sentencepiece tokenizer 1";
// Longer texts are given to the library in parts, for it needs some hundred bytes of memory per byte of text.
constexpr int64_t kPartBytes = int64_t{1} << 16U;
constexpr int64_t kLongestPart = INT32_MAX;

bool is_ascii_word(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9');
}

class SentencePieceTokenizer final : public VocabularyTokenizer {
 public:
  SentencePieceTokenizer(const std::filesystem::path& path, const TokenizerSettings& settings)
      : VocabularyTokenizer(path.string()) {
    const std::string content = read_regular_file(where_);
    const auto status = processor_.LoadFromSerializedProto(content);
    if (!status.ok()) throw InputError(where_ + ": not a SentencePiece model: " + status.message());
    hash_ = hash_bytes(kVersion) ^ hash_bytes(content);
    add_tokens(settings);
    look_at_spaces();
    Json decoders = Json::array({{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
                                 {{"type", "ByteFallback"}},
                                 {{"type", "Fuse"}}});
    if (begins_with_space_) {
      decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    }
    const Json sequence = {{"type", "Sequence"}, {"decoders", decoders}};
    decoder_ = make_decoder(sequence, where_);

    beginning_ = or_of_model(special_id(settings.beginning, settings.beginning_id), processor_.bos_id());
    end_ = or_of_model(special_id(settings.end, settings.end_id), processor_.eos_id());
    // As Llama's tokenizer: <s> before a text unless the configuration says otherwise.
    add_beginning_ = settings.add_beginning.value_or(true) && beginning_;
    add_end_ = settings.add_end.value_or(false) && end_;
    mix(std::string(add_beginning_ ? "1" : "0") + (add_end_ ? "1" : "0"));
  }

  Encoding encode(std::string_view given, const EncodeOptions& options) const override {
    Encoding encoding;
    const auto put = [&](int64_t id, TextSpan span) {
      encoding.ids.push_back(id);
      if (options.spans) encoding.spans.push_back(span);
    };
    if (options.add_special_tokens && add_beginning_) put(*beginning_, {0, 0});
    const AlignedText bytes(given, 0, options.spans);
    const AlignedText text = replace_invalid_utf8(bytes);
    added_.cut(text.text(), false, [&](const AddedTokens::Part& part) {
      if (part.token) {
        put(*part.token, options.spans ? text.origin(part.span.begin, part.span.end) : TextSpan());
      } else {
        encode_segment(text, part.span, options.spans, encoding);
      }
    });
    const auto size = static_cast<int64_t>(given.size());
    if (options.add_special_tokens && add_end_) put(*end_, {size, size});
    return encoding;
  }

 private:
  int64_t model_size() const override { return processor_.GetPieceSize(); }
  bool model_has(int64_t id) const override { return id >= 0 && id < processor_.GetPieceSize(); }
  std::optional<int64_t> model_id(std::string_view token) const override {
    const int id = processor_.PieceToId(token);
    return id >= 0 && processor_.IdToPiece(id) == token ? std::optional<int64_t>(id) : std::nullopt;
  }
  std::string model_text(int64_t id) const override {
    return model_has(id) ? processor_.IdToPiece(static_cast<int>(id)) : "";
  }
  // The model's own id of a special token, negative for none, where the settings do not name one.
  static std::optional<int64_t> or_of_model(std::optional<int64_t> id, int of_model) {
    return id || of_model < 0 ? id : std::optional<int64_t>(of_model);
  }

  // Control and unknown pieces are looked for in a text, as Hugging Face does; then what the configuration adds.
  void add_tokens(const TokenizerSettings& settings) {
    const int count = processor_.GetPieceSize();
    for (int id = 0; id < count; ++id) {
      if (!processor_.IsControl(id) && !processor_.IsUnknown(id)) continue;
      AddedToken token;
      token.content = processor_.IdToPiece(id);
      token.normalized = false;
      token.special = true;
      added_.add(token, id);
    }
    const auto add = [&](AddedToken token, int64_t id) {
      token.normalized = false;
      added_.add(token, static_cast<int32_t>(id));
      mix(token.content + std::to_string(id));
    };
    for (const auto& [id, token] : settings.added) {
      if (id > INT32_MAX - 1) throw InputError(where_ + ": the added token \"" + token.content + "\" has no valid id");
      add(token, id);
    }
    for (const AddedToken& token : settings.special) {
      if (added_.id_of(token.content)) continue;
      add(token, token_id(token.content).value_or(vocabulary_size()));
    }
    added_.finish([](const std::string& content) { return content; });
  }

  std::string pieces_of(std::string_view text) const {
    std::vector<std::string> pieces;
    check(processor_.Encode(text, &pieces));
    std::string result;
    for (const std::string& piece : pieces) result += piece;
    return result;
  }
  void check(const sentencepiece::util::Status& status) const {
    if (!status.ok()) throw InputError(where_ + ": the SentencePiece library failed: " + status.message());
  }

  // Whether a long text may be encoded in parts: no piece goes on over a space behind something else, and a part behind
  // a space is encoded as within the whole.
  void look_at_spaces() {
    const std::string space(kSpace);
    const std::string letter = pieces_of("a");
    begins_with_space_ = letter == space + "a";
    const std::string spaced = begins_with_space_ ? space + "a" + space + "b" : "a" + space + "b";
    parts_ = (begins_with_space_ || (letter == "a" && pieces_of(" a") == space + "a")) && pieces_of("a b") == spaced &&
             !processor_.IsUnknown(processor_.PieceToId(space));
    const int count = processor_.GetPieceSize();
    for (int id = 0; parts_ && id < count; ++id) {
      const std::string& piece = processor_.IdToPiece(id);
      const size_t inner = piece.find_first_not_of(space);
      if (inner != std::string::npos && piece.find(space, inner) != std::string::npos) parts_ = false;
    }
  }

  void encode_segment(const AlignedText& text, TextSpan segment, bool spans, Encoding& encoding) const {
    const std::string_view bytes = text.text();
    const auto at = [&](int64_t place) { return bytes[static_cast<size_t>(place)]; };
    for (int64_t begin = segment.begin; begin < segment.end;) {
      int64_t end = segment.end;
      if (parts_ && end - begin > kPartBytes) {
        int64_t cut = begin + kPartBytes;
        while (cut + 1 < end && !(is_ascii_word(at(cut - 1)) && at(cut) == ' ' && is_ascii_word(at(cut + 1)))) ++cut;
        if (cut + 1 < end) end = cut;
      }
      encode_part(text, {begin, end}, begin > segment.begin, spans, encoding);
      begin = end;
    }
  }

  // `within`: the part begins with a space in the middle of a segment.
  void encode_part(const AlignedText& text, TextSpan part, bool within, bool spans, Encoding& encoding) const {
    if (part.end - part.begin > kLongestPart) {
      throw InputError(where_ + ": a text of " + std::to_string(part.end - part.begin) +
                       " bytes without a place to cut it; Ithaca encodes up to 2 GiB at once");
    }
    // The library puts a space before every text, which then stands for the one that is there.
    const int64_t begin = part.begin + (within && begins_with_space_ ? 1 : 0);
    const std::string_view bytes =
        text.text().substr(static_cast<size_t>(begin), static_cast<size_t>(part.end - begin));
    if (!spans) {
      std::vector<int> ids;
      check(processor_.Encode(bytes, &ids));
      encoding.ids.insert(encoding.ids.end(), ids.begin(), ids.end());
      return;
    }
    const auto pieces = processor_.EncodeAsImmutableProto(bytes);
    // The bytes of one character: only the last has its place.
    size_t waiting = 0;
    for (size_t index = 0; index < pieces.pieces_size(); ++index) {
      const auto piece = pieces.pieces(static_cast<int>(index));
      const auto id = static_cast<int>(piece.id());
      TextSpan place{begin + piece.begin(), begin + piece.end()};
      if (index == 0 && begin > part.begin) place.begin = part.begin;
      encoding.ids.push_back(id);
      if (processor_.IsByte(id) && place.begin == place.end) {
        ++waiting;
        continue;
      }
      const TextSpan origin = text.origin(place.begin, place.end);
      encoding.spans.insert(encoding.spans.end(), waiting + 1, origin);
      waiting = 0;
    }
    const TextSpan rest = text.origin(part.end, part.end);
    encoding.spans.insert(encoding.spans.end(), waiting, rest);
  }

  sentencepiece::SentencePieceProcessor processor_;
  bool begins_with_space_ = false;
  bool parts_ = false;
  bool add_beginning_ = false;
  bool add_end_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& path,
                                                        const TokenizerSettings& settings) {
  return std::make_unique<SentencePieceTokenizer>(path, settings);
}

}  // namespace ithaca::tokenizer_internal
