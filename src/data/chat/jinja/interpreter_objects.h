// Objects that only the interpreter makes: macros and the variable `loop`.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/chat/jinja/interpreter.h"

namespace ithaca::jinja {

// Calls in calls, blocks in blocks: deeper ones are an error, so that no template overflows the stack.
constexpr int kDeepestRun = 700;

class Interpreter::Level {
 public:
  explicit Level(Interpreter& interpreter);
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
  ~Level();

 private:
  Interpreter& interpreter_;
};

class Interpreter::Macro : public Object {
 public:
  Macro(Interpreter& interpreter, const Signature& signature, const Body& body, FramePointer frame)
      : interpreter_(interpreter), signature_(signature), body_(body), frame_(std::move(frame)) {}
  std::string type_name() const override { return "Macro"; }
  std::string repr(int /*levels*/) override {
    return signature_.name.empty() ? "<Macro anonymous>" : "<Macro '" + signature_.name + "'>";
  }
  bool callable() const override { return true; }
  Value call(Runtime& runtime, Arguments arguments) override;
  std::optional<Value> attribute(const std::string& name) override;

  const Signature& signature() const { return signature_; }
  const Body& body() const { return body_; }
  const FramePointer& frame() const { return frame_; }

 private:
  Interpreter& interpreter_;
  const Signature& signature_;
  const Body& body_;
  FramePointer frame_;
};

// The variable `loop`: looks one item ahead when asked for `last` or `nextitem`, and at all when asked for the length
// of something that has none.
class Interpreter::Loop : public Object, public std::enable_shared_from_this<Interpreter::Loop> {
 public:
  Loop(std::unique_ptr<Iterator> items, std::optional<int64_t> known_length, int depth, int64_t recursion_depth)
      : Object(depth + 1), items_(std::move(items)), length_(known_length), recursion_depth_(recursion_depth) {}
  void set_recursion(std::function<Value(const Value&)> recursion) { recursion_ = std::move(recursion); }
  // Moves to the next item. False at the end.
  bool advance(Value& item);
  // Lets the loop go of its items at the end of a block: what holds it longer sees its last state.
  class Ending {
   public:
    explicit Ending(Loop& loop) : loop_(loop) {}
    Ending(const Ending&) = delete;
    Ending& operator=(const Ending&) = delete;
    ~Ending() {
      loop_.items_ = nullptr;
      loop_.exhausted_ = true;
    }

   private:
    Loop& loop_;
  };

  std::string type_name() const override { return "LoopContext"; }
  std::string repr(int levels) override;
  bool truth() override { return full_length() > 0; }
  std::optional<int64_t> length() override { return full_length(); }
  std::optional<Value> attribute(const std::string& name) override;
  bool callable() const override { return true; }
  Value call(Runtime& runtime, Arguments arguments) override;
  void clear() override;

 private:
  static Value cycle(Runtime& runtime, const Value& self, const Arguments& arguments);
  static Value changed(Runtime& runtime, const Value& self, const Arguments& arguments);
  int64_t full_length();
  bool peek();

  std::unique_ptr<Iterator> items_;
  std::optional<int64_t> length_;
  int64_t recursion_depth_;
  std::function<Value(const Value&)> recursion_;
  int64_t index0_ = -1;
  std::optional<Value> before_;
  std::optional<Value> current_;
  std::vector<Value> ahead_;  // what was looked at, last one first
  bool exhausted_ = false;
  std::optional<Value> last_changed_;
};

}  // namespace ithaca::jinja
