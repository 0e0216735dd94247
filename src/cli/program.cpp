#include "cli/program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/file_output.h"
#include "cli/bench_command.h"
#include "cli/completion.h"
#include "cli/inspect.h"
#include "cli/inspect_data_command.h"
#include "cli/manual_page.h"
#include "cli/number_option.h"
#include "cli/output_file.h"
#include "cli/progress.h"
#include "cli/report_command.h"
#include "cli/run_folder.h"
#include "cli/signals.h"
#include "cli/terminal.h"
#include "cli/tokenize_command.h"
#include "cli/verify_command.h"
#include "train/foreign_options.h"
#include "train/recipe_options.h"
#include "train/run.h"

namespace ithaca {

namespace {

struct Arguments {
  std::string recipe;
  std::vector<std::string> assignments;
  std::optional<int64_t> ranks;
  std::optional<std::string> backend;
  bool overwrite = false;
  bool quiet = false;
  bool verbose = false;
  std::string resume;
  std::string trace;
  std::string trace_steps;

  std::string inspect_path;
  bool inspect_tensors = false;
  InspectDataArguments inspect_data;

  std::string option_name;
  bool markdown = false;
  std::string migrating_page;
};

std::string signal_words(int signal) {
  if (signal == SIGTERM) return "SIGTERM";
  return signal == SIGHUP ? "SIGHUP (the terminal was closed)" : "Ctrl-C (SIGINT)";
}

// A path of the command line that leads nowhere is a mistake of the command line, like any other there.
void require_path(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw ConfigurationError(fmt::format("{}: {}", path, error ? error.message() : "there is no such file or folder"));
  }
}

// With --overwrite the run would lose what it reads.
void refuse_input_in_run(const char* option, const std::string& path, const std::string& run) {
  if (run_entry_at(run, path).empty()) return;
  throw ConfigurationError(
      fmt::format("{}: {} belongs to the run in {}, which this one would replace; choose another folder with --set "
                  "train.output_dir=...",
                  option, path, run));
}

// An option with nothing in it, most often a shell variable that is not set: read as a number it would be 0, and as a
// name or a path as good as left out.
void refuse_empty_values(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) continue;
    for (const std::string& value : option->results()) {
      if (!value.empty()) continue;
      throw ConfigurationError(fmt::format("{0}: the value is empty; give one, or leave {0} out", option->get_name()));
    }
  }
  for (const CLI::App* chosen : command.get_subcommands()) refuse_empty_values(*chosen);
}

int train(const Arguments& arguments, std::ostream& out, std::ostream& err) {
  if (!arguments.resume.empty()) {
    throw ConfigurationError(
        "--resume: this version does not have it; to train on from an export, set model.path to "
        "the run's export folder");
  }
  if (arguments.quiet && arguments.verbose) {
    throw ConfigurationError("--quiet and --verbose exclude each other; leave one of them out");
  }
  TraceRequest trace;
  trace.path = arguments.trace;
  if (!arguments.trace_steps.empty()) parse_trace_steps(arguments.trace_steps, trace);
  install_stop_signals();
  set_stop_texts("ithaca: stopping before the first step; once more to end at once\n",
                 "ithaca: ended at once, before the first step; there is nothing of a run\n");
  const Recipe recipe = load_recipe(arguments.recipe, {arguments.assignments, arguments.ranks, arguments.backend});
  RunFolder folder(recipe.train.output_dir, arguments.overwrite);
  if (!trace.path.empty()) check_output_file("--trace", trace.path, OutputKind::trace, {folder.path()});
  refuse_input_in_run("model.path", recipe.model.path, folder.path());
  for (const std::string& file : recipe.data.train) refuse_input_in_run("data.train", file, folder.path());
  for (const std::string& file : recipe.data.eval) refuse_input_in_run("data.eval", file, folder.path());
  Terminal terminal(out, err, TerminalStyle::of_standard_output());
  const Verbosity verbosity = arguments.quiet     ? Verbosity::quiet
                              : arguments.verbose ? Verbosity::verbose
                                                  : Verbosity::normal;
  RunProgress progress(recipe, folder, terminal, verbosity);
  RunResult result;
  try {
    result = run_training(recipe, progress, stop_requested(), trace);
    progress.finish(result, signal_words(stop_signal()));
  } catch (const StoppedError& stopped) {
    err << fmt::format("ithaca: {} ({})\n", stopped.what(), signal_words(stop_signal())) << std::flush;
    return kExitStoppedEarly;
  } catch (const std::exception& error) {
    folder.log_error(error.what());
    throw;
  }
  if (!result.trace_failure.empty()) {
    throw FileError(fmt::format("--trace: {}; there is no trace, but the run came to its end and the model is in {}",
                                result.trace_failure, result.export_directory));
  }
  return result.stopped_early ? kExitStoppedEarly : kExitDone;
}

