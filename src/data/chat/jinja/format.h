// Values as text: Python's str() and repr(), its number formats, printf-style and brace formatting, and JSON.
//
// Thread-safety: pure functions. All throw Failure.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "data/chat/jinja/value.h"

namespace ithaca::jinja {

// What is printed, or made by one format, may be this long in bytes: lists can hold one long text many times.
constexpr size_t kLongestPrint = size_t{1} << 28;

std::string integer_text(Integer value);
// The shortest decimal that reads back as the same number, as repr(float) writes it: "0.1", "1e+16", "inf".
std::string float_text(double value);
// str(value): what printing writes.
std::string to_text(const Value& value);
std::string repr(const Value& value);
// The same, refusing what is nested deeper than `levels`.
std::string repr(const Value& value, int levels);
// repr with everything beyond ASCII escaped.
std::string ascii_repr(const Value& value);
// A value of JSON from a file or a program.
Value from_json(const nlohmann::ordered_json& json);

// int(text, base) and float(text); nothing where Python raises ValueError.
std::optional<Integer> parse_integer(std::string_view text, int base);
std::optional<double> parse_float(std::string_view text);
// round(value, digits) of a float.
double round_float(double value, int64_t digits);
// trunc(value) as an integer. Throws Failure when there is none.
Integer truncated(double value);

struct JsonOptions {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // of one level
  std::optional<std::string> item_separator;
  std::optional<std::string> key_separator;
  bool sort_keys = false;
};
// json.dumps.
std::string to_json(const Value& value, const JsonOptions& options);

// format(value, specification): "{:>8}", "{:,.2f}".
std::string format_value(const Value& value, std::string_view specification);
// pattern % arguments: a tuple gives several, a dictionary gives named ones.
std::string format_percent(std::string_view pattern, const Value& arguments);

// How "{0.name[key]}" looks up what stands behind a dot or between brackets.
using FieldLookup = std::function<Value(const Value& object, const Value& key, bool is_attribute)>;
// pattern.format(*positional, **named).
std::string format_braces(std::string_view pattern, const Arguments& arguments, const FieldLookup& lookup);

}  // namespace ithaca::jinja
