// Methods of dictionaries, lists, tuples and numbers, and what the sandbox says of the others.
#include <algorithm>
#include <cmath>
#include <map>

#include "data/chat/jinja/format.h"
#include "data/chat/jinja/library.h"

namespace ithaca::jinja {
namespace {

Value dictionary_get(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  const Parameters parameters("get", arguments, {"key", "default"}, 1);
  const Value* found = self.dictionary().find(parameters.value(0));
  return found != nullptr ? *found : parameters.value(1);
}

Value dictionary_items(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  const Parameters parameters("items", arguments, {}, 0);
  return make_view(self, ViewKind::kItems);
}

Value dictionary_keys(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  const Parameters parameters("keys", arguments, {}, 0);
  return make_view(self, ViewKind::kKeys);
}

Value dictionary_values(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  const Parameters parameters("values", arguments, {}, 0);
  return make_view(self, ViewKind::kValues);
}

// Nothing changes them, so the copy may be the same.
Value copied(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  const Parameters parameters("copy", arguments, {}, 0);
  return self;
}

Value sequence_index(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  const Parameters parameters("index", arguments, {"value", "start", "stop"}, 1);
  const auto& items = self.items();
  const auto size = static_cast<int64_t>(items.size());
  const auto place = [&](int64_t index) { return std::clamp<int64_t>(index < 0 ? index + size : index, 0, size); };
  const int64_t end = place(parameters.integer(2, size));
  for (int64_t i = place(parameters.integer(1, 0)); i < end; ++i) {
    if (equal(items[static_cast<size_t>(i)], parameters.value(0))) return Value(i);
  }
  throw Failure(repr(parameters.value(0)) + " is not in " + type_name(self));
}

Value sequence_count(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  const Parameters parameters("count", arguments, {"value"}, 1);
  const auto& items = self.items();
  return Value(static_cast<int64_t>(
      std::count_if(items.begin(), items.end(), [&](const Value& item) { return equal(item, parameters.value(0)); })));
}

Value float_is_integer(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  const Parameters parameters("is_integer", arguments, {}, 0);
  return Value(std::isfinite(self.floating()) && std::floor(self.floating()) == self.floating());
}

Value integer_bit_length(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  const Parameters parameters("bit_length", arguments, {}, 0);
  int64_t bits = 0;
  for (Integer rest = *self.integer(); rest != 0; rest /= 2) ++bits;
  return Value(bits);
}

using Methods = std::map<std::string, Method>;

// Null: Python has it, and it would change the value; the sandbox forbids that.
const Methods& dictionary_methods() {
  static const Methods kMethods = {
      {"get", dictionary_get}, {"items", dictionary_items}, {"keys", dictionary_keys}, {"values", dictionary_values},
      {"copy", copied},        {"clear", nullptr},          {"pop", nullptr},          {"popitem", nullptr},
      {"setdefault", nullptr}, {"update", nullptr}};
  return kMethods;
}

const Methods& list_methods() {
  static const Methods kMethods = {{"index", sequence_index}, {"count", sequence_count}, {"copy", copied},
                                   {"append", nullptr},       {"clear", nullptr},        {"extend", nullptr},
                                   {"insert", nullptr},       {"pop", nullptr},          {"remove", nullptr},
                                   {"reverse", nullptr},      {"sort", nullptr}};
  return kMethods;
}

const Methods& tuple_methods() {
  static const Methods kMethods = {{"index", sequence_index}, {"count", sequence_count}};
  return kMethods;
}

const Methods& float_methods() {
  static const Methods kMethods = {{"is_integer", float_is_integer}};
  return kMethods;
}

const Methods& integer_methods() {
  static const Methods kMethods = {{"bit_length", integer_bit_length}};
  return kMethods;
}

const Methods* methods_of(const Value& value) {
  if (value.is_dictionary()) return &dictionary_methods();
  if (value.is_tuple()) return &tuple_methods();
  if (value.is_list()) return &list_methods();
  if (value.is_float()) return &float_methods();
  if (value.integer()) return &integer_methods();
  return nullptr;
}

// Methods that Python has and a template might name, but that are not here.
bool is_missing_method(const Value& value, const std::string& name) {
  static const std::map<std::string, std::vector<std::string>> kMissing = {
      {"str", {"encode", "maketrans", "translate"}},
      {"dict", {"fromkeys"}},
      {"int",
       {"as_integer_ratio", "bit_count", "conjugate", "denominator", "from_bytes", "imag", "numerator", "real",
        "to_bytes"}},
      {"bool",
       {"as_integer_ratio", "bit_count", "conjugate", "denominator", "from_bytes", "imag", "numerator", "real",
        "to_bytes"}},
      {"float", {"as_integer_ratio", "conjugate", "fromhex", "hex", "imag", "real"}}};
  const auto found = kMissing.find(type_name(value));
  return found != kMissing.end() && std::find(found->second.begin(), found->second.end(), name) != found->second.end();
}

bool is_special_name(const std::string& name) {
  static const std::vector<std::string> kSpecial = {"__class__",
                                                    "__doc__",
                                                    "__init__",
                                                    "__dir__",
                                                    "__eq__",
                                                    "__format__",
                                                    "__getattribute__",
                                                    "__hash__",
                                                    "__len__",
                                                    "__iter__",
                                                    "__new__",
                                                    "__reduce__",
                                                    "__repr__",
                                                    "__setattr__",
                                                    "__sizeof__",
                                                    "__str__",
                                                    "__getitem__",
                                                    "__subclasshook__",
                                                    "__init_subclass__",
                                                    "__delattr__",
                                                    "__ge__",
                                                    "__gt__",
                                                    "__le__",
                                                    "__lt__",
                                                    "__ne__",
                                                    "__reduce_ex__",
                                                    "__contains__"};
  return std::find(kSpecial.begin(), kSpecial.end(), name) != kSpecial.end();
}

}  // namespace

Value unsafe_attribute(const Value& value, const std::string& name) {
  return Value::undefined("access to attribute '" + name + "' of '" + type_name(value) + "' object is unsafe.");
}

std::optional<Value> find_method(const Value& value, const std::string& name) {
  if (value.is_string()) {
    if (Method method = find_text_method(name)) return make_method(value, name, method);
  } else if (const Methods* methods = methods_of(value)) {
    const auto found = methods->find(name);
    if (found != methods->end()) {
      return found->second != nullptr ? make_method(value, name, found->second) : unsafe_attribute(value, name);
    }
  }
  if (is_missing_method(value, name)) {
    throw Failure("'" + name + "' of " + type_name(value) + " is not available in chat templates here");
  }
  if (is_special_name(name)) return unsafe_attribute(value, name);
  return std::nullopt;
}

}  // namespace ithaca::jinja
