// What a run tells the person who started it: what will happen, how far it is, what was done.
//
// In a terminal one live line moves with every step; elsewhere a plain line is printed every logging_steps steps, and
// at the first and the last. Everything goes to the run's log too. Thread-safety: as RunObserver.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "cli/run_folder.h"
#include "cli/terminal.h"
#include "train/run.h"

namespace ithaca {

enum class Verbosity : uint8_t { quiet, normal, verbose };

class RunProgress : public RunObserver {
 public:
  // All must outlive it.
  RunProgress(const Recipe& recipe, RunFolder& folder, Terminal& terminal, Verbosity verbosity);

  void on_tokenize(const TokenizeProgress& progress) override;
  void on_data_note(const std::string& text) override;
  void on_plan(const RunPlan& plan) override;
  void on_step(const StepMetrics& metrics) override;
  void on_evaluation(const EvaluationMetrics& metrics) override;
  void on_warning(const std::string& text) override;
  void on_trace(const TraceSummary& trace) override;
  void on_export(const std::string& directory) override;

  // The last words. `signal_name` is what stopped the run early, if anything did.
  void finish(const RunResult& result, const std::string& signal_name);

 private:
  void say(const std::string& text);
  // As much of the step as has room in `width` columns.
  std::string step_line(const StepMetrics& metrics, size_t width) const;
  // What Ctrl-C will say, as things stand.
  void update_stop_texts();
  double seconds_left(int64_t step) const;

  const Recipe& recipe_;
  RunFolder& folder_;
  Terminal& terminal_;
  Verbosity verbosity_;
  RunPlan plan_;
  std::string token_word_;             // "byte" or "token"
  std::deque<double> recent_seconds_;  // of the last steps
  std::deque<double> first_losses_;    // of the first steps that were not skipped
  std::deque<double> last_losses_;
  int64_t losses_ = 0;
  int64_t last_step_ = 0;
  bool exported_ = false;
  std::vector<std::string> warned_;  // said once each
};

// "1 step", "1,000 steps".
std::string plural(int64_t count, const char* word);
// "at first", "after 1,000 steps": where a stage of a schedule begins.
std::string after_steps(int64_t steps);
// How far tokenizing is, as one line of at most `width` columns where that is possible.
std::string tokenize_line(const TokenizeProgress& progress, size_t width);
// What became of the documents of a dataset: totals, and what was cut, dropped or skipped.
std::vector<std::string> data_lines(const DatasetSummary& data);
// The lines of on_plan, for tests.
std::vector<std::string> plan_lines(const Recipe& recipe, const RunPlan& plan);

}  // namespace ithaca
