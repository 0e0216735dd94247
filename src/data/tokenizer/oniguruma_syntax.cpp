#include "data/tokenizer/oniguruma_syntax.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "data/tokenizer/unicode.h"

namespace ithaca::tokenizer_internal {

namespace {

// Oniguruma's character types, as the inside of a PCRE2 set.
constexpr std::string_view kAlphabetic = "\\p{Alphabetic}\\x{363}-\\x{36F}\\x{F82}\\x{F83}\\x{1DD3}-\\x{1DE6}";
// Outside of sets \w has the numbers of Latin-1 as well.
constexpr std::string_view kLatinNumbers = "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

// One code point for PCRE2, inside and outside of sets.
std::string literal(char32_t code_point) {
  if (code_point < 0x80 && std::isalnum(static_cast<int>(code_point)) != 0) {
    return {static_cast<char>(code_point)};
  }
  std::array<char, 16> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "\\x{%X}", static_cast<unsigned>(code_point));
  return buffer.data();
}

std::string lower(std::string_view text) {
  std::string result;
  for (const char letter : text) {
    if (letter != ' ' && letter != '_' && letter != '-') {
      result.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(letter))));
    }
  }
  return result;
}

// The inside of a set for the name of \p{...} or [:...:] (lower case, without blanks); empty when it is not known.
std::string property(const std::string& name) {
  static const std::vector<std::pair<std::string_view, std::string_view>> named = {
      {"alpha", kAlphabetic},
      {"alnum", "\\p{Alphabetic}\\x{363}-\\x{36F}\\x{F82}\\x{F83}\\x{1DD3}-\\x{1DE6}\\p{Nd}"},
      {"digit", "\\p{Nd}"},
      {"space", "\\p{White_Space}"},
      {"upper", "\\p{Uppercase}"},
      {"lower", "\\p{Lowercase}"},
      {"punct", "\\p{P}"},
      {"word", kWord},
      {"xdigit", "0-9A-Fa-f"},
      {"any", "\\x{0}-\\x{10FFFF}"},
      {"letter", "\\p{L}"},
      {"uppercaseletter", "\\p{Lu}"},
      {"lowercaseletter", "\\p{Ll}"},
      {"titlecaseletter", "\\p{Lt}"},
      {"modifierletter", "\\p{Lm}"},
      {"otherletter", "\\p{Lo}"},
      {"mark", "\\p{M}"},
      {"combiningmark", "\\p{M}"},
      {"nonspacingmark", "\\p{Mn}"},
      {"spacingmark", "\\p{Mc}"},
      {"enclosingmark", "\\p{Me}"},
      {"number", "\\p{N}"},
      {"decimalnumber", "\\p{Nd}"},
      {"letternumber", "\\p{Nl}"},
      {"othernumber", "\\p{No}"},
      {"punctuation", "\\p{P}"},
      {"symbol", "\\p{S}"},
      {"mathsymbol", "\\p{Sm}"},
      {"currencysymbol", "\\p{Sc}"},
      {"separator", "\\p{Z}"},
      {"spaceseparator", "\\p{Zs}"},
      {"control", "\\p{Cc}"},
      {"format", "\\p{Cf}"},
      {"other", "\\p{C}"},
      {"alphabetic", kAlphabetic},
      {"uppercase", "\\p{Uppercase}"},
      {"lowercase", "\\p{Lowercase}"},
      {"whitespace", "\\p{White_Space}"},
      {"ideographic", "\\p{Ideographic}"},
      {"emoji", "\\p{Emoji}"},
      {"emojipresentation", "\\p{Emoji_Presentation}"},
      {"extendedpictographic", "\\p{Extended_Pictographic}"},
  };
  for (const auto& [known, inside] : named) {
    if (known == name) return std::string(inside);
  }
  static const std::vector<std::string_view> categories = {
      "l",  "lu", "ll", "lt", "lm", "lo", "m",  "mn", "mc", "me", "n",  "nd", "nl", "no", "p",  "pc", "pd", "ps",
      "pe", "pi", "pf", "po", "s",  "sm", "sc", "sk", "so", "z",  "zs", "zl", "zp", "c",  "cc", "cf", "cn", "co"};
  if (std::find(categories.begin(), categories.end(), name) != categories.end()) {
    std::string category = name;
    category[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(category[0])));
    return "\\p{" + category + "}";
  }
  // PCRE2 reads a bare script name as Script_Extensions; Oniguruma as Script. Unknown names are left to PCRE2's error.
  return name.empty() ? "" : "\\p{sc:" + name + "}";
}

