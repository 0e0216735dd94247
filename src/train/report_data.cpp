// The numbers of a report: reading run folders, and thinning their curves to what a screen can show.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/file_output.h"
#include "train/recipe_options.h"
#include "train/report.h"

namespace ithaca {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Seven significant digits: more than a curve shows, and half of the page's size.
Json rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(fmt::format("{:.7g}", value).c_str(), nullptr);
}

// More marks than this are a bar.
constexpr size_t kMostSkippedMarks = 500;

// Steps [begin, end) of a history that become one point.
struct Bucket {
  size_t begin;
  size_t end;
};

std::vector<Bucket> make_buckets(size_t steps, int64_t points) {
  const size_t count = std::min(steps, static_cast<size_t>(std::max<int64_t>(points, 1)));
  std::vector<Bucket> buckets;
  for (size_t index = 0; index < count; ++index) {
    buckets.push_back({steps * index / count, steps * (index + 1) / count});
  }
  return buckets;
}

using Value = std::function<double(const HistoryStep&)>;

// {"mean": [...]}, and "low" and "high" where a point stands for several steps; null when nothing was recorded.
Json series(const RunHistory& history, const std::vector<Bucket>& buckets, const Value& value_of) {
  Json mean = Json::array();
  Json low = Json::array();
  Json high = Json::array();
  bool any = false;
  for (const Bucket& bucket : buckets) {
    double sum = 0.0;
    double least = std::numeric_limits<double>::infinity();
    double most = -least;
    int64_t count = 0;
    for (size_t index = bucket.begin; index < bucket.end; ++index) {
      const double value = value_of(history.steps[index]);
      if (!std::isfinite(value)) continue;
      sum += value;
      least = std::min(least, value);
      most = std::max(most, value);
      ++count;
    }
    any = any || count > 0;
    mean.push_back(count > 0 ? rounded(sum / static_cast<double>(count)) : Json(nullptr));
    low.push_back(rounded(least));
    high.push_back(rounded(most));
  }
  if (!any) return nullptr;
  Json result;
  result["mean"] = std::move(mean);
  if (buckets.size() < history.steps.size()) {
    result["low"] = std::move(low);
    result["high"] = std::move(high);
  }
  return result;
}

// A class is drawn when any step used it.
bool any_positive(const RunHistory& history, size_t memory_class) {
  return std::any_of(history.steps.begin(), history.steps.end(),
                     [&](const HistoryStep& step) { return step.peak_bytes_by_class[memory_class] > 0.0; });
}

Json memory_data(const RunHistory& history, const std::vector<Bucket>& buckets) {
  Json memory;
  memory["total"] = series(history, buckets, [](const HistoryStep& step) { return step.peak_bytes; });
  memory["classes"] = Json::array();
  for (size_t index = 0; index < kMemoryClasses; ++index) {
    if (!any_positive(history, index)) continue;
    Json entry;
    entry["name"] = memory_class_name(static_cast<MemoryClass>(index));
    // The highest of each point's steps: a peak is what decides whether a run fits.
    Json values = Json::array();
    for (const Bucket& bucket : buckets) {
      double most = 0.0;
      for (size_t step = bucket.begin; step < bucket.end; ++step) {
        const double value = history.steps[step].peak_bytes_by_class[index];
        if (std::isfinite(value)) most = std::max(most, value);
      }
      values.push_back(rounded(most));
    }
    entry["bytes"] = std::move(values);
    memory["classes"].push_back(std::move(entry));
  }
  return memory;
}

Json run_data(const ReportRun& run, int64_t points) {
  const RunHistory& history = run.history;
  const std::vector<Bucket> buckets = make_buckets(history.steps.size(), points);
  Json data;
  data["name"] = run.name;
  Json steps = Json::array();
  Json tokens = Json::array();
  Json seconds = Json::array();
  int64_t token_sum = 0;
  double second_sum = 0.0;
  for (const Bucket& bucket : buckets) {
    for (size_t index = bucket.begin; index < bucket.end; ++index) {
      token_sum += history.steps[index].tokens;
      second_sum += std::isfinite(history.steps[index].seconds) ? history.steps[index].seconds : 0.0;
    }
    steps.push_back(history.steps[bucket.end - 1].step);
    tokens.push_back(token_sum);
    seconds.push_back(rounded(second_sum));
  }
  data["steps_per_point"] =
      buckets.empty() ? 0.0 : static_cast<double>(history.steps.size()) / static_cast<double>(buckets.size());
  data["step"] = std::move(steps);
  data["tokens"] = std::move(tokens);
  data["seconds"] = std::move(seconds);
  data["loss"] = series(history, buckets, [](const HistoryStep& step) { return step.loss; });
  data["grad_norm"] = series(history, buckets, [](const HistoryStep& step) { return step.grad_norm; });
  data["learning_rate"] = series(history, buckets, [](const HistoryStep& step) { return step.learning_rate; });
  data["tokens_per_second"] = series(history, buckets, [](const HistoryStep& step) { return step.tokens_per_second; });
  data["step_seconds"] = series(history, buckets, [](const HistoryStep& step) { return step.seconds; });
  data["exposed_wait_seconds"] =
      series(history, buckets, [](const HistoryStep& step) { return step.exposed_wait_seconds; });
  data["memory"] = memory_data(history, buckets);
  data["skipped"] = Json::array();
  token_sum = 0;
  second_sum = 0.0;
  for (const HistoryStep& step : history.steps) {
    token_sum += step.tokens;
    second_sum += std::isfinite(step.seconds) ? step.seconds : 0.0;
    if (!step.skipped || data["skipped"].size() >= kMostSkippedMarks) continue;
    data["skipped"].push_back({{"step", step.step}, {"tokens", token_sum}, {"seconds", rounded(second_sum)}});
  }
  data["evaluations"] = Json::array();
  size_t next = 0;
  token_sum = 0;
  second_sum = 0.0;
  for (const HistoryEvaluation& evaluation : history.evaluations) {
    for (; next < history.steps.size() && history.steps[next].step <= evaluation.step; ++next) {
      token_sum += history.steps[next].tokens;
      second_sum += std::isfinite(history.steps[next].seconds) ? history.steps[next].seconds : 0.0;
    }
    data["evaluations"].push_back({{"step", evaluation.step},
                                   {"tokens", token_sum},
                                   {"seconds", rounded(second_sum)},
                                   {"loss", rounded(evaluation.loss)}});
  }
  return data;
}

