// The option table as help text and as a Markdown page.
#include <fmt/format.h>

#include <algorithm>

#include "base/option_table.h"
#include "base/text.h"

namespace ithaca {

namespace {

// `text` broken at spaces into lines of at most `width` columns, each indented.
std::string wrapped(const std::string& text, size_t indent, size_t width) {
  std::string out;
  std::string line;
  const auto flush = [&] {
    if (!line.empty()) out += std::string(indent, ' ') + line + "\n";
    line.clear();
  };
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (!line.empty() && indent + line.size() + 1 + word.size() > width) flush();
    if (!line.empty()) line += ' ';
    line += word;
    begin = end + 1;
  }
  flush();
  return out;
}

std::string table_cell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string upper_first(std::string text) {
  if (!text.empty() && text.front() >= 'a' && text.front() <= 'z') text.front() = static_cast<char>(text.front() - 32);
  return text;
}

bool is_empty_value(const OptionValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return text->empty();
  if (const auto* list = std::get_if<std::vector<std::string>>(&value)) return list->empty();
  return false;
}

}  // namespace

void OptionCatalog::append_option_help(const Option& option, size_t width, std::string& out) const {
  constexpr size_t kIndent = 6;
  out += fmt::format("  {}: {}\n", option.full_name(), option.describe_type());
  out += wrapped(option.text.help, kIndent, width);
  std::string last = option.text.required                   ? "required"
                     : is_empty_value(option.default_value) ? "not set by default"
                                                            : "default " + format_option_value(option.default_value);
  if (!option.text.example.empty()) last += fmt::format("; example {}: {}", option.name, option.text.example);
  out += wrapped(last, kIndent, width);
}

std::string OptionCatalog::help_text(size_t width) const {
  std::string out;
  for (const OptionSectionText& section : sections_) {
    if (!out.empty()) out += "\n";
    out += fmt::format("{}: {}\n", section.name, section.help);
    for (const Option& option : options_) {
      if (option.section == section.name) append_option_help(option, width, out);
    }
  }
  return out;
}

std::string OptionCatalog::help_text_of(const std::string& name, size_t width) const {
  std::string out;
  const size_t dot = name.find('.');
  for (const Option& option : options_) {
    if (option.full_name() == name || option.section == name || (dot == std::string::npos && option.name == name)) {
      append_option_help(option, width, out);
    }
  }
  if (!out.empty()) return out;
  if (dot == std::string::npos) fail_unknown_section(name, "options " + name);
  const std::string section = name.substr(0, dot);
  if (!has_section(section)) fail_unknown_section(section, "options " + name);
  fail_unknown_option(section, name.substr(dot + 1), "options " + name);
}

std::string OptionCatalog::foreign_cell(const ForeignOption& foreign) const {
  if (foreign.ours.empty()) return "nothing: " + foreign.remark;
  const bool is_absent = find_absent(foreign.ours.substr(0, foreign.ours.find(' '))) != nullptr;
  return foreign.ours + (is_absent ? " (not in this version)" : "") +
         (foreign.remark.empty() ? "" : "; " + foreign.remark);
}

std::string OptionCatalog::man_text() const {
  std::string out;
  for (const OptionSectionText& section : sections_) {
    out += fmt::format(".SS {}: {}\n", escape_man_text(section.name), escape_man_text(section.help));
    for (const Option& option : options_) {
      if (option.section != section.name) continue;
      out += fmt::format(".TP\n.B {}\n", escape_man_text(option.full_name()));
      out += escape_man_text(upper_first(option.describe_type())) + ".\n";
      out += escape_man_text(option.text.help) + "\n";
      out += escape_man_text(option.text.required ? "Required."
                             : is_empty_value(option.default_value)
                                 ? "Not set by default."
                                 : "Default: " + format_option_value(option.default_value) + ".") +
             "\n";
      if (!option.text.example.empty()) {
        out += escape_man_text(fmt::format("Example: {}: {}", option.name, option.text.example)) + "\n";
      }
    }
  }
  return out;
}

std::string OptionCatalog::markdown() const {
  std::string out;
  for (const OptionSectionText& section : sections_) {
    out += fmt::format("## `{}`: {}\n\n", section.name, section.help);
    out += "| option | value | default | meaning |\n| --- | --- | --- | --- |\n";
    for (const Option& option : options_) {
      if (option.section != section.name) continue;
      const std::string default_text = option.text.required ? "*required*"
                                       : is_empty_value(option.default_value)
                                           ? "*none*"
                                           : "`" + format_option_value(option.default_value) + "`";
      std::string meaning = option.text.help;
      if (!option.text.example.empty()) {
        meaning += fmt::format(" Example: `{}: {}`", option.name, option.text.example);
      }
      out += fmt::format("| `{}` | {} | {} | {} |\n", option.name, table_cell(option.describe_type()), default_text,
                         table_cell(meaning));
    }
    out += "\n";
  }
  out += "## Rules between options\n\n";
  for (const std::string& sentence : rule_texts_) out += "- " + sentence + "\n";
  out +=
      "\n## Not in this version\n\nThese are errors, not ignored.\n\n| option | what comes nearest |\n| --- | --- |\n";
  for (const AbsentOption& absent : absent_) {
    out += fmt::format("| `{}.{}` | {} |\n", absent.section, absent.name, table_cell(absent.advice));
  }
  for (const Option& option : options_) {
    for (const LaterChoice& later : option.text.later_choices) {
      out += fmt::format("| `{}: {}` | {} |\n", option.full_name(), later.value, table_cell(later.advice));
    }
  }
  return out;
}

std::string OptionCatalog::foreign_markdown(const std::string& program) const {
  std::string out;
  for (const ForeignOption& foreign : foreign_) {
    if ((" " + foreign.programs + " ").find(" " + program + " ") == std::string::npos) continue;
    out += fmt::format("| `{}` | {} |\n", foreign.name, table_cell(foreign_cell(foreign)));
  }
  return out;
}

}  // namespace ithaca
