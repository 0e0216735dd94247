#include "cli/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <ostream>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/hugging_face.h"
#include "checkpoint/safetensors.h"
#include "cli/plot.h"
#include "cli/progress.h"
#include "cli/run_folder.h"
#include "model/parameters.h"
#include "train/plan_file.h"
#include "train/recipe_options.h"
#include "train/run_history.h"
#include "train/tensorboard.h"

namespace ithaca {

namespace {

namespace fs = std::filesystem;

void row(std::ostream& out, const char* title, const std::string& text) {
  out << fmt::format("{:<12} {}\n", title, text);
}

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw FileError(path.string() + ": cannot be opened");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void list_tensors(const SafetensorsFile& file, std::ostream& out) {
  for (const SafetensorsFile::Entry& entry : file.entries()) {
    out << fmt::format("  {:<56} {:<5} {}\n", entry.name, entry.stored_type, shape_text(entry.shape));
  }
}

// model.safetensors, or its shards model-00001-of-00002.safetensors, ...
std::vector<fs::path> weight_files(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model") && name.ends_with(".safetensors")) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string rope_text(const RopeDescription& rope) {
  std::string text = fmt::format("{}, theta {}", rope_name(rope.kind), rope.theta);
  if (rope.kind != RopeKind::standard) text += fmt::format(", factor {:g}", rope.factor);
  if (rope.original_max_positions > 0) {
    text += fmt::format(", original positions {}", format_count(rope.original_max_positions));
  }
  return text;
}

std::string attention_text(const ModelDescription& model) {
  std::string text = fmt::format("{}, {}, head size {}", plural(model.query_heads, "query head"),
                                 plural(model.key_heads, "key head"), model.head_size);
  std::map<int64_t, int64_t> windows;
  for (const LayerDescription& layer : model.layers) ++windows[layer.window];
  for (const auto& [window, count] : windows) {
    if (window > 0) {
      text += fmt::format("; a window of {} in {} of {}", plural(window, "token"), count,
                          plural(model.layer_count(), "layer"));
    }
  }
  if (model.query_key_value_bias) text += "; q/k/v biases";
  if (model.output_bias) text += "; output bias";
  if (model.query_key_norm) text += "; q/k norm";
  return text;
}

std::string tokenizer_text(const fs::path& directory) {
  std::vector<std::string> found;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
                           "vocab.json", "merges.txt", "added_tokens.json", "chat_template.jinja"}) {
    if (fs::exists(directory / name)) found.push_back(name);
  }
  return found.empty() ? "no files" : fmt::format("{}", fmt::join(found, ", "));
}

// "float32", or "bfloat16 x 200, float32 x 10".
std::string dtypes_text(const ModelDirectory& directory) {
  std::map<std::string, int64_t> counts;
  for (const std::string& name : directory.tensor_names()) {
    const std::optional<DType> dtype = directory.stored_dtype(name);
    ++counts[dtype ? std::string(dtype_name(*dtype)) : "another type"];
  }
  if (counts.size() == 1) return counts.begin()->first;
  std::vector<std::string> parts;
  for (const auto& [name, count] : counts) parts.push_back(fmt::format("{} x {}", name, count));
  return fmt::format("{}", fmt::join(parts, ", "));
}

// What config.json says of itself, when it cannot be understood as a model.
std::string declared_family(const fs::path& directory) {
  try {
    const nlohmann::ordered_json config =
        parse_json(read_text(directory / "config.json"), (directory / "config.json").string());
    if (config.is_object() && config.contains("model_type") && config["model_type"].is_string()) {
      return config["model_type"].get<std::string>();
    }
  } catch (const Error&) {
    return "unreadable";
  }
  return "not said";
}

int inspect_model(const fs::path& directory, const InspectOptions& options, std::ostream& out) {
  row(out, "model", directory.string());
  std::optional<ModelDirectory> opened;
  try {
    opened.emplace(directory.string());
  } catch (const Error& error) {
    row(out, "family", declared_family(directory));
    row(out, "unsupported", error.what());
    return 1;
  }
  const ModelDescription& model = opened->description();
  row(out, "family", std::string(family_name(model.family)));
  row(out, "parameters",
      fmt::format("{} ({}{})", format_count(model.parameter_count()),
                  format_short(static_cast<double>(model.parameter_count())),
                  model.tied_head ? ", the head is the embedding" : ""));
  row(out, "layers",
      fmt::format("{}, hidden {}, intermediate {}", model.layer_count(), model.hidden_size, model.intermediate_size));
  row(out, "attention", attention_text(model));
  row(out, "RoPE", rope_text(model.rope));
  row(out, "positions", format_count(model.max_positions));
  row(out, "vocabulary", format_count(model.vocabulary));
  row(out, "tokenizer", tokenizer_text(directory));
  int status = 0;
  if (!opened->has_weights()) {
    row(out, "weights", "none; train it with model.init: random");
    row(out, "unsupported", "nothing");
    return 0;
  }
  const std::vector<std::string> names = opened->tensor_names();
  row(out, "tensors",
      fmt::format("{}, {}, {}", format_count(static_cast<int64_t>(names.size())), dtypes_text(*opened),
                  format_bytes(opened->weight_bytes())));
  try {
    opened->check(parameter_specs(model));
    row(out, "unsupported", "nothing");
  } catch (const InputError& error) {
    row(out, "unsupported", error.what());
    status = 1;
  }
  if (options.tensors) {
    for (const fs::path& file : weight_files(directory)) {
      out << file.filename().string() << '\n';
      list_tensors(SafetensorsFile(file.string()), out);
    }
  }
  return status;
}

