// The folder of one run: config.yaml (every option's value), log.txt, metrics.jsonl and export/.
//
// A folder holds one run. One that holds another run is refused, unless it may be overwritten; then only what a run
// writes is removed, and only once the new run is known to be able to start. Thread-safety: one thread at a time.
#pragma once

#include <memory>
#include <string>

#include "train/recipe.h"

namespace spdlog {
class logger;
}

namespace ithaca {

inline constexpr const char* kRunConfigFile = "config.yaml";
inline constexpr const char* kRunMetricsFile = "metrics.jsonl";
inline constexpr const char* kRunLogFile = "log.txt";
inline constexpr const char* kRunExportFolder = "export";

class RunFolder {
 public:
  // Throws ConfigurationError when there is another run and `overwrite` is false, or when `path` is not a folder.
  RunFolder(std::string path, bool overwrite);

  // Removes the earlier run, if there is one; writes config.yaml and opens log.txt. Throws FileError when the folder
  // cannot be written to, ConfigurationError when its export/ is not something that a run wrote.
  void begin(const Recipe& recipe);
  // A line of log.txt, with the time; dropped before begin(). log and log_warning throw FileError when it cannot be
  // written.
  void log(const std::string& text);
  void log_warning(const std::string& text);
  void log_error(const std::string& text) noexcept;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::shared_ptr<spdlog::logger> log_;
};

}  // namespace ithaca