// What one position of a text may be: a union of simple things (the inside of a PCRE2 set) and of nested sets, perhaps
// intersected with others.
struct CharacterSet {
  bool negated = false;
  std::string inside;
  std::vector<std::string> nested;       // expressions that match one character
  std::vector<std::string> intersected;  // earlier operands of &&, the same

  std::string expression() const {
    std::string simple = inside.empty() ? "" : "[" + inside + "]";
    if (nested.empty() && intersected.empty()) return negated ? "[^" + inside + "]" : simple;
    std::string united = simple;
    for (const std::string& set : nested) united += (united.empty() ? "" : "|") + set;
    united = "(?:" + united + ")";
    std::string result;
    for (const std::string& set : intersected) result += "(?=" + set + ")";
    result = "(?:" + result + united + ")";
    return negated ? "(?:(?!" + result + ")(?s:.))" : result;
  }
};

class Translator {
 public:
  Translator(std::string_view expression, const std::string& where) : text_(expression), where_(where) {}

  std::string run() {
    while (!at_end()) {
      const char letter = text_[place_];
      switch (letter) {
        case '\\':
          escape();
          break;
        case '[': {
          ++place_;
          result_ += set();
          begins_group_ = false;
          break;
        }
        case '(':
          group();
          break;
        case ')':
          if (folding_.size() < 2) refuse("a closing bracket without an opening one");
          folding_.pop_back();
          take(1);
          break;
        case '|':
          take(1);
          break;
        case '*':
        case '+':
        case '?':
          quantifier();
          break;
        case '{':
          interval();
          break;
        case '^':
        case '$':
        case '.':
          take(1);
          break;
        default:
          character(next_code_point());
      }
    }
    return result_;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw InputError(where_ + ": the regular expression " + brief_expression(text_, place_) + " has at byte " +
                     std::to_string(place_) + " " + what + ", which Ithaca cannot run exactly as Hugging Face does");
  }

  bool at_end() const { return place_ >= text_.size(); }
  bool ahead(std::string_view what) const { return text_.substr(place_, what.size()) == what; }
  void take(size_t count) {
    begins_group_ = text_[place_] == '|';
    result_ += text_.substr(place_, count);
    place_ += count;
    previous_ = 0;
  }
  char32_t next_code_point() {
    const char32_t result = first_code_point(text_.substr(place_));
    place_ += static_cast<size_t>(utf8_length(text_[place_]));
    return result;
  }

  // A character that stands for itself.
  void character(char32_t code_point) {
    if (folding_.back()) {
      // Oniguruma also matches characters whose case folding is several characters long, as sharp s for "ss".
      static constexpr std::array<std::string_view, 5> folded = {"ss", "ff", "fi", "fl", "st"};
      std::string pair;
      if (code_point >= 0x80) refuse("a letter that is not ASCII where case is ignored");
      if (previous_ != 0) {
        append_utf8(pair, simple_lower_case(previous_));
        append_utf8(pair, simple_lower_case(code_point));
        if (std::find(folded.begin(), folded.end(), pair) != folded.end()) {
          refuse("\"" + pair + "\" where case is ignored");
        }
      }
    }
    result_ += literal(code_point);
    previous_ = code_point;
    begins_group_ = false;
  }

  void quantifier() {
    // One of * + ?, then perhaps ? (lazy) or + (possessive): the same in both.
    take(1);
    if (!at_end() && (text_[place_] == '?' || text_[place_] == '+')) take(1);
    if (!at_end() && (text_[place_] == '*' || text_[place_] == '+' || text_[place_] == '?')) {
      refuse("a repetition of a repetition");
    }
  }