int inspect_safetensors(const fs::path& path, std::ostream& out) {
  const SafetensorsFile file(path.string());
  int64_t bytes = 0;
  for (const SafetensorsFile::Entry& entry : file.entries()) bytes += entry.end - entry.begin;
  row(out, "file", path.string());
  row(out, "tensors", fmt::format("{}, {}", file.entries().size(), format_bytes(bytes)));
  list_tensors(file, out);
  return 0;
}

// The recipe of the run, and what became of its `auto`s.
void describe_plan(const fs::path& folder, std::ostream& out) {
  const std::optional<SavedPlan> plan = read_plan_file((folder / kPlanFile).string());
  const fs::path config = folder / kRunConfigFile;
  std::optional<Recipe> recipe;
  if (fs::exists(config)) {
    try {
      // Not load_recipe: the model and the data need not be there any more.
      recipe = parse_recipe(read_text(config), config.string(), folder.string());
    } catch (const ConfigurationError& error) {
      row(out, "config", error.what());
    }
  } else {
    row(out, "config", "config.yaml is not there");
  }
  std::string model = plan && !plan->family.empty()
                          ? fmt::format("{}, {}, {}", plan->family, plural(plan->layers, "layer"),
                                        plural(plan->parameters, "parameter"))
                          : std::string();
  if (recipe)
    model = fmt::format("{} ({}{}{})", recipe->model.path, recipe->model.init, model.empty() ? "" : "; ", model);
  if (!model.empty()) row(out, "model", model);
  if (recipe) {
    row(out, "data",
        fmt::format("{}, sequences of up to {} tokens", fmt::join(recipe->data.train, ", "),
                    fmt::join(recipe->data.max_length, ", ")));
  }
  if (plan) {
    row(out, "ranks",
        fmt::format("{}{}{}{}", plan->ranks, plan->mesh.empty() ? "" : " (" + plan->mesh + ")",
                    plan->backend.empty() ? "" : ", ", plan->backend));
    std::string attention = plan->attention_text();
    if (recipe) {
      std::vector<std::string> chosen;
      if (recipe->parallel.schedule == "auto") chosen.push_back("schedule");
      if (recipe->parallel.layout == "auto") chosen.push_back("layout");
      if (!chosen.empty() && plan->ranks > 1)
        attention += fmt::format("; auto chose the {}", fmt::join(chosen, " and the "));
    }
    if (!plan->reason.empty()) attention += ": " + plan->reason;
    row(out, "attention", attention);
  } else if (recipe) {
    row(out, "ranks",
        fmt::format("sp_size {} x dp_replicate_size {} x dp_shard_size {}", recipe->parallel.sp_size,
                    recipe->parallel.dp_replicate_size, recipe->parallel.dp_shard_size));
    row(out, "attention",
        fmt::format("schedule {}, layout {}, as the recipe says: there is no plan.json", recipe->parallel.schedule,
                    recipe->parallel.layout));
  }
  if (recipe) {
    row(out, "optimizer",
        fmt::format("AdamW, learning rate {:g}, {}, {}, seed {}", recipe->optim.learning_rate,
                    recipe->optim.lr_scheduler_type, plural(recipe->optim.warmup_steps, "warmup step"),
                    recipe->train.seed));
  }
}

// The classes of the step that used most: "weights 3.07 MiB, ...".
std::string memory_classes_text(const RunHistory& history) {
  const auto most = std::max_element(history.steps.begin(), history.steps.end(), [](const auto& a, const auto& b) {
    return !(a.peak_bytes >= b.peak_bytes) && std::isfinite(b.peak_bytes);
  });
  std::vector<std::string> parts;
  for (int index = 0; most != history.steps.end() && index < kMemoryClasses; ++index) {
    const double bytes = most->peak_bytes_by_class[static_cast<size_t>(index)];
    if (!(bytes > 0)) continue;
    parts.push_back(fmt::format("{} {}", memory_class_name(static_cast<MemoryClass>(index)),
                                format_bytes(static_cast<int64_t>(bytes))));
  }
  return parts.empty() ? std::string() : fmt::format("; its classes at their own peaks: {}", fmt::join(parts, ", "));
}

