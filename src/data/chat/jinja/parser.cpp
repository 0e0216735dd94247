#include "data/chat/jinja/parser.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "data/chat/jinja/library.h"

namespace ithaca::jinja {

int Syntax::symbol(const std::string& text) {
  const auto [place, added] = symbol_places.emplace(text, static_cast<int>(symbols.size()));
  if (added) symbols.push_back(text);
  return place->second;
}

std::shared_ptr<const Syntax> parse(std::string_view source, std::string name) {
  auto syntax = std::make_shared<Syntax>();
  syntax->source = normalized_source(source);
  syntax->name = std::move(name);
  Parser(*syntax).parse_template();
  return syntax;
}

// Counts a level of recursion while it lives.
class Parser::Nesting {
 public:
  explicit Nesting(Parser& parser) : parser_(parser) {
    if (++parser_.nesting_ > kDeepestSource) {
      --parser_.nesting_;
      parser_.fail("the template is nested deeper than " + std::to_string(kDeepestSource) + " levels");
    }
  }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;
  ~Nesting() { --parser_.nesting_; }

 private:
  Parser& parser_;
};

Parser::Parser(Syntax& syntax) : syntax_(syntax), tokens_(tokenize(syntax.source, syntax.name)) {}

void Parser::fail(const std::string& message) const {
  fail_at(current().offset, message);
}

void Parser::fail_at(size_t offset, const std::string& message) const {
  throw InputError(text_place(syntax_.source, offset, syntax_.name) + ": " + message);
}

// --- Tokens

const Token& Parser::following() const {
  return tokens_[std::min(position_ + 1, tokens_.size() - 1)];
}

Token Parser::next() {
  Token token = current();
  if (position_ + 1 < tokens_.size()) ++position_;
  return token;
}

bool Parser::is_operator(std::string_view text) const {
  return current().kind == TokenKind::kOperator && current().text == text;
}

bool Parser::is_word(std::string_view word) const {
  return current().kind == TokenKind::kName && current().text == word;
}

bool Parser::skip_operator(std::string_view text) {
  if (!is_operator(text)) return false;
  next();
  return true;
}

bool Parser::skip_word(std::string_view word) {
  if (!is_word(word)) return false;
  next();
  return true;
}

void Parser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) fail("expected '" + std::string(text) + "', got " + described(current()));
}

void Parser::expect_word(std::string_view word) {
  if (!skip_word(word)) fail("expected '" + std::string(word) + "', got " + described(current()));
}

Token Parser::expect(TokenKind kind, const std::string& description) {
  if (!is(kind)) fail("expected " + description + ", got " + described(current()));
  return next();
}

std::string Parser::described(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "text";
    case TokenKind::kVariableBegin:
      return "'{{'";
    case TokenKind::kVariableEnd:
      return "'}}'";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return "a number";
    case TokenKind::kEnd:
      return "the end of the template";
    default:
      return "'" + token.text + "'";
  }
}

// --- Nodes

ExpressionPointer Parser::make(ExpressionKind kind, size_t offset) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->offset = offset;
  return node;
}

ExpressionPointer Parser::finished(ExpressionPointer node) const {
  int depth = 0;
  const auto count = [&](const ExpressionPointer& operand) {
    if (operand) depth = std::max(depth, operand->depth);
  };
  for (const auto& operand : node->operands) count(operand);
  for (const auto& operand : node->call.positional) count(operand);
  for (const auto& [name, operand] : node->call.named) count(operand);
  count(node->call.more);
  count(node->call.more_named);
  node->depth = depth + 1;
  if (node->depth > kDeepestExpression) {
    fail_at(node->offset, "the expression is deeper than " + std::to_string(kDeepestExpression) + " operations");
  }
  return node;
}

ExpressionPointer Parser::binary(ExpressionKind kind, ExpressionPointer left, ExpressionPointer right,
                                 size_t offset) const {
  auto node = make(kind, offset);
  node->operands.push_back(std::move(left));
  node->operands.push_back(std::move(right));
  return finished(std::move(node));
}

void Parser::note_name(const std::string& name) {
  for (Signature* macro : macros_) {
    macro->uses_caller = macro->uses_caller || name == "caller";
    macro->uses_keywords = macro->uses_keywords || name == "kwargs";
    macro->uses_positional = macro->uses_positional || name == "varargs";
  }
}

// --- Expressions, by rising precedence

ExpressionPointer Parser::parse_expression(bool with_conditional) {
  const Nesting nesting(*this);
  return with_conditional ? parse_conditional() : parse_or();
}

