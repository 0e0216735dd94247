// Methods of strings.
#include <algorithm>
#include <functional>
#include <limits>
#include <map>

#include "base/utf8.h"
#include "data/chat/jinja/format.h"
#include "data/chat/jinja/library.h"
#include "data/chat/jinja/operators.h"
#include "data/chat/jinja/text.h"

namespace ithaca::jinja {
namespace {

Value text_value(Runtime& runtime, std::string text, const Value& self) {
  runtime.charge_bytes(static_cast<int64_t>(text.size()));
  return Value(std::move(text), self.string().markup);
}

Value list_of(Runtime& runtime, const std::vector<std::string_view>& parts, const Value& self) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) {
    runtime.charge_bytes(static_cast<int64_t>(part.size() + sizeof(Value)));
    items.emplace_back(std::string(part), self.string().markup);
  }
  return Value::list(std::move(items));
}

// --- strip

Value strip_sides(Runtime& runtime, const Value& self, const Arguments& arguments, const char* name, bool left,
                  bool right) {
  const Parameters parameters(name, arguments, {"chars"}, 0);
  const std::string& text = self.text();
  if (parameters.value(0).is_none()) return text_value(runtime, std::string(stripped(text, left, right)), self);
  return text_value(runtime, std::string(stripped(text, left, right, parameters.text(0, ""))), self);
}

Value text_strip(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return strip_sides(runtime, self, arguments, "strip", true, true);
}
Value text_lstrip(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return strip_sides(runtime, self, arguments, "lstrip", true, false);
}
Value text_rstrip(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return strip_sides(runtime, self, arguments, "rstrip", false, true);
}

// --- split