std::string loss_text(double loss) {
  return std::isfinite(loss) ? fmt::format("{:.4f}", loss) : "not finite";
}

void describe_history(const RunHistory& history, int64_t planned_steps, const std::string& early_end,
                      std::ostream& out) {
  if (history.steps.empty()) {
    row(out, "steps", history.cut ? "none yet; the first line of metrics.jsonl is cut off" : "none yet");
    return;
  }
  const int64_t last = history.steps.back().step;
  std::string steps = format_count(static_cast<int64_t>(history.steps.size()));
  if (planned_steps > last) {
    steps += fmt::format(" of {}: {}", format_count(planned_steps),
                         early_end.empty() ? "the run is still going on, or was killed" : early_end);
  }
  if (history.skipped() > 0) steps += fmt::format(", {} of them skipped", history.skipped());
  if (history.cut) steps += "; the last line of metrics.jsonl is cut off";
  row(out, "steps", steps);
  row(out, "tokens",
      fmt::format("{} in {}, {} tokens/s", format_count(history.tokens()), format_duration(history.seconds()),
                  format_short(history.tokens_per_second())));
  if (history.peak_bytes() > 0) {
    row(out, "memory",
        fmt::format("{} at most, on the rank that used most{}",
                    format_bytes(static_cast<int64_t>(history.peak_bytes())), memory_classes_text(history)));
  }
  std::string loss =
      fmt::format("{} at first, {} at last", loss_text(history.first_loss()), loss_text(history.last_loss()));
  if (const HistoryStep* lowest = history.lowest_loss()) {
    loss += fmt::format(", lowest {:.4f} in step {}", lowest->loss, format_count(lowest->step));
  }
  if (!history.evaluations.empty()) {
    loss += fmt::format("; {} on the evaluation data", loss_text(history.evaluations.back().loss));
  }
  row(out, "loss", loss);
  std::vector<double> x;
  std::vector<double> y;
  for (const HistoryStep& step : history.steps) {
    x.push_back(static_cast<double>(step.step));
    y.push_back(step.loss);
  }
  const std::vector<std::string> plot = plot_curve(x, y, "step");
  if (!plot.empty()) out << '\n';
  for (const std::string& line : plot) out << line << '\n';
  if (!plot.empty()) out << '\n';
}

int inspect_run(const fs::path& folder, std::ostream& out) {
  row(out, "run", folder.string());
  describe_plan(folder, out);
  const std::optional<SavedPlan> plan = read_plan_file((folder / kPlanFile).string());
  const fs::path metrics = folder / kRunMetricsFile;
  const std::string early_end = early_end_text(folder.string());
  describe_history(fs::exists(metrics) ? read_run_history(metrics.string()) : RunHistory(), plan ? plan->steps : 0,
                   early_end, out);
  const fs::path exported = folder / kRunExportFolder;
  row(out, "export",
      fs::exists(exported / "config.json")
          ? fmt::format("{} (look at it with: ithaca inspect {})", exported.string(), shell_word(exported.string()))
          : "none: " + (early_end.empty() ? "the run did not come to its end" : early_end));
  if (fs::exists(folder / kTensorboardFolder)) {
    row(out, "TensorBoard", fmt::format("tensorboard --logdir {}", shell_word((folder / kTensorboardFolder).string())));
  }
  row(out, "as a page", fmt::format("ithaca report {}", shell_word(folder.string())));
  if (fs::exists(folder / kRunLogFile)) row(out, "log", (folder / kRunLogFile).string());
  const std::string earlier = earlier_run_text(folder.string());
  if (!earlier.empty()) row(out, "earlier run", earlier);
  return 0;
}

}  // namespace

int inspect_path(const std::string& path, const InspectOptions& options, std::ostream& out) {
  std::error_code error;
  fs::path target = fs::path(path).lexically_normal();
  if (!fs::exists(target, error)) throw FileError(path + ": there is no such file or folder");
  if (fs::is_directory(target, error)) {
    if (!target.has_filename()) target = target.parent_path();
    if (fs::exists(target / "config.json", error)) return inspect_model(target, options, out);
    if (fs::exists(target / kRunConfigFile, error) || fs::exists(target / kRunMetricsFile, error) ||
        !earlier_run_text(target.string()).empty()) {
      return inspect_run(target, out);
    }
    throw InputError(path +
                     ": this is neither a model directory (it has no config.json) nor a run folder (it has no "
                     "config.yaml or metrics.jsonl)");
  }
  if (target.extension() == ".safetensors") return inspect_safetensors(target, out);
  if (target.filename() == "config.json")
    return inspect_model(target.parent_path().empty() ? "." : target.parent_path(), options, out);
  if (target.filename() == kRunMetricsFile)
    return inspect_run(target.parent_path().empty() ? "." : target.parent_path(), out);
  throw InputError(path + ": inspect reads a model directory, a .safetensors file or a run folder");
}

}  // namespace ithaca
