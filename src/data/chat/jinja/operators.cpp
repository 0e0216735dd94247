#include "data/chat/jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/utf8.h"
#include "data/chat/jinja/format.h"
#include "data/chat/jinja/library.h"
#include "data/chat/jinja/text.h"

namespace ithaca::jinja {
namespace {

const char* symbol(Operator operation) {
  switch (operation) {
    case Operator::kAdd:
      return "+";
    case Operator::kSubtract:
      return "-";
    case Operator::kMultiply:
      return "*";
    case Operator::kDivide:
      return "/";
    case Operator::kFloorDivide:
      return "//";
    case Operator::kModulo:
      return "%";
    case Operator::kPower:
      return "** or pow()";
    case Operator::kEqual:
      return "==";
    case Operator::kNotEqual:
      return "!=";
    case Operator::kLess:
      return "<";
    case Operator::kLessEqual:
      return "<=";
    case Operator::kGreater:
      return ">";
    case Operator::kGreaterEqual:
      return ">=";
    case Operator::kIn:
      return "in";
    case Operator::kNotIn:
      return "not in";
  }
  return "";
}

Failure too_large() {
  return Failure("the result does not fit an integer of 128 bits");
}

Integer floor_divide(Integer left, Integer right) {
  if (right == 0) throw Failure("integer division or modulo by zero");
  if (right == -1) {
    Integer result = 0;
    if (__builtin_sub_overflow(Integer{0}, left, &result)) throw too_large();
    return result;
  }
  const Integer quotient = left / right;
  return (left % right != 0) && ((left < 0) != (right < 0)) ? quotient - 1 : quotient;
}

Integer floor_modulo(Integer left, Integer right) {
  if (right == 0) throw Failure("integer division or modulo by zero");
  if (right == -1) return 0;
  const Integer rest = left % right;
  return rest != 0 && ((rest < 0) != (right < 0)) ? rest + right : rest;
}

double floor_modulo(double left, double right) {
  if (right == 0) throw Failure("float modulo by zero");
  double rest = std::fmod(left, right);
  if (rest != 0) {
    if ((right < 0) != (rest < 0)) rest += right;
  } else {
    rest = std::copysign(0.0, right);
  }
  return rest;
}

double floor_divide(double left, double right) {
  if (right == 0) throw Failure("float floor division by zero");
  const double rest = floor_modulo(left, right);
  const double quotient = (left - rest) / right;
  if (quotient == 0) return std::copysign(0.0, left / right);
  double whole = std::floor(quotient);
  if (quotient - whole > 0.5) whole += 1.0;
  return whole;
}

Value power(const Value& left, const Value& right) {
  const auto base = left.integer();
  const auto exponent = right.integer();
  if (base && exponent && *exponent >= 0) {
    Integer result = 1;
    Integer square = *base;
    for (Integer rest = *exponent; rest > 0; rest /= 2) {
      if (rest % 2 != 0 && __builtin_mul_overflow(result, square, &result)) throw too_large();
      if (rest > 1 && __builtin_mul_overflow(square, square, &square)) throw too_large();
    }
    return Value(result);
  }
  const double floating_base = *left.number();
  const double floating_exponent = *right.number();
  if (floating_base == 0 && floating_exponent < 0) throw Failure("0.0 cannot be raised to a negative power");
  if (floating_base < 0 && std::floor(floating_exponent) != floating_exponent && std::isfinite(floating_base)) {
    throw Failure("a fractional power of a negative number is complex, and there are no complex numbers here");
  }
  const double result = std::pow(floating_base, floating_exponent);
  if (std::isinf(result) && std::isfinite(floating_base) && std::isfinite(floating_exponent)) {
    throw Failure("Numerical result out of range");
  }
  return Value(result);
}

Value arithmetic(Operator operation, const Value& left, const Value& right) {
  const auto first = left.integer();
  const auto second = right.integer();
  if (first && second) {
    Integer result = 0;
    bool overflow = false;
    switch (operation) {
      case Operator::kAdd:
        overflow = __builtin_add_overflow(*first, *second, &result);
        break;
      case Operator::kSubtract:
        overflow = __builtin_sub_overflow(*first, *second, &result);
        break;
      case Operator::kMultiply:
        overflow = __builtin_mul_overflow(*first, *second, &result);
        break;
      case Operator::kFloorDivide:
        return Value(floor_divide(*first, *second));
      case Operator::kModulo:
        return Value(floor_modulo(*first, *second));
      case Operator::kDivide:
        if (*second == 0) throw Failure("division by zero");
        return Value(static_cast<double>(static_cast<long double>(*first) / static_cast<long double>(*second)));
      default:
        return power(left, right);
    }
    if (overflow) throw too_large();
    return Value(result);
  }
  const double floating_first = *left.number();
  const double floating_second = *right.number();
  switch (operation) {
    case Operator::kAdd:
      return Value(floating_first + floating_second);
    case Operator::kSubtract:
      return Value(floating_first - floating_second);
    case Operator::kMultiply:
      return Value(floating_first * floating_second);
    case Operator::kDivide:
      if (floating_second == 0) throw Failure("float division by zero");
      return Value(floating_first / floating_second);
    case Operator::kFloorDivide:
      return Value(floor_divide(floating_first, floating_second));
    case Operator::kModulo:
      return Value(floor_modulo(floating_first, floating_second));
    default:
      return power(left, right);
  }
}

Value added_texts(Runtime& runtime, const StringData& left, const StringData& right) {
  const bool markup = left.markup || right.markup;
  const auto part = [&](const StringData& text) { return markup && !text.markup ? escaped(text.text) : text.text; };
  runtime.charge_bytes(static_cast<int64_t>(left.text.size() + right.text.size()));
  return Value(part(left) + part(right), markup);
}

Value repeated(Runtime& runtime, const Value& value, Integer count) {
  const Integer times = std::max<Integer>(count, 0);
  const auto size =
      static_cast<Integer>(value.is_string() ? value.text().size() : value.items().size() * sizeof(Value));
  if (size == 0 || times == 0)
    return value.is_string() ? Value("") : value.is_tuple() ? Value::tuple({}) : Value::list({});
  if (times > std::numeric_limits<int64_t>::max() / size) throw Failure("the result of '*' is too large");
  runtime.charge_bytes(static_cast<int64_t>(size * times));
  if (value.is_string()) {
    std::string text;
    text.reserve(static_cast<size_t>(size * times));
    for (Integer i = 0; i < times; ++i) text += value.text();
    return Value(std::move(text), value.string().markup);
  }
  std::vector<Value> items;
  for (Integer i = 0; i < times; ++i) items.insert(items.end(), value.items().begin(), value.items().end());
  return value.is_tuple() ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

// What comparing looks at, roughly.
int64_t size_of(const Value& value) {
  if (value.is_string()) return static_cast<int64_t>(value.text().size() / 64);
  return value.parts() / 4;
}

std::string element_message(const Value& value, const Value& key) {
  if (key.is_string()) return "'" + described(value) + "' has no attribute " + repr(key);
  return described(value) + " has no element " + repr(key);
}

// Where a slice begins and ends, and how often it steps, by Python's rules.
struct SliceRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t step = 1;
  int64_t count = 0;
};

std::optional<int64_t> slice_index(const Value* value) {
  if (value == nullptr || value->is_none()) return std::nullopt;
  const auto integer = value->integer();
  if (!integer) {
    throw Failure("slice indices must be integers or None or have an __index__ method, not " + type_name(*value));
  }
  constexpr Integer kFar = std::numeric_limits<int64_t>::max() / 4;
  return static_cast<int64_t>(std::clamp<Integer>(*integer, -kFar, kFar));
}

SliceRange slice_range(int64_t length, const Value* begin, const Value* end, const Value* step) {
  SliceRange range;
  range.step = slice_index(step).value_or(1);
  if (range.step == 0) throw Failure("slice step cannot be zero");
  const bool backwards = range.step < 0;
  const auto clamped = [&](std::optional<int64_t> index, int64_t otherwise) {
    if (!index) return otherwise;
    const int64_t place = *index < 0 ? *index + length : *index;
    return std::clamp<int64_t>(place, backwards ? -1 : 0, backwards ? length - 1 : length);
  };
  range.begin = clamped(slice_index(begin), backwards ? length - 1 : 0);
  range.end = clamped(slice_index(end), backwards ? -1 : length);
  const int64_t distance = backwards ? range.begin - range.end : range.end - range.begin;
  const int64_t stride = backwards ? -range.step : range.step;
  range.count = distance <= 0 ? 0 : (distance - 1) / stride + 1;
  return range;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '\'':
        result += "&#39;";
        break;
      case '"':
        result += "&#34;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

Value binary_operation(Runtime& runtime, Operator operation, const Value& left, const Value& right) {
  // A text on the left of % is a pattern, whatever stands on the right.
  if (operation == Operator::kModulo && left.is_string()) {
    std::string text = format_percent(left.text(), right);
    runtime.charge_bytes(static_cast<int64_t>(text.size()));
    return Value(std::move(text), left.string().markup);
  }
  require_defined(left);
  require_defined(right);
  if (left.is_number() && right.is_number()) return arithmetic(operation, left, right);
  if (operation == Operator::kAdd) {
    if (left.is_string() && right.is_string()) return added_texts(runtime, left.string(), right.string());
    if (left.is_list_or_tuple() && right.is_list_or_tuple() && left.is_tuple() == right.is_tuple()) {
      std::vector<Value> items = left.items();
      items.insert(items.end(), right.items().begin(), right.items().end());
      runtime.charge_bytes(static_cast<int64_t>(items.size() * sizeof(Value)));
      return left.is_tuple() ? Value::tuple(std::move(items)) : Value::list(std::move(items));
    }
    if (left.is_string()) {
      throw Failure("can only concatenate str (not \"" + type_name(right) + "\") to str");
    }
  }
  if (operation == Operator::kMultiply) {
    if ((left.is_string() || left.is_list_or_tuple()) && right.integer()) {
      return repeated(runtime, left, *right.integer());
    }
    if ((right.is_string() || right.is_list_or_tuple()) && left.integer()) {
      return repeated(runtime, right, *left.integer());
    }
  }
  throw Failure("unsupported operand type(s) for " + std::string(symbol(operation)) + ": '" + type_name(left) +
                "' and '" + type_name(right) + "'");
}

Value negated(const Value& value) {
  require_defined(value);
  if (const auto integer = value.integer()) {
    Integer result = 0;
    if (__builtin_sub_overflow(Integer{0}, *integer, &result)) throw too_large();
    return Value(result);
  }
  if (value.is_float()) return Value(-value.floating());
  throw Failure("bad operand type for unary -: '" + type_name(value) + "'");
}

Value plus(const Value& value) {
  require_defined(value);
  if (const auto integer = value.integer()) return Value(*integer);
  if (value.is_float()) return value;
  throw Failure("bad operand type for unary +: '" + type_name(value) + "'");
}

bool comparison(Runtime& runtime, Operator operation, const Value& left, const Value& right) {
  runtime.charge(size_of(right));
  switch (operation) {
    case Operator::kEqual:
      return equal(left, right);
    case Operator::kNotEqual:
      return !equal(left, right);
    case Operator::kLess:
      return less(left, right, "<");
    case Operator::kGreater:
      return less(right, left, ">");
    // Not the negation of the other: neither holds for a NaN.
    case Operator::kLessEqual:
      return less(left, right, "<=") || equal(left, right);
    case Operator::kGreaterEqual:
      return less(right, left, ">=") || equal(left, right);
    case Operator::kIn:
      return contains(right, left);
    default:
      return !contains(right, left);
  }
}

Value slice(Runtime& runtime, const Value& value, const Value* begin, const Value* end, const Value* step) {
  require_defined(value);
  if (value.is_string()) {
    const StringData& data = value.string();
    const SliceRange range = slice_range(data.length, begin, end, step);
    runtime.charge_bytes(static_cast<int64_t>(data.text.size()));
    if (range.step == 1) {
      const size_t first = byte_offset(data.text, range.begin);
      const size_t size = byte_offset(std::string_view(data.text).substr(first), range.count);
      return Value(data.text.substr(first, size), data.markup);
    }
    const std::u32string wide = code_points(data.text);
    std::string text;
    for (int64_t i = 0; i < range.count; ++i)
      append_utf8(text, wide[static_cast<size_t>(range.begin + i * range.step)]);
    return Value(std::move(text), data.markup);
  }
  if (value.is_list_or_tuple()) {
    const auto& items = value.items();
    const SliceRange range = slice_range(static_cast<int64_t>(items.size()), begin, end, step);
    runtime.charge_bytes(range.count * static_cast<int64_t>(sizeof(Value)));
    std::vector<Value> result;
    result.reserve(static_cast<size_t>(range.count));
    for (int64_t i = 0; i < range.count; ++i)
      result.push_back(items[static_cast<size_t>(range.begin + i * range.step)]);
    return value.is_tuple() ? Value::tuple(std::move(result)) : Value::list(std::move(result));
  }
  if (value.is_object() && value.object()->has_items()) {
    const SliceRange range = slice_range(length(value), begin, end, step);
    return sliced_range(value, range.begin, range.end, range.step, range.count);
  }
  throw Failure("'" + type_name(value) + "' object is not subscriptable");
}

Value get_item(const Value& value, const Value& key) {
  require_defined(value);
  if (value.is_dictionary()) {
    // What cannot be hashed is in no dictionary.
    if (!key.is_list() && !key.is_dictionary()) {
      if (const Value* found = value.dictionary().find(key)) return *found;
    }
  } else if (const auto index = key.integer()) {
    if (value.is_string()) {
      const StringData& data = value.string();
      const Integer place = *index < 0 ? *index + data.length : *index;
      if (place >= 0 && place < data.length) {
        const size_t begin = byte_offset(data.text, static_cast<int64_t>(place));
        size_t end = begin;
        next_code_point(data.text, end);
        return Value(data.text.substr(begin, end - begin), data.markup);
      }
    } else if (value.is_list_or_tuple()) {
      const auto size = static_cast<Integer>(value.items().size());
      const Integer place = *index < 0 ? *index + size : *index;
      if (place >= 0 && place < size) return value.items()[static_cast<size_t>(place)];
    } else if (value.is_object()) {
      if (auto item = value.object()->item(*index)) return *item;
    }
  }
  if (key.is_string()) {
    if (auto attribute = find_attribute(value, key.text())) return *attribute;
  }
  return Value::undefined(element_message(value, key));
}

Value get_attribute(const Value& value, const std::string& name) {
  if (value.is_undefined()) {
    // Even an undefined value has Python's own attributes, which the sandbox hides.
    if (auto attribute = find_method(value, name)) return *attribute;
    require_defined(value);
  }
  if (auto attribute = find_attribute(value, name)) return *attribute;
  if (value.is_dictionary()) {
    if (const Value* found = value.dictionary().find(name)) return *found;
  }
  return Value::undefined(element_message(value, Value(name)));
}

std::optional<Value> find_attribute(const Value& value, const std::string& name) {
  if (value.is_object()) {
    auto attribute = value.object()->attribute(name);
    if (attribute && name[0] == '_') return unsafe_attribute(value, name);
    return attribute;
  }
  if (value.is_tuple() && value.sequence().group) {
    if (name == "grouper") return value.items()[0];
    if (name == "list") return value.items()[1];
  }
  return find_method(value, name);
}

Value get_path(const Value& value, const Value& path, const Value& otherwise) {
  if (path.is_none()) return value;
  Value item = value;
  const auto step = [&](const Value& key) {
    item = get_item(item, key);
    if (item.is_undefined() && !otherwise.is_none()) item = otherwise;
  };
  if (!path.is_string()) {
    step(path);
    return item;
  }
  const std::string& text = path.text();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('.', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    const auto index = digits ? parse_integer(part, 10) : std::nullopt;
    step(index ? Value(*index) : Value(part));
    begin = end + 1;
  }
  return item;
}

}  // namespace ithaca::jinja
