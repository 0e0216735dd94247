// Reading and writing of the option table's YAML. The only file that knows yaml-cpp.
#include <fmt/format.h>
#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/option_table.h"

namespace ithaca {

namespace {

std::string place(const std::string& file, const YAML::Mark& mark) {
  if (mark.is_null()) return file;
  return fmt::format("{}:{}:{}", file, mark.line + 1, mark.column + 1);
}

const char* kind_words(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Map:
      return "a map";
    case YAML::NodeType::Sequence:
      return "a list";
    case YAML::NodeType::Scalar:
      return "a single value";
    default:
      return "nothing";
  }
}

// yaml-cpp tags plain scalars "?" and quoted ones "!".
bool is_quoted(const YAML::Node& node) {
  return node.Tag() == "!";
}

struct YamlTag {
  YAML::Mark mark;
  std::string text;
};

// Looks for the beginning of a second document, and for tags: options have types of their own.
class DocumentWatch final : public YAML::EventHandler {
 public:
  bool has_second() const { return documents_ > 1; }
  // Of the second document's content.
  const YAML::Mark& second() const { return second_; }

  void OnDocumentStart(const YAML::Mark&) override { ++documents_; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { note(mark); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { note(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, const std::string&) override {
    note(mark, tag);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    note(mark, tag);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, YAML::EmitterStyle::value) override {
    note(mark, tag);
  }
  void OnMapEnd() override {}
  // Of the first document.
  const std::vector<YamlTag>& tags() const { return tags_; }

 private:
  void note(const YAML::Mark& mark, const std::string& tag = {}) {
    if (has_second() && second_.is_null()) second_ = mark;
    // What stands in quotes has "!", what does not "?".
    if (!has_second() && !tag.empty() && tag != "!" && tag != "?") tags_.push_back({mark, tag});
  }

  int documents_ = 0;
  std::vector<YamlTag> tags_;
  YAML::Mark second_ = YAML::Mark::null_mark();
};

// "tag:yaml.org,2002:str" is written !!str.
std::string tag_as_written(const std::string& tag) {
  constexpr std::string_view kStandard = "tag:yaml.org,2002:";
  return tag.starts_with(kStandard) ? "!!" + tag.substr(kStandard.size()) : tag;
}

struct LoadedText {
  YAML::Node first;                  // null for a text without a document
  std::optional<YAML::Mark> second;  // where another document begins
  std::vector<YamlTag> tags;         // of the first
};

// Throws ConfigurationError with the place for what is not YAML. What follows the beginning of a second document is not
// read: yaml-cpp finds documents without end in some broken texts.
LoadedText load_text(const std::string& text, const std::string& where) {
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    DocumentWatch watch;
    while (!watch.has_second() && parser.HandleNextDocument(watch)) {
    }
    LoadedText loaded;
    loaded.first = YAML::Load(text);
    if (watch.has_second()) loaded.second = watch.second();
    loaded.tags = watch.tags();
    return loaded;
  } catch (const YAML::DeepRecursion& fault) {
    throw ConfigurationError(
        fmt::format("{}: lists or maps are nested too deeply here; a recipe has sections, options in them, and lists "
                    "of single values",
                    place(where, fault.mark)));
  } catch (const YAML::Exception& fault) {
    const bool has_tab = [&] {
      size_t begin = 0;
      for (int line = 0; line < fault.mark.line && begin != std::string::npos; ++line) {
        begin = text.find('\n', begin);
        if (begin != std::string::npos) ++begin;
      }
      if (begin == std::string::npos) return false;
      const size_t content = text.find_first_not_of(" \t", begin);
      return text.substr(begin, content == std::string::npos ? content : content - begin).find('\t') !=
             std::string::npos;
    }();
    throw ConfigurationError(fmt::format("{}: this is not valid YAML: {}{}", place(where, fault.mark), fault.msg,
                                         has_tab ? ". Indent with spaces; YAML forbids tabs there" : ""));
  }
}

bool is_plain_string(const std::string& text) {
  if (text.empty() || (std::isalpha(static_cast<unsigned char>(text.front())) == 0 && text.front() != '/')) {
    return false;
  }
  const bool plain_letters = std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '/' || c == '.' || c == '-';
  });
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* word : {"true", "false", "null", "yes", "no", "on", "off", "y", "n", "inf", "nan"}) {
    if (lower == word) return false;
  }
  return plain_letters;
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      result += fmt::format("\\x{:02X}", byte);
    } else {
      result += c;
    }
  }
  return result + "\"";
}

