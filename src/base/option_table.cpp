#include "base/option_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/text.h"

namespace ithaca {

namespace {

std::string join(const std::vector<std::string>& words, const char* separator = ", ") {
  return fmt::format("{}", fmt::join(words, separator));
}

// "sp-size", "SP_SIZE" -> "sp_size": how a name is compared with those of other programs.
std::string normalized(std::string_view name) {
  std::string result(name);
  for (char& c : result) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

bool matches(std::string_view pattern, std::string_view name) {
  if (!pattern.empty() && pattern.back() == '*') return name.starts_with(pattern.substr(0, pattern.size() - 1));
  return name == pattern;
}

std::string type_words(OptionType type) {
  switch (type) {
    case OptionType::string:
    case OptionType::choice:
      return "string";
    case OptionType::integer:
      return "integer";
    case OptionType::real:
      return "number";
    case OptionType::boolean:
      return "true or false";
    case OptionType::string_list:
      return "list of strings";
  }
  return "value";
}

}  // namespace

ConfigurationMistakes::ConfigurationMistakes(std::vector<std::string> lines)
    : ConfigurationError(join(lines, "\n")), lines_(std::move(lines)) {}

void OptionMistakes::add(std::string line, const std::vector<std::string>& about) {
  if (std::find(lines_.begin(), lines_.end(), line) == lines_.end()) lines_.push_back(std::move(line));
  about_.insert(about.begin(), about.end());
}

void OptionMistakes::throw_if_any() const {
  if (lines_.size() == 1) throw ConfigurationError(lines_.front());
  if (!lines_.empty()) throw ConfigurationMistakes(lines_);
}

bool OptionRange::contains(double value) const {
  return std::isfinite(value) && (!at_least || value >= *at_least) && (!above || value > *above) &&
         (!at_most || value <= *at_most) && (!below || value < *below);
}

std::string OptionRange::describe() const {
  std::vector<std::string> bounds;
  // 1e12 is easier to read than its digits.
  const auto number = [](double bound) {
    return std::abs(bound) < 1e6 ? fmt::format("{}", bound) : fmt::format("{:g}", bound);
  };
  if (at_least) bounds.push_back("at least " + number(*at_least));
  if (above) bounds.push_back("above " + number(*above));
  if (at_most) bounds.push_back("at most " + number(*at_most));
  if (below) bounds.push_back("below " + number(*below));
  return join(bounds, " and ");
}

std::string Option::describe_type() const {
  std::string result = type == OptionType::choice ? "one of " + join(text.choices) : type_words(type);
  const std::string range = text.range.describe();
  if (!range.empty()) result += ", " + range;
  if (!text.unit.empty()) result += ", in " + text.unit;
  return result;
}

std::string Option::describe_type_in_sentence() const {
  const bool bare = type == OptionType::choice || type == OptionType::boolean;
  return (bare ? "" : type == OptionType::integer ? "an " : "a ") + describe_type();
}

void OptionCatalog::add_section(OptionSectionText section) {
  require(!has_section(section.name), "an option section is declared twice: " + section.name);
  sections_.push_back(std::move(section));
}

void OptionCatalog::add_option(Option option) {
  require(has_section(option.section), "an option of an undeclared section: " + option.full_name());
  require(!find(option.section, option.name), "an option is declared twice: " + option.full_name());
  options_.push_back(std::move(option));
}

void OptionCatalog::add_foreign(ForeignOption foreign) {
  require(!foreign.ours.empty() || !foreign.remark.empty(), "a foreign name needs an explanation: " + foreign.name);
  require(find_foreign(foreign.name) == nullptr, "a foreign name is declared twice: " + foreign.name);
  foreign_.push_back(std::move(foreign));
}

void OptionCatalog::add_absent(AbsentOption absent) {
  require(!find(absent.section, absent.name), "an option is declared as absent too: " + absent.name);
  absent_.push_back(std::move(absent));
}

void OptionCatalog::add_rule_text(std::string sentence) {
  rule_texts_.push_back(std::move(sentence));
}

std::optional<size_t> OptionCatalog::find(std::string_view section, std::string_view name) const {
  for (size_t i = 0; i < options_.size(); ++i) {
    if (options_[i].section == section && options_[i].name == name) return i;
  }
  return std::nullopt;
}

size_t OptionCatalog::index_of(std::string_view full_name) const {
  const size_t dot = full_name.find('.');
  std::optional<size_t> found;
  if (dot != std::string_view::npos) found = find(full_name.substr(0, dot), full_name.substr(dot + 1));
  if (!found) throw ContractError(fmt::format("no such option: {}", full_name));
  return *found;
}

bool OptionCatalog::has_section(std::string_view name) const {
  return std::any_of(sections_.begin(), sections_.end(), [&](const auto& section) { return section.name == name; });
}

std::vector<std::string> OptionCatalog::names_of(std::string_view section) const {
  std::vector<std::string> names;
  for (const Option& option : options_) {
    if (option.section == section) names.push_back(option.name);
  }
  return names;
}

std::vector<std::string> OptionCatalog::section_names() const {
  std::vector<std::string> names;
  names.reserve(sections_.size());
  for (const OptionSectionText& section : sections_) names.push_back(section.name);
  return names;
}

const ForeignOption* OptionCatalog::find_foreign(const std::string& normalized_name) const {
  const ForeignOption* found = nullptr;
  for (const ForeignOption& foreign : foreign_) {
    if (foreign.name == normalized_name) return &foreign;
    if (found == nullptr && matches(foreign.name, normalized_name)) found = &foreign;
  }
  return found;
}

const AbsentOption* OptionCatalog::find_absent(std::string_view full_name) const {
  for (const AbsentOption& absent : absent_) {
    const size_t dot = full_name.find('.');
    if (dot != std::string_view::npos && full_name.substr(0, dot) == absent.section &&
        matches(absent.name, full_name.substr(dot + 1))) {
      return &absent;
    }
  }
  return nullptr;
}

std::string OptionCatalog::describe_foreign(const ForeignOption& foreign) const {
  if (foreign.ours.empty()) return "has no counterpart here: " + foreign.remark;
  const AbsentOption* absent = find_absent(foreign.ours.substr(0, foreign.ours.find(' ')));
  if (absent != nullptr) {
    return fmt::format("would be {}, which this version does not have. {}", foreign.ours, absent->advice);
  }
  return fmt::format("is {} here{}", foreign.ours, foreign.remark.empty() ? "" : "; " + foreign.remark);
}

std::string OptionCatalog::foreign_advice(const std::string& section, const std::string& name) const {
  const std::string wanted = normalized(name);
  for (const AbsentOption& absent : absent_) {
    if (matches(absent.name, wanted) && (section.empty() || section == absent.section)) {
      return fmt::format("this version does not have {}.{}. {}", absent.section, name, absent.advice);
    }
  }
  const ForeignOption* foreign = find_foreign(wanted);
  if (foreign != nullptr) return fmt::format("\"{}\" {}", name, describe_foreign(*foreign));
  for (const AbsentOption& absent : absent_) {
    if (matches(absent.name, wanted)) {
      return fmt::format("this version does not have {} (of section \"{}\"). {}", name, absent.section, absent.advice);
    }
  }
  return {};
}

std::vector<std::string> OptionCatalog::options_meant_by(const std::string& section, const std::string& name) const {
  std::vector<std::string> meant;
  const std::string wanted = normalized(name);
  const ForeignOption* foreign = find_foreign(wanted);
  std::vector<std::string> near;
  if (foreign == nullptr) {
    const std::string in_section = nearest_name(wanted, names_of(section));
    if (!in_section.empty()) near.push_back(section + "." + in_section);
  }
  for (const Option& option : options_) {
    const std::string full = option.full_name();
    const bool is_near = std::find(near.begin(), near.end(), full) != near.end();
    const bool is_ours = foreign != nullptr && foreign->ours.find(full) != std::string::npos;
    const bool is_homeless = option.name == wanted || (has_section(name) && option.section == name);
    if (is_near || is_ours || is_homeless) meant.push_back(full);
  }
  return meant;
}

std::vector<std::string> OptionCatalog::options_of(const std::string& assignment) const {
  const std::string full_name = assignment.substr(0, assignment.find('='));
  const size_t dot = full_name.find('.');
  if (dot == std::string::npos) return options_meant_by("", full_name);
  const std::string section = full_name.substr(0, dot);
  const std::string name = full_name.substr(dot + 1);
  if (find(section, name)) return {full_name};
  return options_meant_by(section, name);
}

void OptionCatalog::fail_unknown_option(const std::string& section, const std::string& name,
                                        const std::string& where) const {
  const std::string advice = foreign_advice(section, name);
  if (!advice.empty()) throw ConfigurationError(where + ": " + advice);
  for (const Option& option : options_) {
    if (option.name == normalized(name) && option.section != section) {
      throw ConfigurationError(
          fmt::format("{}: \"{}\" belongs to section \"{}\", not to \"{}\"", where, name, option.section, section));
    }
  }
  const std::vector<std::string> here = names_of(section);
  const std::string near = nearest_name(normalized(name), here);
  if (!near.empty()) {
    throw ConfigurationError(
        fmt::format("{}: section \"{}\" has no option \"{}\"; did you mean \"{}\"?", where, section, name, near));
  }
  std::vector<std::string> everywhere;
  for (const Option& option : options_) everywhere.push_back(option.name);
  const std::string far = nearest_name(normalized(name), everywhere);
  if (!far.empty()) {
    const auto option =
        std::find_if(options_.begin(), options_.end(), [&](const Option& known) { return known.name == far; });
    throw ConfigurationError(fmt::format("{}: section \"{}\" has no option \"{}\"; did you mean {}?", where, section,
                                         name, option->full_name()));
  }
  throw ConfigurationError(
      fmt::format("{}: section \"{}\" has no option \"{}\"; it has {}", where, section, name, join(here)));
}

void OptionCatalog::fail_unknown_section(const std::string& name, const std::string& where) const {
  if (has_section(normalized(name))) {
    throw ConfigurationError(
        fmt::format("{}: there is no section \"{}\"; did you mean \"{}\"?", where, name, normalized(name)));
  }
  for (const Option& option : options_) {
    if (option.name == normalized(name)) {
      throw ConfigurationError(fmt::format("{}: \"{}\" belongs into a section: {}", where, name, option.full_name()));
    }
  }
  const std::string advice = foreign_advice({}, name);
  if (!advice.empty()) throw ConfigurationError(where + ": " + advice);
  const std::vector<std::string> known = section_names();
  const std::string near = nearest_name(normalized(name), known);
  throw ConfigurationError(
      fmt::format("{}: there is no section \"{}\"; {}", where, name,
                  near.empty() ? "the sections are " + join(known) : fmt::format("did you mean \"{}\"?", near)));
}

OptionValue OptionCatalog::parse_scalar(const Option& option, const std::string& text, bool quoted,
                                        const std::string& where) const {
  const std::string name = option.full_name();
  if (quoted && option.type != OptionType::string && option.type != OptionType::choice &&
      option.type != OptionType::string_list) {
    throw ConfigurationError(fmt::format("{}: {} must be {}, but \"{}\" in quotes is a string; leave the quotes out",
                                         where, name, option.describe_type_in_sentence(), text));
  }
  switch (option.type) {
    case OptionType::string:
    case OptionType::choice:
      return text;
    case OptionType::string_list:
      return std::vector<std::string>{text};
    case OptionType::integer: {
      int64_t value = 0;
      const NumberFault fault = read_integer(text, value);
      if (fault == NumberFault::none) return value;
      if (fault == NumberFault::too_large) {
        throw ConfigurationError(fmt::format("{}: {} {} is too large for a 64-bit integer", where, name, text));
      }
      double real = 0.0;
      const bool whole =
          read_real(text, real) == NumberFault::none && std::floor(real) == real && std::abs(real) < 9e15;
      throw ConfigurationError(
          fmt::format("{}: {} must be an integer, but \"{}\" is not one{}", where, name, text,
                      whole ? fmt::format("; write {}", static_cast<int64_t>(real)) : std::string()));
    }
    case OptionType::real: {
      double value = 0.0;
      const NumberFault fault = read_real(text, value);
      if (fault == NumberFault::none && std::isfinite(value)) return value;
      if (fault == NumberFault::too_large) {
        throw ConfigurationError(fmt::format("{}: {} {} cannot be held by a double", where, name, text));
      }
      const std::string lower = normalized(text);
      const bool special = fault == NumberFault::none || lower.ends_with(".nan") || lower.ends_with(".inf");
      throw ConfigurationError(
          fmt::format("{}: {} must be a {}number, but \"{}\" is not one", where, name, special ? "finite " : "", text));
    }
    case OptionType::boolean: {
      const std::string lower = normalized(text);
      if (lower == "true") return true;
      if (lower == "false") return false;
      const bool yes = lower == "yes" || lower == "on" || lower == "1" || lower == "y";
      const bool no = lower == "no" || lower == "off" || lower == "0" || lower == "n";
      throw ConfigurationError(fmt::format("{}: {} must be true or false, but it is \"{}\"{}", where, name, text,
                                           yes  ? "; write true"
                                           : no ? "; write false"
                                                : ""));
    }
  }
  throw ContractError("an option of an unknown type: " + name);
}

void OptionCatalog::check_value(const Option& option, const OptionValue& value, const std::string& where) const {
  const std::string name = option.full_name();
  const auto missing = [&] {
    const std::string help = option.text.help.substr(0, option.text.help.find(". ") + 1);
    throw ConfigurationError(fmt::format("{}: {} is missing. {}{}", where, name, help.empty() ? option.text.help : help,
                                         option.text.example.empty()
                                             ? std::string()
                                             : fmt::format(" For example: \"{}:\", then \"  {}: {}\"", option.section,
                                                           option.name, option.text.example)));
  };
  if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
    if (option.text.required && list->empty()) missing();
    for (const std::string& element : *list) {
      if (element.empty()) throw ConfigurationError(fmt::format("{}: {} has an empty element", where, name));
    }
    return;
  }
  if (const auto* text = std::get_if<std::string>(&value)) {
    if (option.text.required && text->empty()) missing();
    if (option.type != OptionType::choice) return;
    const std::vector<std::string>& choices = option.text.choices;
    if (std::find(choices.begin(), choices.end(), *text) != choices.end()) return;
    for (const LaterChoice& later : option.text.later_choices) {
      if (later.value == normalized(*text)) {
        throw ConfigurationError(
            fmt::format("{}: this version does not have {}: {}. {}", where, name, *text, later.advice));
      }
    }
    const std::string near = nearest_name(normalized(*text), choices);
    throw ConfigurationError(
        fmt::format("{}: {} cannot be \"{}\"; {}{}", where, name, *text,
                    choices.size() == 1 ? fmt::format("this version has only \"{}\"", choices.front())
                                        : "it is one of " + join(choices),
                    near.empty() || choices.size() == 1 ? "" : fmt::format(". Did you mean \"{}\"?", near)));
  }
  double number = 0.0;
  std::string shown;
  if (const auto* integer = std::get_if<int64_t>(&value)) {
    number = static_cast<double>(*integer);
    shown = fmt::format("{}", *integer);
  } else if (const auto* real = std::get_if<double>(&value)) {
    number = *real;
    shown = fmt::format("{}", *real);
  } else {
    return;
  }
  if (!option.text.range.contains(number)) {
    const std::string range = option.text.range.describe();
    throw ConfigurationError(fmt::format("{}: {} must be {}, but it is {}", where, name,
                                         range.empty() || !std::isfinite(number) ? "a finite number" : range, shown));
  }
}

}  // namespace ithaca
