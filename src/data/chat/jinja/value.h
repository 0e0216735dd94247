// The values that a template computes with, as Python has them: None, bool, int, float, str, list, tuple, dict,
// undefined, and objects (functions, generators, namespaces, loops).
//
// Strings, lists, tuples and dictionaries never change once made (transformers renders in an immutable sandbox), so
// copies share them. Thread-safety: constant values may be read from several threads; objects belong to one rendering.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace ithaca::jinja {

// Python's integers have no bounds; these have 128 bits, and leaving them is an error.
__extension__ using Integer = __int128;

// What goes wrong while a template runs, before the interpreter adds file, line and column. Never leaves the library.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Value;
class Object;
class Runtime;

// A part of a text that a {% generation %} block wrote: bytes, and the number of the block's run.
struct GeneratedPart {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t run = 0;
};

struct StringData {
  std::string text;     // valid UTF-8
  int64_t length = 0;   // code points
  bool markup = false;  // the result of `safe` or `escape`: what is added to it is escaped
  // Of what a macro, a block or a recursive loop has written. Every operation gives a new text, without them.
  std::vector<GeneratedPart> generated;
};

// A list or a tuple.
struct ListData {
  std::vector<Value> items;
  bool tuple = false;
  bool group = false;  // what groupby gives: a tuple whose parts are also called grouper and list
  int depth = 1;       // how deep values are nested
  int64_t parts = 1;   // how many values there are in all, shared ones as often as they are seen
};

// Keeps the order of insertion; keys that compare equal (1, 1.0, true) are one.
class DictionaryData {
 public:
  // Throws Failure for a key that Python cannot hash.
  void set(const Value& key, Value value);
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  int depth() const { return depth_; }
  int64_t parts() const { return parts_; }

 private:
  const Value* find_hashed(const std::string& hash_key) const;

  std::vector<std::pair<Value, Value>> items_;
  std::unordered_map<std::string, size_t> places_;  // of the keys, by hash_key(), once there are many
  int depth_ = 1;
  int64_t parts_ = 1;
};

// Why something is undefined: the message of the error when it is used for more than printing or testing.
struct UndefinedData {
  std::string message;
};

class Value {
 public:
  Value() = default;  // None
  explicit Value(bool value) : data_(value) {}
  explicit Value(Integer value) : data_(value) {}
  explicit Value(int64_t value) : data_(static_cast<Integer>(value)) {}
  explicit Value(double value) : data_(value) {}
  explicit Value(std::string text, bool markup = false);
  explicit Value(std::string_view text) : Value(std::string(text)) {}
  explicit Value(const char* text) : Value(std::string(text)) {}
  explicit Value(std::shared_ptr<Object> object) : data_(std::move(object)) {}
  explicit Value(std::shared_ptr<const DictionaryData> dictionary) : data_(std::move(dictionary)) {}

  static Value undefined(std::string message);
  static Value written(std::string text, std::vector<GeneratedPart> generated);
  // Throw Failure when values would be nested deeper than kMostNested, or be more than kMostParts.
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value group(Value grouper, Value items);
  static Value dictionary(DictionaryData data);

