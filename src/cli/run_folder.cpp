#include "cli/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "checkpoint/file_output.h"
#include "cli/output_file.h"
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

// The earlier run goes three ways. Each may be cut short at any moment, and is then taken up by the next run:
// - set aside: one by one its files move into kMovingFolder, which then becomes kEarlierRunFolder;
// - put back: kEarlierRunFolder becomes kMovingFolder, from which they move back one by one;
// - given up: kEarlierRunFolder becomes kReplacedFolder, which is removed.
// So what is in kMovingFolder and beside it is one run, and beside kEarlierRunFolder there is none but one without a
// step.
constexpr const char* kMovingFolder = ".earlier-run.moving";
constexpr const char* kReplacedFolder = ".earlier-run.replaced";

void move(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail(from, "cannot be moved", error);
}

void remove_run(const fs::path& folder) noexcept {
  for (const char* name : kRunEntries) {
    std::error_code ignored;
    fs::remove_all(folder / name, ignored);
  }
}

// The first file of a run that is there; null when there is no run.
const char* found_run(const fs::path& folder) {
  const auto* found =
      std::find_if(kRunEntries.begin(), kRunEntries.end(), [&](const char* name) { return is_there(folder / name); });
  return found == kRunEntries.end() ? nullptr : *found;
}

// A run, and what people had made of it. Not what is under construction, which may be the new run's.
std::vector<fs::path> files_of_run(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const char* name : kRunEntries) {
    if (is_there(folder / name)) files.push_back(folder / name);
  }
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string path = entry.path().string();
    const bool is_page = entry.path().filename() == kRunReportFile && is_output(path, OutputKind::report);
    const bool is_trace = entry.path().extension() != ".partial" && is_output(path, OutputKind::trace);
    if (is_page || is_trace) files.push_back(entry.path());
  }
  if (error) fail(folder, "cannot be read", error);
  return files;
}

// Returns whether there was a run.
bool set_run_aside(const fs::path& folder) {
  if (found_run(folder) == nullptr) return false;
  const fs::path moving = folder / kMovingFolder;
  std::error_code error;
  fs::create_directory(moving, error);
  if (error) fail(moving, "cannot be made", error);
  for (const fs::path& file : files_of_run(folder)) move(file, moving / file.filename());
  move(moving, folder / kEarlierRunFolder);
  return true;
}

// Returns whether there was a run to put back.
bool put_run_back(const fs::path& folder) {
  const fs::path aside = folder / kEarlierRunFolder;
  const fs::path moving = folder / kMovingFolder;
  std::error_code error;
  fs::remove_all(folder / kReplacedFolder, error);
  if (is_there(aside)) {
    remove_run(folder);
    move(aside, moving);
  }
  if (!is_there(moving)) return false;
  const std::vector<fs::directory_entry> entries{fs::directory_iterator(moving, error), fs::directory_iterator()};
  if (error) fail(moving, "cannot be read", error);
  for (const fs::directory_entry& entry : entries) move(entry.path(), folder / entry.path().filename());
  fs::remove(moving, error);
  return true;
}