  void interval() {
    size_t end = place_ + 1;
    bool comma = false;
    std::string low;
    std::string high;
    for (; end < text_.size() && text_[end] != '}'; ++end) {
      if (text_[end] == ',' && !comma) {
        comma = true;
      } else if (text_[end] >= '0' && text_[end] <= '9') {
        (comma ? high : low).push_back(text_[end]);
      } else {
        break;
      }
    }
    if (end >= text_.size() || text_[end] != '}' || (low.empty() && high.empty())) {
      ++place_;
      character(U'{');
      return;
    }
    place_ = end + 1;
    result_ += "{" + (low.empty() ? "0" : low) + (comma ? "," + high : "") + "}";
    previous_ = 0;
    if (at_end()) return;
    if (text_[place_] == '?' && comma) {
      take(1);
    } else if (text_[place_] == '?' || text_[place_] == '+' || text_[place_] == '*') {
      refuse("a repetition of a repetition");
    }
  }

  void group() {
    folding_.push_back(folding_.back());
    const bool first = begins_group_;
    if (ahead("(*")) refuse("a verb");
    if (!ahead("(?")) {
      take(1);
      begins_group_ = true;
      return;
    }
    for (const std::string_view kind : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (ahead(kind)) {
        take(kind.size());
        begins_group_ = true;
        return;
      }
    }
    if (ahead("(?<") || ahead("(?~") || ahead("(?#") || ahead("(?(")) refuse("a group of an unusual kind");
    // Options: (?imx-imx) and (?imx-imx:...).
    place_ += 2;
    result_ += "(?";
    bool on = true;
    for (; !at_end() && text_[place_] != ')' && text_[place_] != ':'; ++place_) {
      const char option = text_[place_];
      if (option == '-') {
        on = false;
        result_ += "-";
      } else if (option == 'i') {
        folding_.back() = on;
        result_ += "i";
      } else if (option == 'm') {
        result_ += "s";  // Ruby's m is what others call s: the dot matches newlines
      } else {
        refuse(std::string("the option \"") + option + "\"");
      }
    }
    if (at_end()) refuse("an option group without an end");
    previous_ = 0;
    if (text_[place_] == ':') {
      result_ += ":";
      ++place_;
      begins_group_ = true;
      return;
    }
    // In Ruby these hold up to the end of the group and take its alternatives with them.
    if (!first) refuse("options that begin within a group");
    const bool folding = folding_.back();
    folding_.pop_back();
    folding_.back() = folding;
    result_ += ")";
    ++place_;
    begins_group_ = true;
  }

  // The code point of an escape that stands for one character, with place_ on the letter after the backslash.
  std::optional<char32_t> escaped_character() {
    const char letter = text_[place_];
    switch (letter) {
      case 'n':
        ++place_;
        return U'\n';
      case 'r':
        ++place_;
        return U'\r';
      case 't':
        ++place_;
        return U'\t';
      case 'f':
        ++place_;
        return U'\f';
      case 'v':
        ++place_;
        return U'\v';
      case 'a':
        ++place_;
        return U'\a';
      case 'e':
        ++place_;
        return U'\x1B';
      case 'x':
      case 'u':
        return hexadecimal(letter);
      default:
        break;
    }
    if (std::isalnum(static_cast<unsigned char>(letter)) != 0) return std::nullopt;
    return next_code_point();
  }

