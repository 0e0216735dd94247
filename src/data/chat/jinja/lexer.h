// The lexer: a template's text to tokens, with Jinja's control of white space.
//
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/chat/jinja/value.h"

namespace ithaca::jinja {

enum class TokenKind {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,  // text says which
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  size_t offset = 0;  // in the source
  std::string text;   // data, a name, an operator, a string with its escapes resolved
  Value number;       // of kInteger and kFloat
};

// Valid UTF-8 with \n for every line end, without the last one.
std::string normalized_source(std::string_view source);
// Of a normalized source. `name` is the file that errors name. Throws InputError with file, line and column.
std::vector<Token> tokenize(const std::string& source, const std::string& name);

}  // namespace ithaca::jinja
