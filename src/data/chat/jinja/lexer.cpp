#include "data/chat/jinja/lexer.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "data/chat/jinja/format.h"
#include "data/chat/jinja/text.h"

namespace ithaca::jinja {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

class Lexer {
 public:
  Lexer(const std::string& source, const std::string& name) : source_(source), name_(name) {}

  std::vector<Token> run() {
    while (position_ < source_.size()) data();
    add(TokenKind::kEnd, source_.size(), "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(size_t offset, const std::string& message) const {
    throw InputError(text_place(source_, offset, name_) + ": " + message);
  }

  bool at(std::string_view text) const { return at(position_, text); }
  bool at(size_t position, std::string_view text) const { return source_.compare(position, text.size(), text) == 0; }
  char character(size_t position) const { return position < source_.size() ? source_[position] : '\0'; }

  Token& add(TokenKind kind, size_t offset, std::string text) {
    tokens_.push_back({kind, offset, std::move(text), Value()});
    return tokens_.back();
  }

  size_t behind_space(size_t position) const {
    while (position < source_.size()) {
      size_t next = position;
      if (!is_space(next_code_point(source_, next))) break;
      position = next;
    }
    return position;
  }

  // Text up to the next tag, and the tag.
  void data() {
    const size_t begin = position_;
    size_t tag = begin;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        add_data(begin, source_.substr(begin));
        position_ = source_.size();
        return;
      }
      const char kind = source_[tag + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
      ++tag;
    }
    const char kind = source_[tag + 1];
    position_ = tag + 2;
    const char sign = character(position_) == '-' || character(position_) == '+' ? source_[position_++] : '\0';

    std::string text = source_.substr(begin, tag - begin);
    if (sign == '-') {
      text = std::string(stripped(text, false, true));
    } else if (sign != '+' && kind != '{') {
      // lstrip_blocks: white space between the start of the line and a block or a comment goes.
      const size_t last_break = text.rfind('\n');
      const size_t line = last_break == std::string::npos ? 0 : last_break + 1;
      if ((line > 0 || line_starting_) && stripped(std::string_view(text).substr(line), true, false).empty()) {
        text.resize(line);
      }
    }
    add_data(begin, std::move(text));
    if (kind == '#') {
      comment(tag);
    } else if (kind == '%' && is_raw()) {
      raw(tag);
    } else {
      add(kind == '%' ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, tag, "");
      expression(kind);
    }
    line_starting_ = position_ > 0 && source_[position_ - 1] == '\n';
  }

  void add_data(size_t offset, std::string text) {
    if (!text.empty()) add(TokenKind::kData, offset, std::move(text));
  }

  // Behind the end of a block or a comment: "-" takes all white space, trim_blocks one line end.
  size_t behind_end(size_t end, char sign) const {
    if (sign == '-') return behind_space(end);
    return sign == '\0' && character(end) == '\n' ? end + 1 : end;
  }

  void comment(size_t tag) {
    const size_t end = source_.find("#}", position_);
    if (end == std::string::npos) {
      // As in Jinja: what begins at the very end of the template is nothing.
      if (position_ < source_.size()) fail(tag, "Missing end of comment tag");
      return;
    }
    const char before = end > position_ ? source_[end - 1] : '\0';
    position_ = behind_end(end + 2, before == '-' || before == '+' ? before : '\0');
  }

  bool is_raw() {
    size_t end = behind_space(position_);
    if (!at(end, "raw")) return false;
    end = behind_space(end + 3);
    if (at(end, "-%}")) {
      position_ = behind_space(end + 3);
      return true;
    }
    if (!at(end, "%}")) return false;
    position_ = end + 2;
    return true;
  }

  void raw(size_t tag) {
    for (size_t begin = source_.find("{%", position_); begin != std::string::npos;
         begin = source_.find("{%", begin + 1)) {
      size_t end = begin + 2;
      const char sign = character(end) == '-' || character(end) == '+' ? source_[end++] : '\0';
      end = behind_space(end);
      if (!at(end, "endraw")) continue;
      end = behind_space(end + 6);
      const char end_sign = character(end) == '-' || character(end) == '+' ? source_[end++] : '\0';
      if (!at(end, "%}")) continue;
      std::string text = source_.substr(position_, begin - position_);
      if (sign == '-') {
        text = std::string(stripped(text, false, true));
      } else if (sign == '\0') {
        const size_t last_break = text.rfind('\n');
        if (last_break != std::string::npos &&
            stripped(std::string_view(text).substr(last_break + 1), true, false).empty()) {
          text.resize(last_break + 1);
        }
      }
      add_data(position_, std::move(text));
      position_ = behind_end(end + 2, end_sign);
      return;
    }
    if (position_ < source_.size()) fail(tag, "Missing end of raw directive");
  }

