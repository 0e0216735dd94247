#include "data/tokenizer/normalizer.h"

#include <utility>
#include <vector>

#include "base/utf8.h"
#include "data/tokenizer/byte_level.h"
#include "data/tokenizer/component.h"
#include "data/tokenizer/normal_form.h"
#include "data/tokenizer/unicode.h"

namespace ithaca::tokenizer_internal {

namespace {

// Each character by itself: `change` gives its replacement in a buffer, or false where it stays.
template <class Change>
AlignedText change_characters(const AlignedText& source, const Change& change) {
  TextEdit edit(source);
  std::string replacement;
  const std::string_view text = source.text();
  for (int64_t place = 0; place < source.size();) {
    const std::string_view rest = text.substr(static_cast<size_t>(place));
    const int64_t length = utf8_length(rest[0]);
    replacement.clear();
    if (change(first_code_point(rest), replacement)) edit.replace(place, place + length, replacement);
    place += length;
  }
  return edit.finish();
}

class Form : public Normalizer {
 public:
  Form(bool compatibility, bool composed) : form_(NormalForm::get(compatibility, composed)) {}
  AlignedText apply(const AlignedText& text, PatternScratch&) const override { return form_.apply(text); }

 private:
  const NormalForm& form_;
};

class Lowercase : public Normalizer {
 public:
  AlignedText apply(const AlignedText& text, PatternScratch&) const override {
    return change_characters(text, [](char32_t code_point, std::string& replacement) {
      if (code_point == 0x130) {
        replacement = "i\xCC\x87";
        return true;
      }
      const char32_t lower = simple_lower_case(code_point);
      if (lower == code_point) return false;
      append_utf8(replacement, lower);
      return true;
    });
  }
};

class StripAccents : public Normalizer {
 public:
  AlignedText apply(const AlignedText& text, PatternScratch&) const override {
    return change_characters(text, [](char32_t code_point, std::string&) { return is_mark(code_point); });
  }
};

// Removes control characters and makes unusual blanks spaces, as the NMT normalization of SentencePiece.
class Nmt : public Normalizer {
 public:
  AlignedText apply(const AlignedText& text, PatternScratch&) const override {
    return change_characters(text, [](char32_t code_point, std::string& replacement) {
      if ((code_point >= 0x01 && code_point <= 0x08) || code_point == 0x0B ||
          (code_point >= 0x0E && code_point <= 0x1F) || code_point == 0x7F || code_point == 0x8F ||
          code_point == 0x9F) {
        return true;
      }
      const bool blank = code_point == 0x09 || code_point == 0x0A || code_point == 0x0C || code_point == 0x0D ||
                         code_point == 0x1680 || (code_point >= 0x200B && code_point <= 0x200F) ||
                         code_point == 0x2028 || code_point == 0x2029 || code_point == 0x2581 || code_point == 0xFEFF ||
                         code_point == 0xFFFD;
      if (blank) replacement = " ";
      return blank;
    });
  }
};

class ByteLevel : public Normalizer {
 public:
  AlignedText apply(const AlignedText& source, PatternScratch&) const override {
    TextEdit edit(source);
    std::string replacement;
    const std::string_view text = source.text();
    for (int64_t place = 0; place < source.size();) {
      const auto begin = static_cast<size_t>(place);
      const std::string_view character = text.substr(begin, static_cast<size_t>(utf8_length(text[begin])));
      replacement.clear();
      for (const char byte : character) replacement += byte_characters()[static_cast<unsigned char>(byte)];
      if (replacement != character) edit.replace(place, place + static_cast<int64_t>(character.size()), replacement);
      place += static_cast<int64_t>(character.size());
    }
    return edit.finish();
  }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  AlignedText apply(const AlignedText& source, PatternScratch&) const override {
    std::string_view rest = source.text();
    while (left_ && !rest.empty() && is_white_space(first_code_point(rest))) {
      rest.remove_prefix(static_cast<size_t>(utf8_length(rest[0])));
    }
    const int64_t begin = source.size() - static_cast<int64_t>(rest.size());
    while (right_ && !rest.empty() && is_white_space(last_code_point(rest))) {
      do {
        rest.remove_suffix(1);
      } while (!rest.empty() && is_continuation(source.text()[static_cast<size_t>(begin) + rest.size()]));
    }
    return {source, begin, begin + static_cast<int64_t>(rest.size())};
  }

