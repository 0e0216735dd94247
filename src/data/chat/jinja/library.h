// What every template finds: filters, tests, methods of values, and functions.
//
// Thread-safety: pure functions, but for the runtime. All throw Failure.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/chat/jinja/runtime.h"
#include "data/chat/jinja/value.h"

namespace ithaca::jinja {

// --- Filters (filters*.cpp)

using FilterFunction = Value (*)(Runtime&, const Value&, const Arguments&);
bool has_filter(const std::string& name);
// What to say of a name that is none.
std::string unknown_filter(const std::string& name);
Value apply_filter(Runtime& runtime, const std::string& name, const Value& value, const Arguments& arguments);
// The parts of the table, by file.
std::vector<std::pair<std::string, FilterFunction>> text_filters();
std::vector<std::pair<std::string, FilterFunction>> sequence_filters();
std::vector<std::pair<std::string, FilterFunction>> number_filters();

// --- Tests (tests.cpp)

bool has_test(const std::string& name);
std::string unknown_test(const std::string& name);
bool apply_test(Runtime& runtime, const std::string& name, const Value& value, const Arguments& arguments);

// --- Methods (methods.cpp, text_methods.cpp)

// The method of a string, number, list, tuple or dictionary, bound to it; undefined when the sandbox forbids it.
std::optional<Value> find_method(const Value& value, const std::string& name);
// What an attribute is that may not be seen: undefined, with an error when it is used.
Value unsafe_attribute(const Value& value, const std::string& name);
using Method = Value (*)(Runtime&, const Value& self, const Arguments&);
// Null when a string has no such method.
Method find_text_method(const std::string& name);
// Of a string: str.split and so on are also what filters do.
Value text_center(Runtime& runtime, const Value& self, const Arguments& arguments);
Value text_replace(Runtime& runtime, const Value& self, const Arguments& arguments);

// --- Functions and objects (objects.cpp)

// range, dict, namespace, cycler, joiner, raise_exception, strftime_now.
std::vector<std::pair<std::string, Value>> global_functions();

// A one-shot sequence, as Python's generators. `depth` is that of what it holds.
Value make_generator(std::function<bool(Value&)> next, int depth);
// Its items begin, begin + step, ... before end.
Value sliced_range(const Value& range, int64_t begin, int64_t end, int64_t step, int64_t count);
// keys(), values() or items() of a dictionary.
enum class ViewKind { kKeys, kValues, kItems };
Value make_view(const Value& dictionary, ViewKind kind);
Value make_method(const Value& self, std::string name, Method method);

// namespace(): the one thing that a template can change.
class Namespace : public Object {
 public:
  std::string type_name() const override { return "Namespace"; }
  std::string repr(int levels) override;
  std::optional<Value> attribute(const std::string& name) override;
  void set(const std::string& name, Value value);
  void clear() override { attributes_.clear(); }

 private:
  std::vector<std::pair<std::string, Value>> attributes_;
  bool printing_ = false;
};

}  // namespace ithaca::jinja