ExpressionPointer Parser::parse_conditional() {
  const Nesting nesting(*this);
  const size_t unknown_before = unknown_.size();
  ExpressionPointer value = parse_or();
  while (is_word("if")) {
    const size_t offset = next().offset;
    auto node = make(ExpressionKind::kConditional, offset);
    ExpressionPointer test = parse_or();
    ExpressionPointer other = skip_word("else") ? parse_conditional() : nullptr;
    node->operands.push_back(std::move(test));
    node->operands.push_back(std::move(value));
    node->operands.push_back(std::move(other));
    value = finished(std::move(node));
    // What does not exist in a condition is an error when it runs, as in an if block.
    unknown_.resize(unknown_before);
  }
  return value;
}

template <class Operand>
ExpressionPointer Parser::parse_level(const std::vector<LevelOperator>& level, const Operand& operand) {
  const auto at_operator = [&](const LevelOperator& entry) { return is_operator(entry.text) || is_word(entry.text); };
  ExpressionPointer left = operand();
  while (true) {
    const auto found = std::find_if(level.begin(), level.end(), at_operator);
    if (found == level.end()) return left;
    const size_t offset = next().offset;
    ExpressionPointer right = operand();
    left = binary(found->kind, std::move(left), std::move(right), offset);
    if (found->operation) left->operators = {*found->operation};
  }
}

ExpressionPointer Parser::parse_or() {
  static const std::vector<LevelOperator> kLevel = {{"or", ExpressionKind::kOr, {}}};
  return parse_level(kLevel, [this] { return parse_and(); });
}

ExpressionPointer Parser::parse_and() {
  static const std::vector<LevelOperator> kLevel = {{"and", ExpressionKind::kAnd, {}}};
  return parse_level(kLevel, [this] { return parse_not(); });
}

ExpressionPointer Parser::parse_not() {
  if (!is_word("not")) return parse_compare();
  const Nesting nesting(*this);
  auto node = make(ExpressionKind::kNot, next().offset);
  node->operands.push_back(parse_not());
  return finished(std::move(node));
}

