// Python's operators, subscripts and attributes.
//
// Thread-safety: pure functions, but for the runtime. All throw Failure.
#pragma once

#include <string>

#include "data/chat/jinja/runtime.h"
#include "data/chat/jinja/syntax.h"
#include "data/chat/jinja/value.h"

namespace ithaca::jinja {

// + - * / // % **
Value binary_operation(Runtime& runtime, Operator operation, const Value& left, const Value& right);
Value negated(const Value& value);
Value plus(const Value& value);
// == != < <= > >= in, not in
bool comparison(Runtime& runtime, Operator operation, const Value& left, const Value& right);
// value[begin:end:step]; null for what is left out.
Value slice(Runtime& runtime, const Value& value, const Value* begin, const Value* end, const Value* step);
// environment.getitem: value[key], and its attribute of that name where there is no such item.
Value get_item(const Value& value, const Value& key);
// environment.getattr: value.name, and its item of that name where there is no such attribute.
Value get_attribute(const Value& value, const std::string& name);
// The attribute alone: methods of strings, lists and dictionaries, what objects have. Undefined where the sandbox
// refuses it.
std::optional<Value> find_attribute(const Value& value, const std::string& name);
// "a.b.0" one after the other, as map(attribute=...) and sort(attribute=...) look things up; what is undefined becomes
// `otherwise` unless that is None.
Value get_path(const Value& value, const Value& path, const Value& otherwise = Value());

// text with & < > ' " as HTML entities.
std::string escaped(std::string_view text);

}  // namespace ithaca::jinja
