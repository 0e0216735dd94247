#include "data/tokenizer/pre_tokenizer.h"

#include <optional>
#include <utility>

#include "base/utf8.h"
#include "data/tokenizer/byte_level.h"
#include "data/tokenizer/component.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/unicode.h"

namespace ithaca::tokenizer_internal {

namespace {

constexpr const char* kWordsOfGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

enum class DelimiterBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

DelimiterBehavior behavior_of(const Component& component, const char* absent) {
  const std::string name = absent != nullptr && !component.has("behavior") ? absent : component.text("behavior");
  if (name == "Removed") return DelimiterBehavior::removed;
  if (name == "Isolated") return DelimiterBehavior::isolated;
  if (name == "MergedWithPrevious") return DelimiterBehavior::merged_with_previous;
  if (name == "MergedWithNext") return DelimiterBehavior::merged_with_next;
  if (name == "Contiguous") return DelimiterBehavior::contiguous;
  throw InputError(component.where() + ": there is no behavior \"" + name +
                   "\"; there are Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

Piece part_of(const Piece& piece, int64_t begin, int64_t end) {
  return {piece.text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), piece.whole,
          piece.begin + begin, piece.first && begin == 0, piece.bytes};
}

// The whole of a text that was made from a piece.
Piece whole_of(const AlignedText& text, const Piece& made_from) {
  return {text.text(), &text, 0, made_from.first, made_from.bytes};
}

// Takes delimiters and what lies between them, front to back, and hands on what the behavior makes of them.
class Splitter {
 public:
  Splitter(const Piece& piece, DelimiterBehavior behavior, bool invert, PieceSink& sink)
      : piece_(piece), behavior_(behavior), invert_(invert), sink_(sink) {}

  void delimiter(int64_t begin, int64_t end) {
    if (done_ < begin) element(done_, begin, invert_);
    element(begin, end, !invert_);
    done_ = end;
  }
  void finish() {
    const auto size = static_cast<int64_t>(piece_.text.size());
    if (done_ < size) element(done_, size, invert_);
    flush();
  }

 private:
  struct Element {
    TextSpan span;
    bool delimiter = false;
  };

  void element(int64_t begin, int64_t end, bool delimiter) {
    switch (behavior_) {
      case DelimiterBehavior::removed:
        if (!delimiter) emit(begin, end);
        return;
      case DelimiterBehavior::isolated:
        emit(begin, end);
        return;
      case DelimiterBehavior::contiguous:
        if (held_ && held_->delimiter == delimiter) {
          held_->span.end = end;
          return;
        }
        break;
      case DelimiterBehavior::merged_with_previous:
        if (held_ && delimiter && !held_->delimiter) {
          emit(held_->span.begin, end);
          held_ = Element{{end, end}, true};  // the next delimiter stands alone
          return;
        }
        break;
      case DelimiterBehavior::merged_with_next:
        if (held_ && held_->delimiter && !delimiter) {
          emit(held_->span.begin, end);
          held_.reset();
          return;
        }
        break;
    }
    flush();
    held_ = Element{{begin, end}, delimiter};
  }
  void flush() {
    if (held_) emit(held_->span.begin, held_->span.end);
    held_.reset();
  }
  void emit(int64_t begin, int64_t end) {
    if (begin < end) sink_.take(part_of(piece_, begin, end));
  }

  const Piece& piece_;
  DelimiterBehavior behavior_;
  bool invert_;
  PieceSink& sink_;
  int64_t done_ = 0;
  std::optional<Element> held_;
};

void split_by_pattern(const Piece& piece, const Pattern& pattern, DelimiterBehavior behavior, bool invert,
                      PieceSink& sink, PatternScratch& scratch) {
  Splitter splitter(piece, behavior, invert, sink);
  Pattern::Walk walk(pattern, piece.text, scratch);
  while (const std::optional<TextSpan> match = walk.next()) splitter.delimiter(match->begin, match->end);
  splitter.finish();
}

// Every character that `is_delimiter` is a delimiter of its own.
template <class Predicate>
void split_by_character(const Piece& piece, const Predicate& is_delimiter, DelimiterBehavior behavior,
                        PieceSink& sink) {
  Splitter splitter(piece, behavior, false, sink);
  for (size_t place = 0; place < piece.text.size();) {
    const auto length = static_cast<size_t>(utf8_length(piece.text[place]));
    if (is_delimiter(first_code_point(piece.text.substr(place)))) {
      splitter.delimiter(static_cast<int64_t>(place), static_cast<int64_t>(place + length));
    }
    place += length;
  }
  splitter.finish();
}

class Split : public PreTokenizer {
 public:
  Split(Pattern pattern, DelimiterBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void split(const Piece& piece, PieceSink& sink, PatternScratch& scratch) const override {
    split_by_pattern(piece, pattern_, behavior_, invert_, sink, scratch);
  }

 private:
  Pattern pattern_;
  DelimiterBehavior behavior_;
  bool invert_;
};

class Digits : public PreTokenizer {
 public:
  explicit Digits(bool individual)
      : behavior_(individual ? DelimiterBehavior::isolated : DelimiterBehavior::contiguous) {}
  void split(const Piece& piece, PieceSink& sink, PatternScratch&) const override {
    split_by_character(piece, is_numeric, behavior_, sink);
  }

 private:
  DelimiterBehavior behavior_;
};

class Punctuation : public PreTokenizer {
 public:
  explicit Punctuation(DelimiterBehavior behavior) : behavior_(behavior) {}
  void split(const Piece& piece, PieceSink& sink, PatternScratch&) const override {
    split_by_character(piece, is_punctuation, behavior_, sink);
  }

 private:
  DelimiterBehavior behavior_;
};

class WhitespaceSplit : public PreTokenizer {
 public:
  void split(const Piece& piece, PieceSink& sink, PatternScratch&) const override {
    split_by_character(piece, is_white_space, DelimiterBehavior::removed, sink);
  }
};

class CharDelimiterSplit : public PreTokenizer {
 public:
  explicit CharDelimiterSplit(char32_t delimiter) : delimiter_(delimiter) {}
  void split(const Piece& piece, PieceSink& sink, PatternScratch&) const override {
    split_by_character(
        piece, [this](char32_t code_point) { return code_point == delimiter_; }, DelimiterBehavior::removed, sink);
  }

 private:
  char32_t delimiter_;
};

// Runs of \w and runs of what is neither \w nor blank.
class Whitespace : public PreTokenizer {
 public:
  void split(const Piece& piece, PieceSink& sink, PatternScratch&) const override {
    enum class Kind { blank, word, other };
    Kind run = Kind::blank;
    size_t begin = 0;
    const auto emit = [&](size_t end) {
      if (run != Kind::blank) sink.take(part_of(piece, static_cast<int64_t>(begin), static_cast<int64_t>(end)));
    };
    for (size_t place = 0; place < piece.text.size();) {
      const char32_t code_point = first_code_point(piece.text.substr(place));
      const Kind kind = is_word_character(code_point) ? Kind::word
                        : is_white_space(code_point)  ? Kind::blank
                                                      : Kind::other;
      if (kind != run) {
        emit(place);
        run = kind;
        begin = place;
      }
      place += static_cast<size_t>(utf8_length(piece.text[place]));
    }
    emit(piece.text.size());
  }
};

class PunctuationOfPieces : public PieceSink {
 public:
  explicit PunctuationOfPieces(PieceSink& sink) : sink_(sink) {}
  void take(const Piece& piece) override {
    split_by_character(piece, is_punctuation, DelimiterBehavior::isolated, sink_);
  }

 private:
  PieceSink& sink_;
};

class BertPreTokenizer : public PreTokenizer {
 public:
  void split(const Piece& piece, PieceSink& sink, PatternScratch&) const override {
    PunctuationOfPieces punctuation(sink);
    split_by_character(piece, is_white_space, DelimiterBehavior::removed, punctuation);
  }
};

class Metaspace : public PreTokenizer {
 public:
  enum class Prepend { always, first, never };
  Metaspace(std::string replacement, Prepend prepend, bool split)
      : space_(Pattern::literal(" ")),
        delimiter_(Pattern::literal(replacement)),
        replacement_(std::move(replacement)),
        prepend_(prepend),
        split_(split) {}

  void split(const Piece& piece, PieceSink& sink, PatternScratch& scratch) const override {
    const auto end = piece.begin + static_cast<int64_t>(piece.text.size());
    const AlignedText source(*piece.whole, piece.begin, end);
    AlignedText text = replace_all(source, space_, replacement_, scratch);
    const bool wanted = prepend_ == Prepend::always || (prepend_ == Prepend::first && piece.first);
    if (wanted && !text.text().starts_with(replacement_)) {
      TextEdit edit(text);
      edit.replace(0, 0, replacement_);
      text = edit.finish();
    }
    const Piece whole = whole_of(text, piece);
    if (split_) {
      split_by_pattern(whole, delimiter_, DelimiterBehavior::merged_with_next, false, sink, scratch);
    } else {
      sink.take(whole);
    }
  }

 private:
  Pattern space_;
  Pattern delimiter_;
  std::string replacement_;
  Prepend prepend_;
  bool split_;
};

class ByteLevel : public PreTokenizer {
 public:
  // `last`: nothing looks at the pieces but the model, which can map the bytes itself.
  ByteLevel(bool add_prefix_space, bool use_words, bool last, const std::string& where)
      : add_prefix_space_(add_prefix_space), last_(last) {
    if (use_words) words_ = Pattern::regex(kWordsOfGpt2, where);
  }

  void split(const Piece& piece, PieceSink& sink, PatternScratch& scratch) const override {
    if (add_prefix_space_ && !piece.text.starts_with(' ')) {
      const AlignedText source(*piece.whole, piece.begin, piece.begin + static_cast<int64_t>(piece.text.size()));
      TextEdit edit(source);
      edit.replace(0, 0, " ");
      const AlignedText text = edit.finish();
      words(whole_of(text, piece), sink, scratch);
    } else {
      words(piece, sink, scratch);
    }
  }

 private:
  class Mapping : public PieceSink {
   public:
    Mapping(bool last, PieceSink& sink, PatternScratch& scratch) : last_(last), sink_(sink), scratch_(scratch) {}
    void take(const Piece& piece) override {
      Piece mapped = piece;
      if (last_) {
        mapped.bytes = true;
        sink_.take(mapped);
        return;
      }
      const AlignedText source(*piece.whole, piece.begin, piece.begin + static_cast<int64_t>(piece.text.size()));
      static const std::unique_ptr<Normalizer> bytes = make_normalizer(Json{{"type", "ByteLevel"}}, "");
      const AlignedText text = bytes->apply(source, scratch_);
      sink_.take(whole_of(text, piece));
    }

   private:
    bool last_;
    PieceSink& sink_;
    PatternScratch& scratch_;
  };

  void words(const Piece& piece, PieceSink& sink, PatternScratch& scratch) const {
    Mapping mapping(last_, sink, scratch);
    if (words_) {
      split_by_pattern(piece, *words_, DelimiterBehavior::isolated, false, mapping, scratch);
    } else if (!piece.text.empty()) {
      mapping.take(piece);
    }
  }

  bool add_prefix_space_;
  bool last_;
  std::optional<Pattern> words_;
};

Metaspace::Prepend prepend_scheme(const Component& component) {
  const std::string name = component.has("prepend_scheme") ? component.text("prepend_scheme") : "always";
  if (name == "never") return Metaspace::Prepend::never;
  if (name != "always" && name != "first") {
    throw InputError(component.where() + ": there is no prepend_scheme \"" + name +
                     "\"; there are always, first, never");
  }
  // An older way of saying it, which must not contradict.
  if (!component.flag("add_prefix_space", true)) {
    throw InputError(component.where() + ": add_prefix_space is false, but prepend_scheme is not \"never\"");
  }
  return name == "always" ? Metaspace::Prepend::always : Metaspace::Prepend::first;
}

std::unique_ptr<PreTokenizer> make_step(const Component& component, bool last) {
  const std::string type = component.type();
  const std::string& where = component.where();
  if (type == "Split") {
    return std::make_unique<Split>(make_pattern(component.member("pattern"), where + ".pattern"),
                                   behavior_of(component, nullptr), component.flag("invert", false));
  }
  if (type == "ByteLevel") {
    component.flag("trim_offsets", true);  // decides offsets that Ithaca does not show; ids are the same
    return std::make_unique<ByteLevel>(component.flag("add_prefix_space", true), component.flag("use_regex", true),
                                       last, where);
  }
  if (type == "Metaspace") {
    return std::make_unique<Metaspace>(component.character("replacement"), prepend_scheme(component),
                                       component.flag("split", true));
  }
  if (type == "Digits") return std::make_unique<Digits>(component.flag("individual_digits", false));
  if (type == "Punctuation") return std::make_unique<Punctuation>(behavior_of(component, "Isolated"));
  if (type == "Whitespace") return std::make_unique<Whitespace>();
  if (type == "WhitespaceSplit") return std::make_unique<WhitespaceSplit>();
  if (type == "BertPreTokenizer") return std::make_unique<BertPreTokenizer>();
  if (type == "CharDelimiterSplit") {
    return std::make_unique<CharDelimiterSplit>(first_code_point(component.character("delimiter")));
  }
  component.refuse_type("pre-tokenizer",
                        "Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit, "
                        "BertPreTokenizer, CharDelimiterSplit, Sequence");
}

// The steps of sequences within sequences, in order.
void flatten(const Json& description, const std::string& where, std::vector<Component>& steps) {
  const Component component(description, where);
  if (component.type() != "Sequence") {
    steps.push_back(component);
    return;
  }
  component.each("pretokenizers", [&](const Json& step, const std::string& place) { flatten(step, place, steps); });
}

// Hands pieces to the next step of a chain.
class StepSink : public PieceSink {
 public:
  StepSink(const PreTokenizer& step, PieceSink& next, PatternScratch& scratch)
      : step_(step), next_(next), scratch_(scratch) {}
  void take(const Piece& piece) override { step_.split(piece, next_, scratch_); }

 private:
  const PreTokenizer& step_;
  PieceSink& next_;
  PatternScratch& scratch_;
};

}  // namespace

PreTokenizerChain::PreTokenizerChain(const Json& description, const std::string& where) {
  if (description.is_null()) return;
  std::vector<Component> components;
  flatten(description, where, components);
  for (size_t index = 0; index < components.size(); ++index) {
    steps_.push_back(make_step(components[index], index + 1 == components.size()));
  }
}
PreTokenizerChain::PreTokenizerChain(PreTokenizerChain&&) noexcept = default;
PreTokenizerChain::~PreTokenizerChain() = default;

void PreTokenizerChain::split(const Piece& piece, PieceSink& sink, PatternScratch& scratch) const {
  if (piece.text.empty()) return;
  std::vector<std::unique_ptr<StepSink>> sinks;
  PieceSink* next = &sink;
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    sinks.push_back(std::make_unique<StepSink>(**step, *next, scratch));
    next = sinks.back().get();
  }
  next->take(piece);
}

}  // namespace ithaca::tokenizer_internal
