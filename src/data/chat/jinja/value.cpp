#include "data/chat/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/utf8.h"
#include "data/chat/jinja/text.h"

namespace ithaca::jinja {
namespace {

// Dictionaries of more keys than this are searched by hash.
constexpr size_t kFewKeys = 8;

int checked_depth(int depth) {
  if (depth > kMostNested) {
    throw Failure("values are nested deeper than " + std::to_string(kMostNested) + " levels");
  }
  return depth;
}

int64_t checked_parts(int64_t parts) {
  if (parts > kMostParts) throw Failure("a value has more than " + std::to_string(kMostParts) + " parts");
  return parts;
}

std::shared_ptr<const ListData> list_data(std::vector<Value> items, bool tuple, bool group) {
  auto data = std::make_shared<ListData>();
  int depth = 0;
  for (const Value& item : items) {
    depth = std::max(depth, item.depth());
    data->parts = checked_parts(data->parts + item.parts());
  }
  data->depth = checked_depth(depth + 1);
  data->items = std::move(items);
  data->tuple = tuple;
  data->group = group;
  return data;
}

class VectorIterator : public Iterator {
 public:
  explicit VectorIterator(Value list) : list_(std::move(list)) {}
  bool next(Value& value) override {
    const std::vector<Value>& items = list_.items();
    if (position_ >= items.size()) return false;
    value = items[position_++];
    return true;
  }

 private:
  Value list_;
  size_t position_ = 0;
};

class CharacterIterator : public Iterator {
 public:
  explicit CharacterIterator(Value text) : text_(std::move(text)) {}
  bool next(Value& value) override {
    const std::string& text = text_.text();
    if (position_ >= text.size()) return false;
    const size_t begin = position_;
    next_code_point(text, position_);
    value = Value(text.substr(begin, position_ - begin));
    return true;
  }

 private:
  Value text_;
  size_t position_ = 0;
};

class KeyIterator : public Iterator {
 public:
  explicit KeyIterator(Value dictionary) : dictionary_(std::move(dictionary)) {}
  bool next(Value& value) override {
    const auto& items = dictionary_.dictionary().items();
    if (position_ >= items.size()) return false;
    value = items[position_++].first;
    return true;
  }

 private:
  Value dictionary_;
  size_t position_ = 0;
};

class EmptyIterator : public Iterator {
 public:
  bool next(Value& /*value*/) override { return false; }
};

bool equal_numbers(const Value& left, const Value& right) {
  const auto left_integer = left.integer();
  const auto right_integer = right.integer();
  if (left_integer && right_integer) return *left_integer == *right_integer;
  if (!left_integer && !right_integer) return left.floating() == right.floating();
  const Integer integer = left_integer ? *left_integer : *right_integer;
  const double floating = left_integer ? right.floating() : left.floating();
  return static_cast<long double>(integer) == static_cast<long double>(floating);
}

bool less_numbers(const Value& left, const Value& right) {
  const auto left_integer = left.integer();
  const auto right_integer = right.integer();
  if (left_integer && right_integer) return *left_integer < *right_integer;
  const auto wide = [](const std::optional<Integer>& integer, const Value& value) {
    return integer ? static_cast<long double>(*integer) : static_cast<long double>(value.floating());
  };
  return wide(left_integer, left) < wide(right_integer, right);
}

}  // namespace

// --- Dictionaries

void DictionaryData::set(const Value& key, Value value) {
  std::string hashed = hash_key(key);  // also where a key that cannot be one is found out
  depth_ = checked_depth(std::max({depth_, key.depth() + 1, value.depth() + 1}));
  parts_ = checked_parts(parts_ + key.parts() + value.parts());
  if (const Value* found = find_hashed(hashed)) {
    // Python keeps the first key.
    for (auto& item : items_) {
      if (&item.second != found) continue;
      item.second = std::move(value);
      return;
    }
    return;
  }
  if (items_.size() == kFewKeys) {
    for (size_t i = 0; i < items_.size(); ++i) places_.emplace(hash_key(items_[i].first), i);
  }
  if (items_.size() >= kFewKeys) places_.emplace(std::move(hashed), items_.size());
  items_.emplace_back(key, std::move(value));
}

const Value* DictionaryData::find_hashed(const std::string& hashed) const {
  if (places_.empty()) {
    for (const auto& [key, value] : items_) {
      if (hash_key(key) == hashed) return &value;
    }
    return nullptr;
  }
  const auto found = places_.find(hashed);
  return found == places_.end() ? nullptr : &items_[found->second].second;
}

const Value* DictionaryData::find(const Value& key) const {
  if (key.is_string()) return find(key.text());
  return find_hashed(hash_key(key));
}

const Value* DictionaryData::find(std::string_view key) const {
  if (places_.empty()) {
    for (const auto& [name, value] : items_) {
      if (name.is_string() && name.text() == key) return &value;
    }
    return nullptr;
  }
  return find_hashed("s" + std::string(key));
}

// --- Value

Value::Value(std::string text, bool markup) {
  auto data = std::make_shared<StringData>();
  data->length = code_point_count(text);
  data->text = std::move(text);
  data->markup = markup;
  data_ = std::shared_ptr<const StringData>(std::move(data));
}

Value Value::undefined(std::string message) {
  Value value;
  value.data_ = std::make_shared<const UndefinedData>(UndefinedData{std::move(message)});
  return value;
}

Value Value::written(std::string text, std::vector<GeneratedPart> generated) {
  auto data = std::make_shared<StringData>();
  data->length = code_point_count(text);
  data->text = std::move(text);
  data->generated = std::move(generated);
  Value value;
  value.data_ = std::shared_ptr<const StringData>(std::move(data));
  return value;
}

Value Value::list(std::vector<Value> items) {
  Value value;
  value.data_ = list_data(std::move(items), false, false);
  return value;
}

Value Value::tuple(std::vector<Value> items) {
  Value value;
  value.data_ = list_data(std::move(items), true, false);
  return value;
}

Value Value::group(Value grouper, Value items) {
  Value value;
  value.data_ = list_data({std::move(grouper), std::move(items)}, true, true);
  return value;
}

Value Value::dictionary(DictionaryData data) {
  return Value(std::make_shared<const DictionaryData>(std::move(data)));
}

bool Value::is_list() const {
  return is_list_or_tuple() && !sequence().tuple;
}
bool Value::is_tuple() const {
  return is_list_or_tuple() && sequence().tuple;
}

std::optional<Integer> Value::integer() const {
  if (const auto* integer = std::get_if<Integer>(&data_)) return *integer;
  if (const auto* boolean = std::get_if<bool>(&data_)) return static_cast<Integer>(*boolean);
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const auto* floating = std::get_if<double>(&data_)) return *floating;
  if (const auto whole = integer()) return static_cast<double>(*whole);
  return std::nullopt;
}