std::string format_string(const std::string& text) {
  return is_plain_string(text) ? text : quoted(text);
}

}  // namespace

std::string format_option_value(const OptionValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return format_string(*text);
  if (const auto* integer = std::get_if<int64_t>(&value)) return fmt::format("{}", *integer);
  if (const auto* real = std::get_if<double>(&value)) return fmt::format("{}", *real);
  if (const auto* boolean = std::get_if<bool>(&value)) return *boolean ? "true" : "false";
  std::vector<std::string> elements;
  for (const std::string& element : std::get<std::vector<std::string>>(value)) {
    elements.push_back(format_string(element));
  }
  return fmt::format("[{}]", fmt::join(elements, ", "));
}

// Walks a recipe's nodes; one use per file.
class OptionYamlReader {
 public:
  OptionYamlReader(const OptionCatalog& catalog, const std::string& file, OptionMistakes& mistakes)
      : catalog_(catalog), file_(file), mistakes_(mistakes) {}

  std::vector<OptionSetting> read(const std::string& text) {
    const LoadedText loaded = load_text(text, file_);
    if (loaded.second) {
      throw ConfigurationError(place(file_, *loaded.second) +
                               ": a recipe is one YAML document, but here a second one begins");
    }
    for (const YamlTag& tag : loaded.tags) {
      mistakes_.add(
          fmt::format("{}: the YAML tag {} has no meaning here, since every option has its type; leave it out",
                      place(file_, tag.mark), tag_as_written(tag.text)));
    }
    const YAML::Node& root = loaded.first;
    if (root.IsNull()) return {};
    if (!root.IsMap()) {
      throw ConfigurationError(
          fmt::format("{}: a recipe is a map of sections (\"model:\", \"data:\", ...), but this is {}",
                      place(file_, root.Mark()), kind_words(root)));
    }
    for (const auto& entry : root) {
      const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : std::string();
      mistakes_.collect([&] { read_section(entry.first, entry.second); }, catalog_.options_meant_by("", name));
    }
    return std::move(settings_);
  }

 private:
  // The text of a key. Keys that are maps or lists are nonsense here.
  std::string key_text(const YAML::Node& key) const {
    if (!key.IsScalar()) {
      throw ConfigurationError(
          fmt::format("{}: a name is expected here, but this is {}", place(file_, key.Mark()), kind_words(key)));
    }
    return key.Scalar();
  }

  // Throws when `name` was there before; yaml-cpp keeps both.
  void note(const std::string& name, const std::string& where) {
    const auto [found, fresh] = seen_.emplace(name, where);
    if (!fresh) {
      throw ConfigurationError(fmt::format("{}: {} is there twice; the first time at {}", where, name, found->second));
    }
  }

  void read_section(const YAML::Node& key, const YAML::Node& value) {
    const std::string name = key_text(key);
    const std::string where = place(file_, key.Mark());
    if (!catalog_.has_section(name)) catalog_.fail_unknown_section(name, where);
    note("section \"" + name + "\"", where);
    if (value.IsNull()) return;
    if (!value.IsMap()) {
      const std::string first = catalog_.names_of(name).front();
      throw ConfigurationError(
          fmt::format("{}: section \"{}\" must hold lines \"name: value\", but it holds {}; below \"{}:\", indented, "
                      "goes for example \"{}: {}\"",
                      where, name, kind_words(value), name, first, value.IsScalar() ? value.Scalar() : "..."));
    }
    for (const auto& entry : value) {
      const std::string option = entry.first.IsScalar() ? entry.first.Scalar() : std::string();
      std::vector<std::string> about = catalog_.options_meant_by(name, option);
      if (catalog_.find(name, option)) about = {name + "." + option};
      mistakes_.collect([&] { read_option(name, entry.first, entry.second); }, about);
    }
  }

  void read_option(const std::string& section, const YAML::Node& key, const YAML::Node& value) {
    const std::string name = key_text(key);
    const std::string key_place = place(file_, key.Mark());
    const std::optional<size_t> index = catalog_.find(section, name);
    if (!index) catalog_.fail_unknown_option(section, name, key_place);
    const Option& option = catalog_.options()[*index];
    note(option.full_name(), key_place);
    const std::string where = value.IsNull() ? key_place : place(file_, value.Mark());
    if (value.IsNull()) {
      throw ConfigurationError(fmt::format("{}: {} has no value; it is {}{}", where, option.full_name(),
                                           option.describe_type_in_sentence(),
                                           option.text.required ? "" : ". Leave the line out for the default"));
    }
    OptionSetting setting{*index, {}, where};
    if (option.type == OptionType::string_list && value.IsSequence()) {
      setting.value = read_list(option, value);
    } else if (value.IsScalar()) {
      setting.value = catalog_.parse_scalar(option, value.Scalar(), is_quoted(value), where);
    } else {
      throw ConfigurationError(fmt::format("{}: {} must be {}, but this is {}", where, option.full_name(),
                                           option.describe_type_in_sentence(), kind_words(value)));
    }
    catalog_.check_value(option, setting.value, where);
    settings_.push_back(std::move(setting));
  }

