// JSON texts from files: parsing with errors that name the file, line and column.
//
// For .cpp files only (it brings nlohmann-json in); link nlohmann_json::nlohmann_json. Thread-safety: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace ithaca {

// "<where>:<line>:<column>" of byte `offset` of `text`; both count from 1, the column in bytes.
inline std::string text_place(std::string_view text, size_t offset, const std::string& where, int64_t first_line = 1) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = first_line + std::count(before.begin(), before.end(), '\n');
  const size_t line_begin = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return where + ":" + std::to_string(line) + ":" + std::to_string(before.size() - line_begin + 1);
}

// What is wrong, in a parser's message: without its own idea of the place, and of its grammar.
inline std::string json_complaint(const std::string& message) {
  const size_t column = message.find("column ");
  size_t start = message.find(": ", column == std::string::npos ? 0 : column);
  if (start == std::string::npos) start = message.find("] ");
  std::string text = start == std::string::npos ? message : message.substr(start + 2);
  constexpr std::string_view kGrammar = "syntax error while parsing ";
  const size_t dash = text.find(" - ");
  if (text.starts_with(kGrammar) && dash != std::string::npos) text.erase(0, dash + 3);
  if (text.starts_with("unexpected end of input")) return "the text ends before it is complete";
  constexpr std::string_view kLastRead = "; last read: ";
  const size_t read = text.find(kLastRead);
  if (read != std::string::npos) text.replace(read, kLastRead.size(), ", at the end of ");
  return text;
}

// Parses one JSON text; keys keep their order. Throws InputError. `first_line` is the line of the file that `text`
// starts at.
inline nlohmann::ordered_json parse_json(std::string_view text, const std::string& where, int64_t first_line = 1) {
  try {
    return nlohmann::ordered_json::parse(text.begin(), text.end());
  } catch (const nlohmann::ordered_json::parse_error& error) {
    const size_t offset = error.byte > 0 ? error.byte - 1 : 0;
    throw InputError(text_place(text, offset, where, first_line) + ": not valid JSON: " + json_complaint(error.what()));
  } catch (const nlohmann::ordered_json::exception& error) {
    throw InputError(where + ":" + std::to_string(first_line) + ": not valid JSON: " + json_complaint(error.what()));
  }
}

// The same, and a key that appears twice in one object is an error too.
inline nlohmann::ordered_json parse_json_unique(std::string_view text, const std::string& where) {
  using Json = nlohmann::ordered_json;
  std::vector<std::set<std::string>> keys;
  std::string duplicate;
  const Json::parser_callback_t watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && duplicate.empty()) {
      const auto& name = value.get_ref<const std::string&>();
      if (!keys.back().insert(name).second) duplicate = name;
    }
    return true;
  };
  Json result;
  try {
    result = Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::exception&) {
    return parse_json(text, where);  // throws with the place
  }
  if (!duplicate.empty()) throw InputError(where + ": the key \"" + duplicate + "\" appears twice in one object");
  return result;
}

}  // namespace ithaca
