#include "cli/inspect_data_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <ostream>

#include "base/text.h"
#include "checkpoint/hugging_face.h"
#include "cli/number_option.h"
#include "cli/program.h"
#include "cli/progress.h"
#include "cli/sequence_view.h"
#include "cli/signals.h"
#include "train/plan_run.h"
#include "train/recipe_data.h"
#include "train/recipe_options.h"

namespace ithaca {

namespace {

// Steps whose balance is looked at: enough for a mean, few enough for a large dataset.
constexpr int64_t kBalanceSteps = 200;

void row(std::ostream& out, const std::string& title, const std::string& text) {
  out << fmt::format("{:<12} {}\n", title, text);
}

void write_totals(const Recipe& recipe, const PackedDataset& data, std::ostream& out) {
  const DatasetSummary& summary = data.summary();
  row(out, "data", fmt::format("{}", fmt::join(recipe.data.train, ", ")));
  row(out, "format",
      fmt::format("{}, packing {}, overlong {}", summary.format, recipe.data.packing, recipe.data.overlong));
  const std::vector<DatasetStage> stages = data.stages();
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const DatasetSummary& of_stage = data.stage_summary(static_cast<int64_t>(stage));
    const std::string text = fmt::format("{} of up to {} tokens, {} tokens in all", format_count(of_stage.sequences),
                                         format_count(of_stage.longest_sequence), format_count(of_stage.tokens));
    row(out, stage == 0 ? "sequences" : "",
        stages.size() == 1 ? text
                           : fmt::format("{}, max_length {}: {}", after_steps(stages[stage].first_step),
                                         format_count(stages[stage].max_length), text));
  }
  bool is_first = true;
  for (const std::string& line : data_lines(summary)) {
    row(out, is_first ? "documents" : "", line);
    is_first = false;
  }
  for (const std::string& note : summary.notes) row(out, "note", note);
  row(out, "token cache",
      fmt::format("{} ({} samples)", data.cache().folder(), format_count(data.cache().summary().samples)));
}

// Sequences of one stage: that of the step that is shown.
void write_histograms(const PackedDataset& data, const DatasetStage& stage, std::ostream& out) {
  std::vector<int64_t> documents(64, 0);
  std::vector<int64_t> sequences(64, 0);
  for (int64_t i = 0; i < data.cache().summary().documents; ++i) ++documents[length_power(data.cache().length(i))];
  for (int64_t i = stage.begin; i < stage.end; ++i) {
    int64_t tokens = 0;
    for (const Piece& piece : data.pieces(i)) tokens += piece.length();
    ++sequences[length_power(tokens)];
  }
  out << '\n';
  for (const std::string& line : length_histogram(documents, "documents")) out << line << '\n';
  out << '\n';
  for (const std::string& line : length_histogram(sequences, "sequences")) out << line << '\n';
  out << '\n';
}

void write_balance(const StepLoader& loader, const RunDecisions& decisions, std::ostream& out) {
  const int64_t dp = decisions.loader.dp_size;
  if (dp == 1) {
    row(out, "balance", "there is one data-parallel group, so none waits for another");
    return;
  }
  const int64_t steps = std::min(decisions.steps, kBalanceSteps);
  double sum = 0.0;
  double worst = 0.0;
  for (int64_t step = 0; step < steps; ++step) {
    const double lost = loader.imbalance(step);
    sum += lost;
    worst = std::max(worst, lost);
  }
  row(out, "balance",
      fmt::format("of the attention time of {} groups of ranks, {:.1f}% is lost by waiting for each other (at most "
                  "{:.1f}% in a step), over the first {}",
                  dp, 100.0 * sum / static_cast<double>(steps), 100.0 * worst, plural(steps, "step")));
}

void write_samples(const InspectDataArguments& arguments, const PackedDataset& data, const StepLoader& loader,
                   const Tokenizer* tokenizer, const SequenceViewOptions& view, std::ostream& out) {
  int64_t shown = 0;
  const auto ranks = loader.indices(arguments.step - 1);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (size_t batch = 0; batch < ranks[rank].size(); ++batch) {
      for (const int64_t index : ranks[rank][batch]) {
        if (shown++ == arguments.samples) return;
        const Sequence sequence = data.sequence(index);
        out << fmt::format("\nsequence {}: step {}, data-parallel group {}, micro-batch {}; {}, {} trained\n",
                           format_count(index), arguments.step, rank, batch + 1,
                           plural(static_cast<int64_t>(sequence.token_ids.size()), "token"),
                           format_count(data.totals(index).valid_tokens));
        for (const std::string& line : sequence_lines(sequence, tokenizer, view)) out << line << '\n';
      }
    }
  }
}

}  // namespace

