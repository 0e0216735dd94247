#include "data/chat/jinja/interpreter.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "data/chat/jinja/format.h"
#include "data/chat/jinja/interpreter_objects.h"
#include "data/chat/jinja/library.h"
#include "data/chat/jinja/operators.h"

namespace ithaca::jinja {

// --- Frames

const Value* Frame::find(int symbol) const {
  for (const Frame* frame = this; frame != nullptr; frame = frame->parent_.get()) {
    for (const auto& [name, value] : frame->variables_) {
      if (name == symbol) return &value;
    }
  }
  return nullptr;
}

void Frame::set(int symbol, Value value) {
  for (auto& [name, held] : variables_) {
    if (name == symbol) {
      held = std::move(value);
      return;
    }
  }
  variables_.emplace_back(symbol, std::move(value));
}

// --- The whole

Interpreter::Interpreter(const Syntax& syntax, const ChatLimits& limits, int64_t now)
    : syntax_(syntax), limits_(limits), now_(now), globals_(new_frame(nullptr)), top_(new_frame(globals_)) {
  for (const auto& [name, value] : global_functions()) set_variable(name, value);
}

Interpreter::~Interpreter() {
  // Macros hold frames that hold macros, and namespaces may hold anything: without this they would keep each other.
  for (const auto& frame : kept_frames_) frame->clear();
  for (const auto& object : owned_) object->clear();
}

void Interpreter::set_variable(const std::string& name, const Value& value) {
  // What the template never names, it cannot see.
  const auto place = syntax_.symbol_places.find(name);
  if (place != syntax_.symbol_places.end()) globals_->set(place->second, value);
}

void Interpreter::fail(const std::string& message) const {
  throw InputError(text_place(syntax_.source, offset_, syntax_.name) + ": " + message);
}

RenderedChat Interpreter::render() {
  try {
    run(syntax_.body, top_);
  } catch (const Failure& failure) {
    fail(failure.what());
  }
  RenderedChat result;
  std::vector<bool> found(static_cast<size_t>(generation_runs_), false);
  for (const GeneratedPart& part : whole_.generated) {
    found[static_cast<size_t>(part.run)] = true;
    result.generated.push_back({part.begin, part.end});
  }
  if (std::find(found.begin(), found.end(), false) != found.end()) {
    throw InputError(
        syntax_.name +
        ": what a {% generation %} block wrote inside of a macro, a call or a set block was "
        "changed (by a filter, ~, + or a method) before it was printed, or not printed at all: its place in "
        "the text is not known; print it as it is, or put the block at the top level of the template");
  }
  result.text = std::move(whole_.text);
  return result;
}

void Interpreter::charge(int64_t steps) {
  steps_ += steps;
  if (steps_ > limits_.steps) {
    throw Failure("the template has done " + std::to_string(limits_.steps) +
                  " steps and is not done: does it loop without end?");
  }
}

void Interpreter::charge_bytes(int64_t bytes) {
  if (bytes > limits_.bytes) {
    throw Failure("a text or a list of " + std::to_string(bytes) + " bytes is larger than the " +
                  std::to_string(limits_.bytes) + " that a template may make");
  }
  charge(bytes / 16);
}

void Interpreter::write(std::string_view text) {
  if (static_cast<int64_t>(output_->text.size() + text.size()) > limits_.bytes) {
    throw Failure("the text is longer than the " + std::to_string(limits_.bytes) + " bytes that a template may write");
  }
  charge(static_cast<int64_t>(text.size() / 64));
  output_->text.append(text);
}

void Interpreter::write(const std::string& text, const std::vector<GeneratedPart>& generated) {
  charge(static_cast<int64_t>(generated.size()));
  const auto begin = static_cast<int64_t>(output_->text.size());
  for (const GeneratedPart& part : generated) {
    output_->generated.push_back({begin + part.begin, begin + part.end, part.run});
  }
  write(text);
}

void Interpreter::write_result(const Value& value) {
  if (!value.is_string()) throw Failure("the block must give a str, and gives " + type_name(value));
  write(value.text(), value.string().generated);
}

// Counts a level of recursion while it lives.
Interpreter::Level::Level(Interpreter& interpreter) : interpreter_(interpreter) {
  if (++interpreter_.levels_ > kDeepestRun) {
    --interpreter_.levels_;
    throw Failure("maximum recursion depth exceeded: macros or loops call each other deeper than " +
                  std::to_string(kDeepestRun) + " levels");
  }
}
Interpreter::Level::~Level() {
  --interpreter_.levels_;
}

// --- Statements

Interpreter::Flow Interpreter::run(const Body& body, const FramePointer& frame) {
  for (const auto& statement : body) {
    const Flow flow = run_statement(*statement, frame);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_statement(const Statement& statement, const FramePointer& frame) {
  charge(1);
  offset_ = statement.offset;
  const Level level(*this);
  switch (statement.kind) {
    case StatementKind::kText:
      write(statement.text);
      break;
    case StatementKind::kPrint:
      run_print(statement, frame);
      break;
    case StatementKind::kFor:
      run_for(statement, frame);
      break;
    case StatementKind::kIf:
      return run_if(statement, frame);
    case StatementKind::kSet:
    case StatementKind::kSetBlock:
      run_set(statement, frame);
      break;
    case StatementKind::kMacro:
      run_macro(statement, frame);
      break;
    case StatementKind::kCall:
      run_call(statement, frame);
      break;
    case StatementKind::kFilter: {
      const Output body = captured(statement.body, new_frame(frame));
      write_result(evaluate_filter(*statement.value, frame, &body.text));
      break;
    }
    case StatementKind::kWith:
      run_with(statement, frame);
      break;
    case StatementKind::kBlock:
      run(statement.body, new_frame(top_));
      break;
    case StatementKind::kGeneration:
      run_generation(statement, frame);
      break;
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

void Interpreter::run_print(const Statement& statement, const FramePointer& frame) {
  for (const auto& expression : statement.expressions) {
    const Value value = evaluate(*expression, frame);
    if (value.is_string()) {
      write(value.text(), value.string().generated);
    } else {
      write(to_text(value));
    }
  }
}

Interpreter::Output Interpreter::captured(const std::function<void()>& write_all) {
  Output output;
  Output* const before = output_;
  output_ = &output;
  try {
    write_all();
  } catch (...) {
    output_ = before;
    throw;
  }
  output_ = before;
  charge_bytes(static_cast<int64_t>(output.text.size()));
  return output;
}

Interpreter::Output Interpreter::captured(const Body& body, const FramePointer& frame) {
  return captured([&] { run(body, frame); });
}

Interpreter::Flow Interpreter::run_if(const Statement& statement, const FramePointer& frame) {
  for (const auto& [test, body] : statement.branches) {
    if (truth(evaluate(*test, frame))) return run(body, frame);
  }
  return run(statement.other_body, frame);
}

void Interpreter::check_namespaces(const Expression& target, const FramePointer& frame) {
  for (const auto& part : target.operands) check_namespaces(*part, frame);
  if (target.kind != ExpressionKind::kNamespaceAttribute) return;
  const Value* value = frame->find(target.symbol);
  at(target);
  if (value == nullptr || value->object_as<Namespace>() == nullptr) {
    throw Failure("cannot assign attribute on non-namespace object");
  }
}

void Interpreter::assign(const Expression& target, const Value& value, const FramePointer& frame) {
  if (target.kind == ExpressionKind::kName) {
    frame->set(target.symbol, value);
    return;
  }
  at(target);
  if (target.kind == ExpressionKind::kNamespaceAttribute) {
    const Value* space = frame->find(target.symbol);
    auto* object = space != nullptr ? space->object_as<Namespace>() : nullptr;
    if (object == nullptr) throw Failure("cannot assign attribute on non-namespace object");
    object->set(target.name, value);
    return;
  }
  const auto values = try_iterate(value);
  if (!values) throw Failure("cannot unpack non-iterable " + type_name(value) + " object");
  std::vector<Value> parts;
  Value part;
  while (parts.size() <= target.operands.size() && values->next(part)) parts.push_back(part);
  if (parts.size() > target.operands.size()) {
    throw Failure("too many values to unpack (expected " + std::to_string(target.operands.size()) + ")");
  }
  if (parts.size() < target.operands.size()) {
    throw Failure("not enough values to unpack (expected " + std::to_string(target.operands.size()) + ", got " +
                  std::to_string(parts.size()) + ")");
  }
  for (size_t i = 0; i < parts.size(); ++i) assign(*target.operands[i], parts[i], frame);
}

void Interpreter::run_set(const Statement& statement, const FramePointer& frame) {
  if (statement.kind == StatementKind::kSet) {
    check_namespaces(*statement.target, frame);
    assign(*statement.target, evaluate(*statement.value, frame), frame);
    return;
  }
  const FramePointer inner = new_frame(frame);
  Output body = captured(statement.body, inner);
  assign(*statement.target,
         statement.value ? evaluate_filter(*statement.value, inner, &body.text) : value_of(std::move(body)), frame);
}

void Interpreter::run_with(const Statement& statement, const FramePointer& frame) {
  const FramePointer inner = new_frame(frame);
  for (size_t i = 0; i < statement.targets.size(); ++i) {
    // Values see what is around the block, not each other.
    assign(*statement.targets[i], evaluate(*statement.expressions[i], frame), inner);
  }
  run(statement.body, inner);
}

void Interpreter::run_generation(const Statement& statement, const FramePointer& frame) {
  // The body is a function of its own, as transformers makes it: what it sets, nobody sees.
  Output body = captured(statement.body, new_frame(frame));
  const int64_t run = generation_runs_++;
  body.generated.push_back({0, static_cast<int64_t>(body.text.size()), run});
  write(body.text, body.generated);
}

// --- Loops

// The items of a loop for which its test holds, one by one: the test may see what the body has changed.
class Interpreter::FilteredItems : public Iterator {
 public:
  FilteredItems(Interpreter& interpreter, const Statement& statement, FramePointer frame,
                std::unique_ptr<Iterator> items)
      : interpreter_(interpreter), statement_(statement), frame_(std::move(frame)), items_(std::move(items)) {}
  bool next(Value& value) override {
    while (items_->next(value)) {
      interpreter_.charge(1);
      const FramePointer inner = interpreter_.new_frame(frame_);
      interpreter_.assign(*statement_.target, value, inner);
      if (truth(interpreter_.evaluate(*statement_.test, inner))) return true;
    }
    return false;
  }

 private:
  Interpreter& interpreter_;
  const Statement& statement_;
  FramePointer frame_;
  std::unique_ptr<Iterator> items_;
};

void Interpreter::run_for(const Statement& statement, const FramePointer& frame) {
  const Value items = evaluate(*statement.value, frame);
  if (!statement.recursive) {
    run_loop(statement, frame, items, 0);
    return;
  }
  keep(frame);
  const Output output = captured([&] { run_loop(statement, frame, items, 0); });
  write(output.text, output.generated);
}

void Interpreter::run_loop(const Statement& statement, const FramePointer& frame, const Value& items, int64_t depth) {
  auto values = iterate(items);
  std::optional<int64_t> known_length;
  if (statement.test) {
    values = std::make_unique<FilteredItems>(*this, statement, frame, std::move(values));
  } else if (!items.is_object() || items.object()->length()) {
    known_length = length(items);
  }
  const auto loop = std::make_shared<Loop>(std::move(values), known_length, items.depth(), depth);
  if (statement.recursive) {
    loop->set_recursion([this, &statement, frame, depth](const Value& inner) {
      return value_of(captured([&] { run_loop(statement, frame, inner, depth + 1); }));
    });
  }
  static const std::string kLoop = "loop";
  const auto loop_symbol = syntax_.symbol_places.find(kLoop);
  const Value loop_value{std::shared_ptr<Object>(loop)};
  bool completed = false;
  {
    const Loop::Ending ending(*loop);
    Value item;
    while (loop->advance(item)) {
      charge(1);
      const FramePointer inner = new_frame(frame);
      if (loop_symbol != syntax_.symbol_places.end()) inner->set(loop_symbol->second, loop_value);
      offset_ = statement.offset;
      assign(*statement.target, item, inner);
      const Flow flow = run(statement.body, inner);
      if (flow == Flow::kBreak) break;
      // As in Jinja, a loop whose every turn was cut short counts as one that never ran.
      if (flow == Flow::kNext) completed = true;
    }
  }
  if (!completed && !statement.other_body.empty()) run(statement.other_body, new_frame(frame));
}

// --- Macros

void Interpreter::run_macro(const Statement& statement, const FramePointer& frame) {
  keep(frame);
  frame->set(
      statement.symbol,
      Value(std::shared_ptr<Object>(std::make_shared<Macro>(*this, *statement.signature, statement.body, frame))));
}

void Interpreter::run_call(const Statement& statement, const FramePointer& frame) {
  keep(frame);
  const Value caller{
      std::shared_ptr<Object>(std::make_shared<Macro>(*this, *statement.signature, statement.body, frame))};
  write_result(evaluate_call(*statement.value, frame, &caller));
}

Value Interpreter::call_macro(const Macro& macro, Arguments arguments) {
  const Signature& signature = macro.signature();
  const FramePointer frame = new_frame(macro.frame());
  const size_t count = signature.names.size();
  const auto take_named = [&](const std::string& name) -> std::optional<Value> {
    const auto place = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& given) { return given.first == name; });
    if (place == arguments.named.end()) return std::nullopt;
    Value value = place->second;
    arguments.named.erase(place);
    return value;
  };
  bool found_caller = arguments.positional.size() >= count &&
                      std::find(signature.names.begin(), signature.names.end(), "caller") != signature.names.end();
  std::vector<std::optional<Value>> values(count);
  for (size_t i = 0; i < count; ++i) {
    if (i < arguments.positional.size()) {
      values[i] = arguments.positional[i];
    } else {
      values[i] = take_named(signature.names[i]);
      found_caller = found_caller || signature.names[i] == "caller";
    }
  }
  const auto symbol = [&](const char* name) { return syntax_.symbol_places.find(name)->second; };
  if (signature.uses_caller && !found_caller) {
    const auto caller = take_named("caller");
    frame->set(symbol("caller"), caller && !caller->is_none() ? *caller : Value::undefined("No caller defined"));
  }
  const std::string name = signature.name.empty() ? "None" : "'" + signature.name + "'";
  if (signature.uses_keywords) {
    DictionaryData data;
    for (const auto& [key, value] : arguments.named) data.set(Value(key), value);
    frame->set(symbol("kwargs"), Value::dictionary(std::move(data)));
  } else if (!arguments.named.empty()) {
    for (const auto& given : arguments.named) {
      if (given.first == "caller") {
        throw Failure("macro " + name +
                      " was invoked with two values for the special caller argument. This is most likely a bug.");
      }
    }
    throw Failure("macro " + name + " takes no keyword argument '" + arguments.named[0].first + "'");
  }
  if (signature.uses_positional) {
    const size_t rest = std::min(count, arguments.positional.size());
    frame->set(symbol("varargs"),
               Value::tuple({arguments.positional.begin() + static_cast<int64_t>(rest), arguments.positional.end()}));
  } else if (arguments.positional.size() > count) {
    throw Failure("macro " + name + " takes not more than " + std::to_string(count) + " argument(s)");
  }
  const size_t without_default = count - signature.defaults.size();
  // A default sees the parameters before it; those behind it are not there yet.
  for (size_t i = 0; i < count; ++i) {
    frame->set(signature.symbols[i],
               values[i] ? *values[i] : Value::undefined("parameter '" + signature.names[i] + "' was not provided"));
  }
  for (size_t i = without_default; i < count; ++i) {
    if (!values[i]) frame->set(signature.symbols[i], evaluate(*signature.defaults[i - without_default], frame));
  }
  return value_of(captured(macro.body(), frame));
}

Value Interpreter::Macro::call(Runtime& /*runtime*/, Arguments arguments) {
  return interpreter_.call_macro(*this, std::move(arguments));
}

}  // namespace ithaca::jinja
