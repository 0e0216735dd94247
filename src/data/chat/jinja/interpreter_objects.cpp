#include "data/chat/jinja/interpreter_objects.h"

#include <algorithm>

#include "data/chat/jinja/format.h"
#include "data/chat/jinja/library.h"

namespace ithaca::jinja {

std::optional<Value> Interpreter::Macro::attribute(const std::string& name) {
  if (name == "name") return signature_.name.empty() ? Value() : Value(signature_.name);
  if (name == "arguments") {
    std::vector<Value> names;
    for (const std::string& argument : signature_.names) names.emplace_back(argument);
    return Value::tuple(std::move(names));
  }
  if (name == "catch_kwargs") return Value(signature_.uses_keywords);
  if (name == "catch_varargs") return Value(signature_.uses_positional);
  if (name == "caller") return Value(signature_.uses_caller);
  return std::nullopt;
}

bool Interpreter::Loop::peek() {
  if (!ahead_.empty()) return true;
  if (exhausted_ || !items_) return false;
  Value item;
  if (!items_->next(item)) {
    exhausted_ = true;
    return false;
  }
  ahead_.push_back(std::move(item));
  return true;
}

bool Interpreter::Loop::advance(Value& item) {
  if (!peek()) return false;
  item = std::move(ahead_.back());
  ahead_.pop_back();
  ++index0_;
  before_ = std::move(current_);
  current_ = item;
  return true;
}

void Interpreter::Loop::clear() {
  items_ = nullptr;
  recursion_ = nullptr;
  before_.reset();
  current_.reset();
  ahead_.clear();
  last_changed_.reset();
}

int64_t Interpreter::Loop::full_length() {
  if (length_) return *length_;
  std::vector<Value> rest;
  Value item;
  while (!exhausted_ && items_ && items_->next(item)) rest.push_back(item);
  exhausted_ = true;
  std::reverse(rest.begin(), rest.end());
  rest.insert(rest.end(), ahead_.begin(), ahead_.end());
  ahead_ = std::move(rest);
  length_ = index0_ + 1 + static_cast<int64_t>(ahead_.size());
  return *length_;
}

std::string Interpreter::Loop::repr(int /*levels*/) {
  return "<LoopContext " + std::to_string(index0_ + 1) + "/" + std::to_string(full_length()) + ">";
}

std::optional<Value> Interpreter::Loop::attribute(const std::string& name) {
  if (name == "index") return Value(index0_ + 1);
  if (name == "index0") return Value(index0_);
  if (name == "first") return Value(index0_ == 0);
  if (name == "last") return Value(!peek());
  if (name == "length") return Value(full_length());
  if (name == "revindex") return Value(full_length() - index0_);
  if (name == "revindex0") return Value(full_length() - index0_ - 1);
  if (name == "depth") return Value(recursion_depth_ + 1);
  if (name == "depth0") return Value(recursion_depth_);
  if (name == "previtem") return index0_ > 0 && before_ ? *before_ : Value::undefined("there is no previous item");
  if (name == "nextitem") return peek() ? ahead_.back() : Value::undefined("there is no next item");
  const Value self{std::shared_ptr<Object>(shared_from_this())};
  if (name == "cycle") return make_method(self, name, &Loop::cycle);
  if (name == "changed") return make_method(self, name, &Loop::changed);
  return std::nullopt;
}

Value Interpreter::Loop::call(Runtime& /*runtime*/, Arguments arguments) {
  if (!recursion_) throw Failure("The loop must have the 'recursive' marker to be called recursively.");
  const Parameters parameters("loop", arguments, {"iterable"}, 1);
  return recursion_(parameters.value(0));
}

Value Interpreter::Loop::cycle(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  const auto& given = arguments.positional;
  if (given.empty()) throw Failure("no items for cycling given");
  return given[static_cast<size_t>(self.object_as<Loop>()->index0_) % given.size()];
}

Value Interpreter::Loop::changed(Runtime& runtime, const Value& self, const Arguments& arguments) {
  auto& loop = *self.object_as<Loop>();
  const Value value = Value::tuple(arguments.positional);
  if (loop.last_changed_ && equal(*loop.last_changed_, value)) return Value(false);
  // What it remembers may be the loop itself.
  if (!loop.last_changed_) runtime.own(loop.shared_from_this());
  loop.last_changed_ = value;
  return Value(true);
}

}  // namespace ithaca::jinja
