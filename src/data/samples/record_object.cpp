#include "data/samples/record_object.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/text.h"

namespace ithaca {

namespace {

using Json = nlohmann::ordered_json;

// As many keys are spelled out in errors.
constexpr size_t kKeysInTexts = 12;

struct FormatKeys {
  const char* format;
  std::vector<const char*> keys;
};

// In the order in which data.format: auto prefers them.
const std::vector<FormatKeys>& format_keys() {
  static const std::vector<FormatKeys> keys = {{"input_ids", {"input_ids"}},
                                               {"messages", {"messages"}},
                                               {"conversations", {"conversations"}},
                                               {"prompt_completion", {"prompt", "completion"}},
                                               {"instruction", {"instruction", "output"}},
                                               {"text", {"text"}}};
  return keys;
}

bool has_value(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

}  // namespace

RecordObject::RecordObject(const Json& value, const std::string& place) : value_(value), place_(place) {
  if (!value_.is_object()) {
    complain(fmt::format("a record must be an object {{\"key\": ...}}, not {}", value_.type_name()),
             "the record is not an object");
  }
}

void RecordObject::complain(const std::string& problem, const std::string& reason) const {
  throw RecordError(place_, problem, reason);
}

bool RecordObject::has(const char* key) const {
  return has_value(value_, key);
}

const Json& RecordObject::at(const char* key) const {
  if (has(key)) return value_.at(key);
  std::string problem = fmt::format("the key \"{}\" is {}", key, value_.contains(key) ? "null" : "missing");
  const std::vector<std::string> formats = formats_of(value_);
  std::vector<std::string> names;
  for (const auto& [name, ignored] : value_.items()) names.push_back(name);
  const std::string near = nearest_name(key, names);
  if (!near.empty() && near != key) {
    problem += fmt::format("; is \"{}\" meant to be it?", near);
  } else if (!formats.empty()) {
    problem += fmt::format("; with {} the record looks like data.format: {}", keys_of_format(formats.front()),
                           formats.front());
  } else {
    problem += fmt::format("; the record has the keys {}", keys_text(value_));
  }
  complain(problem, fmt::format("the key \"{}\" is missing", key));
}

const std::string& RecordObject::string(const char* key) const {
  return string_of(at(key), key);
}

const std::string& RecordObject::string_or_empty(const char* key) const {
  static const std::string empty;
  return has(key) ? string_of(value_.at(key), key) : empty;
}

const std::string& RecordObject::string_of(const Json& value, const char* key) const {
  if (!value.is_string()) {
    complain(fmt::format("\"{}\" must be a string, not {}", key, value.type_name()),
             fmt::format("\"{}\" is not a string", key));
  }
  return value.get_ref<const std::string&>();
}

std::vector<std::string> formats_of(const Json& object) {
  std::vector<std::string> formats;
  for (const FormatKeys& candidate : format_keys()) {
    const bool fits = std::all_of(candidate.keys.begin(), candidate.keys.end(),
                                  [&object](const char* key) { return has_value(object, key); });
    if (fits) formats.emplace_back(candidate.format);
  }
  return formats;
}

std::string keys_of_format(const std::string& format) {
  std::string text;
  for (const FormatKeys& candidate : format_keys()) {
    if (candidate.format != format) continue;
    for (const char* key : candidate.keys) text += fmt::format("{}\"{}\"", text.empty() ? "" : " and ", key);
  }
  return text;
}

std::string keys_text(const Json& object) {
  std::string text;
  size_t count = 0;
  for (const auto& [key, ignored] : object.items()) {
    if (++count > kKeysInTexts) return text + ", ...";
    text += fmt::format("{}\"{}\"", text.empty() ? "" : ", ", key);
  }
  return text.empty() ? "(none)" : text;
}

}  // namespace ithaca
