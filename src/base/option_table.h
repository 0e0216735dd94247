// The one table of options: every option is declared once, with its name, type, default, unit, range and help, and
// bound to a member of a struct. From that one table come the YAML reader, `--set section.name=value`, the help text,
// docs/config.md and the resolved configuration that a run keeps.
//
// OptionCatalog is everything that does not depend on the struct (names, values, texts, reading, writing);
// OptionTable<Root> adds the binding to `Root`, whose default member values are the defaults of the options, and the
// rules between options. Nothing is ever ignored: what cannot be understood throws ConfigurationError, which says where
// (file:line:column, or the --set argument), what is wrong and what is nearest.
//
// Thread-safety: immutable once built; share freely.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/given_options.h"

namespace ithaca {

enum class OptionType : uint8_t { string, choice, integer, real, boolean, string_list };

// The value of an option: string and choice, integer, real, boolean, list of strings.
using OptionValue = std::variant<std::string, int64_t, double, bool, std::vector<std::string>>;

// Allowed numbers; absent bounds are unbounded. NaN and infinities are never allowed.
struct OptionRange {
  std::optional<double> at_least = {};
  std::optional<double> above = {};
  std::optional<double> at_most = {};
  std::optional<double> below = {};

  bool contains(double value) const;
  // "at least 0 and below 1"; empty when everything is allowed.
  std::string describe() const;
};

// A value that is known but that this version does not have; `advice` says what comes nearest.
struct LaterChoice {
  std::string value;
  std::string advice;
};

// What a path that an option holds names: what a shell completes after "section.name=".
enum class OptionPath : uint8_t { none, file, folder };

// What is said about an option besides its name, type and default.
struct OptionText {
  std::string help = {};     // one sentence or two
  std::string unit = {};     // "tokens", "seconds", ...; empty: a pure number
  std::string example = {};  // a value as it stands in a recipe
  std::vector<std::string> choices = {};
  std::vector<LaterChoice> later_choices = {};
  OptionRange range = {};
  bool required = false;  // must be given and not empty
  OptionPath path = OptionPath::none;
};

struct Option {
  std::string section;
  std::string name;
  OptionType type = OptionType::string;
  OptionValue default_value;
  OptionText text;

  std::string full_name() const { return section + "." + name; }
  // "integer, at least 1, in tokens".
  std::string describe_type() const;
  // "an integer, at least 1, in tokens".
  std::string describe_type_in_sentence() const;
};

struct OptionSectionText {
  std::string name;
  std::string help;
};

// A name that other programs use, and what it is here.
struct ForeignOption {
  std::string name;           // without section, lower case, with underscores; '*' at its end stands for all endings
  std::string ours;           // "parallel.sp_size", "train.micro_batch_size x ..."; empty: there is no counterpart
  std::string remark = {};    // what else to know, as a sentence without its full stop; needed where `ours` is empty
  std::string programs = {};  // who spells it so, separated by spaces: "trl axolotl"
};

// An option that this version does not have; a name that ends in '*' stands for all names with that beginning.
struct AbsentOption {
  std::string section;
  std::string name;
  std::string advice;  // what comes nearest, as a sentence
};

// Several mistakes at once: what() has a line for each.
class ConfigurationMistakes : public ConfigurationError {
 public:
  explicit ConfigurationMistakes(std::vector<std::string> lines);
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

// Collects the mistakes of a recipe, so that all of them are told and not only the first.
// Thread-safety: one thread at a time.
class OptionMistakes {
 public:
  // `about`: full names of the options that the mistake leaves without a value to go by.
  void add(std::string line, const std::vector<std::string>& about = {});
  // Runs `action` and collects the ConfigurationError that it throws. Returns whether there was none.
  template <typename Action>
  bool collect(Action&& action, const std::vector<std::string>& about = {}) {
    try {
      action();
      return true;
    } catch (const ConfigurationError& error) {
      add(error.what(), about);
      return false;
    }
  }
  // Whether a mistake is about the option: then what would follow from its value is not worth saying.
  bool concern(const std::string& full_name) const { return about_.contains(full_name); }
  // Throws ConfigurationError for one mistake, ConfigurationMistakes for several.
  void throw_if_any() const;

 private:
  std::vector<std::string> lines_;
  std::set<std::string> about_;
};

// One value that was given, and where: "run.yaml:3:5" or "--set parallel.sp_size=4".
struct OptionSetting {
  size_t option = 0;  // index into OptionCatalog::options()
  OptionValue value;
  std::string where;
};

// The text of a value as it stands in a YAML file: strings are quoted when they must be, reals are written so that they
// read back as the same double.
std::string format_option_value(const OptionValue& value);

class OptionCatalog {
 public:
  void add_section(OptionSectionText section);
  void add_option(Option option);
  void add_foreign(ForeignOption foreign);
  void add_absent(AbsentOption absent);
  void add_rule_text(std::string sentence);