int show_options(const Arguments& arguments, std::ostream& out) {
  const OptionCatalog& catalog = recipe_table().catalog();
  if (arguments.markdown) {
    out << recipe_reference_page();
  } else if (!arguments.migrating_page.empty()) {
    require_path(arguments.migrating_page);
    out << with_foreign_tables(read_whole_file(arguments.migrating_page), catalog);
  } else if (!arguments.option_name.empty()) {
    out << catalog.help_text_of(arguments.option_name);
  } else {
    out << catalog.help_text();
  }
  return kExitDone;
}

void declare_train(CLI::App& app, Arguments& arguments) {
  CLI::App* command = app.add_subcommand("train", "Train a model as a recipe says");
  command->add_option("recipe", arguments.recipe, "The recipe, a YAML file")->required();
  command->add_option("--set", arguments.assignments, "An option of the recipe, section.name=value; may be repeated")
      ->type_name("OPTION")
      ->allow_extra_args(false);
  add_number(command, "--ranks", arguments.ranks,
             "How many ranks run: sp_size x dp_replicate_size x dp_shard_size; sets sp_size where the recipe does not")
      ->type_name("N");
  command->add_option("--backend", arguments.backend, "Where it computes: auto, cpu or cuda (train.backend)")
      ->type_name("NAME");
  command->add_flag("--overwrite", arguments.overwrite,
                    "Replace the run that is in train.output_dir, with its traces and report.html");
  command->add_flag("-q,--quiet", arguments.quiet, "Print warnings and errors only");
  command->add_flag("-v,--verbose", arguments.verbose, "Print every step, with its time, traffic and memory by class");
  CLI::Option* const trace =
      command
          ->add_option("--trace", arguments.trace,
                       "Write a trace of one step, or of --trace-steps, to FILE: open it in ui.perfetto.dev")
          ->type_name("FILE");
  command
      ->add_option("--trace-steps", arguments.trace_steps,
                   "Which steps are traced: one (3) or the first and the last (2:3); 3 when not given")
      ->type_name("STEPS")
      ->needs(trace);
  command->add_option("--resume", arguments.resume)->group("");
  command->footer(
      "Examples:\n"
      "  ithaca train run.yaml\n"
      "  ithaca train run.yaml --set optim.learning_rate=1e-5 --set train.output_dir=runs/second\n"
      "  ithaca train run.yaml --ranks 4 --set data.max_length=131072\n\n"
      "Ctrl-C ends the run after the step at hand and exports the model; a second Ctrl-C ends it at once.\n\n"
      "Options of a recipe (docs/config.md says the same):\n\n" +
      recipe_table().catalog().help_text());
}

void declare_inspect(CLI::App& app, Arguments& arguments) {
  CLI::App* command =
      app.add_subcommand("inspect", "Say what a model directory, a run folder or a recipe's data holds");
  // Not required by the parser, which would require it of `inspect data` too.
  command->add_option("path", arguments.inspect_path, "A model directory, a .safetensors file or a run folder");
  declare_inspect_data(*command, arguments.inspect_data);
  command->add_flag("--tensors", arguments.inspect_tensors, "List every tensor of a model");
  command->footer(
      "Examples:\n"
      "  ithaca inspect runs/first             the loss of a run as a curve\n"
      "  ithaca inspect runs/first/export      the model that it made\n"
      "  ithaca inspect data run.yaml          what a recipe trains on");
}

