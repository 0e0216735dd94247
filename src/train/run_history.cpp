#include "train/run_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/file_output.h"

namespace ithaca {

namespace {

using Json = nlohmann::ordered_json;

double number_of(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : kNotRecorded;
}

void read_evaluation(const Json& line, RunHistory& history) {
  const auto step = line.at("step").get<int64_t>();
  auto& evaluations = history.evaluations;
  while (!evaluations.empty() && evaluations.back().step >= step) evaluations.pop_back();
  evaluations.push_back({step, number_of(line, "eval_loss")});
}

void read_step(const Json& line, RunHistory& history) {
  HistoryStep step;
  step.step = line.at("step").get<int64_t>();
  line.at("loss");  // null where it is not finite, but always there
  step.loss = number_of(line, "loss");
  step.grad_norm = number_of(line, "grad_norm");
  step.learning_rate = number_of(line, "learning_rate");
  step.tokens = line.value("tokens", int64_t{0});
  step.seconds = number_of(line, "step_seconds");
  step.tokens_per_second = number_of(line, "tokens_per_second");
  step.exposed_wait_seconds = number_of(line, "exposed_wait_seconds");
  step.skipped = line.value("skipped", false);
  if (const auto memory = line.find("peak_memory_bytes"); memory != line.end() && memory->is_object()) {
    step.peak_bytes = number_of(*memory, "total");
    for (int index = 0; index < kMemoryClasses; ++index) {
      step.peak_bytes_by_class[static_cast<size_t>(index)] =
          number_of(*memory, std::string(memory_class_name(static_cast<MemoryClass>(index))).c_str());
    }
  }
  auto& steps = history.steps;
  while (!steps.empty() && steps.back().step >= step.step) steps.pop_back();
  auto& evaluations = history.evaluations;
  while (!evaluations.empty() && evaluations.back().step >= step.step) evaluations.pop_back();
  steps.push_back(step);
}

}  // namespace

int64_t RunHistory::tokens() const {
  int64_t sum = 0;
  for (const HistoryStep& step : steps) sum += step.tokens;
  return sum;
}

double RunHistory::seconds() const {
  // In the order of the steps, as the run itself adds them: the same double.
  double sum = 0.0;
  for (const HistoryStep& step : steps) sum += std::isfinite(step.seconds) ? step.seconds : 0.0;
  return sum;
}

double RunHistory::tokens_per_second() const {
  const double time = seconds();
  return time > 0.0 ? static_cast<double>(tokens()) / time : 0.0;
}

int64_t RunHistory::skipped() const {
  return std::count_if(steps.begin(), steps.end(), [](const HistoryStep& step) { return step.skipped; });
}

double RunHistory::peak_bytes() const {
  double peak = 0.0;
  for (const HistoryStep& step : steps) peak = std::max(peak, std::isfinite(step.peak_bytes) ? step.peak_bytes : 0.0);
  return peak;
}

double RunHistory::first_loss() const {
  const auto found =
      std::find_if(steps.begin(), steps.end(), [](const HistoryStep& step) { return std::isfinite(step.loss); });
  return found == steps.end() ? kNotRecorded : found->loss;
}

double RunHistory::last_loss() const {
  const auto found =
      std::find_if(steps.rbegin(), steps.rend(), [](const HistoryStep& step) { return std::isfinite(step.loss); });
  return found == steps.rend() ? kNotRecorded : found->loss;
}

const HistoryStep* RunHistory::lowest_loss() const {
  const HistoryStep* lowest = nullptr;
  for (const HistoryStep& step : steps) {
    if (std::isfinite(step.loss) && (lowest == nullptr || step.loss < lowest->loss)) lowest = &step;
  }
  return lowest;
}

RunHistory read_run_history(const std::string& path) {
  RunHistory history;
  const std::string text = read_whole_file(path);
  int64_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    ++line_number;
    if (end == std::string::npos) {
      history.cut = true;
      break;
    }
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    const Json entry = parse_json(line, path, line_number);
    const std::string where = fmt::format("{}:{}: ", path, line_number);
    if (!entry.is_object()) throw InputError(where + "this is not a JSON object, so not a line of a run");
    try {
      if (entry.contains("eval_loss")) {
        read_evaluation(entry, history);
      } else {
        read_step(entry, history);
      }
    } catch (const Json::exception& error) {
      throw InputError(where + "not a line of a run: " + json_complaint(error.what()));
    }
  }
  return history;
}

}  // namespace ithaca
