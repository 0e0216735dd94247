// The folder of one run: config.yaml (every option's value), plan.json, log.txt, metrics.jsonl, tensorboard/ and
// export/.
//
// A folder holds one run. One that holds another run is refused, unless it may be overwritten; then the earlier run is
// set aside when the new one begins, and removed only when the new one has something to show for it: keep(). A new run
// that ends before that (a damaged checkpoint, no memory, Ctrl-C) leaves the folder as it was. Two runs at once in one
// folder are refused. Thread-safety: one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "train/recipe.h"

namespace spdlog {
class logger;
}

namespace ithaca {

inline constexpr const char* kRunConfigFile = "config.yaml";
inline constexpr const char* kRunMetricsFile = "metrics.jsonl";
inline constexpr const char* kRunLogFile = "log.txt";
inline constexpr const char* kRunExportFolder = "export";
// Where the earlier run waits until the new one has made its first step.
inline constexpr const char* kEarlierRunFolder = ".earlier-run";

// How a line of log.txt begins that says what stopped the run: "Stopped by SIGTERM after 3 steps of 10; ...".
inline constexpr const char* kStoppedBy = "Stopped by ";

// How the run in `folder` ended before its last step, as its log.txt says: "stopped by SIGTERM", or "ended by an error:
// ...". Empty where it does not say: the run goes on, or was killed, or came to its end.
std::string early_end_text(const std::string& folder);

class RunFolder {
 public:
  // Makes the folder. Throws ConfigurationError when there is another run and `overwrite` is false, when `path` cannot
  // be a folder, or when it cannot be written to.
  RunFolder(std::string path, bool overwrite);
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  // Without keep(): removes what the new run wrote, puts the earlier run back, removes folders that were made.
  ~RunFolder();

  // Sets the earlier run aside, if there is one; writes config.yaml and opens log.txt. Throws FileError when something
  // cannot be written, ConfigurationError when export/ is not something that a run wrote, or another run is at it.
  void begin(const Recipe& recipe);
  // From here on the new run stays, whatever happens. Removes the earlier one.
  void keep();
  // Whether an earlier run waits to be put back.
  bool has_earlier_run() const { return has_earlier_run_; }

  // A line of log.txt, with the time; dropped before begin(). log and log_warning throw FileError when it cannot be
  // written.
  void log(const std::string& text);
  void log_warning(const std::string& text);
  void log_error(const std::string& text) noexcept;

  const std::string& path() const { return path_; }

 private:
  class Lock;

  std::string path_;
  std::vector<std::string> made_folders_;  // innermost first
  std::unique_ptr<Lock> lock_;
  std::shared_ptr<spdlog::logger> log_;
  bool began_ = false;
  bool kept_ = false;
  bool has_earlier_run_ = false;
};

}  // namespace ithaca
