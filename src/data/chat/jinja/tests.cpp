// Tests: what stands behind `is`.
#include <algorithm>
#include <unordered_map>

#include "base/text.h"
#include "data/chat/jinja/format.h"
#include "data/chat/jinja/library.h"
#include "data/chat/jinja/operators.h"
#include "data/chat/jinja/text.h"

namespace ithaca::jinja {
namespace {

// `argument` is the one of tests that have one.
using TestFunction = bool (*)(Runtime& runtime, const Value& value, const Value& argument);
struct Test {
  TestFunction function;
  bool has_argument = false;
};

Integer remainder(Runtime& runtime, const Value& value, const Value& divisor) {
  const Value rest = binary_operation(runtime, Operator::kModulo, value, divisor);
  // A text is a pattern to %, and what it gives is no number.
  if (rest.is_float()) return rest.floating() == 0 ? 0 : rest.floating() == 1 ? 1 : 2;
  return rest.integer().value_or(2);
}

bool is_sequence(const Value& value) {
  if (value.is_string() || value.is_list_or_tuple() || value.is_dictionary() || value.is_undefined()) return true;
  return value.is_object() && value.object()->has_items();
}

template <Operator Operation>
bool compared(Runtime& runtime, const Value& value, const Value& argument) {
  return comparison(runtime, Operation, value, argument);
}

// Whether a name is one of a table: what Python cannot hash is an error even so.
template <bool (*Has)(const std::string&)>
bool is_name_of(Runtime& /*runtime*/, const Value& value, const Value& /*argument*/) {
  hash_key(value);
  return value.is_string() && Has(value.text());
}

using Table = std::unordered_map<std::string, Test>;

const Table& table() {
  static const Table kTable = {
      {"boolean", {[](Runtime&, const Value& value, const Value&) { return value.is_boolean(); }}},
      {"callable", {[](Runtime&, const Value& value, const Value&) {
         return value.is_undefined() || (value.is_object() && value.object()->callable());
       }}},
      {"defined", {[](Runtime&, const Value& value, const Value&) { return !value.is_undefined(); }}},
      {"divisibleby",
       {[](Runtime& runtime, const Value& value, const Value& by) { return remainder(runtime, value, by) == 0; },
        true}},
      {"escaped",
       {[](Runtime&, const Value& value, const Value&) { return value.is_string() && value.string().markup; }}},
      {"even", {[](Runtime& runtime, const Value& value, const Value&) {
         return remainder(runtime, value, Value(int64_t{2})) == 0;
       }}},
      {"false", {[](Runtime&, const Value& value, const Value&) { return value.is_boolean() && !truth(value); }}},
      {"filter", {is_name_of<has_filter>}},
      {"float", {[](Runtime&, const Value& value, const Value&) { return value.is_float(); }}},
      {"in", {compared<Operator::kIn>, true}},
      {"integer", {[](Runtime&, const Value& value, const Value&) { return value.is_integer(); }}},
      {"iterable", {[](Runtime&, const Value& value, const Value&) { return try_iterate(value) != nullptr; }}},
      {"lower", {[](Runtime& runtime, const Value& value, const Value&) {
         return truth(find_text_method("islower")(runtime, Value(to_text(value)), {}));
       }}},
      {"mapping", {[](Runtime&, const Value& value, const Value&) { return value.is_dictionary(); }}},
      {"none", {[](Runtime&, const Value& value, const Value&) { return value.is_none(); }}},
      {"number", {[](Runtime&, const Value& value, const Value&) { return value.is_number(); }}},
      {"odd", {[](Runtime& runtime, const Value& value, const Value&) {
         return remainder(runtime, value, Value(int64_t{2})) == 1;
       }}},
      {"sameas", {[](Runtime&, const Value& value, const Value& other) { return value.is_same(other); }, true}},
      {"sequence", {[](Runtime&, const Value& value, const Value&) { return is_sequence(value); }}},
      {"string", {[](Runtime&, const Value& value, const Value&) { return value.is_string(); }}},
      {"test", {is_name_of<has_test>}},
      {"true", {[](Runtime&, const Value& value, const Value&) { return value.is_boolean() && truth(value); }}},
      {"undefined", {[](Runtime&, const Value& value, const Value&) { return value.is_undefined(); }}},
      {"upper", {[](Runtime& runtime, const Value& value, const Value&) {
         return truth(find_text_method("isupper")(runtime, Value(to_text(value)), {}));
       }}},
      {"==", {compared<Operator::kEqual>, true}},
      {"eq", {compared<Operator::kEqual>, true}},
      {"equalto", {compared<Operator::kEqual>, true}},
      {"!=", {compared<Operator::kNotEqual>, true}},
      {"ne", {compared<Operator::kNotEqual>, true}},
      {">", {compared<Operator::kGreater>, true}},
      {"gt", {compared<Operator::kGreater>, true}},
      {"greaterthan", {compared<Operator::kGreater>, true}},
      {"ge", {compared<Operator::kGreaterEqual>, true}},
      {">=", {compared<Operator::kGreaterEqual>, true}},
      {"<", {compared<Operator::kLess>, true}},
      {"lt", {compared<Operator::kLess>, true}},
      {"lessthan", {compared<Operator::kLess>, true}},
      {"<=", {compared<Operator::kLessEqual>, true}},
      {"le", {compared<Operator::kLessEqual>, true}}};
  return kTable;
}

}  // namespace

bool has_test(const std::string& name) {
  return table().count(name) != 0;
}

std::string unknown_test(const std::string& name) {
  std::vector<std::string> known;
  for (const auto& entry : table()) known.push_back(entry.first);
  std::sort(known.begin(), known.end());
  const std::string nearest = nearest_name(name, known);
  return "No test named '" + name + "'" + (nearest.empty() ? "." : "; did you mean '" + nearest + "'?");
}

bool apply_test(Runtime& runtime, const std::string& name, const Value& value, const Arguments& arguments) {
  const auto found = table().find(name);
  if (found == table().end()) throw Failure(unknown_test(name));
  const std::vector<std::string> names = found->second.has_argument
                                             ? std::vector<std::string>{name == "divisibleby" ? "num"
                                                                        : name == "in"        ? "seq"
                                                                                              : "other"}
                                             : std::vector<std::string>{};
  const Parameters parameters(name, arguments, names, names.size());
  return found->second.function(runtime, value, names.empty() ? Value() : parameters.value(0));
}

}  // namespace ithaca::jinja