 private:
  bool left_;
  bool right_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string text) : text_(std::move(text)) {}
  AlignedText apply(const AlignedText& source, PatternScratch&) const override {
    TextEdit edit(source);
    if (source.size() > 0) edit.replace(0, 0, text_);
    return edit.finish();
  }

 private:
  std::string text_;
};

class Replace : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  AlignedText apply(const AlignedText& source, PatternScratch& scratch) const override {
    return replace_all(source, pattern_, content_, scratch);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class Sequence : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  AlignedText apply(const AlignedText& source, PatternScratch& scratch) const override {
    AlignedText result(source, 0, source.size());
    for (const auto& step : steps_) {
      result = step->apply(result, scratch);
      check_growth(source.size(), result.size());
    }
    return result;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

}  // namespace

void check_growth(int64_t before, int64_t after) {
  constexpr int64_t kMost = 64;
  constexpr int64_t kAlways = int64_t{1} << 16U;
  if (after > kAlways + kMost * before) {
    throw InputError("the steps of a tokenizer.json made a text of " + std::to_string(before) + " bytes " +
                     std::to_string(after) + " bytes long; Ithaca stops at " + std::to_string(kMost) + " times");
  }
}

Pattern make_pattern(const Json& description, const std::string& where) {
  const Component pattern(description, where);
  if (description.size() == 1 && pattern.has("String")) {
    std::string text = pattern.text("String");
    if (text.empty()) throw InputError(where + ".String is empty");
    return Pattern::literal(std::move(text));
  }
  if (description.size() == 1 && pattern.has("Regex")) return Pattern::regex(pattern.text("Regex"), where + ".Regex");
  throw InputError(where + " is neither {\"String\": ...} nor {\"Regex\": ...}");
}

AlignedText replace_all(const AlignedText& text, const Pattern& pattern, std::string_view content,
                        PatternScratch& scratch) {
  TextEdit edit(text);
  Pattern::Walk walk(pattern, text.text(), scratch);
  while (const std::optional<TextSpan> match = walk.next()) edit.replace(match->begin, match->end, content);
  return edit.finish();
}

std::unique_ptr<Normalizer> make_normalizer(const Json& description, const std::string& where) {
  if (description.is_null()) return nullptr;
  const Component component(description, where);
  const std::string type = component.type();
  if (type == "NFC") return std::make_unique<Form>(false, true);
  if (type == "NFD") return std::make_unique<Form>(false, false);
  if (type == "NFKC") return std::make_unique<Form>(true, true);
  if (type == "NFKD") return std::make_unique<Form>(true, false);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Nmt") return std::make_unique<Nmt>();
  if (type == "ByteLevel") return std::make_unique<ByteLevel>();
  if (type == "Strip") {
    return std::make_unique<Strip>(component.flag("strip_left", true), component.flag("strip_right", true));
  }
  if (type == "Prepend") return std::make_unique<Prepend>(component.text("prepend"));
  if (type == "Replace") {
    return std::make_unique<Replace>(make_pattern(component.member("pattern"), where + ".pattern"),
                                     component.text("content"));
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Normalizer>> steps;
    component.each("normalizers", [&](const Json& step, const std::string& place) {
      auto made = make_normalizer(step, place);
      if (made) steps.push_back(std::move(made));
    });
    return std::make_unique<Sequence>(std::move(steps));
  }
  component.refuse_type(
      "normalizer", "NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Nmt, ByteLevel, Strip, Prepend, Replace, Sequence");
}

}  // namespace ithaca::tokenizer_internal
