// Python's three format languages: format(value, specification), "%d" % value and "{}".format(value).
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>

#include "base/utf8.h"
#include "data/chat/jinja/format.h"
#include "data/chat/jinja/text.h"

namespace ithaca::jinja {
namespace {

// Wider fields and longer fractions are refused: they only make memory disappear.
constexpr int64_t kWidestField = 100000;

void check_length(const std::string& text) {
  if (text.size() > kLongestPrint) {
    throw Failure("the result of a format is longer than " + std::to_string(kLongestPrint) + " bytes");
  }
}

std::string printf_double(const char* pattern, int precision, double value) {
  const int size = std::snprintf(nullptr, 0, pattern, precision, value);
  if (size < 0) throw Failure("a number cannot be formatted");
  std::string text(static_cast<size_t>(size) + 1, '\0');
  std::snprintf(text.data(), text.size(), pattern, precision, value);
  text.pop_back();
  return text;
}

// The digits of |value| in base 2, 8, 10 or 16.
std::string magnitude(Integer value, int base) {
  std::string text = base == 10 ? integer_text(value) : "";
  if (base == 10) return text[0] == '-' ? text.substr(1) : text;
  do {
    const int digit = std::abs(static_cast<int>(value % base));
    text += "0123456789abcdef"[digit];
    value /= base;
  } while (value != 0);
  std::reverse(text.begin(), text.end());
  return text;
}

// |value| by one of e, f, g, % and their capitals.
std::string float_magnitude(double value, char type, int precision, bool alternate) {
  const double size = std::fabs(value);
  const bool capital = std::isupper(static_cast<unsigned char>(type)) != 0;
  std::string text;
  if (!std::isfinite(size)) {
    text = std::isnan(size) ? "nan" : "inf";
    if (type == '%') text += '%';
    return capital ? upper_case(text) : text;
  }
  switch (std::tolower(static_cast<unsigned char>(type))) {
    case 'e':
      text = printf_double(alternate ? "%#.*e" : "%.*e", precision, size);
      break;
    case 'f':
      text = printf_double(alternate ? "%#.*f" : "%.*f", precision, size);
      break;
    case '%':
      text = printf_double(alternate ? "%#.*f" : "%.*f", precision, size * 100) + "%";
      break;
    default:
      text = printf_double(alternate ? "%#.*g" : "%.*g", precision, size);
      break;
  }
  return capital ? upper_case(text) : text;
}

struct Specification {
  std::string fill = " ";
  char align = 0;
  char sign = '-';
  bool alternate = false;
  bool zero = false;
  int64_t width = 0;
  char grouping = 0;
  std::optional<int64_t> precision;
  char type = 0;
};

int64_t parse_number(std::string_view text, size_t& position) {
  int64_t number = 0;
  while (position < text.size() && std::isdigit(static_cast<unsigned char>(text[position])) != 0) {
    number = number * 10 + (text[position++] - '0');
    if (number > kWidestField) {
      throw Failure("a field of a format is wider than " + std::to_string(kWidestField) + " characters");
    }
  }
  return number;
}

bool is_align(char c) {
  return c == '<' || c == '>' || c == '=' || c == '^';
}

Specification parse_specification(std::string_view text) {
  Specification result;
  size_t position = 0;
  const auto at = [&](size_t place) { return place < text.size() ? text[place] : '\0'; };
  if (!text.empty()) {
    size_t behind_first = 0;
    next_code_point(text, behind_first);
    if (is_align(at(behind_first))) {
      result.fill = std::string(text.substr(0, behind_first));
      result.align = at(behind_first);
      position = behind_first + 1;
    } else if (is_align(text[0])) {
      result.align = text[0];
      position = 1;
    }
  }
  if (at(position) == '+' || at(position) == '-' || at(position) == ' ') result.sign = text[position++];
  if (at(position) == '#') {
    result.alternate = true;
    ++position;
  }
  if (at(position) == '0') {
    result.zero = true;
    if (result.align == 0) {
      result.fill = "0";
      result.align = '=';
    }
    ++position;
  }
  result.width = parse_number(text, position);
  if (at(position) == ',' || at(position) == '_') result.grouping = text[position++];
  if (at(position) == '.') {
    ++position;
    if (std::isdigit(static_cast<unsigned char>(at(position))) == 0)
      throw Failure("Format specifier missing precision");
    result.precision = parse_number(text, position);
  }
  if (position < text.size()) result.type = text[position++];
  if (position < text.size()) throw Failure("Invalid format specifier '" + std::string(text) + "'");
  return result;
}

std::string repeated(std::string_view text, int64_t count) {
  std::string result;
  for (int64_t i = 0; i < count; ++i) result += text;
  return result;
}

std::string padded(const std::string& prefix, const std::string& body, const Specification& spec, char default_align) {
  const int64_t missing = spec.width - code_point_count(prefix) - code_point_count(body);
  if (missing <= 0) return prefix + body;
  switch (spec.align != 0 ? spec.align : default_align) {
    case '<':
      return prefix + body + repeated(spec.fill, missing);
    case '^':
      return repeated(spec.fill, missing / 2) + prefix + body + repeated(spec.fill, missing - missing / 2);
    case '=':
      return prefix + repeated(spec.fill, missing) + body;
    default:
      return repeated(spec.fill, missing) + prefix + body;
  }
}

// Separators between groups of the digits that `body` starts with; zeros that fill the field are digits too.
std::string grouped(const std::string& body, const Specification& spec, size_t group, int64_t prefix_size) {
  if (spec.grouping == 0) return body;
  size_t digits_end = 0;
  while (digits_end < body.size() && std::isxdigit(static_cast<unsigned char>(body[digits_end])) != 0 &&
         !(group == 3 && std::isdigit(static_cast<unsigned char>(body[digits_end])) == 0)) {
    ++digits_end;
  }
  std::string digits = body.substr(0, digits_end);
  const std::string rest = body.substr(digits_end);
  const auto with_separators = [&] {
    std::string result;
    for (size_t i = 0; i < digits.size(); ++i) {
      if (i > 0 && (digits.size() - i) % group == 0) result += spec.grouping;
      result += digits[i];
    }
    return result;
  };
  std::string result = with_separators();
  if (spec.fill == "0" && spec.align == '=') {
    while (static_cast<int64_t>(result.size() + rest.size()) + prefix_size < spec.width) {
      // Most of what is missing at once, the last ones singly.
      const auto missing = static_cast<size_t>(spec.width - prefix_size) - result.size() - rest.size();
      digits.insert(0, std::max<size_t>(missing * group / (group + 1), 2) - 1, '0');
      result = with_separators();
    }
  }
  return result + rest;
}

std::string sign_text(bool negative, char sign) {
  if (negative) return "-";
  return sign == '+' ? "+" : sign == ' ' ? " " : "";
}

std::string format_floating(double value, const Specification& spec) {
  const char type = spec.type == 'n' ? 'g' : spec.type;
  std::string body;
  if (type == 0 && !spec.precision) {
    body = float_text(std::fabs(value));
  } else if (type == 0) {
    // Like 'g', but with a digit behind the point unless there is an exponent.
    const int precision = std::max<int>(1, static_cast<int>(*spec.precision));
    body = float_magnitude(value, 'g', precision, spec.alternate);
    if (std::isfinite(value) && body.find_first_of(".e") == std::string::npos) {
      body =
          static_cast<int>(body.size()) < precision ? body + ".0" : float_magnitude(value, 'e', precision - 1, false);
    }
  } else {
    body = float_magnitude(value, type, static_cast<int>(spec.precision.value_or(6)), spec.alternate);
  }
  const std::string prefix = sign_text(std::signbit(value) && !std::isnan(value), spec.sign);
  return padded(prefix, grouped(body, spec, 3, static_cast<int64_t>(prefix.size())), spec, '>');
}

std::string format_integer(Integer value, const Specification& spec) {
  if (spec.precision) throw Failure("Precision not allowed in integer format specifier");
  const int base = spec.type == 'b' ? 2 : spec.type == 'o' ? 8 : spec.type == 'x' || spec.type == 'X' ? 16 : 10;
  std::string prefix = sign_text(value < 0, spec.sign);
  if (spec.alternate && base != 10) prefix += std::string("0") + spec.type;
  std::string body = magnitude(value, base);
  if (spec.type == 'X') body = upper_case(body);
  if (spec.grouping == ',' && base != 10) throw Failure(std::string("Cannot specify ',' with '") + spec.type + "'.");
  return padded(prefix, grouped(body, spec, base == 10 ? 3 : 4, static_cast<int64_t>(prefix.size())), spec, '>');
}

Integer integer_argument(const Value& value, char type) {
  require_defined(value);
  if (const auto integer = value.integer()) return *integer;
  if (value.is_float() && type != 'x' && type != 'X' && type != 'o') return truncated(value.floating());
  throw Failure(std::string("%") + type + " format: a number is required, not " + type_name(value));
}

}  // namespace

std::string format_value(const Value& value, std::string_view specification) {
  if (specification.empty()) return to_text(value);
  if (!value.is_string() && !value.is_number()) {
    throw Failure("unsupported format string passed to " + type_name(value) + ".__format__");
  }
  const Specification spec = parse_specification(specification);
  const auto unknown = [&]() -> Failure {
    return Failure(std::string("Unknown format code '") + spec.type + "' for object of type '" + type_name(value) +
                   "'");
  };
  if (value.is_string()) {
    if (spec.type != 0 && spec.type != 's') throw unknown();
    if (spec.sign != '-') throw Failure("Sign not allowed in string format specifier");
    if (spec.alternate) throw Failure("Alternate form (#) not allowed in string format specifier");
    if (spec.align == '=' && !spec.zero) throw Failure("'=' alignment not allowed in string format specifier");
    if (spec.grouping != 0) throw Failure("Cannot specify ',' with 's'.");
    std::string text = value.text();
    if (spec.precision) text.resize(byte_offset(text, *spec.precision));
    Specification placed = spec;
    if (placed.align == '=') placed.align = '<';
    return padded("", text, placed, '<');
  }
  constexpr std::string_view kFloatTypes = "eEfFgG%";
  const bool float_type = spec.type != 0 && kFloatTypes.find(spec.type) != std::string_view::npos;
  if (value.is_float()) {
    if (spec.type != 0 && spec.type != 'n' && !float_type) throw unknown();
    return format_floating(value.floating(), spec);
  }
  if (float_type) return format_floating(*value.number(), spec);
  constexpr std::string_view kIntegerTypes = "bdoxXn";
  if (spec.type == 'c') {
    const Integer code_point = *value.integer();
    if (code_point < 0 || code_point > 0x10ffff) throw Failure("%c arg not in range(0x110000)");
    std::string text;
    append_utf8(text, static_cast<char32_t>(code_point));
    return padded("", valid_utf8(text), spec, '<');
  }
  if (spec.type != 0 && kIntegerTypes.find(spec.type) == std::string_view::npos) throw unknown();
  return format_integer(*value.integer(), spec);
}

std::string format_percent(std::string_view pattern, const Value& arguments) {
  std::string result;
  const bool several = arguments.is_tuple();
  size_t used = 0;
  const auto next_argument = [&]() -> Value {
    if (several) {
      if (used >= arguments.items().size()) throw Failure("not enough arguments for format string");
      return arguments.items()[used++];
    }
    if (used++ > 0) throw Failure("not enough arguments for format string");
    return arguments;
  };
  for (size_t position = 0; position < pattern.size();) {
    if (pattern[position] != '%') {
      const size_t end = std::min(pattern.find('%', position), pattern.size());
      result += pattern.substr(position, end - position);
      position = end;
      continue;
    }
    ++position;
    if (position < pattern.size() && pattern[position] == '%') {
      result += '%';
      ++position;
      continue;
    }
    const auto at = [&] { return position < pattern.size() ? pattern[position] : '\0'; };
    std::optional<Value> named;
    if (at() == '(') {
      size_t end = position + 1;
      for (int open = 1; open > 0 && end < pattern.size(); ++end)
        open += pattern[end] == '(' ? 1 : pattern[end] == ')' ? -1 : 0;
      if (pattern[end - 1] != ')') throw Failure("incomplete format key");
      const std::string key(pattern.substr(position + 1, end - position - 2));
      if (!arguments.is_dictionary()) throw Failure("format requires a mapping");
      const Value* found = arguments.dictionary().find(key);
      if (found == nullptr) throw Failure("the format names a key that is not given: '" + key + "'");
      named = *found;
      position = end;
    }
    const auto argument = [&] { return named ? *named : next_argument(); };
    Specification spec;
    bool left = false;
    for (bool flags = true; flags;) {
      switch (at()) {
        case '-':
          left = true;
          break;
        case '+':
          spec.sign = '+';
          break;
        case ' ':
          if (spec.sign != '+') spec.sign = ' ';
          break;
        case '#':
          spec.alternate = true;
          break;
        case '0':
          spec.zero = true;
          break;
        default:
          flags = false;
      }
      if (flags) ++position;
    }
    const auto star_or_number = [&]() -> int64_t {
      if (at() != '*') return parse_number(pattern, position);
      ++position;
      const auto integer = next_argument().integer();
      if (!integer || *integer > kWidestField || *integer < -kWidestField) throw Failure("* wants int");
      return static_cast<int64_t>(*integer);
    };
    spec.width = star_or_number();
    if (spec.width < 0) {
      left = true;
      spec.width = -spec.width;
    }
    if (at() == '.') {
      ++position;
      spec.precision = std::max<int64_t>(0, star_or_number());
    }
    if (at() == 'h' || at() == 'l' || at() == 'L') ++position;
    const char type = at();
    if (type == '\0') throw Failure("incomplete format");
    ++position;
    if (left) {
      spec.align = '<';
    } else {
      spec.align = '>';
    }
    std::string prefix;
    std::string body;
    switch (type) {
      case 's':
      case 'r':
      case 'a': {
        const Value value = argument();
        body = type == 's' ? to_text(value) : type == 'r' ? repr(value) : ascii_repr(value);
        if (spec.precision) body.resize(byte_offset(body, *spec.precision));
        break;
      }
      case 'c': {
        const Value value = argument();
        if (value.is_string() && value.string().length == 1) {
          body = value.text();
        } else if (const auto integer = value.integer(); integer && *integer >= 0 && *integer <= 0x10ffff) {
          append_utf8(body, static_cast<char32_t>(*integer));
          body = valid_utf8(body);
        } else {
          throw Failure("%c requires int or char");
        }
        break;
      }
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o': {
        const Integer value = integer_argument(argument(), type);
        const int base = type == 'o' ? 8 : type == 'x' || type == 'X' ? 16 : 10;
        prefix = sign_text(value < 0, spec.sign);
        if (spec.alternate && base != 10) prefix += std::string("0") + type;
        body = magnitude(value, base);
        if (type == 'X') body = upper_case(body);
        if (spec.precision && static_cast<int64_t>(body.size()) < *spec.precision) {
          body.insert(0, static_cast<size_t>(*spec.precision) - body.size(), '0');
        }
        if (spec.zero && !left) {
          spec.fill = "0";
          spec.align = '=';
        }
        break;
      }
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        const Value value = argument();
        require_defined(value);
        const auto number = value.number();
        if (!number) throw Failure("must be real number, not " + type_name(value));
        prefix = sign_text(std::signbit(*number) && !std::isnan(*number), spec.sign);
        body = float_magnitude(*number, type, static_cast<int>(spec.precision.value_or(6)), spec.alternate);
        if (spec.zero && !left) {
          spec.fill = "0";
          spec.align = '=';
        }
        break;
      }
      default:
        throw Failure(std::string("unsupported format character '") + type + "'");
    }
    result += padded(prefix, body, spec, '>');
    check_length(result);
  }
  // Whatever can be subscripted may be there for names, used or not.
  const bool mapping = arguments.is_dictionary() || arguments.is_list() || arguments.is_undefined() ||
                       (arguments.is_object() && arguments.object()->has_items());
  if (several ? used < arguments.items().size() : used == 0 && !mapping) {
    throw Failure("not all arguments converted during string formatting");
  }
  return result;
}

