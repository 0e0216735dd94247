// RecordObject: the fields of one record, with errors that name its place.
//
// For .cpp files only (it brings nlohmann-json in). Thread-safety: const functions of what it refers to.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/samples/sample.h"

namespace ithaca {

class RecordObject {
 public:
  using Json = nlohmann::ordered_json;

  // Both must outlive this. Throws RecordError when `value` is not an object.
  RecordObject(const Json& value, const std::string& place);

  const std::string& place() const { return place_; }
  // Throws RecordError; `reason` is the kind of problem, to group by.
  [[noreturn]] void complain(const std::string& problem, const std::string& reason) const;

  // Whether the key is there and not null.
  bool has(const char* key) const;
  // What the key holds. Throws RecordError when it is not there or null, with what the record looks like instead.
  const Json& at(const char* key) const;
  const std::string& string(const char* key) const;
  // Empty when the key is not there or null.
  const std::string& string_or_empty(const char* key) const;

  const Json& value() const { return value_; }

 private:
  const std::string& string_of(const Json& value, const char* key) const;

  const Json& value_;
  const std::string& place_;
};

// The formats whose keys an object has, the most telling one first: "messages", ...
std::vector<std::string> formats_of(const nlohmann::ordered_json& object);
// The keys that a format needs, as texts say them: "prompt" and "completion".
std::string keys_of_format(const std::string& format);
// The keys of an object, as texts say them: "a", "b".
std::string keys_text(const nlohmann::ordered_json& object);

}  // namespace ithaca