bool Value::is_same(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (is_none()) return true;
  if (is_boolean()) return std::get<bool>(data_) == std::get<bool>(other.data_);
  if (is_integer()) return std::get<Integer>(data_) == std::get<Integer>(other.data_);
  if (is_string()) return &string() == &other.string();
  if (is_list_or_tuple()) return &sequence() == &other.sequence();
  if (is_dictionary()) return &dictionary() == &other.dictionary();
  if (is_object()) return object() == other.object();
  return false;
}

int Value::depth() const {
  if (is_list_or_tuple()) return sequence().depth;
  if (is_dictionary()) return dictionary().depth();
  if (is_object()) return object()->depth();
  return 0;
}

int64_t Value::parts() const {
  if (is_list_or_tuple()) return sequence().parts;
  if (is_dictionary()) return dictionary().parts();
  return 1;
}

// --- Objects

Object::Object(int depth) : depth_(checked_depth(depth)) {}

// By value, as those keep them that can be called.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
Value Object::call(Runtime& /*runtime*/, Arguments /*arguments*/) {
  throw Failure("'" + type_name() + "' object is not callable");
}

// --- Functions of values

std::string type_name(const Value& value) {
  if (value.is_none()) return "NoneType";
  if (value.is_undefined()) return "Undefined";
  if (value.is_boolean()) return "bool";
  if (value.is_integer()) return "int";
  if (value.is_float()) return "float";
  if (value.is_string()) return value.string().markup ? "Markup" : "str";
  if (value.is_list_or_tuple()) return value.is_tuple() ? "tuple" : "list";
  if (value.is_dictionary()) return "dict";
  return value.object()->type_name();
}

std::string described(const Value& value) {
  return value.is_none() ? "None" : type_name(value) + " object";
}

bool truth(const Value& value) {
  if (value.is_none() || value.is_undefined()) return false;
  if (const auto integer = value.integer()) return *integer != 0;
  if (value.is_float()) return value.floating() != 0;
  if (value.is_string()) return !value.text().empty();
  if (value.is_list_or_tuple()) return !value.items().empty();
  if (value.is_dictionary()) return !value.dictionary().items().empty();
  return value.object()->truth();
}

bool equal(const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) return equal_numbers(left, right);
  if (left.is_string() && right.is_string()) return left.text() == right.text();
  if (left.is_undefined() || right.is_undefined()) return left.is_undefined() && right.is_undefined();
  if (left.is_none() || right.is_none()) return left.is_none() && right.is_none();
  if (left.is_list_or_tuple() && right.is_list_or_tuple()) {
    if (left.is_tuple() != right.is_tuple()) return false;
    const auto& first = left.items();
    const auto& second = right.items();
    return std::equal(first.begin(), first.end(), second.begin(), second.end(),
                      [](const Value& a, const Value& b) { return a.is_same(b) || equal(a, b); });
  }
  if (left.is_dictionary() && right.is_dictionary()) {
    const auto& first = left.dictionary();
    const auto& second = right.dictionary();
    if (first.items().size() != second.items().size()) return false;
    return std::all_of(first.items().begin(), first.items().end(), [&](const std::pair<Value, Value>& item) {
      const Value* other = second.find(item.first);
      return other != nullptr && (item.second.is_same(*other) || equal(item.second, *other));
    });
  }
  if (left.is_object() && right.is_object()) return left.object()->equals(*right.object());
  return false;
}