  char32_t hexadecimal(char kind) {
    ++place_;
    std::string digits;
    if (kind == 'x' && !at_end() && text_[place_] == '{') {
      const size_t end = text_.find('}', place_);
      if (end == std::string_view::npos) refuse("\\x{ without an end");
      digits = text_.substr(place_ + 1, end - place_ - 1);
      place_ = end + 1;
    } else {
      const size_t count = kind == 'x' ? 2 : 4;
      digits = text_.substr(place_, count);
      if (digits.size() != count) refuse("an unfinished code point");
      place_ += count;
    }
    uint32_t value = 0;
    const char* const end = digits.data() + digits.size();
    const bool is_number = std::from_chars(digits.data(), end, value, 16).ptr == end;
    if (digits.empty() || digits.size() > 8 || !is_number) refuse("a code point that is none");
    if (kind == 'x' && digits.size() <= 2 && value >= 0x80) refuse("a byte that is not a character");
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) refuse("a code point that is none");
    return value;
  }

  // Character types (\s, \p{...}): the inside of a set and whether it is negated; place_ on the letter.
  std::optional<std::pair<std::string, bool>> character_type() {
    const char letter = text_[place_];
    std::optional<std::pair<std::string, bool>> type;
    switch (letter) {
      case 's':
        type = {"\\p{White_Space}", false};
        break;
      case 'S':
        type = {"\\p{White_Space}", true};
        break;
      case 'd':
        type = {"\\p{Nd}", false};
        break;
      case 'D':
        type = {"\\p{Nd}", true};
        break;
      case 'w':
        type = {std::string(kWord), false};
        break;
      case 'W':
        type = {std::string(kWord), true};
        break;
      case 'h':
        type = {"0-9A-Fa-f", false};
        break;
      case 'H':
        type = {"0-9A-Fa-f", true};
        break;
      case 'p':
      case 'P':
        break;
      default:
        return std::nullopt;
    }
    ++place_;
    if (type) return type;
    if (at_end() || text_[place_] != '{') refuse("\\p without a name in braces");
    const size_t end = text_.find('}', place_);
    if (end == std::string_view::npos) refuse("\\p{ without an end");
    std::string_view name = text_.substr(place_ + 1, end - place_ - 1);
    bool negated = letter == 'P';
    if (!name.empty() && name[0] == '^') {
      negated = !negated;
      name.remove_prefix(1);
    }
    const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](char part) {
      return std::isalnum(static_cast<unsigned char>(part)) != 0 || part == '_' || part == ' ' || part == '-';
    });
    if (!plain) refuse("a property without a plain name");
    place_ = end + 1;
    return std::pair{property(lower(name)), negated};
  }

  void escape() {
    ++place_;
    if (at_end()) refuse("a backslash at its end");
    const bool is_word = text_[place_] == 'w' || text_[place_] == 'W';
    if (const auto type = character_type()) {
      result_ +=
          std::string(type->second ? "[^" : "[") + type->first + (is_word ? std::string(kLatinNumbers) : "") + "]";
      previous_ = 0;
      begins_group_ = false;
      return;
    }
    const char letter = text_[place_];
    const std::string word = "[" + std::string(kWord) + std::string(kLatinNumbers) + "]";
    const std::string border = "(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + ")";
    const std::string inner = "(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + ")";
    if (letter == 'b' || letter == 'B') {
      result_ += "(?:" + (letter == 'b' ? border : inner) + ")";
    } else if (letter == 'A' || letter == 'z' || letter == 'Z') {
      result_ += std::string("\\") + letter;
    } else if (letter == 'R') {
      result_ += "(?>\\x{D}\\x{A}|[\\x{A}-\\x{D}\\x{85}\\x{2028}\\x{2029}])";
    } else if (const auto code_point = escaped_character()) {
      character(*code_point);
      return;
    } else {
      refuse(std::string("the escape \"\\") + letter + "\"");
    }
    ++place_;
    previous_ = 0;
    begins_group_ = false;
  }

  // A set, place_ behind its opening bracket, up to and with its closing one; an expression that matches one character.
  std::string set() {
    if (++depth_ > 100) refuse("sets nested too deeply");
    CharacterSet current;
    if (!at_end() && text_[place_] == '^') {
      current.negated = true;
      ++place_;
    }
    std::optional<char32_t> range_begin;  // the character before a possible '-'
    bool range = false;
    const auto flush = [&] {
      if (range_begin) current.inside += literal(*range_begin);
      if (range) current.inside += literal(U'-');
      range_begin.reset();
      range = false;
    };
    for (bool first = true;; first = false) {
      if (at_end()) refuse("a set without an end");
      if (text_[place_] == ']' && !first) break;
      if (text_[place_] == '[') {
        flush();
        nested_set(current);
        continue;
      }
      if (ahead("&&")) {
        flush();
        place_ += 2;
        CharacterSet operand = current;
        operand.negated = false;
        operand.intersected.clear();
        if (operand.inside.empty() && operand.nested.empty()) refuse("an intersection with nothing");
        current.intersected.push_back(operand.expression());
        current.inside.clear();
        current.nested.clear();
        continue;
      }
      char32_t code_point = 0;
      if (text_[place_] == '\\') {
        ++place_;
        if (at_end()) refuse("a backslash at its end");
        if (const auto type = character_type()) {
          if (range) refuse("a range to a character type");
          flush();
          add(current, type->first, type->second);
          continue;
        }
        if (text_[place_] == 'b') {
          ++place_;
          code_point = U'\b';
        } else if (const auto escaped = escaped_character()) {
          code_point = *escaped;
        } else {
          refuse(std::string("the escape \"\\") + text_[place_] + "\" in a set");
        }
      } else {
        code_point = next_code_point();
        if (code_point == U'-' && range_begin && !range) {
          range = true;
          continue;
        }
      }
      if (folding_.back() && code_point >= 0x80) refuse("a letter that is not ASCII where case is ignored");
      if (range) {
        if (code_point < *range_begin) refuse("an empty range");
        current.inside += literal(*range_begin) + "-" + literal(code_point);
        range_begin.reset();
        range = false;
      } else {
        flush();
        range_begin = code_point;
      }
    }
    flush();
    ++place_;
    --depth_;
    previous_ = 0;
    if (current.inside.empty() && current.nested.empty()) refuse("an empty set");
    return current.expression();
  }

  void nested_set(CharacterSet& outer) {
    if (ahead("[:")) {
      const size_t end = text_.find(":]", place_);
      if (end != std::string_view::npos) {
        std::string_view name = text_.substr(place_ + 2, end - place_ - 2);
        const bool negated = !name.empty() && name[0] == '^';
        if (negated) name.remove_prefix(1);
        static const std::vector<std::string_view> known = {"alpha", "alnum", "digit", "space", "upper",
                                                            "lower", "punct", "word",  "xdigit"};
        if (std::find(known.begin(), known.end(), name) == known.end()) refuse("an unusual bracket name");
        place_ = end + 2;
        // Not what \p{Punct} stands for.
        add(outer, name == "punct" ? "\\p{P}\\p{S}" : property(std::string(name)), negated);
        return;
      }
    }
    ++place_;
    outer.nested.push_back(set());
  }

  static void add(CharacterSet& outer, const std::string& inside, bool negated) {
    if (!negated) {
      outer.inside += inside;
    } else {
      outer.nested.push_back("[^" + inside + "]");
    }
  }

  std::string_view text_;
  const std::string& where_;
  size_t place_ = 0;
  std::string result_;
  int depth_ = 0;
  std::vector<bool> folding_ = {false};  // whether case is ignored, of each open group
  char32_t previous_ = 0;                // the literal character just before, for case folding
  bool begins_group_ = true;
};

}  // namespace

std::string brief_expression(std::string_view expression, size_t place) {
  constexpr size_t kShownBytes = 80;
  const size_t size = expression.size();
  if (size <= kShownBytes) return "\"" + std::string(expression) + "\"";
  size_t begin = place < kShownBytes / 2 ? 0 : std::min(place - kShownBytes / 2, size - kShownBytes);
  size_t end = begin + kShownBytes;
  begin = character_begin(expression, begin);
  while (end < size && is_continuation(expression[end])) ++end;
  return (begin > 0 ? "\"..." : "\"") + std::string(expression.substr(begin, end - begin)) +
         (end < size ? "...\"" : "\"");
}

std::string pcre_from_oniguruma(std::string_view expression, const std::string& where) {
  return Translator(expression, where).run();
}

}  // namespace ithaca::tokenizer_internal
