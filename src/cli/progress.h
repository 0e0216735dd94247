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
  std::string step_line(const StepMetrics& metrics, bool with_rate) const;
  double seconds_left(int64_t step) const;

  const Recipe& recipe_;
  RunFolder& folder_;
  Terminal& terminal_;
  Verbosity verbosity_;
  RunPlan plan_;
  std::string token_word_;             // "byte" or "token"
  std::deque<double> recent_seconds_;  // of the last steps
  std::vector<std::string> warned_;    // said once each
};

// The lines of on_plan, for tests.
std::vector<std::string> plan_lines(const Recipe& recipe, const RunPlan& plan);

}  // namespace ithaca