  const std::vector<OptionSectionText>& sections() const { return sections_; }
  const std::vector<Option>& options() const { return options_; }
  const std::vector<ForeignOption>& foreign() const { return foreign_; }
  const std::vector<AbsentOption>& absent() const { return absent_; }
  bool has_section(std::string_view name) const;
  // Index of an option, or nothing.
  std::optional<size_t> find(std::string_view section, std::string_view name) const;
  // Options that a name of another program stands for; for a section's name all of that section.
  std::vector<std::string> options_meant_by(const std::string& section, const std::string& name) const;

  // Index of "section.name". Throws ContractError when there is none: for names written in the program.
  size_t index_of(std::string_view full_name) const;

  // The settings in the text of a recipe, in its order. `file` names it in messages. The first form throws what is
  // wrong, the second collects it and returns what is right.
  std::vector<OptionSetting> read_yaml(const std::string& text, const std::string& file) const;
  std::vector<OptionSetting> read_yaml(const std::string& text, const std::string& file,
                                       OptionMistakes& mistakes) const;

  // "section.name=value", the value as in YAML; strings need no quotes. A list is written [a, b], or as one string.
  OptionSetting read_assignment(const std::string& assignment) const;

  // The options that an assignment, right or wrong, is about.
  std::vector<std::string> options_of(const std::string& assignment) const;

  // The options with their types, defaults, units and examples, for a terminal of `width` columns.
  std::string help_text(size_t width = 100) const;
  // One option, "section.name" (or a name that only one section has), in the same form.
  std::string help_text_of(const std::string& name, size_t width = 100) const;
  // The same, with the rules, as a Markdown page.
  std::string markdown() const;
  // The rows of a Markdown table "there | here": every name that `program` uses for something.
  std::string foreign_markdown(const std::string& program) const;
  // The same options for a man page, in the man macros of groff.
  std::string man_text() const;
  // A YAML file with a value for every option, in the order of options(), but for those that are left out. read_yaml
  // gives the same values back.
  std::string write_yaml(std::span<const OptionValue> values, const std::string& heading,
                         const std::set<size_t>& left_out = {}) const;

  // Throws ConfigurationError when `value` is not allowed for the option.
  void check_value(const Option& option, const OptionValue& value, const std::string& where) const;

 private:
  friend class OptionYamlReader;

  std::vector<std::string> names_of(std::string_view section) const;
  std::vector<std::string> section_names() const;
  // Throw ConfigurationError with the best advice there is.
  [[noreturn]] void fail_unknown_option(const std::string& section, const std::string& name,
                                        const std::string& where) const;
  [[noreturn]] void fail_unknown_section(const std::string& name, const std::string& where) const;
  const ForeignOption* find_foreign(const std::string& normalized_name) const;
  // "is parallel.sp_size here" and what else there is to say.
  std::string describe_foreign(const ForeignOption& foreign) const;
  // What it is here, for a cell of a Markdown table.
  std::string foreign_cell(const ForeignOption& foreign) const;
  // The absent option of that full name, or nothing.
  const AbsentOption* find_absent(std::string_view full_name) const;
  // Advice for a name of another program or another version, whatever section it stands in; empty when there is none.
  std::string foreign_advice(const std::string& section, const std::string& name) const;
  // The value of one scalar. `quoted`: it stood in quotes, so it is a string whatever it looks like.
  OptionValue parse_scalar(const Option& option, const std::string& text, bool quoted, const std::string& where) const;
  std::vector<std::string> parse_list(const Option& option, const std::string& text, const std::string& where) const;
  void append_option_help(const Option& option, size_t width, std::string& out) const;

  std::vector<OptionSectionText> sections_;
  std::vector<Option> options_;
  std::vector<ForeignOption> foreign_;
  std::vector<AbsentOption> absent_;
  std::vector<std::string> rule_texts_;
};

template <typename Root>
class OptionTable {
 public:
  // Names what is wrong and what would work when the rule is broken; empty when it holds.
  using RuleCheck = std::function<std::string(const Root&)>;

  // Declares the options of one section, which is the member `section` of Root.
  template <typename Section>
  class SectionBuilder {
   public:
    SectionBuilder(OptionTable& table, std::string name, Section Root::*section)
        : table_(table), name_(std::move(name)), section_(section) {}

    // Binds the option `name` to a member: std::string (a choice where text.choices is not empty), int64_t, double,
    // bool or std::vector<std::string>.
    template <typename Member>
    SectionBuilder& option(std::string name, Member Section::*member, OptionText text) {
      static_assert(std::is_constructible_v<OptionValue, Member>, "an option holds one of OptionValue's types");
      Option option;
      option.section = name_;
      option.name = std::move(name);
      option.type = type_of<Member>(!text.choices.empty());
      option.default_value = Root{}.*section_.*member;
      option.text = std::move(text);
      table_.catalog_.add_option(std::move(option));
      const auto section = section_;
      table_.setters_.push_back(
          [section, member](Root& root, const OptionValue& value) { root.*section.*member = std::get<Member>(value); });
      table_.getters_.push_back([section, member](const Root& root) { return OptionValue(root.*section.*member); });
      return *this;
    }