CLI::App* declare_inspect_data(CLI::App& inspect, InspectDataArguments& arguments) {
  CLI::App* command = inspect.add_subcommand("data", "Show a recipe's training data as the model will see it");
  command->add_option("recipe", arguments.recipe, "The recipe, a YAML file")->required();
  add_number(command, "--samples", arguments.samples, "How many sequences of the step to show (default 3)")
      ->type_name("N");
  add_number(command, "--step", arguments.step, "Whose sequences (default 1, the first)")->type_name("N");
  add_number(command, "--tokens", arguments.tokens, "How many tokens of each (default 400)")->type_name("N");
  command->add_option("--set", arguments.assignments, "An option of the recipe, section.name=value; may be repeated")
      ->type_name("OPTION")
      ->allow_extra_args(false);
  add_number(command, "--ranks", arguments.ranks, "How many ranks the run would have")->type_name("N");
  command->footer(
      "In a terminal what is trained is green; elsewhere, and with NO_COLOR, it stands between \u27e8 and \u27e9. "
      "\u2502N\u2502 begins the part of rank N, \u00b6 ends a document, \u2026 is followed by the label of a "
      "sequence's "
      "last token, which is in another sequence.");
  return command;
}

int inspect_data_command(const InspectDataArguments& arguments, const TerminalStyle& style, std::ostream& out,
                         std::ostream& err) {
  if (arguments.samples < 0) throw ConfigurationError("--samples must be 0 or more");
  if (arguments.tokens < 0) throw ConfigurationError("--tokens must be 0 or more");
  if (arguments.step < 1) throw ConfigurationError("--step must be at least 1, the first step");
  RecipeOverrides overrides;
  overrides.assignments = arguments.assignments;
  overrides.ranks = arguments.ranks;
  const Recipe recipe = load_recipe(arguments.recipe, overrides);
  const ModelDirectory directory(recipe.model.path);
  const ModelDescription& model = directory.description();
  const DataOptions options = data_options(recipe, recipe.data.train, model, false);
  std::unique_ptr<PackedDataset> data;
  install_stop_signals();
  {
    Terminal terminal(out, err, style);
    DataWatch watch;
    watch.on_progress = [&](const TokenizeProgress& progress) {
      terminal.live(progress.finished ? "" : tokenize_line(progress, style.width));
    };
    watch.on_note = [&](const std::string& text) { terminal.error_line("ithaca: " + text); };
    watch.stop = &stop_requested();
    try {
      data = open_data(options, watch);
    } catch (const StoppedError& stopped) {
      terminal.error_line(fmt::format("ithaca: {}", stopped.what()));
      return kExitStoppedEarly;
    }
  }
  const RunDecisions decisions = decide_run(recipe, model, *data);
  const StepLoader loader(*data, decisions.loader);
  if (arguments.step > decisions.steps) {
    throw ConfigurationError(fmt::format("--step {}: the run has {}", arguments.step, plural(decisions.steps, "step")));
  }
  write_totals(recipe, *data, out);
  write_histograms(*data, data->stages()[static_cast<size_t>(loader.position(arguments.step - 1).stage)], out);
  row(out, "steps",
      fmt::format("{} of {}", format_count(decisions.steps), plural(loader.most_sequences_in_a_step(), "sequence")));
  write_balance(loader, decisions, out);

  const bool has_text = data->summary().format != "input_ids" && data->summary().format != "tokens";
  const bool knows_text = has_text || has_tokenizer(recipe.model.path);
  const std::shared_ptr<const Tokenizer> tokenizer = knows_text ? tokenizer_of(options) : nullptr;
  SequenceViewOptions view;
  view.color = style.color;
  view.tokens = arguments.tokens;
  view.layout = decisions.rank.layout;
  view.ring_size = decisions.rank.mesh.ring;
  view.ulysses_size = decisions.rank.mesh.ulysses;
  write_samples(arguments, *data, loader, tokenizer.get(), view, out);
  return kExitDone;
}

}  // namespace ithaca
