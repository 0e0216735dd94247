#include <algorithm>

#include "base/error.h"
#include "data/chat/jinja/format.h"
#include "data/chat/jinja/interpreter.h"
#include "data/chat/jinja/interpreter_objects.h"
#include "data/chat/jinja/library.h"
#include "data/chat/jinja/operators.h"

namespace ithaca::jinja {

Value Interpreter::evaluate(const Expression& expression, const FramePointer& frame) {
  charge(1);
  // Leaves need no level of their own.
  if (expression.kind == ExpressionKind::kConstant) return expression.constant;
  if (expression.kind == ExpressionKind::kName) return evaluate_name(expression, frame);
  const Level level(*this);
  return evaluate_deeper(expression, frame);
}

Value Interpreter::evaluate_deeper(const Expression& expression, const FramePointer& frame) {
  const auto operand = [&](size_t index) { return evaluate(*expression.operands[index], frame); };
  switch (expression.kind) {
    case ExpressionKind::kTuple:
    case ExpressionKind::kList:
      return evaluate_items(expression, frame);
    case ExpressionKind::kDictionary:
      return evaluate_dictionary(expression, frame);
    case ExpressionKind::kNegate: {
      const Value value = operand(0);
      at(expression);
      return negated(value);
    }
    case ExpressionKind::kPlus: {
      const Value value = operand(0);
      at(expression);
      return plus(value);
    }
    case ExpressionKind::kNot:
      return Value(!truth(operand(0)));
    case ExpressionKind::kBinary: {
      const Value left = operand(0);
      const Value right = operand(1);
      at(expression);
      return binary_operation(*this, expression.operators[0], left, right);
    }
    case ExpressionKind::kAnd: {
      Value left = operand(0);
      return truth(left) ? operand(1) : left;
    }
    case ExpressionKind::kOr: {
      Value left = operand(0);
      return truth(left) ? left : operand(1);
    }
    case ExpressionKind::kCompare:
      return evaluate_compare(expression, frame);
    case ExpressionKind::kConcatenate:
      return evaluate_concatenation(expression, frame);
    case ExpressionKind::kConditional:
      return evaluate_conditional(expression, frame);
    case ExpressionKind::kAttribute: {
      const Value value = operand(0);
      at(expression);
      return get_attribute(value, expression.name);
    }
    case ExpressionKind::kItem: {
      const Value value = operand(0);
      const Value key = operand(1);
      at(expression);
      return get_item(value, key);
    }
    case ExpressionKind::kSlice:
      return evaluate_slice(expression, frame);
    case ExpressionKind::kCall:
      return evaluate_call(expression, frame, nullptr);
    case ExpressionKind::kFilter:
      return evaluate_filter(expression, frame, nullptr);
    case ExpressionKind::kTest:
      return evaluate_test(expression, frame);
    default:
      throw Failure("this expression can only be assigned to");
  }
}

Value Interpreter::evaluate_name(const Expression& expression, const FramePointer& frame) {
  if (const Value* value = frame->find(expression.symbol)) return *value;
  return Value::undefined("'" + syntax_.symbols[static_cast<size_t>(expression.symbol)] + "' is undefined");
}

Value Interpreter::evaluate_items(const Expression& expression, const FramePointer& frame) {
  std::vector<Value> items;
  items.reserve(expression.operands.size());
  for (const auto& operand : expression.operands) items.push_back(evaluate(*operand, frame));
  at(expression);
  return expression.kind == ExpressionKind::kTuple ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

Value Interpreter::evaluate_dictionary(const Expression& expression, const FramePointer& frame) {
  DictionaryData data;
  for (size_t i = 0; i + 1 < expression.operands.size(); i += 2) {
    const Value key = evaluate(*expression.operands[i], frame);
    Value value = evaluate(*expression.operands[i + 1], frame);
    at(expression);
    data.set(key, std::move(value));
  }
  return Value::dictionary(std::move(data));
}

Value Interpreter::evaluate_compare(const Expression& expression, const FramePointer& frame) {
  Value left = evaluate(*expression.operands[0], frame);
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = evaluate(*expression.operands[i + 1], frame);
    at(expression);
    if (!comparison(*this, expression.operators[i], left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Interpreter::evaluate_concatenation(const Expression& expression, const FramePointer& frame) {
  std::string text;
  for (const auto& operand : expression.operands) text += to_text(evaluate(*operand, frame));
  at(expression);
  charge_bytes(static_cast<int64_t>(text.size()));
  return Value(std::move(text));
}

Value Interpreter::evaluate_conditional(const Expression& expression, const FramePointer& frame) {
  if (truth(evaluate(*expression.operands[0], frame))) return evaluate(*expression.operands[1], frame);
  if (expression.operands[2]) return evaluate(*expression.operands[2], frame);
  return Value::undefined("the inline if-expression evaluated to false and no else section was defined.");
}

Value Interpreter::evaluate_slice(const Expression& expression, const FramePointer& frame) {
  const Value value = evaluate(*expression.operands[0], frame);
  Value parts[3];
  const Value* given[3] = {nullptr, nullptr, nullptr};
  for (size_t i = 0; i < 3; ++i) {
    if (!expression.operands[i + 1]) continue;
    parts[i] = evaluate(*expression.operands[i + 1], frame);
    given[i] = &parts[i];
  }
  at(expression);
  return slice(*this, value, given[0], given[1], given[2]);
}

Arguments Interpreter::evaluate_arguments(const CallSyntax& call, const FramePointer& frame) {
  Arguments arguments;
  for (const auto& argument : call.positional) arguments.positional.push_back(evaluate(*argument, frame));
  for (const auto& [name, argument] : call.named) arguments.named.emplace_back(name, evaluate(*argument, frame));
  if (call.more) {
    for (Value& value : to_vector(evaluate(*call.more, frame))) arguments.positional.push_back(std::move(value));
  }
  if (call.more_named) {
    const Value more = evaluate(*call.more_named, frame);
    require_defined(more);
    if (!more.is_dictionary()) throw Failure("argument after ** must be a mapping, not " + type_name(more));
    for (const auto& [key, value] : more.dictionary().items()) {
      if (!key.is_string()) throw Failure("keywords must be strings");
      for (const auto& given : arguments.named) {
        if (given.first == key.text()) throw Failure("got multiple values for keyword argument '" + key.text() + "'");
      }
      arguments.named.emplace_back(key.text(), value);
    }
  }
  return arguments;
}

Value Interpreter::evaluate_call(const Expression& expression, const FramePointer& frame, const Value* caller) {
  const Value function = evaluate(*expression.operands[0], frame);
  Arguments arguments = evaluate_arguments(expression.call, frame);
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  at(expression);
  require_defined(function);
  if (!function.is_object() || !function.object()->callable()) {
    throw Failure("'" + type_name(function) + "' object is not callable");
  }
  // A copy: the object may be the only thing that holds itself while it runs.
  const std::shared_ptr<Object> object = function.object();  // NOLINT(performance-unnecessary-copy-initialization)
  return object->call(*this, std::move(arguments));
}

Value Interpreter::evaluate_filter(const Expression& expression, const FramePointer& frame, const std::string* body) {
  // The innermost of the filters of a block has the block's text as its value.
  Value value;
  if (!expression.operands[0]) {
    value = Value(*body);
  } else if (body != nullptr && expression.operands[0]->kind == ExpressionKind::kFilter) {
    value = evaluate_filter(*expression.operands[0], frame, body);
  } else {
    value = evaluate(*expression.operands[0], frame);
  }
  const Arguments arguments = evaluate_arguments(expression.call, frame);
  at(expression);
  return apply_filter(*this, expression.name, value, arguments);
}

Value Interpreter::evaluate_test(const Expression& expression, const FramePointer& frame) {
  const Value value = evaluate(*expression.operands[0], frame);
  const Arguments arguments = evaluate_arguments(expression.call, frame);
  at(expression);
  return Value(apply_test(*this, expression.name, value, arguments));
}

}  // namespace ithaca::jinja
