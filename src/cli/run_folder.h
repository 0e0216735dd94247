// The folder of one run: config.yaml (every option's value), plan.json, log.txt, metrics.jsonl, tensorboard/ and
// export/.
//
// A folder holds one run. One that holds another run is refused, unless it may be overwritten; then the earlier run
// (with traces and the report of it that lie there) is set aside when the new one begins, and removed only when the new
// one has something to show for it: keep(). A new run that ends before that (a damaged checkpoint, no memory, Ctrl-C)
// leaves the folder as it was; after one that was killed the next run there does that first. Two runs at once in one
// folder are refused. Thread-safety: one thread at a time.
#pragma once

#include <filesystem>
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
// What `ithaca report` writes there.
inline constexpr const char* kRunReportFile = "report.html";
// Where the earlier run waits until the new one has made its first step.
inline constexpr const char* kEarlierRunFolder = ".earlier-run";

// How a line of log.txt begins that says what stopped the run: "Stopped by SIGTERM after 3 steps of 10; ...".
inline constexpr const char* kStoppedBy = "Stopped by ";

// What `path` names, through links and with a name for every folder above it; it need not be there.
std::filesystem::path place_of(const std::string& path);

// The file or folder of the run in `folder` that `path` is or lies in, such as "export"; empty when there is none.
// Neither need be there.
std::string run_entry_at(const std::string& folder, const std::string& path);

// Where the earlier run is while the one in `folder` has no step yet, and what will become of it; empty without one.
std::string earlier_run_text(const std::string& folder);

// How the run in `folder` ended before its last step, as its log.txt says: "stopped by SIGTERM", or "ended by an error:
// ...". Empty where it does not say: the run goes on, or was killed, or came to its end.
std::string early_end_text(const std::string& folder);

class RunFolder {
 public:
  // Tries whether the folder can be made, and puts back a run that one that was killed had set aside. Throws
  // ConfigurationError when there is another run and `overwrite` is false, when `path` cannot be a folder of its own,
  // or when it cannot be written to.
  RunFolder(std::string path, bool overwrite);
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  // Without keep(): removes what the new run wrote, puts the earlier run back, removes folders that were made.
  ~RunFolder();

  // Makes the folder; sets the earlier run aside, if there is one; writes config.yaml and opens log.txt. Throws
  // FileError when something cannot be written, ConfigurationError when export/ is not something that a run wrote, or
  // another run is at it or has been meanwhile.
  void begin(const Recipe& recipe);
  // From here on the new run stays, whatever happens. Removes the earlier one. Throws FileError when it cannot.
  void keep();
  // Whether there is an earlier run that comes back if this one ends before keep().
  bool has_earlier_run() const { return has_earlier_run_; }

  // A line of log.txt, with the time; dropped before begin(). log and log_warning throw FileError when it cannot be
  // written.
  void log(const std::string& text);
  void log_warning(const std::string& text);
  void log_error(const std::string& text) noexcept;

  const std::string& path() const { return path_; }

 private:
  class Lock;

  // `was_put_back`: the run that is there.
  void refuse_other_run(bool was_put_back) const;
  void remove_made_folders() noexcept;

  std::string path_;
  bool overwrite_;
  std::vector<std::string> made_folders_;  // innermost first
  std::unique_ptr<Lock> lock_;
  std::shared_ptr<spdlog::logger> log_;
  bool began_ = false;
  bool kept_ = false;
  bool has_earlier_run_ = false;
};

}  // namespace ithaca
