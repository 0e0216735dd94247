#include "data/tokenizer/json_tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/aligned_text.h"
#include "data/tokenizer/bpe_model.h"
#include "data/tokenizer/component.h"
#include "data/tokenizer/decoder.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/post_processor.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/scratch_pool.h"
#include "data/tokenizer/tokenizer_file.h"
#include "data/tokenizer/vocabulary_tokenizer.h"

namespace ithaca::tokenizer_internal {

namespace {

// What decides ids beside the files: to be raised when the same files give other ids than before.
constexpr std::string_view kVersion = "tokenizer 1";

const Json& member_or_null(const Json& object, const char* key) {
  static const Json null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

BpeModel make_model(TokenizerFile& file, const std::string& where) {
  const Component model(member_or_null(file.rest, "model"), where + ": model");
  // Old files leave the type out.
  const std::string type = model.has("type") ? model.text("type") : model.has("merges") ? "BPE" : "";
  if (type != "BPE") {
    throw InputError(where + ": the model \"" + type + "\" is not one that Ithaca knows; it knows BPE");
  }
  if (model.has("dropout")) {
    const Json& dropout = model.member("dropout");
    if (!dropout.is_number() || dropout.get<double>() != 0.0) {
      throw InputError(where + ": model.dropout is " + dropout.dump() +
                       "; Ithaca encodes without chance, so it has to be null or 0");
    }
  }
  for (const char* key : {"vocab", "merges"}) {
    if (!model.has(key) || !model.member(key).is_structured()) {
      throw InputError(where + ": model has no \"" + key + "\"");
    }
  }
  BpeSettings settings;
  if (model.has("unk_token")) settings.unknown_token = model.text("unk_token");
  if (model.has("continuing_subword_prefix")) {
    settings.continuing_subword_prefix = model.text("continuing_subword_prefix");
  }
  if (model.has("end_of_word_suffix")) settings.end_of_word_suffix = model.text("end_of_word_suffix");
  settings.fuse_unknown = model.flag("fuse_unk", false);
  settings.byte_fallback = model.flag("byte_fallback", false);
  settings.ignore_merges = model.flag("ignore_merges", false);
  return {file.vocabulary, file.merges, std::move(settings), where + ": model"};
}

class JsonTokenizer final : public VocabularyTokenizer {
 public:
  JsonTokenizer(TokenizerFile file, const std::string& where, const TokenizerSettings& settings, uint64_t file_hash)
      : VocabularyTokenizer(where),
        model_(make_model(file, where)),
        normalizer_(make_normalizer(member_or_null(file.rest, "normalizer"), where + ": normalizer")),
        pre_tokenizers_(member_or_null(file.rest, "pre_tokenizer"), where + ": pre_tokenizer"),
        surroundings_(make_surroundings(member_or_null(file.rest, "post_processor"), where + ": post_processor")) {
    decoder_ = make_decoder(member_or_null(file.rest, "decoder"), where + ": decoder");
    hash_ = hash_bytes(kVersion) ^ file_hash;
    // "truncation" and "padding" are what some program that saved the file had set for its own calls. Hugging Face's
    // transformers switch both off for a plain encode, and text must not be cut unasked.
    read_added_tokens(member_or_null(file.rest, "added_tokens"), settings);
    end_ = special_id(settings.end, settings.end_id);
    beginning_ = special_id(settings.beginning, settings.beginning_id);
    if (settings.add_beginning || settings.add_end) {
      surroundings_ = {};
      const auto beginning = settings.beginning ? token_id(*settings.beginning) : std::nullopt;
      const auto end = settings.end ? token_id(*settings.end) : std::nullopt;
      if (settings.add_beginning.value_or(false) && beginning)
        surroundings_.before.push_back(static_cast<int32_t>(*beginning));
      if (settings.add_end.value_or(false) && end) surroundings_.after.push_back(static_cast<int32_t>(*end));
    }
    for (const auto* ids : {&surroundings_.before, &surroundings_.after}) {
      mix(std::to_string(ids->size()));
      for (const int32_t id : *ids) mix(std::to_string(id));
    }
  }

  Encoding encode(std::string_view given, const EncodeOptions& options) const override;

 private:
  int64_t model_size() const override { return model_.vocabulary().end(); }
  bool model_has(int64_t id) const override { return model_.vocabulary().has(id); }
  std::optional<int64_t> model_id(std::string_view token) const override { return model_.token_id(token); }
  std::string model_text(int64_t id) const override { return std::string(model_.vocabulary().spelling(id)); }

  void read_added_tokens(const Json& tokens, const TokenizerSettings& settings);
  void add_token(const AddedToken& token);

  BpeModel model_;
  std::unique_ptr<Normalizer> normalizer_;
  PreTokenizerChain pre_tokenizers_;
  Surroundings surroundings_;
  mutable ScratchPool<BpeScratch> words_;
};

// The id that Hugging Face's library gives: the one that the vocabulary has, else the next free one.
void JsonTokenizer::add_token(const AddedToken& token) {
  if (token.content.empty() || added_.holds(token)) return;
  std::optional<int32_t> id = added_.id_of(token.content);
  if (!id) id = model_.token_id(token.content);
  if (!id) {
    const auto count = static_cast<int32_t>(model_.vocabulary().count());
    const std::optional<int32_t> largest = added_.largest_id();
    id = largest && (*largest >= count || count == 0) ? *largest + 1 : count;
  }
  added_.add(token, *id);
}

void JsonTokenizer::read_added_tokens(const Json& tokens, const TokenizerSettings& settings) {
  if (!tokens.is_null()) {
    if (!tokens.is_array()) throw InputError(where_ + ": added_tokens is not an array");
    for (size_t index = 0; index < tokens.size(); ++index) {
      const std::string where = where_ + ": added_tokens[" + std::to_string(index) + "]";
      add_token(read_added_token(tokens[index], where));
      // The library counts for itself, but an id like that is a damaged file.
      const Json& token = tokens[index];
      if (token.contains("id") && token.at("id").is_number_integer()) {
        check_token_id(token.at("id").get<int64_t>(), tokens.size(), where + ".id");
      }
    }
  }
  const auto add_and_mix = [&](const AddedToken& token) {
    add_token(token);
    const char flags =
        static_cast<char>('0' + (token.single_word ? 1 : 0) + (token.lstrip ? 2 : 0) + (token.rstrip ? 4 : 0) +
                          (token.normalized ? 8 : 0) + (token.special ? 16 : 0));
    mix(token.content + flags);
  };
  for (const auto& [id, token] : settings.added) add_and_mix(token);
  for (const AddedToken& token : settings.special) {
    // A special token that is there already keeps its way of being looked for.
    if (!added_.id_of(token.content)) add_and_mix(token);
  }
  added_.finish([this](const std::string& content) {
    if (!normalizer_) return content;
    auto patterns = patterns_.borrow();
    const AlignedText text(content, 0, false);
    return std::string(normalizer_->apply(text, *patterns).text());
  });
}

// Gives pieces to the model and gathers ids and spans.
class Collector : public PieceSink, public TokenSink {
 public:
  Collector(const BpeModel& model, BpeScratch& scratch, bool spans, Encoding& encoding)
      : model_(model), scratch_(scratch), spans_(spans), encoding_(encoding) {}

  void take(const Piece& piece) override {
    piece_ = &piece;
    model_.encode(piece.text, piece.bytes, scratch_, *this);
  }
  void take(std::span<const TokenOfWord> tokens, int64_t begin) override {
    for (const TokenOfWord& token : tokens) {
      encoding_.ids.push_back(token.token);
      if (spans_) add_span(begin + token.begin, begin + token.end);
    }
  }

 private:
  // Whole characters of the piece, then where they come from.
  void add_span(int64_t begin, int64_t end) {
    const std::string_view text = piece_->text;
    while (begin > 0 && is_continuation(text[static_cast<size_t>(begin)])) --begin;
    while (end < static_cast<int64_t>(text.size()) && is_continuation(text[static_cast<size_t>(end)])) ++end;
    encoding_.spans.push_back(piece_->whole->origin(piece_->begin + begin, piece_->begin + end));
  }

  const BpeModel& model_;
  BpeScratch& scratch_;
  bool spans_;
  Encoding& encoding_;
  const Piece* piece_ = nullptr;
};

Encoding JsonTokenizer::encode(std::string_view given, const EncodeOptions& options) const {
  auto patterns = patterns_.borrow();
  auto words = words_.borrow();
  Encoding encoding;
  const auto put = [&](int32_t id, TextSpan span) {
    encoding.ids.push_back(id);
    if (options.spans) encoding.spans.push_back(span);
  };
  if (options.add_special_tokens) {
    for (const int32_t id : surroundings_.before) put(id, {0, 0});
  }
  const AlignedText bytes(given, 0, options.spans);
  const AlignedText text = replace_invalid_utf8(bytes);
  Collector collector(model_, *words, options.spans, encoding);
  // Between the tokens that are looked for in the text itself, it is normalized, then searched for the others, then cut
  // into pieces.
  const auto take_part = [&](const AddedTokens::Part& part) {
    if (part.token) {
      put(*part.token, options.spans ? text.origin(part.span.begin, part.span.end) : TextSpan());
      return;
    }
    const AlignedText segment(text, part.span.begin, part.span.end);
    const AlignedText normalized =
        normalizer_ ? normalizer_->apply(segment, *patterns) : AlignedText(segment, 0, segment.size());
    const auto take_normalized = [&](const AddedTokens::Part& inner) {
      if (inner.token) {
        put(*inner.token, options.spans ? normalized.origin(inner.span.begin, inner.span.end) : TextSpan());
        return;
      }
      const bool first = part.span.begin == 0 && inner.span.begin == 0;
      const auto [begin, end] = inner.span;
      const Piece piece{normalized.text().substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                        &normalized, begin, first, false};
      pre_tokenizers_.split(piece, collector, *patterns);
    };
    added_.cut(normalized.text(), true, take_normalized);
  };
  added_.cut(text.text(), false, take_part);
  if (options.add_special_tokens) {
    const auto size = static_cast<int64_t>(given.size());
    for (const int32_t id : surroundings_.after) put(id, {size, size});
  }
  return encoding;
}

}  // namespace

std::unique_ptr<Tokenizer> make_json_tokenizer(std::string_view text, const std::string& where,
                                               const TokenizerSettings& settings) {
  return std::make_unique<JsonTokenizer>(read_tokenizer_file(text, where), where, settings, hash_bytes(text));
}

}  // namespace ithaca::tokenizer_internal
