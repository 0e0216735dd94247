#include <algorithm>
#include <utility>

#include "data/chat/jinja/parser.h"

namespace ithaca::jinja {
namespace {

// Restores what a block changed of the parser's state.
template <typename Type>
class Restored {
 public:
  Restored(Type& place, Type value) : place_(place), before_(place) { place_ = value; }
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;
  ~Restored() { place_ = before_; }

 private:
  Type& place_;
  Type before_;
};

}  // namespace

void Parser::parse_template() {
  syntax_.body = parse_body({}, "", 0);
}

// Statements up to one of the words, which stays the current token; to the end of the template without words.
Body Parser::parse_body(const std::vector<std::string>& end_words, const std::string& block, size_t block_offset) {
  Body body;
  while (true) {
    const Token& token = current();
    if (token.kind == TokenKind::kEnd) {
      if (end_words.empty()) return body;
      fail_at(block_offset,
              "the block '" + block + "' is not closed: the template ends before '{% " + end_words.back() + " %}'");
    }
    auto statement = std::make_unique<Statement>();
    statement->offset = token.offset;
    if (token.kind == TokenKind::kData) {
      statement->text = next().text;
      body.push_back(std::move(statement));
    } else if (token.kind == TokenKind::kVariableBegin) {
      next();
      statement->kind = StatementKind::kPrint;
      statement->expressions.push_back(parse_tuple({}));
      expect(TokenKind::kVariableEnd, "'}}'");
      body.push_back(std::move(statement));
    } else {
      next();
      if (is(TokenKind::kName) && std::find(end_words.begin(), end_words.end(), current().text) != end_words.end()) {
        return body;
      }
      body.push_back(parse_statement());
      expect(TokenKind::kBlockEnd, "'%}'");
    }
  }
}

Body Parser::parse_block_body(const std::vector<std::string>& end_words, const std::string& block,
                              size_t block_offset) {
  if (nesting_ + 1 > kDeepestSource) {
    fail_at(block_offset, "the template is nested deeper than " + std::to_string(kDeepestSource) + " levels");
  }
  const Restored<int> nesting(nesting_, nesting_ + 1);
  skip_operator(":");
  expect(TokenKind::kBlockEnd, "'%}'");
  return parse_body(end_words, block, block_offset);
}

std::unique_ptr<Statement> Parser::parse_statement() {
  if (!is(TokenKind::kName)) fail("expected the name of a statement, got " + described(current()));
  auto statement = std::make_unique<Statement>();
  const Token word = next();
  statement->offset = word.offset;
  if (word.text == "for") {
    parse_for(*statement);
  } else if (word.text == "if") {
    parse_if(*statement);
  } else if (word.text == "set") {
    parse_set(*statement);
  } else if (word.text == "macro") {
    parse_macro(*statement);
  } else if (word.text == "call") {
    parse_call_block(*statement);
  } else if (word.text == "filter") {
    parse_filter_block(*statement);
  } else if (word.text == "with") {
    parse_with(*statement);
  } else if (word.text == "block") {
    parse_block(*statement);
  } else if (word.text == "generation") {
    parse_generation(*statement);
  } else if (word.text == "print") {
    parse_print(*statement);
  } else if (word.text == "break" || word.text == "continue") {
    if (breakable_loops_ == 0) fail_at(word.offset, "'" + word.text + "' stands outside of a loop");
    statement->kind = word.text == "break" ? StatementKind::kBreak : StatementKind::kContinue;
  } else if (word.text == "include" || word.text == "import" || word.text == "from" || word.text == "extends") {
    fail_at(word.offset, "'" + word.text + "' needs other templates, and a chat template stands alone");
  } else if (word.text == "autoescape") {
    fail_at(word.offset, "'autoescape' is for HTML and not known here: use the filter escape");
  } else {
    fail_at(word.offset, "Encountered unknown tag '" + word.text + "'");
  }
  return statement;
}

ExpressionPointer Parser::parse_target(bool with_namespace) {
  TupleRules rules;
  rules.simplified = true;
  rules.with_namespace = with_namespace;
  ExpressionPointer target = parse_tuple(rules);
  check_target(*target, false);
  return target;
}

void Parser::check_target(Expression& target, bool is_parameter) {
  switch (target.kind) {
    case ExpressionKind::kName:
      if (loops_ > 0 && !is_parameter && syntax_.symbols[static_cast<size_t>(target.symbol)] == "loop") {
        fail_at(target.offset, "Can't assign to special loop variable in for-loop target");
      }
      return;
    case ExpressionKind::kNamespaceAttribute:
      return;
    case ExpressionKind::kTuple:
      for (const auto& part : target.operands) check_target(*part, is_parameter);
      return;
    default:
      fail_at(target.offset, "can't assign to this expression: only names, tuples of names and namespace attributes");
  }
}

void Parser::parse_for(Statement& statement) {
  statement.kind = StatementKind::kFor;
  const Restored<int> loops(loops_, loops_ + 1);
  const Restored<bool> soft(soft_, false);
  statement.target = parse_target(false);
  expect_word("in");
  TupleRules rules;
  rules.with_conditional = false;
  statement.value = parse_tuple(rules);
  if (skip_word("if")) statement.test = parse_expression();
  statement.recursive = skip_word("recursive");
  {
    const Restored<int> breakable(breakable_loops_, breakable_loops_ + 1);
    statement.body = parse_block_body({"else", "endfor"}, "for", statement.offset);
  }
  if (next().text == "else") {
    statement.other_body = parse_block_body({"endfor"}, "for", statement.offset);
    next();
  }
}

void Parser::parse_if(Statement& statement) {
  statement.kind = StatementKind::kIf;
  const Restored<bool> soft(soft_, true);
  TupleRules rules;
  rules.with_conditional = false;
  while (true) {
    ExpressionPointer test = parse_tuple(rules);
    Body body = parse_block_body({"elif", "else", "endif"}, "if", statement.offset);
    statement.branches.emplace_back(std::move(test), std::move(body));
    const Token word = next();
    if (word.text == "elif") continue;
    if (word.text == "else") {
      statement.other_body = parse_block_body({"endif"}, "if", statement.offset);
      next();
    }
    return;
  }
}

void Parser::parse_set(Statement& statement) {
  statement.target = parse_target(true);
  if (skip_operator("=")) {
    statement.kind = StatementKind::kSet;
    statement.value = parse_tuple({});
    return;
  }
  statement.kind = StatementKind::kSetBlock;
  const Restored<bool> soft(soft_, false);
  statement.value = parse_filter(nullptr, false);
  statement.body = parse_block_body({"endset"}, "set", statement.offset);
  next();
}

void Parser::parse_signature(Signature& signature) {
  expect_operator("(");
  while (!is_operator(")")) {
    if (!signature.names.empty()) expect_operator(",");
    const Token name = expect(TokenKind::kName, "the name of a parameter");
    if (std::find(signature.names.begin(), signature.names.end(), name.text) != signature.names.end()) {
      fail_at(name.offset, "the parameter '" + name.text + "' stands twice");
    }
    if (skip_operator("=")) {
      signature.defaults.push_back(parse_expression());
    } else if (!signature.defaults.empty()) {
      fail_at(name.offset, "non-default argument follows default argument");
    }
    signature.names.push_back(name.text);
    signature.symbols.push_back(syntax_.symbol(name.text));
  }
  expect_operator(")");
}

Body Parser::parse_macro_body(Signature& signature, const std::string& end_word, const std::string& block,
                              size_t offset) {
  // A macro is a function of its own: no loop outside of it can be left from it.
  const Restored<int> breakable(breakable_loops_, 0);
  const Restored<bool> soft(soft_, false);
  macros_.push_back(&signature);
  Body body = parse_block_body({end_word}, block, offset);
  macros_.pop_back();
  next();
  const auto has = [&](const char* name) {
    return std::find(signature.names.begin(), signature.names.end(), name) != signature.names.end();
  };
  if (has("kwargs")) signature.uses_keywords = false;
  if (has("varargs")) signature.uses_positional = false;
  if (signature.uses_caller && has("caller")) {
    const auto place = std::find(signature.names.begin(), signature.names.end(), "caller") - signature.names.begin();
    const auto without_default = static_cast<int64_t>(signature.names.size() - signature.defaults.size());
    if (place < without_default) {
      fail_at(offset, "the parameter \"caller\" of a macro or a call block must be left out or have a default");
    }
  }
  return body;
}

void Parser::parse_macro(Statement& statement) {
  statement.kind = StatementKind::kMacro;
  const Token name = expect(TokenKind::kName, "the name of the macro");
  static const std::vector<std::string> kConstants = {"true", "false", "none", "True", "False", "None"};
  if (std::find(kConstants.begin(), kConstants.end(), name.text) != kConstants.end()) {
    fail_at(name.offset, "can't assign to '" + name.text + "'");
  }
  statement.symbol = syntax_.symbol(name.text);
  auto signature = std::make_shared<Signature>();
  signature->name = name.text;
  parse_signature(*signature);
  statement.body = parse_macro_body(*signature, "endmacro", "macro", statement.offset);
  statement.signature = std::move(signature);
}

void Parser::parse_call_block(Statement& statement) {
  statement.kind = StatementKind::kCall;
  auto signature = std::make_shared<Signature>();
  if (is_operator("(")) parse_signature(*signature);
  statement.value = parse_expression();
  if (statement.value->kind != ExpressionKind::kCall) fail_at(statement.value->offset, "expected a call");
  statement.body = parse_macro_body(*signature, "endcall", "call", statement.offset);
  statement.signature = std::move(signature);
}

void Parser::parse_filter_block(Statement& statement) {
  statement.kind = StatementKind::kFilter;
  const Restored<bool> soft(soft_, false);
  statement.value = parse_filter(nullptr, true);
  statement.body = parse_block_body({"endfilter"}, "filter", statement.offset);
  next();
}

void Parser::parse_with(Statement& statement) {
  statement.kind = StatementKind::kWith;
  const Restored<bool> soft(soft_, false);
  while (!is(TokenKind::kBlockEnd)) {
    if (!statement.targets.empty()) expect_operator(",");
    TupleRules rules;
    rules.simplified = true;
    ExpressionPointer target = parse_tuple(rules);
    check_target(*target, true);
    expect_operator("=");
    statement.targets.push_back(std::move(target));
    statement.expressions.push_back(parse_expression());
  }
  statement.body = parse_block_body({"endwith"}, "with", statement.offset);
  next();
}

void Parser::parse_block(Statement& statement) {
  statement.kind = StatementKind::kBlock;
  const Token name = expect(TokenKind::kName, "the name of the block");
  if (std::find(blocks_.begin(), blocks_.end(), name.text) != blocks_.end()) {
    fail_at(name.offset, "block '" + name.text + "' defined twice");
  }
  if (!is(TokenKind::kBlockEnd)) fail("a block of a chat template has a name and nothing else");
  blocks_.push_back(name.text);
  const Restored<int> breakable(breakable_loops_, 0);
  const Restored<bool> soft(soft_, false);
  statement.body = parse_block_body({"endblock"}, "block", statement.offset);
  next();
  skip_word(name.text);
}

void Parser::parse_generation(Statement& statement) {
  statement.kind = StatementKind::kGeneration;
  syntax_.has_generation = true;
  const Restored<int> breakable(breakable_loops_, 0);
  const Restored<bool> soft(soft_, false);
  statement.body = parse_block_body({"endgeneration"}, "generation", statement.offset);
  next();
}

void Parser::parse_print(Statement& statement) {
  statement.kind = StatementKind::kPrint;
  while (!is(TokenKind::kBlockEnd)) {
    if (!statement.expressions.empty()) expect_operator(",");
    statement.expressions.push_back(parse_expression());
  }
}

}  // namespace ithaca::jinja
