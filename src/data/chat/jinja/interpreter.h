// The interpreter: runs a parsed template over the variables that it is given.
//
// Thread-safety: one interpreter renders once, on one thread; the template may be shared.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/chat/jinja/runtime.h"
#include "data/chat/jinja/syntax.h"

namespace ithaca::jinja {

// The variables of one scope. Scopes see those around them; what is set in one is gone when it ends.
class Frame {
 public:
  explicit Frame(std::shared_ptr<Frame> parent) : parent_(std::move(parent)) {}
  const Value* find(int symbol) const;
  void set(int symbol, Value value);
  void clear() { variables_.clear(); }

 private:
  std::shared_ptr<Frame> parent_;
  std::vector<std::pair<int, Value>> variables_;
};
using FramePointer = std::shared_ptr<Frame>;

class Interpreter : public Runtime {
 public:
  Interpreter(const Syntax& syntax, const ChatLimits& limits, int64_t now);
  ~Interpreter() override;

  void set_variable(const std::string& name, const Value& value);
  // Throws InputError with file, line and column.
  RenderedChat render();

  void charge(int64_t steps) override;
  void charge_bytes(int64_t bytes) override;
  void own(std::shared_ptr<Object> object) override { owned_.push_back(std::move(object)); }
  int64_t now() const override { return now_; }

 private:
  class Macro;
  class Loop;
  class FilteredItems;
  class Level;
  enum class Flow { kNext, kBreak, kContinue };
  // Where writing goes: the text of the rendering, or what a macro or a block captures.
  struct Output {
    std::string text;
    std::vector<GeneratedPart> generated;
  };

  // --- Statements (interpreter.cpp)
  Flow run(const Body& body, const FramePointer& frame);
  Flow run_statement(const Statement& statement, const FramePointer& frame);
  void run_print(const Statement& statement, const FramePointer& frame);
  void run_for(const Statement& statement, const FramePointer& frame);
  // The loop's text goes to the output at hand. `depth` counts recursive calls.
  void run_loop(const Statement& statement, const FramePointer& frame, const Value& items, int64_t depth);
  Flow run_if(const Statement& statement, const FramePointer& frame);
  void run_set(const Statement& statement, const FramePointer& frame);
  void run_macro(const Statement& statement, const FramePointer& frame);
  void run_call(const Statement& statement, const FramePointer& frame);
  void run_with(const Statement& statement, const FramePointer& frame);
  void run_generation(const Statement& statement, const FramePointer& frame);
  // What the body, or `write_all`, writes.
  Output captured(const Body& body, const FramePointer& frame);
  Output captured(const std::function<void()>& write_all);
  static Value value_of(Output output) { return Value::written(std::move(output.text), std::move(output.generated)); }
  void assign(const Expression& target, const Value& value, const FramePointer& frame);
  void check_namespaces(const Expression& target, const FramePointer& frame);
  FramePointer new_frame(const FramePointer& parent) const { return std::make_shared<Frame>(parent); }
  void write(std::string_view text);
  void write(const std::string& text, const std::vector<GeneratedPart>& generated);
  // What a filter block or a call block gives: Jinja prints these without making texts of them.
  void write_result(const Value& value);
  Value call_macro(const Macro& macro, Arguments arguments);
  // Frames that a macro or a recursive loop keeps are emptied when the rendering ends.
  void keep(const FramePointer& frame) { kept_frames_.push_back(frame); }

  // --- Expressions (evaluate.cpp)
  Value evaluate(const Expression& expression, const FramePointer& frame);
  Value evaluate_deeper(const Expression& expression, const FramePointer& frame);
  Value evaluate_name(const Expression& expression, const FramePointer& frame);
  Value evaluate_items(const Expression& expression, const FramePointer& frame);
  Value evaluate_dictionary(const Expression& expression, const FramePointer& frame);
  Value evaluate_compare(const Expression& expression, const FramePointer& frame);
  Value evaluate_concatenation(const Expression& expression, const FramePointer& frame);
  Value evaluate_conditional(const Expression& expression, const FramePointer& frame);
  Value evaluate_slice(const Expression& expression, const FramePointer& frame);
  Value evaluate_call(const Expression& expression, const FramePointer& frame, const Value* caller);
  Value evaluate_filter(const Expression& expression, const FramePointer& frame, const std::string* body);
  Value evaluate_test(const Expression& expression, const FramePointer& frame);
  Arguments evaluate_arguments(const CallSyntax& call, const FramePointer& frame);
  // Where an error would be from here on.
  void at(const Expression& expression) { offset_ = expression.offset; }

  [[noreturn]] void fail(const std::string& message) const;

  const Syntax& syntax_;
  ChatLimits limits_;
  int64_t now_;
  int64_t steps_ = 0;
  int levels_ = 0;
  size_t offset_ = 0;
  FramePointer globals_;
  FramePointer top_;
  Output whole_;
  Output* output_ = &whole_;
  int64_t generation_runs_ = 0;
  std::vector<std::shared_ptr<Object>> owned_;
  std::vector<FramePointer> kept_frames_;
};

}  // namespace ithaca::jinja
