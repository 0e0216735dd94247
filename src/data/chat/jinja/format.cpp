#include "data/chat/jinja/format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "data/chat/jinja/text.h"

namespace ithaca::jinja {
namespace {

void append_hex(std::string& text, char32_t value, int digits) {
  constexpr const char* kDigits = "0123456789abcdef";
  for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) text += kDigits[(value >> shift) & 0xfU];
}

std::string quoted(std::string_view text, bool ascii) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string result(1, quote);
  for (size_t position = 0; position < text.size();) {
    const char32_t code_point = next_code_point(text, position);
    if (code_point == static_cast<char32_t>(quote) || code_point == '\\') {
      result += '\\';
      result += static_cast<char>(code_point);
    } else if (code_point == '\n') {
      result += "\\n";
    } else if (code_point == '\r') {
      result += "\\r";
    } else if (code_point == '\t') {
      result += "\\t";
    } else if (is_printable(code_point) && !(ascii && code_point >= 0x80)) {
      append_utf8(result, code_point);
    } else if (code_point < 0x100) {
      result += "\\x";
      append_hex(result, code_point, 2);
    } else if (code_point < 0x10000) {
      result += "\\u";
      append_hex(result, code_point, 4);
    } else {
      result += "\\U";
      append_hex(result, code_point, 8);
    }
  }
  return result + quote;
}

// Lists have a depth of their own that is bounded; namespaces can be changed into any depth.
constexpr int kMostPrinted = 2 * kMostNested;

void check_length(const std::string& text) {
  if (text.size() > kLongestPrint) {
    throw Failure("what is printed is longer than " + std::to_string(kLongestPrint) + " bytes");
  }
}

std::string repr_of(const Value& value, bool ascii, int levels) {
  if (levels <= 0) throw Failure("what is printed is nested deeper than " + std::to_string(kMostPrinted) + " levels");
  if (value.is_undefined()) return "Undefined";
  if (value.is_string()) {
    const std::string text = quoted(value.text(), ascii);
    return value.string().markup ? "Markup(" + text + ")" : text;
  }
  if (value.is_list_or_tuple()) {
    const auto& items = value.items();
    std::string result(1, value.is_tuple() ? '(' : '[');
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) result += ", ";
      result += repr_of(items[i], ascii, levels - 1);
      check_length(result);
    }
    if (!value.is_tuple()) return result + "]";
    return result + (items.size() == 1 ? ",)" : ")");
  }
  if (value.is_dictionary()) {
    std::string result = "{";
    for (const auto& [key, item] : value.dictionary().items()) {
      if (result.size() > 1) result += ", ";
      result += repr_of(key, ascii, levels - 1) + ": " + repr_of(item, ascii, levels - 1);
      check_length(result);
    }
    return result + "}";
  }
  if (value.is_object()) return value.object()->repr(levels - 1);
  return to_text(value);
}

// Python takes digits with single underscores between them.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      result += text[i];
      continue;
    }
    const auto digit = [&](size_t place) {
      return place < text.size() && std::isalnum(static_cast<unsigned char>(text[place])) != 0;
    };
    if (i == 0 || !digit(i - 1) || !digit(i + 1)) return std::nullopt;
  }
  return result;
}

// Decimal digits of any script become ASCII ones.
std::string with_ascii_digits(std::string_view text) {
  std::string result;
  for (size_t position = 0; position < text.size();) {
    const char32_t code_point = next_code_point(text, position);
    if (code_point >= 0x80 && is_in(code_point, CharacterClass::kDecimal)) {
      // Runs of ten start at ...0 or ...6, but for the mathematical ones, which follow each other.
      char32_t zero = code_point & ~char32_t{0xf};
      if (code_point >= 0x1d7ce && code_point <= 0x1d7ff) {
        zero = code_point - (code_point - 0x1d7ce) % 10;
      } else if (!is_in(zero, CharacterClass::kDecimal)) {
        zero += 6;
      }
      result += static_cast<char>('0' + (code_point - zero));
    } else {
      append_utf8(result, code_point);
    }
  }
  return result;
}