namespace {

class BraceFormatter {
 public:
  BraceFormatter(const Arguments& arguments, const FieldLookup& lookup) : arguments_(arguments), lookup_(lookup) {}

  std::string format(std::string_view pattern, int nesting) {
    if (nesting < 0) throw Failure("Max string recursion exceeded");
    std::string result;
    for (size_t position = 0; position < pattern.size();) {
      const char c = pattern[position];
      if (c != '{' && c != '}') {
        const size_t end = std::min(pattern.find_first_of("{}", position), pattern.size());
        result += pattern.substr(position, end - position);
        position = end;
      } else if (position + 1 < pattern.size() && pattern[position + 1] == c) {
        result += c;
        position += 2;
      } else if (c == '}') {
        throw Failure("Single '}' encountered in format string");
      } else {
        size_t end = position + 1;
        for (int open = 1; open > 0; ++end) {
          if (end >= pattern.size()) {
            throw Failure(position + 1 == pattern.size() ? "Single '{' encountered in format string"
                                                         : "expected '}' before end of string");
          }
          open += pattern[end] == '{' ? 1 : pattern[end] == '}' ? -1 : 0;
        }
        result += field(pattern.substr(position + 1, end - position - 2), nesting);
        check_length(result);
        position = end;
      }
    }
    return result;
  }