   private:
    template <typename Member>
    static constexpr OptionType type_of(bool has_choices) {
      if constexpr (std::is_same_v<Member, std::string>) return has_choices ? OptionType::choice : OptionType::string;
      if constexpr (std::is_same_v<Member, int64_t>) return OptionType::integer;
      if constexpr (std::is_same_v<Member, double>) return OptionType::real;
      if constexpr (std::is_same_v<Member, bool>) return OptionType::boolean;
      return OptionType::string_list;
    }

    OptionTable& table_;
    std::string name_;
    Section Root::*section_;
  };

  template <typename Section>
  SectionBuilder<Section> section(std::string name, Section Root::*section, std::string help) {
    catalog_.add_section({name, std::move(help)});
    return SectionBuilder<Section>(*this, std::move(name), section);
  }

  // A rule between options. `sentence` documents it; `options` (full names) are those it is about, the first of them
  // that was given is where a breach is reported.
  void rule(std::vector<std::string> options, std::string sentence, RuleCheck check) {
    for (const std::string& name : options) catalog_.index_of(name);
    catalog_.add_rule_text(std::move(sentence));
    rules_.push_back({std::move(options), std::move(check), false});
  }

  // A rule about an option that the rest may leave without any effect: `check` says by what. It is broken where the
  // option was given all the same, with its default value too, and write_yaml leaves the option out there.
  void idle_rule(std::string option, std::string sentence, RuleCheck check) {
    rule({std::move(option)}, std::move(sentence), std::move(check));
    rules_.back().is_idle = true;
  }

  OptionCatalog& catalog() { return catalog_; }
  const OptionCatalog& catalog() const { return catalog_; }

  // Puts the values into `root`, later ones over earlier ones, and notes them in `given`.
  void apply(std::span<const OptionSetting> settings, Root& root, GivenOptions& given) const {
    for (const OptionSetting& setting : settings) {
      setters_[setting.option](root, setting.value);
      given.add(catalog_.options()[setting.option].full_name(), setting.where);
    }
  }

  // Throws for values that are not allowed, required options that are missing and rules that are broken. `file` stands
  // for the place of what was not given.
  void check(const Root& root, const GivenOptions& given, const std::string& file) const {
    OptionMistakes mistakes;
    check(root, given, file, mistakes);
    mistakes.throw_if_any();
  }
  // The same, collected; nothing is said about options that a mistake is about already.
  void check(const Root& root, const GivenOptions& given, const std::string& file, OptionMistakes& mistakes) const {
    for (size_t i = 0; i < getters_.size(); ++i) {
      const Option& option = catalog_.options()[i];
      const std::string name = option.full_name();
      if (mistakes.concern(name)) continue;
      const std::string where = given.where(name);
      mistakes.collect([&] { catalog_.check_value(option, getters_[i](root), where.empty() ? file : where); }, {name});
    }
    for (const Rule& rule : rules_) {
      const bool is_muddled = std::any_of(rule.options.begin(), rule.options.end(),
                                          [&](const std::string& name) { return mistakes.concern(name); });
      if (is_muddled || (rule.is_idle && !given.contains(rule.options.front()))) continue;
      const std::string breach = rule.check(root);
      if (breach.empty()) continue;
      std::string where = file;
      for (const std::string& name : rule.options) {
        if (given.contains(name)) {
          where = given.where(name);
          break;
        }
      }
      mistakes.add(where.append(": ").append(breach), rule.options);
    }
  }

  // Every option's value in `root`, in the order of catalog().options().
  std::vector<OptionValue> values(const Root& root) const {
    std::vector<OptionValue> values;
    values.reserve(getters_.size());
    for (const auto& get : getters_) values.push_back(get(root));
    return values;
  }

  // A YAML file with the value in `root` of every option that has an effect there.
  std::string write_yaml(const Root& root, const std::string& heading) const {
    std::set<size_t> left_out;
    for (const Rule& rule : rules_) {
      if (rule.is_idle && !rule.check(root).empty()) left_out.insert(catalog_.index_of(rule.options.front()));
    }
    return catalog_.write_yaml(values(root), heading, left_out);
  }

 private:
  struct Rule {
    std::vector<std::string> options;
    RuleCheck check;
    bool is_idle;
  };

  OptionCatalog catalog_;
  std::vector<std::function<void(Root&, const OptionValue&)>> setters_;
  std::vector<std::function<OptionValue(const Root&)>> getters_;
  std::vector<Rule> rules_;
};

}  // namespace ithaca