void append_json_text(std::string& result, std::string_view text, bool ensure_ascii) {
  result += '"';
  for (size_t position = 0; position < text.size();) {
    const char32_t code_point = next_code_point(text, position);
    switch (code_point) {
      case '"':
        result += "\\\"";
        break;
      case '\\':
        result += "\\\\";
        break;
      case '\n':
        result += "\\n";
        break;
      case '\r':
        result += "\\r";
        break;
      case '\t':
        result += "\\t";
        break;
      case '\f':
        result += "\\f";
        break;
      case '\b':
        result += "\\b";
        break;
      default:
        if (code_point < 0x20 || (ensure_ascii && code_point >= 0x7f && code_point < 0x10000)) {
          result += "\\u";
          append_hex(result, code_point, 4);
        } else if (ensure_ascii && code_point >= 0x10000) {
          result += "\\u";
          append_hex(result, 0xd800 + ((code_point - 0x10000) >> 10U), 4);
          result += "\\u";
          append_hex(result, 0xdc00 + ((code_point - 0x10000) & 0x3ffU), 4);
        } else {
          append_utf8(result, code_point);
        }
    }
  }
  result += '"';
}

std::string json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return float_text(value);
}

std::string json_key(const Value& key) {
  if (key.is_string()) return key.text();
  if (key.is_none()) return "null";
  if (key.is_boolean()) return truth(key) ? "true" : "false";
  if (key.is_integer()) return integer_text(*key.integer());
  if (key.is_float()) return json_number(key.floating());
  throw Failure("keys must be str, int, float, bool or None, not " + type_name(key));
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonOptions& options)
      : options_(options),
        item_separator_(options.item_separator.value_or(options.indent ? "," : ", ")),
        key_separator_(options.key_separator.value_or(": ")) {}

  void write(const Value& value, int level) {
    check_length(result_);
    if (value.is_string()) {
      append_json_text(result_, value.text(), options_.ensure_ascii);
    } else if (value.is_none()) {
      result_ += "null";
    } else if (value.is_boolean()) {
      result_ += truth(value) ? "true" : "false";
    } else if (value.is_integer()) {
      result_ += integer_text(*value.integer());
    } else if (value.is_float()) {
      result_ += json_number(value.floating());
    } else if (value.is_list_or_tuple()) {
      write_list(value.items(), level);
    } else if (value.is_dictionary()) {
      write_dictionary(value.dictionary(), level);
    } else {
      throw Failure("Object of type " + type_name(value) + " is not JSON serializable" +
                    (value.is_undefined() ? ": " + value.undefined_message() : ""));
    }
  }
  std::string take() { return std::move(result_); }

 private:
  void new_line(int level) {
    if (!options_.indent) return;
    result_ += '\n';
    for (int i = 0; i < level; ++i) result_ += *options_.indent;
  }

  void write_list(const std::vector<Value>& items, int level) {
    result_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) result_ += item_separator_;
      new_line(level + 1);
      write(items[i], level + 1);
    }
    if (!items.empty()) new_line(level);
    result_ += ']';
  }

  void write_dictionary(const DictionaryData& dictionary, int level) {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dictionary.items()) items.push_back(&item);
    if (options_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [](const auto* a, const auto* b) { return less(a->first, b->first); });
    }
    result_ += '{';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) result_ += item_separator_;
      new_line(level + 1);
      append_json_text(result_, json_key(items[i]->first), options_.ensure_ascii);
      result_ += key_separator_;
      write(items[i]->second, level + 1);
    }
    if (!items.empty()) new_line(level);
    result_ += '}';
  }

  const JsonOptions& options_;
  std::string item_separator_;
  std::string key_separator_;
  std::string result_;
};

}  // namespace

std::string integer_text(Integer value) {
  if (value == 0) return "0";
  // Negative numbers are walked as such: the smallest one has no positive counterpart.
  std::string digits;
  for (Integer rest = value; rest != 0; rest /= 10) {
    const int digit = static_cast<int>(rest % 10);
    digits += static_cast<char>('0' + (digit < 0 ? -digit : digit));
  }
  if (value < 0) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  const std::string_view scientific(buffer, static_cast<size_t>(end - buffer));
  const size_t mark = scientific.find('e');
  const int exponent = std::atoi(std::string(scientific.substr(mark + 1)).c_str());
  const bool negative = scientific[0] == '-';
  std::string digits;
  for (const char c : scientific.substr(0, mark)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  const int count = static_cast<int>(digits.size());
  std::string result;
  if (exponent < -4 || exponent >= 16) {
    result = digits.substr(0, 1) + (count > 1 ? "." + digits.substr(1) : "");
    const std::string power = std::to_string(std::abs(exponent));
    result += std::string(exponent < 0 ? "e-" : "e+") + (power.size() < 2 ? "0" : "") + power;
  } else if (exponent < 0) {
    result = "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else if (count <= exponent + 1) {
    result = digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  } else {
    result =
        digits.substr(0, static_cast<size_t>(exponent) + 1) + "." + digits.substr(static_cast<size_t>(exponent) + 1);
  }
  return negative ? "-" + result : result;
}

std::string to_text(const Value& value) {
  if (value.is_string()) return value.text();
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (value.is_boolean()) return truth(value) ? "True" : "False";
  if (value.is_integer()) return integer_text(*value.integer());
  if (value.is_float()) return float_text(value.floating());
  return repr(value);
}

std::string repr(const Value& value) {
  return repr_of(value, false, kMostPrinted);
}
std::string repr(const Value& value, int levels) {
  return repr_of(value, false, levels);
}
std::string ascii_repr(const Value& value) {
  return repr_of(value, true, kMostPrinted);
}

Value from_json(const nlohmann::ordered_json& json) {
  using Json = nlohmann::ordered_json;
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value(json.get<bool>());
    case Json::value_t::number_integer:
      return Value(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      return Value(static_cast<Integer>(json.get<uint64_t>()));
    case Json::value_t::number_float:
      return Value(json.get<double>());
    case Json::value_t::string:
      return Value(valid_utf8(json.get_ref<const std::string&>()));
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(from_json(item));
      return Value::list(std::move(items));
    }
    case Json::value_t::object: {
      DictionaryData data;
      for (const auto& [key, item] : json.items()) data.set(Value(valid_utf8(key)), from_json(item));
      return Value::dictionary(std::move(data));
    }
    default:
      return Value();
  }
}

