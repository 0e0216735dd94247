#include "cli/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "base/text.h"
#include "tensor/memory.h"

namespace ithaca {

namespace {

constexpr size_t kRecentSteps = 20;

std::string plural(int64_t count, const char* word) {
  return fmt::format("{} {}{}", format_count(count), word, count == 1 ? "" : "s");
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
  lines.push_back(titled("ranks", fmt::format("{}, {}", mesh_text(plan.mesh), backend_text(plan.backend))));
  std::string attention = "each sequence stays whole on one rank";
  if (plan.mesh.cp() > 1) {
    attention = fmt::format("{} over {}, {} layout", schedule_name(plan.schedule), plural(plan.mesh.cp(), "rank"),
                            layout_name(plan.layout));
    if (!plan.schedule_reason.empty()) attention += fmt::format(" ({})", plan.schedule_reason);
  }
  lines.push_back(titled("attention", attention));
  lines.push_back(titled(
      "steps", fmt::format("{}, {} each", plural(plan.steps, "step"), plural(plan.sequences_per_step, "sequence"))));
  lines.push_back(titled("memory", fmt::format("{} per rank before the first step; recompute {}",
                                               memory_text(plan.state_bytes_per_rank), recipe.memory.recompute)));
  lines.push_back(titled("output", plan.output_dir));
  for (const std::string& note : plan.notes) lines.push_back(titled("note", note));
  return lines;
}

RunProgress::RunProgress(const Recipe& recipe, RunFolder& folder, Terminal& terminal, Verbosity verbosity)
    : recipe_(recipe),
      folder_(folder),
      terminal_(terminal),
      verbosity_(verbosity),
      token_word_(recipe.data.format == "text" && recipe.data.tokenizer == "bytes" ? "byte" : "token") {}

void RunProgress::say(const std::string& text) {
  folder_.log(text);
  if (verbosity_ != Verbosity::quiet) terminal_.line(text);
}

void RunProgress::on_plan(const RunPlan& plan) {
  plan_ = plan;
  folder_.begin(recipe_);
  for (const std::string& line : plan_lines(recipe_, plan)) say(line);
  if (verbosity_ != Verbosity::quiet) terminal_.live(fmt::format("step 0/{}  the first step is running", plan.steps));
}

double RunProgress::seconds_left(int64_t step) const {
  const double sum = std::accumulate(recent_seconds_.begin(), recent_seconds_.end(), 0.0);
  return sum / static_cast<double>(recent_seconds_.size()) * static_cast<double>(plan_.steps - step);
}

std::string RunProgress::step_line(const StepMetrics& metrics, bool with_rate) const {
  std::string line = fmt::format("step {:>{}}/{}", metrics.step, fmt::formatted_size("{}", plan_.steps), plan_.steps);
  if (metrics.skipped) {
    line += "  skipped";
  } else {
    line += fmt::format("  loss {:.4f}  grad norm {:.3g}", metrics.loss, metrics.grad_norm);
  }
  if (with_rate) line += fmt::format("  lr {:.2e}", metrics.learning_rate);
  return line + fmt::format("  {} tokens/s  {}  left {}", format_short(metrics.tokens_per_second),
                            format_bytes(metrics.memory.peak), format_duration(seconds_left(metrics.step)));
}

void RunProgress::on_step(const StepMetrics& metrics) {
  recent_seconds_.push_back(metrics.step_seconds);
  if (recent_seconds_.size() > kRecentSteps) recent_seconds_.pop_front();
  const bool due = metrics.step == 1 || metrics.step == plan_.steps || metrics.step % recipe_.train.logging_steps == 0;
  const std::string line = step_line(metrics, true);
  if (due) folder_.log(line);
  if (verbosity_ == Verbosity::quiet) return;
  if (verbosity_ == Verbosity::verbose) {
    terminal_.line(line);
    terminal_.line(fmt::format("    {:.3f}s, {} sent by rank 0, {:.3f}s waiting for others, peak {}",
                               metrics.step_seconds, format_bytes(metrics.bytes_sent), metrics.exposed_wait_seconds,
                               memory_text(metrics.memory.peak_by_class)));
  } else if (terminal_.style().live) {
    // What a narrow terminal has no room for is what changes least.
    terminal_.live(line.size() < terminal_.style().width ? line : step_line(metrics, false));
  } else if (due) {
    terminal_.line(line);
  }
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
  folder_.log("exported to " + directory);
}

void RunProgress::finish(const RunResult& result, const std::string& signal_name) {
  if (verbosity_ != Verbosity::quiet) terminal_.keep_live();
  if (result.stopped_early) {
    say(fmt::format("Stopped by {} after {} of {}; what was trained so far is kept.", signal_name,
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
  if (result.steps > 0) {
    const char* verb = result.last_loss < result.first_loss ? "fell" : "went";
    std::string loss = fmt::format("The loss {} from {:.3f} to {:.3f} nats per {}", verb, result.first_loss,
                                   result.last_loss, token_word_);
    if (result.evaluation_loss) loss += fmt::format("; on the evaluation data it is {:.3f}", *result.evaluation_loss);
    say(loss + ".");
  }
  say(fmt::format("The model is a Hugging Face directory: {}", result.export_directory));
  say(fmt::format("Every step's numbers: {}", result.metrics_file));
  say(fmt::format("Look at them with:    ithaca inspect {}", plan_.output_dir));
  say(fmt::format("and at the model with: ithaca inspect {}", result.export_directory));
}

}  // namespace ithaca