std::vector<std::string_view> split_at_space(std::string_view text, int64_t most, bool from_right) {
  std::vector<std::string_view> parts;
  std::string_view rest = stripped(text, true, true);
  while (!rest.empty() && most != 0) {
    // The word at one end, then the white space behind it.
    size_t cut = from_right ? rest.size() : 0;
    if (from_right) {
      while (cut > 0) {
        const size_t start = character_begin(rest, cut - 1);
        if (is_space(first_code_point(rest.substr(start)))) break;
        cut = start;
      }
      parts.push_back(rest.substr(cut));
      rest = stripped(rest.substr(0, cut), false, true);
    } else {
      while (cut < rest.size()) {
        size_t next = cut;
        if (is_space(next_code_point(rest, next))) break;
        cut = next;
      }
      parts.push_back(rest.substr(0, cut));
      rest = stripped(rest.substr(cut), true, false);
    }
    --most;
  }
  if (!rest.empty()) {
    // What is left keeps the white space at the other end.
    const char* begin = from_right ? text.data() : rest.data();
    const char* end = from_right ? rest.data() + rest.size() : text.data() + text.size();
    parts.emplace_back(begin, static_cast<size_t>(end - begin));
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, int64_t most,
                                       bool from_right) {
  std::vector<std::string_view> parts;
  std::string_view rest = text;
  while (most-- != 0) {
    const size_t place = from_right ? rest.rfind(separator) : rest.find(separator);
    if (place == std::string_view::npos) break;
    if (from_right) {
      parts.push_back(rest.substr(place + separator.size()));
      rest = rest.substr(0, place);
    } else {
      parts.push_back(rest.substr(0, place));
      rest = rest.substr(place + separator.size());
    }
  }
  parts.push_back(rest);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

Value split(Runtime& runtime, const Value& self, const Arguments& arguments, const char* name, bool from_right) {
  const Parameters parameters(name, arguments, {"sep", "maxsplit"}, 0);
  const int64_t most = parameters.integer(1, -1);
  if (parameters.value(0).is_none()) return list_of(runtime, split_at_space(self.text(), most, from_right), self);
  const std::string separator = parameters.text(0, "");
  if (separator.empty()) throw Failure("empty separator");
  return list_of(runtime, split_at(self.text(), separator, most, from_right), self);
}

Value text_split(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return split(runtime, self, arguments, "split", false);
}
Value text_rsplit(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return split(runtime, self, arguments, "rsplit", true);
}

Value text_splitlines(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters parameters("splitlines", arguments, {"keepends"}, 0);
  return list_of(runtime, split_lines(self.text(), parameters.truth(0, false)), self);
}

Value partition(const Value& self, const Arguments& arguments, const char* name, bool from_right) {
  const Parameters parameters(name, arguments, {"sep"}, 1);
  const std::string separator = parameters.text(0, "");
  if (separator.empty()) throw Failure("empty separator");
  const std::string& text = self.text();
  const size_t place = from_right ? text.rfind(separator) : text.find(separator);
  if (place == std::string::npos) {
    return from_right ? Value::tuple({Value(""), Value(""), self}) : Value::tuple({self, Value(""), Value("")});
  }
  return Value::tuple({Value(text.substr(0, place)), Value(separator), Value(text.substr(place + separator.size()))});
}

Value text_partition(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  return partition(self, arguments, "partition", false);
}
Value text_rpartition(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  return partition(self, arguments, "rpartition", true);
}

Value text_join(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters parameters("join", arguments, {"iterable"}, 1);
  std::string text;
  const auto values = iterate(parameters.value(0));
  Value value;
  for (int64_t i = 0; values->next(value); ++i) {
    if (!value.is_string()) {
      throw Failure("sequence item " + std::to_string(i) + ": expected str instance, " + type_name(value) + " found");
    }
    if (i > 0) text += self.text();
    text += value.text();
    runtime.charge_bytes(static_cast<int64_t>(value.text().size() + self.text().size()));
  }
  return Value(std::move(text), self.string().markup);
}

// --- Searching

// The part of the text that start and end (code points) leave, and where it begins.
struct Part {
  std::string_view text;
  int64_t begin = 0;
  bool exists = true;  // false when start lies behind the end of the text
};

Part part_of(const Value& self, const Parameters& parameters) {
  const StringData& data = self.string();
  const auto place = [&](size_t index, int64_t otherwise) {
    if (parameters.value(index).is_none()) return otherwise;
    const int64_t given = parameters.integer(index, otherwise);
    return given < 0 ? std::max<int64_t>(given + data.length, 0) : given;
  };
  const int64_t begin = place(1, 0);
  const int64_t end = std::min(place(2, data.length), data.length);
  if (begin > data.length || end < begin) return {{}, begin, false};
  const std::string_view from_begin = std::string_view(data.text).substr(byte_offset(data.text, begin));
  return {from_begin.substr(0, byte_offset(from_begin, end - begin)), begin, true};
}

int64_t found_at(const Value& self, const Arguments& arguments, const char* name, bool from_right) {
  const Parameters parameters(name, arguments, {"sub", "start", "end"}, 1);
  const std::string needle = parameters.text(0, "");
  const Part part = part_of(self, parameters);
  if (!part.exists) return -1;
  const size_t place = from_right ? part.text.rfind(needle) : part.text.find(needle);
  return place == std::string_view::npos ? -1 : part.begin + code_point_count(part.text.substr(0, place));
}

Value text_find(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  return Value(found_at(self, arguments, "find", false));
}
Value text_rfind(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  return Value(found_at(self, arguments, "rfind", true));
}
Value text_index(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  const int64_t place = found_at(self, arguments, "index", false);
  if (place < 0) throw Failure("substring not found");
  return Value(place);
}
Value text_rindex(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  const int64_t place = found_at(self, arguments, "rindex", true);
  if (place < 0) throw Failure("substring not found");
  return Value(place);
}

Value text_count(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  const Parameters parameters("count", arguments, {"sub", "start", "end"}, 1);
  const std::string needle = parameters.text(0, "");
  const Part part = part_of(self, parameters);
  if (!part.exists) return Value(int64_t{0});
  if (needle.empty()) return Value(code_point_count(part.text) + 1);
  int64_t count = 0;
  for (size_t place = part.text.find(needle); place != std::string_view::npos;
       place = part.text.find(needle, place + needle.size())) {
    ++count;
  }
  return Value(count);
}

bool begins_or_ends(const Value& self, const Arguments& arguments, const char* name, bool at_end) {
  const Parameters parameters(name, arguments, {"prefix", "start", "end"}, 1);
  const Part part = part_of(self, parameters);
  const auto matches = [&](const Value& affix) {
    require_defined(affix);
    if (!affix.is_string()) {
      throw Failure(std::string(name) + " first arg must be str or a tuple of str, not " + type_name(affix));
    }
    const std::string& text = affix.text();
    if (!part.exists || text.size() > part.text.size()) return false;
    return part.text.substr(at_end ? part.text.size() - text.size() : 0, text.size()) == text;
  };
  const Value affix = parameters.value(0);
  if (!affix.is_tuple()) return matches(affix);
  return std::any_of(affix.items().begin(), affix.items().end(), matches);
}

Value text_startswith(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  return Value(begins_or_ends(self, arguments, "startswith", false));
}
Value text_endswith(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  return Value(begins_or_ends(self, arguments, "endswith", true));
}

Value text_removeprefix(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters parameters("removeprefix", arguments, {"prefix"}, 1);
  const std::string prefix = parameters.text(0, "");
  const bool has = self.text().compare(0, prefix.size(), prefix) == 0;
  return text_value(runtime, has ? self.text().substr(prefix.size()) : self.text(), self);
}

Value text_removesuffix(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters parameters("removesuffix", arguments, {"suffix"}, 1);
  const std::string suffix = parameters.text(0, "");
  const std::string& text = self.text();
  const bool has =
      text.size() >= suffix.size() && text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
  return text_value(runtime, has ? text.substr(0, text.size() - suffix.size()) : text, self);
}

// --- Case and padding

template <std::string (*Change)(std::string_view)>
Value changed(Runtime& runtime, const Value& self, const Arguments& arguments) {
  if (!arguments.positional.empty() || !arguments.named.empty()) throw Failure("the method takes no arguments");
  return text_value(runtime, Change(self.text()), self);
}

// A width that a text may be padded to.
int64_t width_of(Runtime& runtime, const Parameters& parameters) {
  const int64_t width = parameters.integer(0, 0);
  runtime.charge_bytes(std::max<int64_t>(width, 0));
  return width;
}

Value padded(Runtime& runtime, const Value& self, const Arguments& arguments, const char* name,
             const std::function<int64_t(int64_t missing, int64_t width)>& left_of) {
  const Parameters parameters(name, arguments, {"width", "fillchar"}, 1);
  const int64_t width = width_of(runtime, parameters);
  const std::string fill = parameters.text(1, " ");
  if (code_point_count(fill) != 1) throw Failure("The fill character must be exactly one character long");
  const int64_t missing = std::max<int64_t>(width - self.string().length, 0);
  const int64_t left = left_of(missing, width);
  std::string text;
  for (int64_t i = 0; i < left; ++i) text += fill;
  text += self.text();
  for (int64_t i = left; i < missing; ++i) text += fill;
  return text_value(runtime, std::move(text), self);
}

Value text_ljust(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return padded(runtime, self, arguments, "ljust", [](int64_t, int64_t) { return int64_t{0}; });
}
Value text_rjust(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return padded(runtime, self, arguments, "rjust", [](int64_t missing, int64_t) { return missing; });
}

Value text_zfill(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters parameters("zfill", arguments, {"width"}, 1);
  const int64_t missing = width_of(runtime, parameters) - self.string().length;
  std::string text = self.text();
  const size_t behind_sign = !text.empty() && (text[0] == '+' || text[0] == '-') ? 1 : 0;
  if (missing > 0) text.insert(behind_sign, static_cast<size_t>(missing), '0');
  return text_value(runtime, std::move(text), self);
}

Value text_expandtabs(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters parameters("expandtabs", arguments, {"tabsize"}, 0);
  const int64_t size = parameters.integer(0, 8);
  std::string text;
  int64_t column = 0;
  for (const char c : self.text()) {
    if (c == '\t') {
      const int64_t spaces = size > 0 ? size - column % size : 0;
      runtime.charge_bytes(spaces);
      text.append(static_cast<size_t>(spaces), ' ');
      column += spaces;
    } else {
      text += c;
      if (!is_continuation(c)) ++column;
      if (c == '\n' || c == '\r') column = 0;
    }
  }
  return text_value(runtime, std::move(text), self);
}

// --- Questions

Value all_of(const Value& self, const std::function<bool(char32_t)>& test) {
  const std::u32string wide = code_points(self.text());
  return Value(!wide.empty() && std::all_of(wide.begin(), wide.end(), test));
}

template <CharacterClass Class>
Value all_in(Runtime& /*runtime*/, const Value& self, const Arguments& /*arguments*/) {
  return all_of(self, [](char32_t code_point) { return is_in(code_point, Class); });
}

Value text_isalnum(Runtime& /*runtime*/, const Value& self, const Arguments& /*arguments*/) {
  return all_of(self, [](char32_t code_point) { return code_point != '_' && is_word(code_point); });
}
Value text_isspace(Runtime& /*runtime*/, const Value& self, const Arguments& /*arguments*/) {
  return all_of(self, is_space);
}
Value text_isascii(Runtime& /*runtime*/, const Value& self, const Arguments& /*arguments*/) {
  return Value(self.text().empty() || truth(all_of(self, [](char32_t code_point) { return code_point < 0x80; })));
}
Value text_isprintable(Runtime& /*runtime*/, const Value& self, const Arguments& /*arguments*/) {
  return Value(self.text().empty() || truth(all_of(self, is_printable)));
}

bool has_case(const Value& self, CharacterClass wanted, CharacterClass other) {
  bool found = false;
  for (const char32_t code_point : code_points(self.text())) {
    if (is_in(code_point, other) || is_in(code_point, CharacterClass::kTitle)) return false;
    found = found || is_in(code_point, wanted);
  }
  return found;
}
Value text_isupper(Runtime& /*runtime*/, const Value& self, const Arguments& /*arguments*/) {
  return Value(has_case(self, CharacterClass::kUpper, CharacterClass::kLower));
}
Value text_islower(Runtime& /*runtime*/, const Value& self, const Arguments& /*arguments*/) {
  return Value(has_case(self, CharacterClass::kLower, CharacterClass::kUpper));
}

Value text_istitle(Runtime& /*runtime*/, const Value& self, const Arguments& /*arguments*/) {
  bool inside_word = false;
  bool found = false;
  for (const char32_t code_point : code_points(self.text())) {
    const bool starts = is_in(code_point, CharacterClass::kUpper) || is_in(code_point, CharacterClass::kTitle);
    const bool lower = is_in(code_point, CharacterClass::kLower);
    if ((starts && inside_word) || (lower && !inside_word)) return Value(false);
    inside_word = starts || lower;
    found = found || inside_word;
  }
  return Value(found);
}

Value text_isidentifier(Runtime& /*runtime*/, const Value& self, const Arguments& /*arguments*/) {
  const std::u32string wide = code_points(self.text());
  const bool starts = !wide.empty() && (wide[0] == '_' || is_in(wide[0], CharacterClass::kAlphabetic));
  return Value(starts && std::all_of(wide.begin(), wide.end(), [](char32_t code_point) {
                 return code_point == '_' || is_in(code_point, CharacterClass::kAlphabetic) ||
                        is_in(code_point, CharacterClass::kDecimal);
               }));
}

// --- format

Value look_up(const Value& object, const Value& key, bool is_attribute) {
  return is_attribute ? get_attribute(object, key.text()) : get_item(object, key);
}

Value text_format(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return text_value(runtime, format_braces(self.text(), arguments, look_up), self);
}

Value text_format_map(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters parameters("format_map", arguments, {"mapping"}, 1);
  if (!parameters.value(0).is_dictionary()) throw Failure("format_map() takes a mapping");
  Arguments named;
  for (const auto& [key, value] : parameters.value(0).dictionary().items())
    named.named.emplace_back(to_text(key), value);
  return text_value(runtime, format_braces(self.text(), named, look_up), self);
}

}  // namespace

Value text_center(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return padded(runtime, self, arguments, "center",
                [](int64_t missing, int64_t width) { return missing / 2 + (missing & width & 1); });
}

Value text_replace(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters parameters("replace", arguments, {"old", "new", "count"}, 2);
  const std::string old = parameters.text(0, "");
  const std::string with = parameters.text(1, "");
  int64_t left = parameters.value(2).is_none() ? -1 : parameters.integer(2, -1);
  const std::string& text = self.text();
  std::string result;
  size_t position = 0;
  const auto charge = [&](size_t bytes) { runtime.charge_bytes(static_cast<int64_t>(bytes)); };
  if (old.empty()) {
    // Between all characters, and at both ends.
    while (left-- != 0) {
      result += with;
      charge(with.size());
      if (position >= text.size()) break;
      const size_t begin = position;
      next_code_point(text, position);
      result.append(text, begin, position - begin);
    }
    if (position < text.size()) result.append(text, position, std::string::npos);
  } else {
    for (size_t place = 0; left-- != 0 && (place = text.find(old, position)) != std::string::npos;) {
      result.append(text, position, place - position);
      result += with;
      charge(with.size());
      position = place + old.size();
    }
    result.append(text, position, std::string::npos);
  }
  return text_value(runtime, std::move(result), self);
}

Method find_text_method(const std::string& name) {
  static const std::map<std::string, Method> kMethods = {{"capitalize", changed<capitalized>},
                                                         {"casefold", changed<fold_case>},
                                                         {"center", text_center},
                                                         {"count", text_count},
                                                         {"endswith", text_endswith},
                                                         {"expandtabs", text_expandtabs},
                                                         {"find", text_find},
                                                         {"format", text_format},
                                                         {"format_map", text_format_map},
                                                         {"index", text_index},
                                                         {"isalnum", text_isalnum},
                                                         {"isalpha", all_in<CharacterClass::kAlphabetic>},
                                                         {"isascii", text_isascii},
                                                         {"isdecimal", all_in<CharacterClass::kDecimal>},
                                                         {"isdigit", all_in<CharacterClass::kDigit>},
                                                         {"isidentifier", text_isidentifier},
                                                         {"islower", text_islower},
                                                         {"isnumeric", all_in<CharacterClass::kNumeric>},
                                                         {"isprintable", text_isprintable},
                                                         {"isspace", text_isspace},
                                                         {"istitle", text_istitle},
                                                         {"isupper", text_isupper},
                                                         {"join", text_join},
                                                         {"ljust", text_ljust},
                                                         {"lower", changed<lower_case>},
                                                         {"lstrip", text_lstrip},
                                                         {"partition", text_partition},
                                                         {"removeprefix", text_removeprefix},
                                                         {"removesuffix", text_removesuffix},
                                                         {"replace", text_replace},
                                                         {"rfind", text_rfind},
                                                         {"rindex", text_rindex},
                                                         {"rjust", text_rjust},
                                                         {"rpartition", text_rpartition},
                                                         {"rsplit", text_rsplit},
                                                         {"rstrip", text_rstrip},
                                                         {"split", text_split},
                                                         {"splitlines", text_splitlines},
                                                         {"startswith", text_startswith},
                                                         {"strip", text_strip},
                                                         {"swapcase", changed<swapped_case>},
                                                         {"title", changed<title_case>},
                                                         {"upper", changed<upper_case>},
                                                         {"zfill", text_zfill}};
  const auto found = kMethods.find(name);
  return found == kMethods.end() ? nullptr : found->second;
}

}  // namespace ithaca::jinja