  bool is_none() const { return std::holds_alternative<std::monostate>(data_); }
  bool is_undefined() const { return std::holds_alternative<std::shared_ptr<const UndefinedData>>(data_); }
  bool is_boolean() const { return std::holds_alternative<bool>(data_); }
  bool is_integer() const { return std::holds_alternative<Integer>(data_); }  // not a bool
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_boolean() || is_integer() || is_float(); }
  bool is_string() const { return std::holds_alternative<std::shared_ptr<const StringData>>(data_); }
  bool is_list() const;
  bool is_tuple() const;
  bool is_list_or_tuple() const { return std::holds_alternative<std::shared_ptr<const ListData>>(data_); }
  bool is_dictionary() const { return std::holds_alternative<std::shared_ptr<const DictionaryData>>(data_); }
  bool is_object() const { return std::holds_alternative<std::shared_ptr<Object>>(data_); }

  // Each requires the kind.
  const std::string& undefined_message() const {
    return std::get<std::shared_ptr<const UndefinedData>>(data_)->message;
  }
  double floating() const { return std::get<double>(data_); }
  const StringData& string() const { return *std::get<std::shared_ptr<const StringData>>(data_); }
  const std::string& text() const { return string().text; }
  const ListData& sequence() const { return *std::get<std::shared_ptr<const ListData>>(data_); }
  const std::vector<Value>& items() const { return sequence().items; }
  const DictionaryData& dictionary() const { return *std::get<std::shared_ptr<const DictionaryData>>(data_); }
  const std::shared_ptr<Object>& object() const { return std::get<std::shared_ptr<Object>>(data_); }
  template <typename Type>
  Type* object_as() const {
    return is_object() ? dynamic_cast<Type*>(object().get()) : nullptr;
  }

  // An int, or a bool as 0 and 1.
  std::optional<Integer> integer() const;
  // Any number; an int rounded as Python rounds it.
  std::optional<double> number() const;
  // The same object, as `is` sees it.
  bool is_same(const Value& other) const;
  int depth() const;
  int64_t parts() const;

 private:
  std::variant<std::monostate, bool, Integer, double, std::shared_ptr<const StringData>,
               std::shared_ptr<const ListData>, std::shared_ptr<const DictionaryData>, std::shared_ptr<Object>,
               std::shared_ptr<const UndefinedData>>
      data_;
};

// Lists in lists in dictionaries ...: deeper ones are an error, so that nothing that walks them can overflow the stack.
constexpr int kMostNested = 200;
// Values in one value: a list that holds a list twice, that holds a list twice, ... would take forever to print.
constexpr int64_t kMostParts = 4'000'000;

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Gives the values of something one after the other.
class Iterator {
 public:
  Iterator() = default;
  Iterator(const Iterator&) = delete;
  Iterator& operator=(const Iterator&) = delete;
  virtual ~Iterator() = default;
  virtual bool next(Value& value) = 0;
};

// Everything that has an identity.
class Object {
 public:
  explicit Object(int depth = 1);
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;

  virtual std::string type_name() const = 0;  // as Python's type(x).__name__
  // `levels` is how much deeper printing may go: what can hold itself would never end.
  virtual std::string repr(int /*levels*/) { return "<" + type_name() + ">"; }
  virtual bool truth() { return true; }
  virtual std::optional<int64_t> length() { return std::nullopt; }
  virtual bool has_items() const { return false; }  // is a sequence: may be indexed
  virtual std::optional<Value> item(Integer /*index*/) { return std::nullopt; }
  virtual std::optional<Value> attribute(const std::string& /*name*/) { return std::nullopt; }
  // Null when it cannot be iterated.
  virtual std::unique_ptr<Iterator> iterate() { return nullptr; }
  virtual bool callable() const { return false; }
  virtual Value call(Runtime& runtime, Arguments arguments);
  virtual bool equals(const Object& other) const { return this == &other; }
  // Lets go of everything: what Runtime::own has is cleared when the rendering ends.
  virtual void clear() {}
  int depth() const { return depth_; }

 private:
  int depth_;
};

// Python's type(value).__name__.
std::string type_name(const Value& value);
// What messages about attributes call it: "dict object", "None".
std::string described(const Value& value);
// bool(value).
bool truth(const Value& value);
// ==
bool equal(const Value& left, const Value& right);
// <; `symbol` is the operator that a Failure names when the two cannot be ordered.
bool less(const Value& left, const Value& right, const char* symbol = "<");
// `needle in haystack`. Throws Failure.
bool contains(const Value& haystack, const Value& needle);
// len(value). Throws Failure.
int64_t length(const Value& value);
// Null when the value cannot be iterated.
std::unique_ptr<Iterator> try_iterate(const Value& value);
// Throws Failure when it cannot.
std::unique_ptr<Iterator> iterate(const Value& value);
// list(value).
std::vector<Value> to_vector(const Value& value);
// A text that is the same for keys that are the same. Throws Failure for what Python cannot hash.
std::string hash_key(const Value& value);
// Throws Failure with the message of an undefined value; does nothing for others.
void require_defined(const Value& value);

}  // namespace ithaca::jinja
