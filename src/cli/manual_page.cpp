#include "cli/manual_page.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/text.h"

namespace ithaca {

namespace {

std::string bold(const std::string& text) {
  return "\\fB" + escape_man_text(text) + "\\fR";
}

std::string italic(const std::string& text) {
  return "\\fI" + escape_man_text(text) + "\\fR";
}

std::string with_full_stop(std::string text) {
  if (!text.empty() && text.back() != '.') text += '.';
  return text;
}

// CLI11 writes "TEXT" or "INT" where a command gave no better name.
std::string value_name(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return {};
  const std::string name = option.get_type_name();
  return name == "TEXT" || name.empty() ? "VALUE" : name;
}

// "--set OPTION", "-q, --quiet".
std::string flag_names(const CLI::Option& option) {
  std::string names;
  for (const std::string& name : option.get_snames()) names += (names.empty() ? "" : ", ") + bold("-" + name);
  for (const std::string& name : option.get_lnames()) names += (names.empty() ? "" : ", ") + bold("--" + name);
  const std::string value = value_name(option);
  return value.empty() ? names : names + " " + italic(value);
}

std::vector<const CLI::Option*> shown_options(const CLI::App& command) {
  return command.get_options([](const CLI::Option* option) { return !option->get_group().empty(); });
}

std::vector<const CLI::App*> shown_commands(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App* known) { return !known->get_group().empty(); });
}

// A command with its flags, then its own commands. `caller` is what stands before its name: "ithaca", "ithaca bench".
void append_command(const CLI::App& command, const std::string& caller, std::string& out) {
  const std::string name_in_full = caller + " " + command.get_name();
  const std::vector<const CLI::App*> commands = shown_commands(command);
  out += ".SS " + escape_man_text(name_in_full);
  for (const CLI::Option* option : shown_options(command)) {
    if (!option->get_positional()) continue;
    std::string name = option->get_name(true);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
    out += option->get_required() ? " " + name : " [" + name + "]";
  }
  if (!commands.empty()) out += command.get_require_subcommand_min() > 0 ? " COMMAND" : " [COMMAND]";
  out += "\n" + escape_man_text(with_full_stop(command.get_description())) + "\n";
  for (const CLI::Option* option : shown_options(command)) {
    if (option->get_name() == "--help" || option->get_lnames() == std::vector<std::string>{"help"}) continue;
    const std::string names = option->get_positional() ? italic(option->get_name(true)) : flag_names(*option);
    out += ".TP\n" + names + "\n" + escape_man_text(with_full_stop(option->get_description())) + "\n";
  }
  for (const CLI::App* inner : commands) append_command(*inner, name_in_full, out);
}

constexpr const char* kEnd = R"man(.SH EXIT STATUS
.TP
0
Done.
.TP
1
Failed: a file is damaged, a disk is full, memory ran out, training diverged.
.TP
2
A mistake in the command line or in a recipe; nothing was started.
.TP
3
A training run was stopped early by Ctrl\-C, SIGTERM or a closed terminal; other commands end by the signal. The
first signal lets the step at hand finish and exports the model; a second one ends the program at once and says what was left.
.SH ENVIRONMENT
.TP
NO_COLOR
When it is set and not empty, nothing is printed in colour or bold.
.TP
COLUMNS
Width of the terminal where the terminal itself does not tell.
.SH FILES
.TP
.I config.yaml
In a run's folder: every option of the run, a recipe that trains it again.
.TP
.I metrics.jsonl
In a run's folder: one JSON object for every optimizer step.
.TP
.I log.txt
In a run's folder: what was printed, with times.
.TP
.I export/
In a run's folder: the trained model, a Hugging Face directory.
.SH EXAMPLES
Train as a recipe says, with another learning rate and on four ranks:
.PP
.RS
.nf
ithaca train run.yaml \-\-set optim.learning_rate=1e\-5 \-\-ranks 4
.fi
.RE
.PP
Look at a run and at its model:
.PP
.RS
.nf
ithaca inspect runs/first
ithaca inspect runs/first/export
.fi
.RE
.PP
What an option means:
.PP
.RS
.nf
ithaca options parallel.sp_size
.fi
.RE
)man";

}  // namespace

// Of the last change to what this file says; the options and commands come from the program.
constexpr const char* kPageDate = "2026-11-30";

std::string manual_page(const CLI::App& app, const OptionCatalog& catalog, const std::string& version) {
  std::string out = fmt::format(".TH ITHACA 1 {} \"ithaca {}\" \"User Commands\"\n", kPageDate, version);
  out += ".SH NAME\nithaca \\- fine\\-tune Hugging Face language models on very long sequences\n";
  out += ".SH SYNOPSIS\n.B ithaca\n.I COMMAND\n[\n.I ARGUMENTS\n]\n";
  out += ".SH DESCRIPTION\n" + escape_man_text(app.get_description()) +
         "\nA Hugging Face directory goes in, a Hugging Face directory comes out. What a run does is written in a "
         "recipe, a\n"
         "YAML file; its options are below.\n";
  out += ".SH COMMANDS\n";
  for (const CLI::App* command : shown_commands(app)) append_command(*command, app.get_name(), out);
  out +=
      ".SH OPTIONS OF A RECIPE\nIn the YAML file they stand below their section; on the command line\n.B \\-\\-set\n"
      ".IR section.name = value\nwins over the file.\n";
  out += catalog.man_text();
  return out + kEnd;
}

}  // namespace ithaca
