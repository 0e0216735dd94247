#include "cli/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "checkpoint/file_output.h"
#include "train/plan_file.h"
#include "train/recipe_options.h"
#include "train/tensorboard.h"

namespace ithaca {

namespace {

namespace fs = std::filesystem;

// Everything that a run writes.
constexpr std::array<const char*, 6> kRunEntries{kRunConfigFile, kPlanFile,          kRunMetricsFile,
                                                 kRunLogFile,    kTensorboardFolder, kRunExportFolder};

[[noreturn]] void fail(const fs::path& path, const char* action, const std::error_code& error) {
  throw FileError(fmt::format("{}: {}: {}", path.string(), action, error.message()));
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

// Moves what there is of a run from one folder to another; what is in the way there is removed.
void move_run(const fs::path& from, const fs::path& to) {
  for (const char* name : kRunEntries) {
    if (!is_there(from / name)) continue;
    std::error_code error;
    fs::remove_all(to / name, error);
    if (!error) fs::rename(from / name, to / name, error);
    if (error) fail(from / name, "cannot be moved", error);
  }
}

void remove_run(const fs::path& folder) noexcept {
  for (const char* name : kRunEntries) {
    std::error_code ignored;
    fs::remove_all(folder / name, ignored);
  }
}

void refuse_foreign_export(const fs::path& folder) {
  const fs::path exported = folder / kRunExportFolder;
  if (!is_there(exported) || is_there(exported / "config.json")) return;
  throw ConfigurationError(
      fmt::format("train.output_dir: {} is there but is not the export of a run, so --overwrite "
                  "leaves it alone; choose another output_dir or move it away",
                  exported.string()));
}

}  // namespace

std::string early_end_text(const std::string& folder) {
  std::ifstream log(fs::path(folder) / kRunLogFile, std::ios::binary);
  std::string end;
  for (std::string line; std::getline(log, line);) {
    // "2026-11-30 03:25:40.123 info Stopped by ..."
    std::istringstream words(line);
    std::string date;
    std::string time;
    std::string level;
    std::string text;
    if (!(words >> date >> time >> level) || !std::getline(words >> std::ws, text)) continue;
    if (level == "error") end = "ended by an error: " + text;
    if (level == "info" && text.starts_with(kStoppedBy)) {
      end = "s" + text.substr(1, text.find(" after ") - 1);
    }
  }
  return end;
}

// Held as long as a run is at work in the folder; the system drops it when the process ends, however it ends.
class RunFolder::Lock {
 public:
  explicit Lock(const std::string& folder) : descriptor_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    // Some file systems know no locks: then nothing is lost but this check.
    if (descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      ::close(descriptor_);
      throw ConfigurationError(
          fmt::format("train.output_dir: another run is writing to {} at this moment; choose another folder with --set "
                      "train.output_dir=..., or wait for it to end",
                      folder));
    }
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

 private:
  int descriptor_;
};

RunFolder::RunFolder(std::string path, bool overwrite) : path_(std::move(path)) {
  const fs::path folder = fs::absolute(path_).lexically_normal();
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_directory(folder, error)) {
    throw ConfigurationError(fmt::format("train.output_dir: {} is a file, but a run needs a folder", path_));
  }
  if (!overwrite) {
    for (const char* name : kRunEntries) {
      if (!is_there(folder / name)) continue;
      throw ConfigurationError(
          fmt::format("train.output_dir: {} holds another run ({} is there); choose another folder "
                      "with --set train.output_dir=..., or pass --overwrite to replace it",
                      path_, name));
    }
  }
  for (fs::path part = folder; !part.empty() && !is_there(part) && part != part.parent_path();
       part = part.parent_path()) {
    made_folders_.push_back(part.string());
  }
  fs::create_directories(folder, error);
  if (error || ::access(folder.c_str(), W_OK | X_OK) != 0) {
    const std::string reason = error ? error.message() : std::strerror(errno);
    throw ConfigurationError(fmt::format(
        "train.output_dir: {} cannot be written to: {}; choose another folder with --set train.output_dir=...", path_,
        reason));
  }
}

RunFolder::~RunFolder() {
  if (kept_) return;
  log_.reset();
  try {
    const fs::path folder(path_);
    if (began_) remove_run(folder);
    if (has_earlier_run_) {
      move_run(folder / kEarlierRunFolder, folder);
      fs::remove_all(folder / kEarlierRunFolder);
    }
    for (const std::string& made : made_folders_) {
      std::error_code not_empty;
      if (!fs::remove(made, not_empty)) break;
    }
  } catch (const std::exception&) {
    // What could not be moved back lies in .earlier-run, and the next run there puts it back.
  }
}

void RunFolder::begin(const Recipe& recipe) {
  const fs::path folder(path_);
  lock_ = std::make_unique<Lock>(path_);
  const fs::path aside = folder / kEarlierRunFolder;
  if (is_there(aside)) {
    // Of a run that was killed before its first step: what it wrote is nothing, what it had set aside is the run.
    remove_run(folder);
    move_run(aside, folder);
  }
  refuse_foreign_export(folder);
  bool has_run = false;
  for (const char* name : kRunEntries) has_run = has_run || is_there(folder / name);
  if (has_run) {
    std::error_code error;
    fs::create_directories(aside, error);
    if (error) fail(aside, "cannot be made", error);
    has_earlier_run_ = true;
    move_run(folder, aside);
  }
  began_ = true;
  write_whole_file((folder / kRunConfigFile).string(), resolved_recipe_text(recipe));
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>((folder / kRunLogFile).string(), true);
    log_ = std::make_shared<spdlog::logger>("run", std::move(sink));
  } catch (const spdlog::spdlog_ex& fault) {
    throw FileError(fmt::format("{}: cannot be written: {}", (folder / kRunLogFile).string(), fault.what()));
  }
  log_->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
  log_->flush_on(spdlog::level::info);
  // Left alone it would print its own complaint and go on without a log.
  log_->set_error_handler([path = (folder / kRunLogFile).string()](const std::string& fault) {
    throw FileError(fmt::format("{}: cannot be written: {}", path, fault));
  });
}

void RunFolder::keep() {
  if (kept_) return;
  kept_ = true;
  has_earlier_run_ = false;
  std::error_code ignored;  // what is left of it is removed by the next run
  fs::remove_all(fs::path(path_) / kEarlierRunFolder, ignored);
}

void RunFolder::log(const std::string& text) {
  if (log_) log_->log(spdlog::level::info, text);
}

void RunFolder::log_warning(const std::string& text) {
  if (log_) log_->log(spdlog::level::warn, text);
}

void RunFolder::log_error(const std::string& text) noexcept {
  try {
    if (log_) log_->log(spdlog::level::err, text);
  } catch (...) {
    // The error itself is on its way to the user; that the log cannot hold it must not take its place.
  }
}

}  // namespace ithaca
