// The parser: tokens to a tree, with the grammar of Jinja 3.1, its loop controls, and {% generation %}.
//
// Thread-safety: one parser per thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/chat/jinja/lexer.h"
#include "data/chat/jinja/syntax.h"

namespace ithaca::jinja {

// Brackets in brackets (four levels each), blocks in blocks: more are an error, so that no template overflows the
// stack.
constexpr int kDeepestSource = 400;
// Levels of the tree of one expression: a + b + c has two.
constexpr int kDeepestExpression = 400;

class Parser {
 public:
  explicit Parser(Syntax& syntax);
  // Fills the syntax that the parser was made with.
  void parse_template();

 private:
  class Nesting;

  [[noreturn]] void fail(const std::string& message) const;
  [[noreturn]] void fail_at(size_t offset, const std::string& message) const;

  // --- Tokens
  const Token& current() const { return tokens_[position_]; }
  const Token& following() const;
  Token next();
  bool is(TokenKind kind) const { return current().kind == kind; }
  bool is_operator(std::string_view text) const;
  bool is_word(std::string_view word) const;
  bool skip_operator(std::string_view text);
  bool skip_word(std::string_view word);
  void expect_operator(std::string_view text);
  void expect_word(std::string_view word);
  Token expect(TokenKind kind, const std::string& description);
  static std::string described(const Token& token);

  // --- Statements (parser_statements.cpp)
  Body parse_body(const std::vector<std::string>& end_words, const std::string& block, size_t block_offset);
  Body parse_block_body(const std::vector<std::string>& end_words, const std::string& block, size_t block_offset);
  std::unique_ptr<Statement> parse_statement();
  void parse_for(Statement& statement);
  void parse_if(Statement& statement);
  void parse_set(Statement& statement);
  void parse_macro(Statement& statement);
  void parse_call_block(Statement& statement);
  void parse_filter_block(Statement& statement);
  void parse_with(Statement& statement);
  void parse_block(Statement& statement);
  void parse_generation(Statement& statement);
  void parse_print(Statement& statement);
  void parse_signature(Signature& signature);
  Body parse_macro_body(Signature& signature, const std::string& end_word, const std::string& block, size_t offset);
  ExpressionPointer parse_target(bool with_namespace);
  void check_target(Expression& target, bool is_parameter);

  // --- Expressions (parser.cpp)
  ExpressionPointer parse_expression(bool with_conditional = true);
  ExpressionPointer parse_conditional();
  // An operator between two operands.
  struct LevelOperator {
    std::string_view text;
    ExpressionKind kind;
    std::optional<Operator> operation;  // of ExpressionKind::kBinary
  };
  // Operands with operators of one precedence between them, grouped from the left.
  template <class Operand>
  ExpressionPointer parse_level(const std::vector<LevelOperator>& level, const Operand& operand);
  ExpressionPointer parse_or();
  ExpressionPointer parse_and();
  ExpressionPointer parse_not();
  ExpressionPointer parse_compare();
  ExpressionPointer parse_sum();
  ExpressionPointer parse_concatenation();
  ExpressionPointer parse_product();
  ExpressionPointer parse_power();
  ExpressionPointer parse_unary(bool with_filter = true);
  ExpressionPointer parse_primary(bool with_namespace = false);
  struct TupleRules {
    bool simplified = false;
    bool with_conditional = true;
    bool with_namespace = false;
    bool explicit_parentheses = false;
  };
  ExpressionPointer parse_tuple(const TupleRules& rules);
  bool at_tuple_end() const;
  ExpressionPointer parse_list();
  ExpressionPointer parse_dictionary();
  ExpressionPointer parse_postfix(ExpressionPointer node);
  ExpressionPointer parse_filter_expression(ExpressionPointer node);
  ExpressionPointer parse_call_of(ExpressionPointer function);
  ExpressionPointer parse_subscript(ExpressionPointer node);
  ExpressionPointer parse_slice_or_item(ExpressionPointer node, size_t offset);
  CallSyntax parse_call();
  ExpressionPointer parse_filter(ExpressionPointer node, bool starts_inline);
  ExpressionPointer parse_test(ExpressionPointer node);

  ExpressionPointer make(ExpressionKind kind, size_t offset) const;
  // Sets the depth from the operands and refuses too deep trees.
  ExpressionPointer finished(ExpressionPointer node) const;
  ExpressionPointer binary(ExpressionKind kind, ExpressionPointer left, ExpressionPointer right, size_t offset) const;
  void note_name(const std::string& name);

  Syntax& syntax_;
  std::vector<Token> tokens_;
  size_t position_ = 0;
  int nesting_ = 0;
  int loops_ = 0;            // for loops around here, whose variable `loop` nobody may set
  int breakable_loops_ = 0;  // the same, within the innermost macro
  bool soft_ = false;        // inside an if: filters that do not exist are errors only when they run
  std::vector<std::pair<size_t, std::string>> unknown_;  // filters and tests that do not exist, with what to say
  std::vector<Signature*> macros_;
  std::vector<std::string> blocks_;
};

}  // namespace ithaca::jinja