 private:
  std::string field(std::string_view text, int nesting) {
    // name [! conversion] [: specification]; brackets may hold both marks.
    size_t name_end = 0;
    bool bracket = false;
    while (name_end < text.size() && (bracket || (text[name_end] != '!' && text[name_end] != ':'))) {
      if (text[name_end] == '[') bracket = true;
      if (text[name_end] == ']') bracket = false;
      ++name_end;
    }
    Value value = named(text.substr(0, name_end));
    std::string_view rest = text.substr(name_end);
    if (!rest.empty() && rest[0] == '!') {
      if (rest.size() < 2) throw Failure("end of string while looking for conversion specifier");
      const char conversion = rest[1];
      rest.remove_prefix(2);
      if (!rest.empty() && rest[0] != ':') throw Failure("expected ':' after conversion specifier");
      if (conversion == 'r') {
        value = Value(repr(value));
      } else if (conversion == 's') {
        value = Value(to_text(value));
      } else if (conversion == 'a') {
        value = Value(ascii_repr(value));
      } else {
        throw Failure(std::string("Unknown conversion specifier ") + conversion);
      }
    }
    if (!rest.empty()) rest.remove_prefix(1);
    return format_value(value, format(rest, nesting - 1));
  }

  Value named(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = first(std::string(name.substr(0, end)));
    for (size_t position = end; position < name.size();) {
      if (name[position] == '.') {
        const size_t next = std::min(name.find_first_of(".[", position + 1), name.size());
        if (next == position + 1) throw Failure("Empty attribute in format string");
        value = lookup_(value, Value(name.substr(position + 1, next - position - 1)), true);
        position = next;
      } else if (name[position] == '[') {
        const size_t close = name.find(']', position);
        if (close == std::string_view::npos) throw Failure("Missing ']' in format string");
        const std::string_view key = name.substr(position + 1, close - position - 1);
        if (key.empty()) throw Failure("Empty attribute in format string");
        const auto index = is_number(key) ? parse_integer(key, 10) : std::nullopt;
        value = lookup_(value, index ? Value(*index) : Value(key), false);
        position = close + 1;
      } else {
        throw Failure("Only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  static bool is_number(std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  }

  Value first(const std::string& name) {
    if (name.empty() || is_number(name)) {
      const bool automatic = name.empty();
      if ((automatic && numbered_) || (!automatic && automatic_ > 0)) {
        throw Failure("cannot switch between manual field specification and automatic field numbering");
      }
      if (!automatic) numbered_ = true;
      const auto index = automatic ? static_cast<Integer>(automatic_++) : *parse_integer(name, 10);
      if (index >= static_cast<Integer>(arguments_.positional.size())) {
        throw Failure("Replacement index " + integer_text(index) + " out of range for positional args tuple");
      }
      return arguments_.positional[static_cast<size_t>(index)];
    }
    for (const auto& [key, value] : arguments_.named) {
      if (key == name) return value;
    }
    throw Failure("the format names a key that is not given: '" + name + "'");
  }

  const Arguments& arguments_;
  const FieldLookup& lookup_;
  int64_t automatic_ = 0;
  bool numbered_ = false;
};

}  // namespace

std::string format_braces(std::string_view pattern, const Arguments& arguments, const FieldLookup& lookup) {
  return BraceFormatter(arguments, lookup).format(pattern, 2);
}

}  // namespace ithaca::jinja