void read_options(const std::string& path, ReportRun& run) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    run.config_problem = "config.yaml is not there";
    return;
  }
  try {
    run.config_text = read_whole_file(path);
    // Not load_recipe: the model and the data need not be there any more.
    const Recipe recipe = parse_recipe(run.config_text, path, fs::path(path).parent_path().string());
    const std::vector<Option>& options = recipe_table().catalog().options();
    const std::vector<OptionValue> values = recipe_table().values(recipe);
    for (size_t index = 0; index < options.size(); ++index) {
      run.options.push_back({options[index].section, options[index].name, format_option_value(values[index])});
    }
    run.config_text.clear();
  } catch (const Error& problem) {
    run.config_problem = problem.what();
  }
}

// The last `parts` parts of a path.
std::string path_ending(const fs::path& path, size_t parts) {
  std::vector<std::string> names;
  for (const fs::path& part : path) {
    if (!part.empty()) names.push_back(part.string());
  }
  std::string ending;
  for (size_t index = names.size() - std::min(parts, names.size()); index < names.size(); ++index) {
    ending += (ending.empty() || ending.back() == '/' ? "" : "/") + names[index];
  }
  return ending;
}

}  // namespace

ReportRun read_report_run(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) throw FileError(folder + ": there is no such folder");
  if (!fs::is_directory(folder, error)) throw InputError(folder + ": this is a file; a report takes run folders");
  const fs::path metrics = fs::path(folder) / "metrics.jsonl";
  if (!fs::exists(metrics, error)) {
    throw InputError(folder + ": this is not a run folder: it has no metrics.jsonl");
  }
  ReportRun run;
  run.folder = folder;
  run.history = read_run_history(metrics.string());
  read_options((fs::path(folder) / "config.yaml").string(), run);
  try {
    run.plan = read_plan_file((fs::path(folder) / kPlanFile).string());
  } catch (const InputError& problem) {
    if (run.config_problem.empty()) run.config_problem = problem.what();
  }
  run.exported = fs::exists(fs::path(folder) / "export" / "config.json", error);
  return run;
}

void name_report_runs(std::vector<ReportRun>& runs) {
  std::vector<fs::path> paths;
  size_t longest = 1;
  for (const ReportRun& run : runs) {
    paths.push_back(fs::absolute(run.folder).lexically_normal());
    longest = std::max(longest, static_cast<size_t>(std::distance(paths.back().begin(), paths.back().end())));
  }
  for (size_t parts = 1; parts <= longest; ++parts) {
    std::set<std::string> names;
    for (size_t index = 0; index < runs.size(); ++index) {
      runs[index].name = path_ending(paths[index], parts);
      names.insert(runs[index].name);
    }
    if (names.size() == runs.size()) return;
  }
  // The same folder twice, under whatever spelling.
  for (size_t index = 0; index < runs.size(); ++index) runs[index].name += fmt::format(" ({})", index + 1);
}

std::string report_data(const std::vector<ReportRun>& runs, int64_t points) {
  Json data;
  data["runs"] = Json::array();
  for (const ReportRun& run : runs) data["runs"].push_back(run_data(run, points));
  // ASCII only, and no character that HTML could take for the end of the element.
  std::string text = data.dump(-1, ' ', true, Json::error_handler_t::replace);
  std::string safe;
  safe.reserve(text.size());
  for (const char letter : text) {
    if (letter == '<') {
      safe += "\\u003c";
    } else if (letter == '>') {
      safe += "\\u003e";
    } else if (letter == '&') {
      safe += "\\u0026";
    } else {
      safe += letter;
    }
  }
  return safe;
}

}  // namespace ithaca