  std::vector<std::string> read_list(const Option& option, const YAML::Node& list) const {
    std::vector<std::string> result;
    for (const YAML::Node& element : list) {
      if (!element.IsScalar()) {
        throw ConfigurationError(fmt::format("{}: {} is a list of strings, but this element is {}",
                                             place(file_, element.Mark()), option.full_name(), kind_words(element)));
      }
      result.push_back(element.Scalar());
    }
    return result;
  }

  const OptionCatalog& catalog_;
  const std::string& file_;
  OptionMistakes& mistakes_;
  std::map<std::string, std::string> seen_;
  std::vector<OptionSetting> settings_;
};

std::vector<OptionSetting> OptionCatalog::read_yaml(const std::string& text, const std::string& file) const {
  OptionMistakes mistakes;
  std::vector<OptionSetting> settings = read_yaml(text, file, mistakes);
  mistakes.throw_if_any();
  return settings;
}

std::vector<OptionSetting> OptionCatalog::read_yaml(const std::string& text, const std::string& file,
                                                    OptionMistakes& mistakes) const {
  return OptionYamlReader(*this, file, mistakes).read(text);
}

std::vector<std::string> OptionCatalog::parse_list(const Option& option, const std::string& text,
                                                   const std::string& where) const {
  if (!text.starts_with('[')) return {text};
  const LoadedText loaded = load_text(text, where);
  const bool is_list = !loaded.second && loaded.tags.empty() && loaded.first.IsSequence();
  std::vector<std::string> result;
  if (is_list) {
    for (const YAML::Node& element : loaded.first) {
      if (element.IsScalar()) result.push_back(element.Scalar());
    }
  }
  if (!is_list || result.size() != loaded.first.size()) {
    throw ConfigurationError(fmt::format("{}: {} is a list of strings: [first, second]", where, option.full_name()));
  }
  return result;
}

OptionSetting OptionCatalog::read_assignment(const std::string& assignment) const {
  const std::string where = "--set " + assignment;
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw ConfigurationError(where + ": this must be section.name=value, for example train.max_steps=100");
  }
  const std::string full_name = assignment.substr(0, equals);
  const std::string text = assignment.substr(equals + 1);
  const size_t dot = full_name.find('.');
  if (dot == std::string::npos) {
    if (has_section(full_name)) {
      throw ConfigurationError(fmt::format("{}: \"{}\" is a section; name an option of it: {}.{}=...", where, full_name,
                                           full_name, names_of(full_name).front()));
    }
    fail_unknown_section(full_name, where);
  }
  const std::string section = full_name.substr(0, dot);
  const std::string name = full_name.substr(dot + 1);
  if (!has_section(section)) fail_unknown_section(section, where);
  const std::optional<size_t> index = find(section, name);
  if (!index) fail_unknown_option(section, name, where);
  const Option& option = options_[*index];
  OptionSetting setting{*index, {}, where};
  if (text.empty() && option.type != OptionType::string) {
    throw ConfigurationError(
        fmt::format("{}: {} has no value; it is {}", where, full_name, option.describe_type_in_sentence()));
  }
  if (option.type == OptionType::string_list) {
    setting.value = parse_list(option, text, where);
  } else {
    setting.value = parse_scalar(option, text, false, where);
  }
  check_value(option, setting.value, where);
  return setting;
}

std::string OptionCatalog::write_yaml(std::span<const OptionValue> values, const std::string& heading,
                                      const std::set<size_t>& left_out) const {
  require(values.size() == options_.size(), "write_yaml needs one value for every option");
  std::string out;
  size_t begin = 0;
  while (begin < heading.size()) {
    const size_t end = std::min(heading.find('\n', begin), heading.size());
    out += "# " + heading.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  for (const OptionSectionText& section : sections_) {
    out += section.name + ":\n";
    for (size_t i = 0; i < options_.size(); ++i) {
      if (options_[i].section == section.name && !left_out.contains(i)) {
        out += fmt::format("  {}: {}\n", options_[i].name, format_option_value(values[i]));
      }
    }
  }
  return out;
}

}  // namespace ithaca