bool less(const Value& left, const Value& right, const char* symbol) {
  require_defined(left);
  require_defined(right);
  if (left.is_number() && right.is_number()) return less_numbers(left, right);
  // The order of UTF-8 bytes is the order of code points.
  if (left.is_string() && right.is_string()) return left.text() < right.text();
  if (left.is_list_or_tuple() && right.is_list_or_tuple() && left.is_tuple() == right.is_tuple()) {
    const auto& first = left.items();
    const auto& second = right.items();
    for (size_t i = 0; i < std::min(first.size(), second.size()); ++i) {
      if (!first[i].is_same(second[i]) && !equal(first[i], second[i])) return less(first[i], second[i], symbol);
    }
    return first.size() < second.size();
  }
  throw Failure("'" + std::string(symbol) + "' not supported between instances of '" + type_name(left) + "' and '" +
                type_name(right) + "'");
}

bool contains(const Value& haystack, const Value& needle) {
  if (haystack.is_string()) {
    if (!needle.is_string()) {
      require_defined(needle);
      throw Failure("'in <string>' requires string as left operand, not " + type_name(needle));
    }
    return haystack.text().find(needle.text()) != std::string::npos;
  }
  if (haystack.is_dictionary()) return haystack.dictionary().find(needle) != nullptr;
  const auto values = try_iterate(haystack);
  if (!values) throw Failure("argument of type '" + type_name(haystack) + "' is not iterable");
  Value value;
  while (values->next(value)) {
    if (value.is_same(needle) || equal(value, needle)) return true;
  }
  return false;
}

int64_t length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_string()) return value.string().length;
  if (value.is_list_or_tuple()) return static_cast<int64_t>(value.items().size());
  if (value.is_dictionary()) return static_cast<int64_t>(value.dictionary().items().size());
  if (value.is_object()) {
    if (const auto size = value.object()->length()) return *size;
  }
  throw Failure("object of type '" + type_name(value) + "' has no len()");
}

std::unique_ptr<Iterator> try_iterate(const Value& value) {
  if (value.is_undefined()) return std::make_unique<EmptyIterator>();
  if (value.is_string()) return std::make_unique<CharacterIterator>(value);
  if (value.is_list_or_tuple()) return std::make_unique<VectorIterator>(value);
  if (value.is_dictionary()) return std::make_unique<KeyIterator>(value);
  if (value.is_object()) return value.object()->iterate();
  return nullptr;
}

std::unique_ptr<Iterator> iterate(const Value& value) {
  auto iterator = try_iterate(value);
  if (!iterator) throw Failure("'" + type_name(value) + "' object is not iterable");
  return iterator;
}

std::vector<Value> to_vector(const Value& value) {
  if (value.is_list_or_tuple()) return value.items();
  std::vector<Value> items;
  const auto values = iterate(value);
  Value item;
  while (values->next(item)) items.push_back(item);
  return items;
}

std::string hash_key(const Value& value) {
  if (value.is_string()) return "s" + value.text();
  if (value.is_none()) return "n";
  if (value.is_undefined()) return "u";
  if (const auto integer = value.integer()) {
    // A float of the same value is the same key, as far as floats are exact.
    const auto floating = static_cast<double>(*integer);
    if (static_cast<long double>(floating) == static_cast<long double>(*integer)) return hash_key(Value(floating));
    return "i" + std::string(reinterpret_cast<const char*>(&*integer), sizeof(Integer));
  }
  if (value.is_float()) {
    const double floating = value.floating() == 0 ? 0.0 : value.floating();
    return "f" + std::string(reinterpret_cast<const char*>(&floating), sizeof(floating));
  }
  if (value.is_tuple()) {
    std::string key = "t";
    for (const Value& item : value.items()) {
      const std::string part = hash_key(item);
      key += std::to_string(part.size()) + ":" + part;
    }
    return key;
  }
  if (value.is_list() || value.is_dictionary()) throw Failure("unhashable type: '" + type_name(value) + "'");
  const Object* object = value.object().get();
  // The address itself is the key. NOLINTNEXTLINE(bugprone-sizeof-expression)
  return "o" + std::string(reinterpret_cast<const char*>(&object), sizeof(object));
}

void require_defined(const Value& value) {
  if (value.is_undefined()) throw Failure(value.undefined_message());
}

}  // namespace ithaca::jinja