ExpressionPointer Parser::parse_compare() {
  static const std::vector<std::pair<std::string, Operator>> kOperators = {
      {"==", Operator::kEqual},     {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
      {"<=", Operator::kLessEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterEqual}};
  ExpressionPointer first = parse_sum();
  auto node = make(ExpressionKind::kCompare, current().offset);
  node->operands.push_back(std::move(first));
  while (true) {
    if (is(TokenKind::kOperator)) {
      const auto found = std::find_if(kOperators.begin(), kOperators.end(),
                                      [&](const auto& entry) { return entry.first == current().text; });
      if (found == kOperators.end()) break;
      next();
      node->operators.push_back(found->second);
    } else if (skip_word("in")) {
      node->operators.push_back(Operator::kIn);
    } else if (is_word("not") && following().kind == TokenKind::kName && following().text == "in") {
      next();
      next();
      node->operators.push_back(Operator::kNotIn);
    } else {
      break;
    }
    node->operands.push_back(parse_sum());
  }
  if (node->operators.empty()) return std::move(node->operands[0]);
  return finished(std::move(node));
}

ExpressionPointer Parser::parse_sum() {
  static const std::vector<LevelOperator> kLevel = {{"+", ExpressionKind::kBinary, Operator::kAdd},
                                                    {"-", ExpressionKind::kBinary, Operator::kSubtract}};
  return parse_level(kLevel, [this] { return parse_concatenation(); });
}

ExpressionPointer Parser::parse_concatenation() {
  ExpressionPointer first = parse_product();
  if (!is_operator("~")) return first;
  auto node = make(ExpressionKind::kConcatenate, current().offset);
  node->operands.push_back(std::move(first));
  while (skip_operator("~")) node->operands.push_back(parse_product());
  return finished(std::move(node));
}

ExpressionPointer Parser::parse_product() {
  static const std::vector<LevelOperator> kLevel = {{"*", ExpressionKind::kBinary, Operator::kMultiply},
                                                    {"/", ExpressionKind::kBinary, Operator::kDivide},
                                                    {"//", ExpressionKind::kBinary, Operator::kFloorDivide},
                                                    {"%", ExpressionKind::kBinary, Operator::kModulo}};
  return parse_level(kLevel, [this] { return parse_power(); });
}

ExpressionPointer Parser::parse_power() {
  static const std::vector<LevelOperator> kLevel = {{"**", ExpressionKind::kBinary, Operator::kPower}};
  return parse_level(kLevel, [this] { return parse_unary(); });
}

ExpressionPointer Parser::parse_unary(bool with_filter) {
  const Nesting nesting(*this);
  ExpressionPointer node;
  if (is_operator("-") || is_operator("+")) {
    const Token token = next();
    node = make(token.text == "-" ? ExpressionKind::kNegate : ExpressionKind::kPlus, token.offset);
    node->operands.push_back(parse_unary(false));
    node = finished(std::move(node));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_filter_expression(std::move(node)) : std::move(node);
}

ExpressionPointer Parser::parse_primary(bool with_namespace) {
  const Token token = current();
  auto node = make(ExpressionKind::kConstant, token.offset);
  switch (token.kind) {
    case TokenKind::kName:
      next();
      if (token.text == "true" || token.text == "True") {
        node->constant = Value(true);
      } else if (token.text == "false" || token.text == "False") {
        node->constant = Value(false);
      } else if (token.text != "none" && token.text != "None") {
        node->kind = ExpressionKind::kName;
        node->symbol = syntax_.symbol(token.text);
        if (with_namespace && skip_operator(".")) {
          node->kind = ExpressionKind::kNamespaceAttribute;
          node->name = expect(TokenKind::kName, "a name").text;
        }
        note_name(token.text);
      }
      return node;
    case TokenKind::kString: {
      std::string text;
      while (is(TokenKind::kString)) text += next().text;
      node->constant = Value(std::move(text));
      return node;
    }
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      node->constant = next().number;
      return node;
    default:
      break;
  }
  if (skip_operator("(")) {
    TupleRules rules;
    rules.explicit_parentheses = true;
    node = parse_tuple(rules);
    expect_operator(")");
    return node;
  }
  if (is_operator("[")) return parse_list();
  if (is_operator("{")) return parse_dictionary();
  fail("unexpected " + described(token));
}

bool Parser::at_tuple_end() const {
  return is(TokenKind::kVariableEnd) || is(TokenKind::kBlockEnd) || is_operator(")");
}

ExpressionPointer Parser::parse_tuple(const TupleRules& rules) {
  const Nesting nesting(*this);
  auto node = make(ExpressionKind::kTuple, current().offset);
  bool is_tuple = false;
  while (true) {
    if (!node->operands.empty()) expect_operator(",");
    if (at_tuple_end()) break;
    node->operands.push_back(rules.simplified ? parse_primary(rules.with_namespace)
                                              : parse_expression(rules.with_conditional));
    if (!is_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!node->operands.empty()) return std::move(node->operands[0]);
    if (!rules.explicit_parentheses) fail("expected an expression, got " + described(current()));
  }
  return finished(std::move(node));
}

ExpressionPointer Parser::parse_list() {
  auto node = make(ExpressionKind::kList, next().offset);
  while (!is_operator("]")) {
    if (!node->operands.empty()) expect_operator(",");
    if (is_operator("]")) break;
    node->operands.push_back(parse_expression());
  }
  expect_operator("]");
  return finished(std::move(node));
}

ExpressionPointer Parser::parse_dictionary() {
  auto node = make(ExpressionKind::kDictionary, next().offset);
  while (!is_operator("}")) {
    if (!node->operands.empty()) expect_operator(",");
    if (is_operator("}")) break;
    node->operands.push_back(parse_expression());
    expect_operator(":");
    node->operands.push_back(parse_expression());
  }
  expect_operator("}");
  return finished(std::move(node));
}

ExpressionPointer Parser::parse_postfix(ExpressionPointer node) {
  while (true) {
    if (is_operator(".") || is_operator("[")) {
      node = parse_subscript(std::move(node));
    } else if (is_operator("(")) {
      node = parse_call_of(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPointer Parser::parse_filter_expression(ExpressionPointer node) {
  while (true) {
    if (is_operator("|")) {
      node = parse_filter(std::move(node), false);
    } else if (is_word("is")) {
      node = parse_test(std::move(node));
    } else if (is_operator("(")) {
      node = parse_call_of(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPointer Parser::parse_call_of(ExpressionPointer function) {
  auto call = make(ExpressionKind::kCall, current().offset);
  call->call = parse_call();
  call->operands.push_back(std::move(function));
  return finished(std::move(call));
}

ExpressionPointer Parser::parse_subscript(ExpressionPointer node) {
  const Token token = next();
  if (token.text == "[") return parse_slice_or_item(std::move(node), token.offset);
  if (is(TokenKind::kName)) {
    auto attribute = make(ExpressionKind::kAttribute, token.offset);
    attribute->name = next().text;
    attribute->operands.push_back(std::move(node));
    return finished(std::move(attribute));
  }
  if (!is(TokenKind::kInteger)) fail("expected a name or a number behind '.', got " + described(current()));
  auto index = make(ExpressionKind::kConstant, current().offset);
  index->constant = next().number;
  return binary(ExpressionKind::kItem, std::move(node), std::move(index), token.offset);
}

ExpressionPointer Parser::parse_slice_or_item(ExpressionPointer node, size_t offset) {
  std::vector<ExpressionPointer> items;
  bool is_slice = false;
  const auto at_end = [&] { return is_operator("]") || is_operator(","); };
  std::vector<ExpressionPointer> slice;
  while (!is_operator("]")) {
    if (!items.empty() || is_slice) expect_operator(",");
    ExpressionPointer first = is_operator(":") ? nullptr : parse_expression();
    if (!skip_operator(":")) {
      if (is_slice) fail("a slice stands alone between its brackets");
      items.push_back(std::move(first));
      continue;
    }
    if (is_slice || !items.empty()) fail("a slice stands alone between its brackets");
    is_slice = true;
    slice.push_back(std::move(first));
    slice.push_back(is_operator(":") || at_end() ? nullptr : parse_expression());
    slice.push_back(skip_operator(":") && !at_end() ? parse_expression() : nullptr);
  }
  expect_operator("]");
  if (is_slice) {
    auto result = make(ExpressionKind::kSlice, offset);
    result->operands.push_back(std::move(node));
    for (auto& part : slice) result->operands.push_back(std::move(part));
    return finished(std::move(result));
  }
  if (items.size() == 1) return binary(ExpressionKind::kItem, std::move(node), std::move(items[0]), offset);
  auto tuple = make(ExpressionKind::kTuple, offset);
  tuple->operands = std::move(items);
  return binary(ExpressionKind::kItem, std::move(node), finished(std::move(tuple)), offset);
}

CallSyntax Parser::parse_call() {
  const size_t offset = current().offset;
  expect_operator("(");
  CallSyntax call;
  bool first = true;
  const auto ensure = [&](bool right) {
    if (!right) fail_at(offset, "invalid syntax for function call expression");
  };
  while (!is_operator(")")) {
    if (!first) {
      expect_operator(",");
      if (is_operator(")")) break;
    }
    first = false;
    if (skip_operator("*")) {
      ensure(!call.more && !call.more_named);
      call.more = parse_expression();
    } else if (skip_operator("**")) {
      ensure(!call.more_named);
      call.more_named = parse_expression();
    } else if (is(TokenKind::kName) && following().kind == TokenKind::kOperator && following().text == "=") {
      ensure(!call.more_named);
      const Token name = next();
      next();
      for (const auto& given : call.named) {
        if (given.first == name.text) fail_at(name.offset, "keyword argument repeated: " + name.text);
      }
      call.named.emplace_back(name.text, parse_expression());
    } else {
      ensure(!call.more && !call.more_named && call.named.empty());
      call.positional.push_back(parse_expression());
    }
  }
  expect_operator(")");
  return call;
}

ExpressionPointer Parser::parse_filter(ExpressionPointer node, bool starts_inline) {
  while (starts_inline || is_operator("|")) {
    if (!starts_inline) next();
    starts_inline = false;
    auto filter = make(ExpressionKind::kFilter, current().offset);
    filter->name = expect(TokenKind::kName, "the name of a filter").text;
    while (skip_operator(".")) filter->name += "." + expect(TokenKind::kName, "a name").text;
    if (is_operator("(")) filter->call = parse_call();
    if (!soft_ && !has_filter(filter->name)) unknown_.emplace_back(filter->offset, unknown_filter(filter->name));
    filter->operands.push_back(std::move(node));
    node = finished(std::move(filter));
  }
  return node;
}

ExpressionPointer Parser::parse_test(ExpressionPointer node) {
  const size_t offset = next().offset;
  const bool negated = skip_word("not");
  auto test = make(ExpressionKind::kTest, current().offset);
  test->name = expect(TokenKind::kName, "the name of a test").text;
  while (skip_operator(".")) test->name += "." + expect(TokenKind::kName, "a name").text;
  const bool starts_argument = is(TokenKind::kName) || is(TokenKind::kString) || is(TokenKind::kInteger) ||
                               is(TokenKind::kFloat) || is_operator("[") || is_operator("{");
  if (is_operator("(")) {
    test->call = parse_call();
  } else if (starts_argument && !is_word("else") && !is_word("or") && !is_word("and")) {
    if (is_word("is")) fail("You cannot chain multiple tests with is");
    ExpressionPointer argument = parse_primary();
    test->call.positional.push_back(parse_postfix(std::move(argument)));
  }
  if (!soft_ && !has_test(test->name)) unknown_.emplace_back(test->offset, unknown_test(test->name));
  test->operands.push_back(std::move(node));
  ExpressionPointer result = finished(std::move(test));
  if (!negated) return result;
  auto inverted = make(ExpressionKind::kNot, offset);
  inverted->operands.push_back(std::move(result));
  return finished(std::move(inverted));
}

}  // namespace ithaca::jinja
