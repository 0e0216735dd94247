#include "cli/completion.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <ostream>
#include <string_view>

#include "cli/program.h"
#include "train/recipe_options.h"

namespace ithaca {

namespace {

constexpr const char* kBashScript =
    R"bash(# Completion of ithaca for bash. Use it in every shell:  source <(ithaca completion bash)
# or for good:  ithaca completion bash > ~/.local/share/bash-completion/completions/ithaca
_ithaca() {
  # Bash cuts words at '=' and ':'; put them together again.
  local words=() word previous="" i
  for ((i = 1; i <= COMP_CWORD; ++i)); do
    word="${COMP_WORDS[i]}"
    if ((${#words[@]} > 0)) && { [[ $word == [=:]* ]] || [[ $previous == *[=:] ]]; }; then
      words[${#words[@]} - 1]+="$word"
    else
      words+=("$word")
    fi
    previous="$word"
  done
  local current="${words[${#words[@]} - 1]}"
  # What bash holds as words of their own must not be repeated.
  local held=""
  [[ $COMP_WORDBREAKS == *=* && $current == *=* ]] && held="${current%"${current##*=}"}"
  [[ $COMP_WORDBREAKS == *:* && ${current#"$held"} == *:* ]] && held="${current%"${current##*:}"}"
  COMPREPLY=()
  local line text prefix path
  while IFS= read -r line; do
    case $line in
      ':file '* | ':folder '*)
        prefix="${line#:* }"
        compopt -o filenames 2>/dev/null
        local kind=-f
        [[ $line == ':folder '* ]] && kind=-d
        while IFS= read -r path; do
          text="$prefix$path"
          COMPREPLY+=("${text#"$held"}")
        done < <(compgen "$kind" -- "${current#"$prefix"}")
        ;;
      *)
        text="${line%%$'\t'*}"
        COMPREPLY+=("${text#"$held"}")
        [[ $text == *= ]] && compopt -o nospace 2>/dev/null
        ;;
    esac
  done < <("${COMP_WORDS[0]}" complete -- "${words[@]}" 2>/dev/null)
}
complete -F _ithaca ithaca
)bash";

constexpr const char* kZshScript = R"zsh(#compdef ithaca
# Completion of ithaca for zsh. Use it in every shell, after compinit:  source <(ithaca completion zsh)
# or for good:  ithaca completion zsh > a folder of $fpath, as the file _ithaca
_ithaca() {
  local line text
  local -a closed closed_display open open_display
  while IFS= read -r line; do
    case $line in
      ':file '*|':folder '*)
        local prefix="${line#:* }"
        [[ -n $prefix ]] && compset -P "*="
        if [[ $line == ':folder '* ]]; then _files -/; else _files; fi
        ;;
      *)
        text="${line%%$'\t'*}"
        if [[ $text == *= ]]; then
          open+=("$text")
          open_display+=("$text  ${line#*$'\t'}")
        else
          closed+=("$text")
          closed_display+=("$text  ${line#*$'\t'}")
        fi
        ;;
    esac
  done < <("${(Q)words[1]}" complete -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)
  (( ${#open} )) && compadd -l -S '' -d open_display -a open
  (( ${#closed} )) && compadd -l -d closed_display -a closed
  return 0
}
if [[ ${funcstack[1]} == _ithaca ]]; then
  _ithaca "$@"
else
  compdef _ithaca ithaca
fi
)zsh";

constexpr const char* kFishScript =
    R"fish(# Completion of ithaca for fish. Use it in every shell:  ithaca completion fish | source
# or for good:  ithaca completion fish > ~/.config/fish/completions/ithaca.fish
function __ithaca_complete
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    set -l program $before[1]
    set -e before[1]
    for line in ($program complete -- $before "$current" 2>/dev/null)
        switch $line
            case ':file *' ':folder *'
                set -l prefix (string replace -r '^:[a-z]+ ' '' -- $line)
                set -l typed (string sub -s (math (string length -- "$prefix") + 1) -- "$current")
                set -l paths
                if string match -q ':folder *' -- $line
                    set paths (__fish_complete_directories "$typed" '')
                else
                    set paths (__fish_complete_path "$typed")
                end
                for path in $paths
                    echo "$prefix$path"
                end
            case '*'
                echo $line
        end
    end
end
complete -c ithaca -f -a '(__ithaca_complete)'
)fish";

// What may stand where a value is expected.
enum class ValueKind : uint8_t { none, assignment, backend, option_name, shell, resume, file, folder };

// Of flags and of positional arguments, which CLI11 knows by name only.
ValueKind kind_of(const std::string& name) {
  if (name == "--set") return ValueKind::assignment;
  if (name == "--backend") return ValueKind::backend;
  if (name == "--resume") return ValueKind::resume;
  if (name == "name") return ValueKind::option_name;
  if (name == "shell") return ValueKind::shell;
  if (name == "run" || name == "runs") return ValueKind::folder;
  return ValueKind::file;
}

ValueKind kind_of(const CLI::Option& option) {
  if (option.get_positional()) return kind_of(option.get_name(true));
  const std::string name = option.get_name();
  const ValueKind kind = kind_of(name);
  if (kind != ValueKind::file) return kind;
  // Numbers, lists and names have nothing to offer; paths have.
  std::string type = option.get_type_name();
  std::transform(type.begin(), type.end(), type.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* word : {"folder", "dir", "run"}) {
    if (type.find(word) != std::string::npos) return ValueKind::folder;
  }
  for (const char* word : {"file", "path", "html"}) {
    if (type.find(word) != std::string::npos) return ValueKind::file;
  }
  return ValueKind::none;
}

class Completer {
 public:
  Completer(const OptionCatalog& catalog, std::string current) : catalog_(catalog), current_(std::move(current)) {}

  Completion take() { return std::move(result_); }

  void offer(const std::string& text, const std::string& meaning) {
    if (text.starts_with(current_)) result_.words.push_back({text, meaning});
  }

  // A value that begins after `prefix` of the current word.
  void offer_value(ValueKind kind, const std::string& prefix) {
    switch (kind) {
      case ValueKind::none:
        return;
      case ValueKind::assignment:
        return offer_assignment(prefix);
      case ValueKind::backend:
        if (const auto index = catalog_.find("train", "backend")) offer_choices(catalog_.options()[*index], prefix);
        return;
      case ValueKind::option_name:
        for (const OptionSectionText& section : catalog_.sections()) offer(prefix + section.name, section.help);
        for (const Option& option : catalog_.options()) offer(prefix + option.full_name(), option.text.help);
        return;
      case ValueKind::shell:
        for (const char* shell : {"bash", "zsh", "fish"}) offer(prefix + shell, "the script for this shell");
        return;
      case ValueKind::resume:
        offer(prefix + "latest", "the newest checkpoint of the run");
        result_.path = OptionPath::folder;
        result_.path_prefix = prefix;
        return;
      case ValueKind::file:
      case ValueKind::folder:
        result_.path = kind == ValueKind::file ? OptionPath::file : OptionPath::folder;
        result_.path_prefix = prefix;
        return;
    }
  }

 private:
  void offer_choices(const Option& option, const std::string& prefix) {
    const std::string standard = format_option_value(option.default_value);
    const auto meaning = [&](const std::string& value) { return value == standard ? "the default" : option.text.help; };
    for (const std::string& choice : option.text.choices) offer(prefix + choice, meaning(choice));
    if (option.type == OptionType::boolean) {
      for (const char* value : {"true", "false"}) offer(prefix + value, meaning(value));
    }
  }

  // section.name=value, as --set takes it.
  void offer_assignment(const std::string& prefix) {
    const std::string typed = current_.substr(std::min(prefix.size(), current_.size()));
    const size_t equals = typed.find('=');
    if (equals == std::string::npos) {
      for (const Option& option : catalog_.options()) offer(prefix + option.full_name() + "=", option.text.help);
      return;
    }
    for (const Option& option : catalog_.options()) {
      if (option.full_name() != typed.substr(0, equals)) continue;
      const std::string with_name = prefix + typed.substr(0, equals + 1);
      offer_choices(option, with_name);
      if (option.text.path != OptionPath::none) {
        result_.path = option.text.path;
        result_.path_prefix = with_name;
      }
    }
  }

  const OptionCatalog& catalog_;
  std::string current_;
  Completion result_;
};

// Whether the flag takes a value that is the next word.
bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_max() > 0;
}

const CLI::Option* find_flag(const CLI::App& command, const std::string& word) {
  return word.starts_with("-") ? command.get_option_no_throw(word) : nullptr;
}

// Flags that are shown in the help, by all of their long names.
void offer_flags(const CLI::App& command, Completer& completer) {
  for (const CLI::Option* option :
       command.get_options([](const CLI::Option* known) { return !known->get_group().empty(); })) {
    for (const std::string& name : option->get_lnames()) completer.offer("--" + name, option->get_description());
  }
}

std::vector<const CLI::App*> commands_of(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App* known) { return !known->get_group().empty(); });
}

// `command` may have commands of its own, and these too: the program itself is the outermost.
void offer_for_command(const CLI::App& command, std::span<const std::string> words, Completer& completer) {
  const std::string& current = words.back();
  const std::vector<const CLI::App*> commands = commands_of(command);
  size_t positionals = 0;
  const CLI::Option* waiting = nullptr;  // a flag whose value comes next
  for (size_t index = 0; index + 1 < words.size(); ++index) {
    const std::string& word = words[index];
    const bool is_value = waiting != nullptr;
    for (const CLI::App* inner : commands) {
      if (!is_value && inner->get_name() == word) return offer_for_command(*inner, words.subspan(index + 1), completer);
    }
    if (waiting != nullptr) {
      waiting = nullptr;
      continue;
    }
    const CLI::Option* flag = find_flag(command, word.substr(0, word.find('=')));
    if (flag == nullptr) {
      positionals += word.starts_with("-") ? 0 : 1;
    } else if (takes_value(*flag) && word.find('=') == std::string::npos) {
      waiting = flag;
    }
  }
  if (waiting != nullptr) return completer.offer_value(kind_of(*waiting), "");
  const size_t equals = current.find('=');
  if (current.starts_with("--") && equals != std::string::npos) {
    const CLI::Option* flag = find_flag(command, current.substr(0, equals));
    if (flag != nullptr && takes_value(*flag)) completer.offer_value(kind_of(*flag), current.substr(0, equals + 1));
    return;
  }
  if (current.starts_with("-")) return offer_flags(command, completer);
  if (positionals == 0) {
    for (const CLI::App* inner : commands) completer.offer(inner->get_name(), inner->get_description());
  }
  size_t index = 0;
  for (const CLI::Option* option :
       command.get_options([](const CLI::Option* known) { return known->get_positional(); })) {
    const bool takes_all = option->get_items_expected_max() > 1;
    if (index++ == positionals || (takes_all && index <= positionals)) {
      completer.offer_value(kind_of(*option), "");
      return;
    }
  }
  // Where a command has to come, nothing else may.
  if (commands.empty()) offer_flags(command, completer);
}

}  // namespace

Completion complete_words(const CLI::App& app, const OptionCatalog& catalog, std::span<const std::string> words) {
  require(!words.empty(), "the word under the cursor is missing");
  Completer completer(catalog, words.back());
  offer_for_command(app, words, completer);
  return completer.take();
}

void declare_completion(CLI::App& app, CompletionArguments& arguments) {
  CLI::App* command = app.add_subcommand("completion", "Print a script that lets a shell complete with TAB");
  command->add_option("shell", arguments.shell, "bash, zsh or fish")->required();
  command->footer(
      "For this shell:\n  bash: source <(ithaca completion bash)\n  zsh:  source <(ithaca completion zsh)\n"
      "  fish: ithaca completion fish | source\nThe beginning of each script says how to keep it.");
}

int completion_command(const CompletionArguments& arguments, std::ostream& out) {
  if (arguments.shell == "bash") {
    out << kBashScript;
  } else if (arguments.shell == "zsh") {
    out << kZshScript;
  } else if (arguments.shell == "fish") {
    out << kFishScript;
  } else {
    throw ConfigurationError(
        fmt::format("completion: there is no script for \"{}\"; there are bash, zsh and fish", arguments.shell));
  }
  return kExitDone;
}

int complete_command(const CLI::App& app, std::span<const std::string> words, std::ostream& out) {
  if (words.empty()) return kExitDone;
  const Completion completion = complete_words(app, recipe_table().catalog(), words);
  for (const CompletionWord& word : completion.words) out << word.text << '\t' << word.meaning << '\n';
  if (completion.path != OptionPath::none) {
    out << (completion.path == OptionPath::file ? ":file " : ":folder ") << completion.path_prefix << '\n';
  }
  return kExitDone;
}

}  // namespace ithaca
