// The parts of a tokenizer.json: reading their members with errors that name the file, the part and the member.
//
// For .cpp files only. Thread-safety: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"

namespace ithaca::tokenizer_internal {

using Json = nlohmann::ordered_json;

// One object with "type", and what errors call it ("tokenizer.json: normalizer.normalizers[1]").
class Component {
 public:
  // `description` must outlive this.
  Component(const Json&& description, std::string where) = delete;
  Component(const Json& description, std::string where) : description_(description), where_(std::move(where)) {
    if (!description_.is_object()) throw InputError(where_ + " is not an object");
  }

  const std::string& where() const { return where_; }
  std::string type() const { return text("type"); }
  bool has(const char* key) const { return description_.contains(key) && !description_.at(key).is_null(); }
  const Json& member(const char* key) const {
    if (!has(key)) throw InputError(where_ + " has no \"" + key + "\"");
    return description_.at(key);
  }
  std::string text(const char* key) const {
    const Json& value = member(key);
    if (!value.is_string()) throw InputError(where_ + "." + key + " is not a string");
    return value.get<std::string>();
  }
  // Exactly one character.
  std::string character(const char* key) const;
  bool flag(const char* key, bool absent) const {
    if (!has(key)) return absent;
    const Json& value = description_.at(key);
    if (!value.is_boolean()) throw InputError(where_ + "." + key + " is not true or false");
    return value.get<bool>();
  }
  int64_t count(const char* key) const {
    const Json& value = member(key);
    if (!value.is_number_integer() || value.get<int64_t>() < 0) {
      throw InputError(where_ + "." + key + " is not a whole number");
    }
    return value.get<int64_t>();
  }
  // Calls make(element, where) for each element of an array.
  template <class Make>
  void each(const char* key, const Make& make) const {
    const Json& list = member(key);
    if (!list.is_array()) throw InputError(where_ + "." + key + " is not an array");
    for (size_t index = 0; index < list.size(); ++index) {
      make(list[index], where_ + "." + key + "[" + std::to_string(index) + "]");
    }
  }
  [[noreturn]] void refuse_type(const char* kind, const char* known) const {
    throw InputError(where_ + ": there is no " + kind + " \"" + type() + "\" in Ithaca; known are " + known);
  }

 private:
  const Json& description_;
  std::string where_;
};

}  // namespace ithaca::tokenizer_internal
