// Filters that give texts.
#include <algorithm>
#include <cctype>

#include "base/utf8.h"
#include "data/chat/jinja/format.h"
#include "data/chat/jinja/library.h"
#include "data/chat/jinja/operators.h"
#include "data/chat/jinja/text.h"

namespace ithaca::jinja {
namespace {

Value text_value(Runtime& runtime, std::string text, bool markup = false) {
  runtime.charge_bytes(static_cast<int64_t>(text.size()));
  return Value(std::move(text), markup);
}

// soft_str: texts stay what they are, others are printed.
Value soft_text(const Value& value) {
  return value.is_string() ? value : Value(to_text(value));
}
bool is_markup(const Value& value) {
  return value.is_string() && value.string().markup;
}

void no_arguments(const char* name, const Arguments& arguments) {
  const Parameters parameters(name, arguments, {}, 0);
}

Value filter_upper(Runtime& runtime, const Value& value, const Arguments& arguments) {
  no_arguments("upper", arguments);
  return text_value(runtime, upper_case(to_text(value)), is_markup(value));
}

Value filter_lower(Runtime& runtime, const Value& value, const Arguments& arguments) {
  no_arguments("lower", arguments);
  return text_value(runtime, lower_case(to_text(value)), is_markup(value));
}

Value filter_capitalize(Runtime& runtime, const Value& value, const Arguments& arguments) {
  no_arguments("capitalize", arguments);
  return text_value(runtime, capitalized(to_text(value)), is_markup(value));
}

Value filter_title(Runtime& runtime, const Value& value, const Arguments& arguments) {
  no_arguments("title", arguments);
  // Words begin behind white space, hyphens and opening brackets, and nowhere else: "it's" is one word.
  const std::string text = to_text(value);
  std::string result;
  const auto is_separator = [](char32_t c) {
    return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  for (size_t position = 0; position < text.size();) {
    const size_t begin = position;
    const bool separator = is_separator(next_code_point(text, position));
    const size_t behind_first = position;
    while (position < text.size()) {
      size_t next = position;
      if (is_separator(next_code_point(text, next)) != separator) break;
      position = next;
    }
    result += upper_case(std::string_view(text).substr(begin, behind_first - begin));
    result += lower_case(std::string_view(text).substr(behind_first, position - behind_first));
  }
  return text_value(runtime, std::move(result));
}

Value filter_trim(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters parameters("trim", arguments, {"chars"}, 0);
  const std::string text = to_text(value);
  const std::string_view trimmed =
      parameters.value(0).is_none() ? stripped(text, true, true) : stripped(text, true, true, parameters.text(0, ""));
  return text_value(runtime, std::string(trimmed), is_markup(value));
}

Value filter_string(Runtime& /*runtime*/, const Value& value, const Arguments& arguments) {
  no_arguments("string", arguments);
  return soft_text(value);
}

Value filter_safe(Runtime& runtime, const Value& value, const Arguments& arguments) {
  no_arguments("safe", arguments);
  return text_value(runtime, to_text(value), true);
}

Value filter_escape(Runtime& runtime, const Value& value, const Arguments& arguments) {
  no_arguments("escape", arguments);
  return is_markup(value) ? value : text_value(runtime, escaped(to_text(value)), true);
}

Value filter_forceescape(Runtime& runtime, const Value& value, const Arguments& arguments) {
  no_arguments("forceescape", arguments);
  return text_value(runtime, escaped(to_text(value)), true);
}

Value filter_replace(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters parameters("replace", arguments, {"old", "new", "count"}, 2);
  Arguments texts;
  texts.positional = {Value(to_text(parameters.value(0))), Value(to_text(parameters.value(1))), parameters.value(2)};
  return text_replace(runtime, Value(to_text(value)), texts);
}

Value filter_center(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters parameters("center", arguments, {"width"}, 0);
  Arguments width;
  width.positional = {parameters.value(0, Value(int64_t{80}))};
  return text_center(runtime, soft_text(value), width);
}

Value filter_format(Runtime& runtime, const Value& value, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    throw Failure("can't handle positional and keyword arguments at the same time");
  }
  Value given = Value::tuple(arguments.positional);
  if (!arguments.named.empty()) {
    DictionaryData data;
    for (const auto& [name, argument] : arguments.named) data.set(Value(name), argument);
    given = Value::dictionary(std::move(data));
  }
  return text_value(runtime, format_percent(to_text(value), given), is_markup(value));
}

Value filter_indent(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters parameters("indent", arguments, {"width", "first", "blank"}, 0);
  require_defined(value);
  if (!value.is_string()) throw Failure("indent needs a str, not " + type_name(value));
  std::string indention;
  if (parameters.has(0) && parameters.value(0).is_string()) {
    indention = parameters.text(0, "");
  } else {
    const int64_t width = parameters.integer(0, 4);
    runtime.charge_bytes(std::max<int64_t>(width, 0));
    indention = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  const bool blank = parameters.truth(2, false);
  const std::string text = value.text() + "\n";
  std::string result = parameters.truth(1, false) ? indention : "";
  const auto lines = split_lines(text, false);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      result += '\n';
      if (blank || !lines[i].empty()) result += indention;
      runtime.charge_bytes(static_cast<int64_t>(indention.size()));
    }
    result += lines[i];
  }
  return text_value(runtime, std::move(result), is_markup(value));
}

Value filter_truncate(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters parameters("truncate", arguments, {"length", "killwords", "end", "leeway"}, 0);
  const int64_t most = parameters.integer(0, 255);
  const std::string end = parameters.text(2, "...");
  const int64_t leeway = parameters.value(3).is_none() ? 5 : parameters.integer(3, 5);
  const int64_t end_length = code_point_count(end);
  if (most < end_length) {
    throw Failure("expected length >= " + std::to_string(end_length) + ", got " + std::to_string(most));
  }
  if (leeway < 0) throw Failure("expected leeway >= 0, got " + std::to_string(leeway));
  if (length(value) <= most + leeway) return value;
  if (!value.is_string()) throw Failure("truncate needs a str, not " + type_name(value));
  std::string text = value.text().substr(0, byte_offset(value.text(), most - end_length));
  if (!parameters.truth(1, false)) {
    const size_t space = text.rfind(' ');
    if (space != std::string::npos) text.resize(space);
  }
  return text_value(runtime, text + end, is_markup(value));
}

Value filter_wordcount(Runtime& /*runtime*/, const Value& value, const Arguments& arguments) {
  no_arguments("wordcount", arguments);
  int64_t words = 0;
  bool inside = false;
  for (const char32_t code_point : code_points(to_text(value))) {
    const bool word = is_word(code_point);
    words += static_cast<int64_t>(word && !inside);
    inside = word;
  }
  return Value(words);
}

std::string quoted_for_url(const Value& value, bool for_query) {
  constexpr const char* kDigits = "0123456789ABCDEF";
  std::string result;
  for (const char c : to_text(value)) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte < 0x80 && (std::isalnum(byte) != 0 || c == '_' || c == '.' || c == '-' || c == '~');
    if (plain || (c == '/' && !for_query)) {
      result += c;
    } else if (c == ' ' && for_query) {
      result += '+';
    } else {
      result += '%';
      result += kDigits[byte >> 4U];
      result += kDigits[byte & 0xfU];
    }
  }
  return result;
}