void declare_options(CLI::App& app, Arguments& arguments) {
  CLI::App* command = app.add_subcommand("options", "List the options of a recipe");
  command->add_option("name", arguments.option_name, "One option, section.name, or one section");
  command->add_flag("--markdown", arguments.markdown, "As the page docs/config.md");
  command
      ->add_option("--migrating", arguments.migrating_page,
                   "Print the page FILE with its tables of other programs' names written anew")
      ->type_name("FILE");
  command->footer(
      "Examples:\n"
      "  ithaca options parallel           the options of one section\n"
      "  ithaca options parallel.sp_size   one option");
}

// Commands of the design that this version does not have, and what comes nearest.
void refuse_absent_command(const std::string& name) {
  static const std::vector<std::pair<std::string, std::string>> absent = {
      {"plan", "The first lines of ithaca train say what a run needs; --set train.max_steps=1 tries one step."},
      {"export", "ithaca train exports at its end, to the folder export of the run."},
  };
  for (const auto& [command, advice] : absent) {
    if (command == name) {
      throw ConfigurationError(fmt::format("this version does not have the command {}. {}", name, advice));
    }
  }
}

// `ithaca data --help`: data is a section of a recipe, and no command (as train is).
bool asks_for_section_help(const CLI::App& app, const std::string& name, const std::string& flag) {
  const std::vector<const CLI::App*> commands = app.get_subcommands([](const CLI::App*) { return true; });
  const bool is_command = std::any_of(commands.begin(), commands.end(),
                                      [&](const CLI::App* command) { return command->get_name() == name; });
  return !is_command && recipe_table().catalog().has_section(name) && (flag == "--help" || flag == "-h");
}

// CLI11 names the types of C++ where a command gave no name: nothing that says more than the help beside it.
void drop_type_names(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_positional() && option->get_type_name() == "TEXT") option->type_name("");
  }
  for (CLI::App* inner : command.get_subcommands([](CLI::App*) { return true; })) drop_type_names(*inner);
}

// The innermost command that the words led to, with its name in full: "ithaca inspect data".
std::pair<const CLI::App*, std::string> chosen_command(const CLI::App& app) {
  const CLI::App* command = &app;
  std::string name = app.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    name += " " + command->get_name();
  }
  return {command, name};
}

// Words that the parser could make nothing of, in the order of the command line.
std::string unexpected_words(const CLI::App& app, int argument_count, const char* const* argument_texts) {
  std::vector<std::string> left = app.remaining(true);
  std::vector<std::string> words;
  for (int i = 1; i < argument_count; ++i) {
    const auto found = std::find(left.begin(), left.end(), argument_texts[i]);
    if (found == left.end()) continue;
    words.push_back(*found);
    left.erase(found);
  }
  return fmt::format("{}", fmt::join(words, " "));
}

// What a flag that there is not would be as an option of a recipe: other programs take theirs as flags. Empty when it
// is nothing that is known. A flag that is misspelt gets the nearest one. `name` is the command's, in full.
std::string advice_for_flags(const CLI::App& command, const std::string& name, int argument_count,
                             const char* const* argument_texts) {
  for (int i = 2; i < argument_count; ++i) {
    const std::string word = argument_texts[i];
    const std::string flag = word.substr(0, word.find('='));
    if (!flag.starts_with("--") || flag.size() < 3 || command.get_option_no_throw(flag) != nullptr) continue;
    const std::string assignment = flag.substr(2) + "=";
    try {
      recipe_table().catalog().read_assignment(assignment);
    } catch (const ConfigurationError& error) {
      const std::string text = error.what();
      const std::string prefix = "--set " + assignment + ": ";
      const bool is_known = !recipe_table().catalog().options_of(assignment).empty() ||
                            text.find("counterpart") != std::string::npos || text.find("not have") != std::string::npos;
      if (is_known && text.starts_with(prefix)) {
        std::string advice = text.substr(prefix.size());
        if (advice.ends_with('.')) advice.pop_back();
        return fmt::format("there is no flag {}; {}. Options of a recipe are given with --set section.name=value", flag,
                           advice);
      }
    }
    std::vector<std::string> known;
    for (const CLI::Option* option :
         command.get_options([](const CLI::Option* one) { return !one->get_group().empty(); })) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
    const std::string near = nearest_name(flag, known);
    return near.empty() ? fmt::format("{} has no flag {}; see {} --help", name, flag, name)
                        : fmt::format("there is no flag {}; did you mean {}?", flag, near);
  }
  return {};
}

