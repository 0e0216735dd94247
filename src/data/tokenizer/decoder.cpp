#include "data/tokenizer/decoder.h"

#include <charconv>
#include <optional>
#include <utility>

#include "base/utf8.h"
#include "data/tokenizer/aligned_text.h"
#include "data/tokenizer/byte_level.h"
#include "data/tokenizer/component.h"
#include "data/tokenizer/normalizer.h"

namespace ithaca::tokenizer_internal {

namespace {

void join(std::vector<std::string>& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  tokens.assign(1, text);
}

int64_t bytes_of(const std::vector<std::string>& tokens) {
  int64_t bytes = 0;
  for (const std::string& token : tokens) bytes += static_cast<int64_t>(token.size());
  return bytes;
}

// Characters of the alphabet become bytes; a token with any other character stays as it is.
class ByteLevel : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens, PatternScratch&) const override {
    std::string bytes;
    for (const std::string& token : tokens) {
      const size_t before = bytes.size();
      for (size_t place = 0; place < token.size();) {
        const std::optional<uint8_t> byte = byte_of_character(first_code_point(std::string_view(token).substr(place)));
        if (!byte) {
          bytes.resize(before);
          bytes += token;
          break;
        }
        bytes.push_back(static_cast<char>(*byte));
        place += static_cast<size_t>(utf8_length(token[place]));
      }
    }
    tokens.assign(1, valid_utf8(bytes));
  }
};

class Metaspace : public Decoder {
 public:
  Metaspace(std::string replacement, bool prepended)
      : replacement_(Pattern::literal(std::move(replacement))), prepended_(prepended) {}
  void apply(std::vector<std::string>& tokens, PatternScratch& scratch) const override {
    bool first = true;
    for (std::string& token : tokens) {
      const AlignedText text(token, 0, false);
      token = std::string(replace_all(text, replacement_, first && prepended_ ? "" : " ", scratch).text());
      first = false;
    }
  }

 private:
  Pattern replacement_;
  bool prepended_;
};

std::optional<char> byte_of_spelling(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const std::string_view digits = token.substr(3, 2);
  unsigned char value = 0;
  const char* const end = digits.data() + digits.size();
  if (std::from_chars(digits.data(), end, value, 16).ptr != end) return std::nullopt;
  return static_cast<char>(value);
}

// Runs of <0x..> become characters, or one U+FFFD per byte where they are not UTF-8.
class ByteFallback : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens, PatternScratch&) const override {
    std::vector<std::string> result;
    std::string run;
    const auto flush = [&] {
      if (run.empty()) return;
      if (valid_utf8_prefix(run) == static_cast<int64_t>(run.size())) {
        result.push_back(run);
      } else {
        result.insert(result.end(), run.size(), std::string(kReplacementCharacter));
      }
      run.clear();
    };
    for (std::string& token : tokens) {
      if (const std::optional<char> byte = byte_of_spelling(token)) {
        run.push_back(*byte);
      } else {
        flush();
        result.push_back(std::move(token));
      }
    }
    flush();
    tokens = std::move(result);
  }
};

class Fuse : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens, PatternScratch&) const override { join(tokens); }
};

// Takes up to so many of a character from the beginning and the end of every token.
class Strip : public Decoder {
 public:
  Strip(std::string character, int64_t start, int64_t stop)
      : character_(std::move(character)), start_(start), stop_(stop) {}
  void apply(std::vector<std::string>& tokens, PatternScratch&) const override {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (int64_t count = 0; count < start_ && rest.starts_with(character_); ++count) {
        rest.remove_prefix(character_.size());
      }
      for (int64_t count = 0; count < stop_ && rest.ends_with(character_); ++count) {
        rest.remove_suffix(character_.size());
      }
      if (rest.size() != token.size()) token = std::string(rest);
    }
  }

 private:
  std::string character_;
  int64_t start_;
  int64_t stop_;
};

class Replace : public Decoder {
 public:
  Replace(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::vector<std::string>& tokens, PatternScratch& scratch) const override {
    for (std::string& token : tokens) {
      const AlignedText text(token, 0, false);
      const AlignedText replaced = replace_all(text, pattern_, content_, scratch);
      if (replaced.text().data() != token.data()) token = std::string(replaced.text());
    }
  }

 private:
  Pattern pattern_;
  std::string content_;
};

// The suffix of a word's last token becomes a space, and nothing at the very end.
class BpeDecoder : public Decoder {
 public:
  explicit BpeDecoder(const std::string& suffix) {
    if (!suffix.empty()) suffix_ = Pattern::literal(suffix);
  }
  void apply(std::vector<std::string>& tokens, PatternScratch& scratch) const override {
    for (size_t index = 0; suffix_ && index < tokens.size(); ++index) {
      const AlignedText text(tokens[index], 0, false);
      const std::string_view space = index + 1 == tokens.size() ? "" : " ";
      tokens[index] = std::string(replace_all(text, *suffix_, space, scratch).text());
    }
  }

 private:
  std::optional<Pattern> suffix_;
};

class Sequence : public Decoder {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Decoder>> steps) : steps_(std::move(steps)) {}
  void apply(std::vector<std::string>& tokens, PatternScratch& scratch) const override {
    const int64_t before = bytes_of(tokens);
    for (const auto& step : steps_) {
      step->apply(tokens, scratch);
      check_growth(before, bytes_of(tokens));
    }
  }

 private:
  std::vector<std::unique_ptr<Decoder>> steps_;
};

bool prepends(const Component& component) {
  if (component.has("prepend_scheme")) {
    const std::string name = component.text("prepend_scheme");
    if (name != "always" && name != "first" && name != "never") {
      throw InputError(component.where() + ": there is no prepend_scheme \"" + name +
                       "\"; there are always, first, never");
    }
    return name != "never";
  }
  return component.flag("add_prefix_space", true);
}

}  // namespace

std::unique_ptr<Decoder> make_decoder(const Json& description, const std::string& where) {
  if (description.is_null()) return nullptr;
  const Component component(description, where);
  const std::string type = component.type();
  if (type == "ByteLevel") return std::make_unique<ByteLevel>();
  if (type == "Metaspace") return std::make_unique<Metaspace>(component.character("replacement"), prepends(component));
  if (type == "ByteFallback") return std::make_unique<ByteFallback>();
  if (type == "Fuse") return std::make_unique<Fuse>();
  if (type == "Strip") {
    return std::make_unique<Strip>(component.character("content"), component.count("start"), component.count("stop"));
  }
  if (type == "Replace") {
    return std::make_unique<Replace>(make_pattern(component.member("pattern"), where + ".pattern"),
                                     component.text("content"));
  }
  if (type == "BPEDecoder") {
    return std::make_unique<BpeDecoder>(component.has("suffix") ? component.text("suffix") : "</w>");
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Decoder>> steps;
    component.each("decoders", [&](const Json& step, const std::string& place) {
      auto made = make_decoder(step, place);
      if (made) steps.push_back(std::move(made));
    });
    return std::make_unique<Sequence>(std::move(steps));
  }
  component.refuse_type("decoder", "ByteLevel, Metaspace, ByteFallback, Fuse, Strip, Replace, BPEDecoder, Sequence");
}

}  // namespace ithaca::tokenizer_internal