  // The tokens of one tag, up to and with its end.
  void expression(char kind) {
    const size_t tag = tokens_.back().offset;
    const std::string_view end_mark = kind == '%' ? "%}" : "}}";
    std::string open;  // the closing brackets that are due, last one last
    while (true) {
      position_ = behind_space(position_);
      if (position_ >= source_.size()) {
        fail(source_.size(), std::string("unexpected end of template, the tag that begins at ") +
                                 text_place(source_, tag, name_) + " is not closed");
      }
      if (open.empty()) {
        const char sign =
            character(position_) == '-' || (kind == '%' && character(position_) == '+') ? source_[position_] : '\0';
        const size_t mark = position_ + (sign == '\0' ? 0 : 1);
        if (at(mark, end_mark)) {
          add(kind == '%' ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, position_, "");
          const size_t end = mark + 2;
          position_ = kind == '%' ? behind_end(end, sign) : sign == '-' ? behind_space(end) : end;
          return;
        }
      }
      token(open);
    }
  }

  void token(std::string& open) {
    const char c = source_[position_];
    size_t next = position_;
    const char32_t code_point = next_code_point(source_, next);
    if (is_digit(c)) {
      number();
    } else if (is_word(code_point)) {
      name();
    } else if (c == '\'' || c == '"') {
      string(c);
    } else {
      operator_token(open);
    }
  }

  // Digits of `base`, single underscores between them. Nothing is taken where there is no digit.
  size_t digits_end(size_t position, int base) const {
    const auto is_of_base = [&](char d) {
      const auto byte = static_cast<unsigned char>(d);
      return is_digit(d) ? d - '0' < base : base == 16 && std::isxdigit(byte) != 0;
    };
    size_t end = position;
    while (is_of_base(character(end)) || (end > position && character(end) == '_' && is_of_base(character(end + 1))))
      ++end;
    return end;
  }

  void number() {
    const size_t begin = position_;
    // A float does not start behind a dot: x.0.1 are two indices.
    const size_t whole = digits_end(begin, 10);
    if (begin == 0 || source_[begin - 1] != '.') {
      size_t end = whole;
      bool floating = false;
      if (character(end) == '.' && is_digit(character(end + 1))) {
        end = digits_end(end + 1, 10);
        floating = true;
      }
      if (character(end) == 'e' || character(end) == 'E') {
        size_t exponent = end + 1;
        if (character(exponent) == '+' || character(exponent) == '-') ++exponent;
        if (is_digit(character(exponent))) {
          end = digits_end(exponent, 10);
          floating = true;
        }
      }
      if (floating) {
        std::string text = source_.substr(begin, end - begin);
        text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
        add(TokenKind::kFloat, begin, "").number = Value(std::strtod(text.c_str(), nullptr));
        position_ = end;
        return;
      }
    }
    size_t end = whole;
    if (source_[begin] == '0') {
      const char letter = static_cast<char>(std::tolower(static_cast<unsigned char>(character(begin + 1))));
      const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
      const size_t first = begin + 2 + (base != 10 && character(begin + 2) == '_' ? 1 : 0);
      if (base != 10 && digits_end(first, base) > first) {
        end = digits_end(first, base);
      } else {
        // Zeros only: 07 is a zero and a seven.
        end = begin + 1;
        while (character(end) == '0' || (character(end) == '_' && character(end + 1) == '0')) ++end;
      }
    }
    try {
      const auto value = parse_integer(source_.substr(begin, end - begin), 0);
      if (!value) fail(begin, "not an integer: " + source_.substr(begin, end - begin));
      add(TokenKind::kInteger, begin, "").number = Value(*value);
    } catch (const Failure& failure) {
      fail(begin, failure.what());
    }
    position_ = end;
  }