Value filter_urlencode(Runtime& runtime, const Value& value, const Arguments& arguments) {
  no_arguments("urlencode", arguments);
  const auto values = value.is_string() ? nullptr : try_iterate(value);
  if (!values) return text_value(runtime, quoted_for_url(value, false));
  std::string result;
  const auto add = [&](const Value& key, const Value& item) {
    if (!result.empty()) result += '&';
    result += quoted_for_url(key, true) + "=" + quoted_for_url(item, true);
  };
  if (value.is_dictionary()) {
    for (const auto& [key, item] : value.dictionary().items()) add(key, item);
  } else {
    Value pair;
    while (values->next(pair)) {
      const std::vector<Value> parts = to_vector(pair);
      if (parts.size() != 2) throw Failure("urlencode needs pairs of a key and a value");
      add(parts[0], parts[1]);
    }
  }
  return text_value(runtime, std::move(result));
}

Value filter_xmlattr(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters parameters("xmlattr", arguments, {"autospace"}, 0);
  require_defined(value);
  if (!value.is_dictionary()) throw Failure("xmlattr needs a dict, not " + type_name(value));
  std::string result;
  for (const auto& [key, item] : value.dictionary().items()) {
    if (item.is_none() || item.is_undefined()) continue;
    if (!key.is_string()) throw Failure("expected a str as the name of an attribute, not " + type_name(key));
    if (key.text().find_first_of(" \t\n\r\f\v/>=") != std::string::npos) {
      throw Failure("Invalid character in attribute name: " + repr(key));
    }
    if (!result.empty()) result += ' ';
    result += escaped(key.text()) + "=\"" + (is_markup(item) ? item.text() : escaped(to_text(item))) + "\"";
  }
  if (!result.empty() && parameters.truth(0, true)) result.insert(0, 1, ' ');
  return text_value(runtime, std::move(result));
}

// As transformers defines it: json.dumps without escaping, not Jinja's own for HTML.
Value filter_tojson(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters parameters("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  JsonOptions options;
  options.ensure_ascii = parameters.truth(0, false);
  options.sort_keys = parameters.truth(3, false);
  const Value indent = parameters.value(1);
  if (indent.is_string()) {
    options.indent = indent.text();
  } else if (!indent.is_none()) {
    const int64_t spaces = std::max<int64_t>(parameters.integer(1, 0), 0);
    runtime.charge_bytes(spaces);
    if (spaces > 1000) throw Failure("tojson(): an indent of " + std::to_string(spaces) + " is too wide");
    options.indent = std::string(static_cast<size_t>(spaces), ' ');
  }
  if (!parameters.value(2).is_none()) {
    const std::vector<Value> separators = to_vector(parameters.value(2));
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
      throw Failure("tojson(): separators are two texts, (between items, between key and value)");
    }
    options.item_separator = separators[0].text();
    options.key_separator = separators[1].text();
  }
  return text_value(runtime, to_json(value, options));
}

}  // namespace

std::vector<std::pair<std::string, FilterFunction>> text_filters() {
  return {{"capitalize", filter_capitalize},
          {"center", filter_center},
          {"e", filter_escape},
          {"escape", filter_escape},
          {"forceescape", filter_forceescape},
          {"format", filter_format},
          {"indent", filter_indent},
          {"lower", filter_lower},
          {"replace", filter_replace},
          {"safe", filter_safe},
          {"string", filter_string},
          {"title", filter_title},
          {"tojson", filter_tojson},
          {"trim", filter_trim},
          {"truncate", filter_truncate},
          {"upper", filter_upper},
          {"urlencode", filter_urlencode},
          {"wordcount", filter_wordcount},
          {"xmlattr", filter_xmlattr}};
}

}  // namespace ithaca::jinja
