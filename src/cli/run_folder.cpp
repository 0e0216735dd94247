#include "cli/run_folder.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>

#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "train/recipe_options.h"

namespace ithaca {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const char* action, const std::error_code& error) {
  throw FileError(fmt::format("{}: {}: {}", path.string(), action, error.message()));
}

void remove_earlier_run(const fs::path& folder) {
  const fs::path exported = folder / kRunExportFolder;
  std::error_code error;
  if (fs::exists(exported, error) && !fs::exists(exported / "config.json", error)) {
    throw ConfigurationError(
        fmt::format("train.output_dir: {} is there but is not the export of a run, so --overwrite "
                    "leaves it alone; choose another output_dir or move it away",
                    exported.string()));
  }
  for (const char* name : {kRunConfigFile, kRunMetricsFile, kRunLogFile, kRunExportFolder}) {
    fs::remove_all(folder / name, error);
    if (error) fail(folder / name, "cannot be removed", error);
  }
}

void write_file(const fs::path& path, const std::string& text) {
  const fs::path partial = path.string() + ".partial";
  {
    std::ofstream file(partial, std::ios::binary | std::ios::trunc);
    file << text << std::flush;
    if (!file) {
      throw FileError(
          fmt::format("{}: cannot be written; check the folder's permissions and the space left", partial.string()));
    }
  }
  std::error_code error;
  fs::rename(partial, path, error);
  if (error) fail(path, "cannot be renamed into place", error);
}

}  // namespace

RunFolder::RunFolder(std::string path, bool overwrite) : path_(std::move(path)) {
  const fs::path folder(path_);
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_directory(folder, error)) {
    throw ConfigurationError(fmt::format("train.output_dir: {} is a file, but a run needs a folder", path_));
  }
  if (overwrite) return;
  for (const char* name : {kRunConfigFile, kRunMetricsFile, kRunLogFile, kRunExportFolder}) {
    if (fs::exists(folder / name, error)) {
      throw ConfigurationError(
          fmt::format("train.output_dir: {} holds another run ({} is there); choose another folder "
                      "with --set train.output_dir=..., or pass --overwrite to replace it",
                      path_, name));
    }
  }
}

void RunFolder::begin(const Recipe& recipe) {
  const fs::path folder(path_);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(folder, "cannot be made", error);
  remove_earlier_run(folder);
  write_file(folder / kRunConfigFile, resolved_recipe_text(recipe));
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
