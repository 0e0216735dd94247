#include "cli/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "base/integer.h"
#include "base/text.h"
#include "cli/signals.h"
#include "tensor/memory.h"

namespace ithaca {

std::string plural(int64_t count, const char* word) {
  return fmt::format("{} {}{}", format_count(count), word, count == 1 ? "" : "s");
}

namespace {

constexpr size_t kRecentSteps = 20;
// How many losses at either end are averaged for "the loss fell from ... to ...": one step's loss says little.
constexpr size_t kLossWindow = 10;

double mean(const std::deque<double>& values, size_t begin, size_t end) {
  const auto first = values.begin() + static_cast<std::ptrdiff_t>(begin);
  const auto last = values.begin() + static_cast<std::ptrdiff_t>(end);
  return std::accumulate(first, last, 0.0) / static_cast<double>(end - begin);
}

std::string titled(const char* title, const std::string& text) {
  return fmt::format("{:<10} {}", title, text);
}

// The sizes that are not 1, since those say something.
std::string mesh_text(const MeshSizes& mesh) {
  std::vector<std::string> parts;
  const auto add = [&](const char* name, int size) {
    if (size > 1) parts.push_back(fmt::format("{} {}", name, size));
  };
  add("dp_replicate", mesh.dp_replicate);
  add("dp_shard", mesh.dp_shard);
  add("ring", mesh.ring);
  add("ulysses", mesh.ulysses);
  add("tp", mesh.tp);
  std::string text = plural(mesh.ranks(), "rank");
  if (!parts.empty()) text += fmt::format(" ({})", fmt::join(parts, " x "));
  return text;
}

std::string memory_text(const std::array<int64_t, kMemoryClasses>& bytes) {
  std::vector<std::string> parts;
  int64_t total = 0;
  for (int index = 0; index < kMemoryClasses; ++index) {
    const int64_t size = bytes[static_cast<size_t>(index)];
    total += size;
    if (size > 0) {
      parts.push_back(fmt::format("{} {}", memory_class_name(static_cast<MemoryClass>(index)), format_bytes(size)));
    }
  }
  return fmt::format("{} ({})", format_bytes(total), fmt::join(parts, ", "));
}

}  // namespace

std::string after_steps(int64_t steps) {
  return steps == 0 ? "at first" : "after " + plural(steps, "step");
}

std::string tokenize_line(const TokenizeProgress& progress, size_t width) {
  const double speed = static_cast<double>(progress.tokens) / std::max(progress.seconds, 1e-9);
  const std::string counts = fmt::format("{}, {}, {} tokens/s", plural(progress.samples, "sample"),
                                         plural(progress.tokens, "token"), format_short(speed));
  if (progress.finished) return fmt::format("tokenized  {} in {}", counts, format_duration(progress.seconds));
  const double share =
      progress.bytes_in_all > 0
          ? std::min(1.0, static_cast<double>(progress.bytes_read) / static_cast<double>(progress.bytes_in_all))
          : 0.0;
  std::string left;
  if (share > 0.01) left = "  left " + format_duration(progress.seconds * (1.0 - share) / share);
  std::string text = fmt::format("tokenizing {:3.0f}%  {}{}", 100.0 * share, counts, left);
  // The bar takes what the text leaves over.
  constexpr size_t kSmallestBar = 8;
  constexpr size_t kLargestBar = 30;
  if (text.size() + kSmallestBar + 4 > width) return text;
  const size_t cells = std::min(kLargestBar, width - text.size() - 4);
  const auto filled = static_cast<size_t>(share * static_cast<double>(cells));
  return fmt::format("[{}{}] {}", std::string(filled, '='), std::string(cells - filled, ' '), text);
}

std::vector<std::string> data_lines(const DatasetSummary& data) {
  std::vector<std::string> lines;
  if (data.documents == 0) return lines;  // not known
  lines.push_back(fmt::format(
      "{} in {}, the longest of {}; {} trained ({:.1f}%)", plural(data.documents, "document"),
      plural(data.samples, "sample"), plural(data.longest_document, "token"), plural(data.valid_tokens, "token"),
      100.0 * static_cast<double>(data.valid_tokens) / static_cast<double>(std::max<int64_t>(data.tokens, 1))));
  std::vector<std::string> parts;
  const auto add = [&](int64_t count, const char* word, const std::string& what) {
    if (count > 0) parts.push_back(plural(count, word) + " " + what);
  };
  add(data.split_documents, "document", "cut into several pieces");
  add(data.truncated_documents, "document", fmt::format("truncated (by {})", plural(data.truncated_tokens, "token")));
  add(data.dropped_documents, "document",
      fmt::format("dropped as too long ({})", plural(data.dropped_tokens, "token")));
  add(data.skipped_documents, "document", "of fewer than two tokens skipped");
  add(data.unlabelled_documents, "document", "without anything that is trained");
  add(data.skipped_records, "record", "that could not be understood skipped");
  if (!parts.empty()) lines.push_back(fmt::format("{}", fmt::join(parts, "; ")));
  const int64_t room = data.tokens + data.unfilled_tokens;
  if (data.unfilled_tokens > 0 && data.unfilled_tokens < INT64_MAX) {
    lines.push_back(fmt::format("sequences are filled to {:.1f}% of max_length; what is left over costs nothing",
                                100.0 * static_cast<double>(data.tokens) / static_cast<double>(room)));
  }
  return lines;
}

// "CPU, float32" or "2 x NVIDIA H200, bfloat16".
std::string backend_text(const BackendChoice& backend) {
  const std::string where =
      backend.kind == BackendKind::cpu ? "CPU" : fmt::format("{} x {}", backend.devices, backend.device_name);
  return fmt::format("{}, {}", where, dtype_name(backend.compute_dtype));
}

std::vector<std::string> plan_lines(const Recipe& recipe, const RunPlan& plan) {
  std::vector<std::string> lines;
  const ModelDescription& model = plan.model;
  lines.push_back(titled(
      "model", fmt::format("{}, {}, hidden {}, {} parameters, {}: {}", family_name(model.family),
                           plural(model.layer_count(), "layer"), model.hidden_size, format_count(plan.parameters),
                           recipe.model.init == "random" ? fmt::format("random weights (seed {})", recipe.train.seed)
                                                         : std::string("pretrained weights"),
                           recipe.model.path)));
  lines.push_back(titled(
      "data",
      fmt::format("{} of up to {}, {} in all{}", plural(plan.train_sequences, "sequence"),
                  plural(plan.longest_sequence, "token"), plural(plan.train_tokens, "token"),
                  plan.eval_sequences > 0 ? fmt::format("; {} to evaluate on", plural(plan.eval_sequences, "sequence"))
                                          : std::string())));
  for (const std::string& line : data_lines(plan.train_data)) lines.push_back(titled("", line));
  if (plan.stages.size() > 1) {
    for (const DatasetStage& stage : plan.stages) {
      lines.push_back(titled("", fmt::format("{}: {} of up to {}", after_steps(stage.first_step),
                                             plural(stage.size(), "sequence"), plural(stage.max_length, "token"))));
    }
  }
  lines.push_back(titled("ranks", fmt::format("{}, {}", mesh_text(plan.mesh), backend_text(plan.backend))));
  if (!plan.backend.transport_reason.empty()) {
    lines.push_back(titled("", "transport: auto chose " + plan.backend.transport_reason));
  } else if (plan.backend.transport == Transport::nccl) {
    lines.push_back(titled("", "transport: nccl"));
  }
  std::string attention = "each sequence stays whole on one rank";
  if (plan.mesh.cp() > 1) {
    attention = fmt::format("{} over {}, {} layout", schedule_name(plan.schedule), plural(plan.mesh.cp(), "rank"),
                            layout_name(plan.layout));
  }
  lines.push_back(titled("attention", attention));
  if (plan.mesh.cp() > 1 && !plan.schedule_reason.empty()) {
    lines.push_back(titled("", "auto chose " + plan.schedule_reason));
  }
  if (plan.mesh.cp() > 1) {
    lines.push_back(
        titled("shards", fmt::format("{} of every sequence, of up to {} each", plan.mesh.cp(),
                                     plural(ceiling_divide(plan.longest_sequence, plan.mesh.cp()), "token"))));
  }
  lines.push_back(titled(
      "steps", fmt::format("{}, {} of up to {} each", plural(plan.steps, "step"),
                           plural(plan.sequences_per_step, "sequence"), plural(plan.longest_sequence, "token"))));
  lines.push_back(titled("memory", fmt::format("{} per rank before the first step; recompute {}",
                                               memory_text(plan.state_bytes_per_rank), recipe.memory.recompute)));
  if (plan.state_shards > 1) {
    lines.push_back(titled("", fmt::format("optimizer state cut over {} (parallel.zero {})",
                                           plural(plan.state_shards, "rank"), zero_stage_name(plan.zero))));
  }
  lines.push_back(titled("output", plan.output_dir));
  for (const std::string& note : plan.notes) lines.push_back(titled("note", note));
  return lines;
}

RunProgress::RunProgress(const Recipe& recipe, RunFolder& folder, Terminal& terminal, Verbosity verbosity)
    : recipe_(recipe), folder_(folder), terminal_(terminal), verbosity_(verbosity), token_word_("token") {}

void RunProgress::say(const std::string& text) {
  folder_.log(text);
  if (verbosity_ != Verbosity::quiet) terminal_.line(text);
}

void RunProgress::on_tokenize(const TokenizeProgress& progress) {
  if (verbosity_ == Verbosity::quiet) return;
  const std::string line = tokenize_line(progress, terminal_.style().width);
  if (progress.finished) {
    terminal_.live("");
    terminal_.line(line);
  } else {
    terminal_.live(line);
  }
}

void RunProgress::on_data_note(const std::string& text) {
  if (verbosity_ != Verbosity::quiet) terminal_.line(titled("data", text));
}

void RunProgress::on_plan(const RunPlan& plan) {
  plan_ = plan;
  if (plan.tokens_are_bytes) token_word_ = "byte";
  update_stop_texts();
  folder_.begin(recipe_);
  for (const std::string& line : plan_lines(recipe_, plan)) say(line);
  if (verbosity_ != Verbosity::quiet) terminal_.live(fmt::format("step 0/{}  the first step is running", plan.steps));
}

double RunProgress::seconds_left(int64_t step) const {
  const double sum = std::accumulate(recent_seconds_.begin(), recent_seconds_.end(), 0.0);
  return sum / static_cast<double>(recent_seconds_.size()) * static_cast<double>(plan_.steps - step);
}

std::string RunProgress::step_line(const StepMetrics& metrics, size_t width) const {
  std::string line = fmt::format("step {:>{}}/{}", metrics.step, fmt::formatted_size("{}", plan_.steps), plan_.steps);
  std::string norm;
  if (metrics.skipped) {
    line += "  skipped";
  } else {
    line += fmt::format("  loss {:.4f}", metrics.loss);
    norm = fmt::format("  grad norm {:.3g}", metrics.grad_norm);
  }
  const std::string rate = fmt::format("  lr {:.2e}", metrics.learning_rate);
  const std::string speed = fmt::format("  {} tokens/s", format_short(metrics.tokens_per_second));
  const std::string memory = "  " + format_bytes(metrics.memory.peak);
  const std::string left = "  left " + format_duration(seconds_left(metrics.step));
  // What a narrow terminal has no room for is what changes least.
  for (const std::string& text : {line + norm + rate + speed + memory + left, line + norm + speed + memory + left,
                                  line + norm + speed + left, line + speed + left, line + left}) {
    if (text.size() < width) return text;
  }
  return line;
}

void RunProgress::on_step(const StepMetrics& metrics) {
  // A step is worth more than the run that was here before.
  folder_.keep();
  last_step_ = metrics.step;
  if (!metrics.skipped) {
    if (first_losses_.size() < kLossWindow) first_losses_.push_back(metrics.loss);
    last_losses_.push_back(metrics.loss);
    if (last_losses_.size() > kLossWindow) last_losses_.pop_front();
    ++losses_;
  }
  recent_seconds_.push_back(metrics.step_seconds);
  if (recent_seconds_.size() > kRecentSteps) recent_seconds_.pop_front();
  update_stop_texts();
  const bool due = metrics.step == 1 || metrics.step == plan_.steps || metrics.step % recipe_.train.logging_steps == 0;
  const std::string line = step_line(metrics, std::string::npos);
  if (due) folder_.log(line);
  if (verbosity_ == Verbosity::quiet) return;
  if (verbosity_ == Verbosity::verbose) {
    terminal_.line(line);
    terminal_.line(fmt::format("    {:.3f}s, {} sent by rank 0, {:.3f}s waiting for others, peak {}",
                               metrics.step_seconds, format_bytes(metrics.bytes_sent), metrics.exposed_wait_seconds,
                               memory_text(metrics.memory.peak_by_class)));
  } else if (terminal_.style().live) {
    terminal_.live(step_line(metrics, terminal_.width()));
  } else if (due) {
    terminal_.line(line);
  }
}

void RunProgress::update_stop_texts() {
  const std::string begin = terminal_.style().live && verbosity_ != Verbosity::quiet ? "\nithaca: " : "ithaca: ";
  const std::string folder = plan_.output_dir;
  std::string first = begin;
  std::string second = begin + "ended at once. ";
  if (last_step_ == 0) {
    first += "stopping before the first step is done or, where it is under way, after it";
    second +=
        folder_.has_earlier_run()
            ? fmt::format("The earlier run is set aside in {}/{}; the next ithaca train there puts it back first.",
                          folder, kEarlierRunFolder)
            : fmt::format("{} has no step yet, only the files that a run begins with; --overwrite replaces them.",
                          folder);
  } else if (exported_) {
    first += fmt::format("stopping; the model is in {}/{}", folder, kRunExportFolder);
    second += fmt::format("The model of step {} is in {}/{}.", last_step_, folder, kRunExportFolder);
  } else {
    first +=
        fmt::format("stopping after the step at hand; then the model is exported to {}/{}", folder, kRunExportFolder);
    second += fmt::format("{} holds {}, {} and {} with {}; the model was not exported.", folder, kRunConfigFile,
                          kRunLogFile, kRunMetricsFile, plural(last_step_, "step"));
  }
  set_stop_texts(first + "; once more to end at once\n", second + "\n");
}

void RunProgress::on_evaluation(const EvaluationMetrics& metrics) {
  say(fmt::format("evaluation after step {}: loss {:.4f} nats per {} over {} in {}", metrics.step, metrics.loss,
                  token_word_, plural(metrics.valid_tokens, token_word_.c_str()), format_duration(metrics.seconds)));
}

void RunProgress::on_warning(const std::string& text) {
  folder_.log_warning(text);
  if (std::find(warned_.begin(), warned_.end(), text) != warned_.end()) return;
  warned_.push_back(text);
  terminal_.error_line("ithaca: warning: " + text);
}

void RunProgress::on_trace(const TraceSummary& trace) {
  const std::string steps = trace.first_step == trace.last_step
                                ? fmt::format("step {}", trace.first_step)
                                : fmt::format("steps {} to {}", trace.first_step, trace.last_step);
  say(fmt::format("trace of {}: {} (open it in ui.perfetto.dev)", steps, trace.path));
  std::istringstream table(format_phase_table(trace.phases));
  for (std::string line; std::getline(table, line);) {
    folder_.log(line);
    if (verbosity_ == Verbosity::verbose) terminal_.line("    " + line);
  }
}

void RunProgress::on_export(const std::string& directory) {
  exported_ = true;
  update_stop_texts();
  folder_.log("exported to " + directory);
}

void RunProgress::finish(const RunResult& result, const std::string& signal_name) {
  if (verbosity_ != Verbosity::quiet) terminal_.keep_live();
  if (result.stopped_early && result.steps == 0) {
    say(fmt::format("Stopped by {} before the first step was done; nothing was trained, and {} {}.", signal_name,
                    folder_.has_earlier_run() ? "the earlier run is put back in" : "nothing of it is left in",
                    plan_.output_dir));
    return;
  }
  if (result.stopped_early) {
    say(fmt::format("{}{} after {} of {}; what was trained so far is kept.", kStoppedBy, signal_name,
                    plural(result.steps, "step"), format_count(plan_.steps)));
  }
  const double rate = result.training_seconds > 0 ? static_cast<double>(result.tokens) / result.training_seconds : 0.0;
  say(terminal_.bold(fmt::format("Trained {} on {} in {}, {} tokens/s.", plural(result.steps, "step"),
                                 plural(result.tokens, "token"), format_duration(result.training_seconds),
                                 format_short(rate))));
  if (result.skipped_steps > 0) {
    say(fmt::format("{} of them {} skipped and changed nothing; log.txt says why.", format_count(result.skipped_steps),
                    result.skipped_steps == 1 ? "was" : "were"));
  }
  if (2 * result.diverged_steps > result.steps) {
    say(fmt::format("The run has diverged: the loss or the gradient norm of {} of its {} was not finite. A {}.",
                    format_count(result.diverged_steps), plural(result.steps, "step"), kDivergenceAdvice));
  } else if (losses_ > 0) {
    const size_t window = std::max<size_t>(1, std::min(kLossWindow, static_cast<size_t>(losses_) / 4));
    const double first = mean(first_losses_, 0, window);
    const double last = mean(last_losses_, last_losses_.size() - window, last_losses_.size());
    std::string loss = fmt::format("The loss {} from {:.3f} to {:.3f} nats per {}", last < first ? "fell" : "went",
                                   first, last, token_word_);
    if (window > 1) loss += fmt::format(" (means of the first and the last {} steps)", window);
    if (result.evaluation_loss) loss += fmt::format("; on the evaluation data it is {:.3f}", *result.evaluation_loss);
    say(loss + ".");
  }
  say(fmt::format("The model is a Hugging Face directory: {}", result.export_directory));
  say(fmt::format("Every step's numbers: {}", result.metrics_file));
  say(fmt::format("Look at them with:    ithaca inspect {}", shell_word(plan_.output_dir)));
  say(fmt::format("and at the model with: ithaca inspect {}", shell_word(result.export_directory)));
}

}  // namespace ithaca
