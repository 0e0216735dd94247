// The table of filters, and those of numbers.
#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "base/text.h"
#include "data/chat/jinja/format.h"
#include "data/chat/jinja/library.h"
#include "data/chat/jinja/operators.h"

namespace ithaca::jinja {
namespace {

using Table = std::unordered_map<std::string, FilterFunction>;

const Table& table() {
  static const Table kTable = [] {
    Table result;
    for (const auto& part : {text_filters(), sequence_filters(), number_filters()}) {
      result.insert(part.begin(), part.end());
    }
    return result;
  }();
  return kTable;
}

Value filter_abs(Runtime& /*runtime*/, const Value& value, const Arguments& arguments) {
  const Parameters parameters("abs", arguments, {}, 0);
  require_defined(value);
  if (!value.is_number()) throw Failure("bad operand type for abs(): '" + type_name(value) + "'");
  if (value.is_float()) return Value(std::fabs(value.floating()));
  return *value.integer() < 0 ? negated(value) : Value(*value.integer());
}

Value filter_int(Runtime& /*runtime*/, const Value& value, const Arguments& arguments) {
  const Parameters parameters("int", arguments, {"default", "base"}, 0);
  require_defined(value);
  Value otherwise = parameters.value(0, Value(int64_t{0}));
  if (const auto integer = value.integer()) return Value(*integer);
  if (value.is_float()) return std::isnan(value.floating()) ? otherwise : Value(truncated(value.floating()));
  if (!value.is_string()) return otherwise;
  if (const auto integer = parse_integer(value.text(), static_cast<int>(parameters.integer(1, 10)))) {
    return Value(*integer);
  }
  const auto floating = parse_float(value.text());
  return floating && std::isfinite(*floating) ? Value(truncated(*floating)) : otherwise;
}

Value filter_float(Runtime& /*runtime*/, const Value& value, const Arguments& arguments) {
  const Parameters parameters("float", arguments, {"default"}, 0);
  require_defined(value);
  if (const auto number = value.number()) return Value(*number);
  const auto floating = value.is_string() ? parse_float(value.text()) : std::nullopt;
  return floating ? Value(*floating) : parameters.value(0, Value(0.0));
}

Value filter_round(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters parameters("round", arguments, {"precision", "method"}, 0);
  const std::string method = parameters.text(1, "common");
  if (method != "common" && method != "ceil" && method != "floor") {
    throw Failure("method must be common, ceil or floor");
  }
  require_defined(value);
  if (!value.is_number()) throw Failure("type " + type_name(value) + " doesn't define __round__ method");
  const int64_t precision = parameters.integer(0, 0);
  if (method == "common") {
    if (value.is_float()) {
      const double rounded = round_float(value.floating(), precision);
      if (std::isinf(rounded) && !std::isinf(value.floating())) throw Failure("rounded value too large to represent");
      return Value(rounded);
    }
    if (precision >= 0) return Value(*value.integer());
    if (precision < -38) return Value(int64_t{0});
    // Half to even, as Python's round of an int.
    Integer power = 1;
    for (int64_t i = precision; i < 0; ++i) power *= 10;
    Integer rest = *value.integer() % power;
    if (rest < 0) rest += power;
    const Value down = binary_operation(runtime, Operator::kSubtract, value, Value(rest));
    const bool is_odd = (*down.integer() / power) % 2 != 0;
    const bool up = rest > power - rest || (rest == power - rest && is_odd);
    return up ? binary_operation(runtime, Operator::kAdd, down, Value(power)) : down;
  }
  const Value power = binary_operation(runtime, Operator::kPower, Value(int64_t{10}), Value(precision));
  const double scaled = *binary_operation(runtime, Operator::kMultiply, value, power).number();
  const double whole = method == "ceil" ? std::ceil(scaled) : std::floor(scaled);
  if (!std::isfinite(whole)) throw Failure("cannot convert float infinity or NaN to integer");
  return binary_operation(runtime, Operator::kDivide, Value(truncated(whole)), power);
}

Value filter_filesizeformat(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters parameters("filesizeformat", arguments, {"binary"}, 0);
  require_defined(value);
  const auto number = value.is_string() ? parse_float(value.text()) : value.number();
  if (!number) throw Failure("could not convert " + repr(value) + " to float");
  const bool binary = parameters.truth(0, false);
  const double base = binary ? 1024 : 1000;
  if (*number == 1) return Value("1 Byte");
  if (*number < base) return Value(integer_text(truncated(*number)) + " Bytes");
  const std::string letters = "kMGTPEZY";
  double unit = base;
  size_t place = 0;
  for (; place < letters.size(); ++place) {
    unit *= base;
    if (*number < unit) break;
  }
  std::string prefix(1, binary && place == 0 ? 'K' : letters[std::min(place, letters.size() - 1)]);
  prefix += binary ? "iB" : "B";
  const std::string size = format_value(Value(base * *number / unit), ".1f");
  runtime.charge_bytes(static_cast<int64_t>(size.size()));
  return Value(size + " " + prefix);
}

}  // namespace

std::vector<std::pair<std::string, FilterFunction>> number_filters() {
  return {{"abs", filter_abs},
          {"filesizeformat", filter_filesizeformat},
          {"float", filter_float},
          {"int", filter_int},
          {"round", filter_round}};
}

bool has_filter(const std::string& name) {
  return table().count(name) != 0;
}

std::string unknown_filter(const std::string& name) {
  static const std::vector<std::string> kMissing = {"pprint", "random", "striptags", "urlize", "wordwrap"};
  if (std::find(kMissing.begin(), kMissing.end(), name) != kMissing.end()) {
    return "the filter '" + name + "' of Jinja is not available in chat templates here";
  }
  std::vector<std::string> known;
  for (const auto& entry : table()) known.push_back(entry.first);
  std::sort(known.begin(), known.end());
  const std::string nearest = nearest_name(name, known);
  return "No filter named '" + name + "'" + (nearest.empty() ? "." : "; did you mean '" + nearest + "'?");
}

Value apply_filter(Runtime& runtime, const std::string& name, const Value& value, const Arguments& arguments) {
  const auto found = table().find(name);
  if (found == table().end()) throw Failure(unknown_filter(name));
  return found->second(runtime, value, arguments);
}

}  // namespace ithaca::jinja