std::optional<Integer> parse_integer(std::string_view text, int base) {
  std::string digits = with_ascii_digits(stripped(text, true, true));
  bool negative = false;
  if (!digits.empty() && (digits[0] == '+' || digits[0] == '-')) {
    negative = digits[0] == '-';
    digits.erase(0, 1);
  }
  if (digits.size() > 1 && digits[0] == '0') {
    const char letter = static_cast<char>(std::tolower(static_cast<unsigned char>(digits[1])));
    const int prefixed = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (prefixed != 0 && (base == 0 || base == prefixed)) {
      digits.erase(0, 2);
      if (!digits.empty() && digits[0] == '_') digits.erase(0, 1);
      base = prefixed;
    } else if (base == 0 && digits.find_first_not_of("0_") != std::string::npos) {
      return std::nullopt;
    }
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 36) throw Failure("int() base must be >= 2 and <= 36, or 0");
  const auto plain = without_underscores(digits);
  if (!plain || plain->empty()) return std::nullopt;
  Integer value = 0;
  for (const char c : *plain) {
    const auto byte = static_cast<unsigned char>(c);
    const int digit = std::isdigit(byte) != 0 ? c - '0' : std::isalpha(byte) != 0 ? std::tolower(byte) - 'a' + 10 : 99;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, static_cast<Integer>(base), &value) ||
        __builtin_add_overflow(value, static_cast<Integer>(digit), &value)) {
      throw Failure("the integer " + *plain + " is too large: integers have 128 bits here");
    }
  }
  return negative ? -value : value;
}

std::optional<double> parse_float(std::string_view text) {
  const auto plain = without_underscores(with_ascii_digits(stripped(text, true, true)));
  if (!plain || plain->empty()) return std::nullopt;
  std::string_view rest = *plain;
  if (rest[0] == '+' || rest[0] == '-') rest.remove_prefix(1);
  const std::string word = lower_case(rest);
  if (word == "inf" || word == "infinity" || word == "nan") {
    const double value = word == "nan" ? std::nan("") : HUGE_VAL;
    return (*plain)[0] == '-' ? -value : value;
  }
  if (rest.empty() || rest.find_first_not_of("0123456789.eE+-") != std::string_view::npos) return std::nullopt;
  if (rest[0] != '.' && std::isdigit(static_cast<unsigned char>(rest[0])) == 0) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(plain->c_str(), &end);
  if (end != plain->c_str() + plain->size()) return std::nullopt;
  return value;
}

double round_float(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 330) return value;
  if (digits < -330) return std::copysign(0.0, value);
  if (digits >= 0) {
    char buffer[800];
    const int written = std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(digits), value);
    return written > 0 && written < static_cast<int>(sizeof(buffer)) ? std::strtod(buffer, nullptr) : value;
  }
  const double power = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(value / power) * power;
}

Integer truncated(double value) {
  if (std::isnan(value)) throw Failure("cannot convert float NaN to integer");
  if (std::isinf(value)) throw Failure("cannot convert float infinity to integer");
  if (std::fabs(value) >= 0x1p126) throw Failure("the integer " + float_text(value) + " is too large here");
  return static_cast<Integer>(value);
}

std::string to_json(const Value& value, const JsonOptions& options) {
  JsonWriter writer(options);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace ithaca::jinja