[[noreturn]] void refuse_unknown_command(const CLI::App& app, const std::string& name) {
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    known.push_back(command->get_name());
  }
  const OptionCatalog& catalog = recipe_table().catalog();
  const std::string option = name.substr(0, name.find('='));
  if (catalog.has_section(option.substr(0, option.find('.')))) {
    throw ConfigurationError(fmt::format(
        "there is no command \"{}\"; {} of a recipe: see ithaca options {}, and give it in the recipe or with --set",
        name, option.find('.') == std::string::npos ? "it is a section" : "it is an option", option));
  }
  if (std::filesystem::path(name).extension() == ".yaml" || std::filesystem::path(name).extension() == ".yml") {
    throw ConfigurationError(
        fmt::format("there is no command \"{}\"; to train as a recipe says: ithaca train {}", name, shell_word(name)));
  }
  const std::string near = nearest_name(name, known);
  throw ConfigurationError(fmt::format("there is no command \"{}\"; the commands are {}{}; see ithaca --help", name,
                                       fmt::join(known, ", "),
                                       near.empty() ? "" : ", of which \"" + near + "\" is nearest"));
}

int dispatch(int argument_count, const char* const* argument_texts, std::ostream& out, std::ostream& err) {
  if (argument_count > 1) refuse_absent_command(argument_texts[1]);
  Arguments arguments;
  CLI::App app("Ithaca fine-tunes Hugging Face language models on very long sequences, split over ranks.", "ithaca");
  app.set_version_flag("--version", "ithaca " ITHACA_VERSION);
  app.require_subcommand(1);
  declare_train(app, arguments);
  declare_inspect(app, arguments);
  declare_options(app, arguments);
  BenchArguments bench_arguments;
  declare_bench(app, bench_arguments);
  VerifyArguments verify_arguments;
  declare_verify(app, verify_arguments);
  TokenizeArguments tokenize_arguments;
  declare_tokenize(app, tokenize_arguments);
  ReportArguments report_arguments;
  declare_report(app, report_arguments);
  CompletionArguments completion_arguments;
  declare_completion(app, completion_arguments);
  app.add_subcommand("man", "Print the manual page, for: ithaca man | man -l -");
  // After the commands, which would take it over for their own.
  app.footer(
      "Examples:\n"
      "  ithaca train run.yaml            train as a recipe says\n"
      "  ithaca options parallel          the options of one section of a recipe\n"
      "  ithaca inspect runs/first        the loss of a run as a curve\n"
      "  source <(ithaca completion bash) completion with TAB; zsh and fish too\n\n"
      "Exit status: 0 done, 1 failed, 2 usage or configuration, 3 a training run that Ctrl-C or SIGTERM "
      "stopped early.");
  drop_type_names(app);
  if (argument_count > 1 && std::string_view(argument_texts[1]) == "complete") {
    const bool is_marked = argument_count > 2 && std::string_view(argument_texts[2]) == "--";
    const std::vector<std::string> words(argument_texts + (is_marked ? 3 : 2), argument_texts + argument_count);
    return complete_command(app, words, out);
  }
  if (argument_count > 2 && asks_for_section_help(app, argument_texts[1], argument_texts[2])) {
    out << recipe_table().catalog().help_text_of(argument_texts[1]);
    return kExitDone;
  }
  // `ithaca help train` is `ithaca train --help`.
  std::vector<const char*> texts(argument_texts, argument_texts + argument_count);
  if (argument_count > 1 && std::string_view(argument_texts[1]) == "help") {
    texts.erase(texts.begin() + 1);
    texts.push_back("--help");
  }
  try {
    app.parse(static_cast<int>(texts.size()), texts.data());
  } catch (const CLI::ParseError& stop) {
    if (stop.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      app.exit(stop, out, err);  // --help, --version
      return kExitDone;
    }
    const auto [command, name] = chosen_command(app);
    if (command == &app && argument_count > 1 && argument_texts[1][0] != '-')
      refuse_unknown_command(app, argument_texts[1]);
    const std::string advice = advice_for_flags(*command, name, argument_count, argument_texts);
    if (!advice.empty()) throw ConfigurationError(advice);
    const std::string unexpected = unexpected_words(app, argument_count, argument_texts);
    // "--steps: At Most 1 required but received 2"
    if (stop.get_exit_code() == static_cast<int>(CLI::ExitCodes::ArgumentMismatch)) {
      for (const CLI::Option* option : command->get_options()) {
        const size_t times = option->count();
        if (times < 2 || std::string_view(stop.what()).find(option->get_name() + ":") != 0) continue;
        throw ConfigurationError(
            fmt::format("{} is given {} times, but takes one value; leave the others out", option->get_name(), times));
      }
    }
    const bool is_extra = stop.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
    throw ConfigurationError(fmt::format(
        "{}; see {} --help",
        is_extra && !unexpected.empty() ? fmt::format("what is too much: {}", unexpected) : std::string(stop.what()),
        name));
  }
  refuse_empty_values(app);
  if (app.got_subcommand("train")) return train(arguments, out, err);
  if (app.got_subcommand("bench")) {
    if (!bench_arguments.model.empty()) require_path(bench_arguments.model);
    return bench_command(app, bench_arguments, out);
  }
  if (app.got_subcommand("verify")) return verify_command(verify_arguments, out);
  if (app.got_subcommand("tokenize")) {
    require_path(tokenize_arguments.model);
    return tokenize_command(tokenize_arguments, std::cin, out);
  }
  if (app.got_subcommand("report")) {
    for (const std::string& run : report_arguments.runs) require_path(run);
    return report_command(report_arguments, out);
  }
  if (app.got_subcommand("completion")) return completion_command(completion_arguments, out);
  if (app.got_subcommand("man")) {
    out << manual_page(app, recipe_table().catalog(), ITHACA_VERSION);
    return kExitDone;
  }
  if (app.got_subcommand("inspect")) {
    if (app.get_subcommand("inspect")->got_subcommand("data")) {
      return inspect_data_command(arguments.inspect_data, TerminalStyle::of_standard_output(), out, err);
    }
    if (arguments.inspect_path.empty()) {
      throw ConfigurationError("inspect: a path is needed, or data RECIPE; see ithaca inspect --help");
    }
    require_path(arguments.inspect_path);
    return inspect_path(arguments.inspect_path, {arguments.inspect_tensors}, out);
  }
  return show_options(arguments, out);
}

