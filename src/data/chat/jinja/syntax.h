// What a template is made of: expressions and statements, as the parser gives them and the interpreter runs them.
//
// Thread-safety: constant once parsed; several threads may run one template at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/chat/jinja/value.h"

namespace ithaca::jinja {

enum class Operator {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct Expression;
using ExpressionPointer = std::unique_ptr<Expression>;

// f(positional, name=named, *more, **more_named)
struct CallSyntax {
  std::vector<ExpressionPointer> positional;
  std::vector<std::pair<std::string, ExpressionPointer>> named;
  ExpressionPointer more;
  ExpressionPointer more_named;
};

enum class ExpressionKind {
  kConstant,            // constant
  kName,                // symbol
  kNamespaceAttribute,  // symbol.name, in assignments
  kTuple,               // operands
  kList,                // operands
  kDictionary,          // operands: key, value, key, value, ...
  kNegate,              // operands[0]
  kPlus,                // operands[0]
  kNot,                 // operands[0]
  kBinary,              // operators[0] of operands[0] and [1]
  kAnd,                 // operands[0] and [1]
  kOr,                  // operands[0] and [1]
  kCompare,             // operands[0] operators[0] operands[1] operators[1] operands[2] ...
  kConcatenate,         // operands
  kConditional,         // operands: test, value, other value (null: undefined)
  kAttribute,           // operands[0].name
  kItem,                // operands[0][operands[1]]
  kSlice,               // operands[0][operands[1]:operands[2]:operands[3]], the last three may be null
  kCall,                // operands[0](call)
  kFilter,              // operands[0] | name(call); operands[0] is null for the body of a filter block
  kTest,                // operands[0] is name(call)
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  size_t offset = 0;  // in the source
  int depth = 1;      // of the tree below
  Value constant;
  int symbol = -1;  // index of a variable's name in Syntax::symbols
  std::string name;
  std::vector<Operator> operators;
  std::vector<ExpressionPointer> operands;
  CallSyntax call;
};

enum class StatementKind {
  kText,        // text
  kPrint,       // expressions
  kFor,         // for target in value if test: body, else other_body
  kIf,          // branches, other_body
  kSet,         // target = value
  kSetBlock,    // target = body through value (filters, or null)
  kMacro,       // symbol, signature, body
  kCall,        // value is the call, signature, body is the caller's
  kFilter,      // value is the filters, body
  kWith,        // targets = expressions, body
  kBlock,       // body, with the variables of the top level only
  kGeneration,  // body
  kBreak,
  kContinue,
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

// The parameters of a macro or of a call block, and which special variables its body names.
struct Signature {
  std::string name;  // empty for a call block
  std::vector<int> symbols;
  std::vector<std::string> names;
  std::vector<ExpressionPointer> defaults;  // of the last ones
  bool uses_caller = false;
  bool uses_keywords = false;
  bool uses_positional = false;
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  size_t offset = 0;
  std::string text;
  ExpressionPointer target;
  ExpressionPointer value;
  ExpressionPointer test;
  bool recursive = false;
  int symbol = -1;
  std::vector<ExpressionPointer> expressions;
  std::vector<ExpressionPointer> targets;
  std::vector<std::pair<ExpressionPointer, Body>> branches;
  Body body;
  Body other_body;
  std::shared_ptr<const Signature> signature;
};

// A whole template.
struct Syntax {
  std::string source;  // as the lexer reads it: line ends are \n
  std::string name;    // of the file
  Body body;
  std::vector<std::string> symbols;  // names of variables
  std::unordered_map<std::string, int> symbol_places;
  bool has_generation = false;

  int symbol(const std::string& text);
};

// Parses a template with the settings of transformers: trim_blocks, lstrip_blocks, loop controls, generation blocks.
// Throws InputError with file, line and column.
std::shared_ptr<const Syntax> parse(std::string_view source, std::string name);

}  // namespace ithaca::jinja