  void name() {
    const size_t begin = position_;
    while (position_ < source_.size()) {
      size_t next = position_;
      const char32_t code_point = next_code_point(source_, next);
      if (!is_word(code_point) &&
          !(code_point >= 0x300 && is_printable(code_point) && !is_space(code_point) && is_mark(code_point))) {
        break;
      }
      position_ = next;
    }
    size_t first_end = begin;
    const char32_t first = next_code_point(source_, first_end);
    if (first != '_' && !is_in(first, CharacterClass::kAlphabetic)) fail(begin, "Invalid character in identifier");
    add(TokenKind::kName, begin, source_.substr(begin, position_ - begin));
  }

  // Marks that continue an identifier: what stands in a word and is neither letter, digit nor punctuation.
  static bool is_mark(char32_t code_point) {
    return (code_point >= 0x300 && code_point <= 0x36f) || (code_point >= 0x900 && code_point <= 0xdff) ||
           (code_point >= 0x20d0 && code_point <= 0x20f0);
  }

  void string(char quote) {
    const size_t begin = position_;
    size_t end = begin + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail(begin, std::string("unexpected char ") + quote + ": the string is not closed");
    add(TokenKind::kString, begin, unescaped(begin + 1, end));
    position_ = end + 1;
  }

  std::string unescaped(size_t begin, size_t end) const {
    std::string text;
    for (size_t i = begin; i < end;) {
      if (source_[i] != '\\') {
        text += source_[i++];
        continue;
      }
      const size_t escape = i;
      const char kind = source_[i + 1];
      i += 2;
      constexpr std::string_view kLetters = "nrtabfv\\'\"";
      constexpr std::string_view kMeanings = "\n\r\t\a\b\f\v\\'\"";
      if (const size_t known = kLetters.find(kind); known != std::string_view::npos) {
        text += kMeanings[known];
      } else if (kind == '\n') {
        continue;
      } else if (kind >= '0' && kind <= '7') {
        char32_t code_point = 0;
        for (i = escape + 1; i < std::min(end, escape + 4) && source_[i] >= '0' && source_[i] <= '7'; ++i) {
          code_point = code_point * 8 + static_cast<char32_t>(source_[i] - '0');
        }
        append_utf8(text, code_point);
      } else if (kind == 'x' || kind == 'u' || kind == 'U') {
        const size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : 8;
        uint32_t code_point = 0;
        const char* const first = source_.data() + i;
        if (end - i < digits || std::from_chars(first, first + digits, code_point, 16).ptr != first + digits) {
          fail(escape, std::string("truncated \\") + kind + " escape");
        }
        i += digits;
        if (code_point > 0x10ffff || (code_point >= 0xd800 && code_point < 0xe000)) {
          fail(escape, "the escape is not a character that UTF-8 can write");
        }
        append_utf8(text, code_point);
      } else if (kind == 'N') {
        fail(escape, "characters by name (\\N{...}) are not known here: write \\u and the code point");
      } else {
        // As Python: the backslash stays.
        text += '\\';
        i = escape + 1;
      }
    }
    return text;
  }

  void operator_token(std::string& open) {
    static const std::vector<std::string> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                        "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                        ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (const std::string& text : kOperators) {
      if (!at(text)) continue;
      if (text == "(" || text == "[" || text == "{") {
        open += text == "(" ? ')' : text == "[" ? ']' : '}';
      } else if (text == ")" || text == "]" || text == "}") {
        if (open.empty()) fail(position_, "unexpected '" + text + "'");
        if (open.back() != text[0]) fail(position_, "unexpected '" + text + "', expected '" + open.back() + "'");
        open.pop_back();
      }
      add(TokenKind::kOperator, position_, text);
      position_ += text.size();
      return;
    }
    size_t next = position_;
    next_code_point(source_, next);
    fail(position_, "unexpected char " + repr(Value(source_.substr(position_, next - position_))));
  }

  const std::string& source_;
  const std::string& name_;
  size_t position_ = 0;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::string normalized_source(std::string_view source) {
  const std::string valid = valid_utf8(source);
  std::string result;
  result.reserve(valid.size());
  for (size_t i = 0; i < valid.size(); ++i) {
    if (valid[i] != '\r') {
      result += valid[i];
    } else {
      result += '\n';
      if (i + 1 < valid.size() && valid[i + 1] == '\n') ++i;
    }
  }
  if (!result.empty() && result.back() == '\n') result.pop_back();
  return result;
}

std::vector<Token> tokenize(const std::string& source, const std::string& name) {
  return Lexer(source, name).run();
}

}  // namespace ithaca::jinja