// One paragraph, whatever the text holds; a line of megabytes that it quotes is cut in the middle.
void report(std::ostream& err, std::string text) {
  constexpr size_t kLongest = 4000;
  if (text.size() > kLongest) text.replace(kLongest / 2, text.size() - kLongest, " [...] ");
  std::replace(text.begin(), text.end(), '\n', ' ');
  err << "ithaca: error: " << text << '\n' << std::flush;
}

}  // namespace

int run_program(int argument_count, const char* const* arguments, std::ostream& out, std::ostream& err) noexcept {
  try {
    try {
      const int status = dispatch(argument_count, arguments, out, err);
      out.flush();
      if (!out) {
        report(err, "the output could not be written");
        return kExitFailed;
      }
      return status;
    } catch (const ConfigurationMistakes& mistakes) {
      for (const std::string& line : mistakes.lines()) report(err, line);
      report(err, fmt::format("{} mistakes; nothing was started", mistakes.lines().size()));
      return kExitUsage;
    } catch (const ConfigurationError& error) {
      report(err, error.what());
      return kExitUsage;
    } catch (const ContractError& error) {
      report(err, fmt::format("{} (this is a fault of ithaca " ITHACA_VERSION ", not of its input)", error.what()));
    } catch (const Error& error) {
      report(err, error.what());
    } catch (const std::bad_alloc&) {
      report(err,
             "the machine has no memory left; shorter data.max_length, memory.recompute: full or more ranks need "
             "less");
    } catch (const std::exception& error) {
      report(err, fmt::format("{} (this is a fault of ithaca " ITHACA_VERSION ", not of its input)", error.what()));
    }
  } catch (...) {
    // Not even the error could be said; the exit status has to do.
  }
  return kExitFailed;
}

}  // namespace ithaca