// Files in there would lie among those of everything else.
void refuse_shared_folder(const std::string& path) {
  std::error_code error;
  const fs::path place = place_of(path);
  const fs::path current = fs::current_path(error);
  const bool is_above = !error && *place_of(current.string()).lexically_relative(place).begin() != "..";
  if (place != place.root_path() && (!is_above || found_run(place) != nullptr)) return;
  throw ConfigurationError(
      fmt::format("train.output_dir: {} is {}, and a run needs a folder of its own; name one with --set "
                  "train.output_dir=..., runs/first say",
                  path, place == place.root_path() ? "the root of all folders" : "the current folder or above it"));
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

fs::path place_of(const std::string& path) {
  fs::path named(path);
  std::error_code error;
  if (fs::is_symlink(fs::symlink_status(named, error))) {
    try {
      named = link_target(path);
    } catch (const FileError&) {
      return fs::absolute(named, error).lexically_normal();  // an open stream, or links in a circle
    }
  }
  fs::path place = fs::weakly_canonical(fs::absolute(named, error), error);
  if (error) place = fs::absolute(named, error).lexically_normal();
  return place.has_filename() || !place.has_relative_path() ? place : place.parent_path();
}

std::string run_entry_at(const std::string& folder, const std::string& path) {
  const fs::path place = place_of(path);
  const auto holds = [&](const char* name) {
    const fs::path entry = place_of((fs::path(folder) / name).string());
    return std::mismatch(entry.begin(), entry.end(), place.begin(), place.end()).first == entry.end();
  };
  for (const char* name : kRunEntries) {
    if (holds(name)) return name;
  }
  for (const char* name : {kEarlierRunFolder, kMovingFolder, kReplacedFolder}) {
    if (holds(name)) return name;
  }
  return {};
}

std::string earlier_run_text(const std::string& folder) {
  for (const char* name : {kEarlierRunFolder, kMovingFolder}) {
    const fs::path place = fs::path(folder) / name;
    if (!is_there(place)) continue;
    return fmt::format(
        "in {} until the run here has made a step; if that was killed, the next ithaca train here puts it back",
        place.string());
  }
  return {};
}

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

RunFolder::RunFolder(std::string path, bool overwrite) : path_(std::move(path)), overwrite_(overwrite) {
  const fs::path folder = fs::absolute(path_).lexically_normal();
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_directory(folder, error)) {
    throw ConfigurationError(fmt::format("train.output_dir: {} is a file, but a run needs a folder", path_));
  }
  refuse_shared_folder(path_);
  for (fs::path part = folder; !part.empty() && !is_there(part) && part != part.parent_path();
       part = part.parent_path()) {
    made_folders_.push_back(part.string());
  }
  fs::create_directories(folder, error);
  const bool is_writable = !error && ::access(folder.c_str(), W_OK | X_OK) == 0;
  const std::string reason = error ? error.message() : std::generic_category().message(errno);
  // It is made when the run begins: who ends the program before that at once finds nothing.
  remove_made_folders();
  if (!is_writable) {
    throw ConfigurationError(fmt::format(
        "train.output_dir: {} cannot be written to: {}; choose another folder with --set train.output_dir=...", path_,
        reason));
  }
  bool was_put_back = false;
  if (!earlier_run_text(path_).empty()) {
    const Lock lock(path_);
    was_put_back = put_run_back(folder);
  }
  refuse_other_run(was_put_back);
  has_earlier_run_ = found_run(folder) != nullptr;
}

RunFolder::~RunFolder() {
  if (kept_) return;
  log_.reset();
  try {
    const fs::path folder(path_);
    if (began_) remove_run(folder);
    if (lock_) put_run_back(folder);
  } catch (const std::exception&) {
    // What could not be moved back is where the next run there looks for it.
  }
  remove_made_folders();
}

void RunFolder::remove_made_folders() noexcept {
  for (const std::string& made : made_folders_) {
    if (::rmdir(made.c_str()) != 0 && errno != ENOENT) break;  // not empty
  }
}

void RunFolder::refuse_other_run(bool was_put_back) const {
  const char* const found = found_run(path_);
  if (overwrite_ || found == nullptr) return;
  throw ConfigurationError(fmt::format(
      "train.output_dir: {} holds another run ({} is there{}); choose another folder with --set train.output_dir=..., "
      "or pass --overwrite to replace it",
      path_, found,
      was_put_back ? ", put back just now: the run that was to replace it had been killed before its first step" : ""));
}

void RunFolder::begin(const Recipe& recipe) {
  const fs::path folder(path_);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(folder, "cannot be made", error);
  lock_ = std::make_unique<Lock>(path_);
  put_run_back(folder);
  refuse_other_run(false);  // that may have come while the data was read
  refuse_foreign_export(folder);
  has_earlier_run_ = set_run_aside(folder);
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
  const fs::path replaced = fs::path(path_) / kReplacedFolder;
  if (has_earlier_run_) move(fs::path(path_) / kEarlierRunFolder, replaced);
  kept_ = true;
  has_earlier_run_ = false;
  std::error_code ignored;  // what is left of it is removed by the next run
  fs::remove_all(replaced, ignored);
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
