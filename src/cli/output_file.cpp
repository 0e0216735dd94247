#include "cli/output_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "cli/bench_command.h"
#include "cli/run_folder.h"
#include "train/report.h"
#include "train/trace_file.h"

namespace ithaca {

namespace {

namespace fs = std::filesystem;

struct KindText {
  const char* noun;
  const char* example;
  bool (*is_beginning)(std::string_view);
};

const KindText& text_of(OutputKind kind) {
  static constexpr KindText kTexts[] = {{"a trace", "trace.json", is_trace_beginning},
                                        {"a report", "report.html", is_report_beginning},
                                        {"rows of a benchmark", "rows.jsonl", is_benchmark_rows_beginning}};
  return kTexts[static_cast<size_t>(kind)];
}

std::string beginning_of(const fs::path& path) {
  constexpr size_t kEnough = 8192;
  std::string bytes(kEnough, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<size_t>(std::max<std::streamsize>(0, file.gcount())));
  return bytes;
}

}  // namespace

bool is_output(const std::string& path, OutputKind kind) {
  std::error_code error;
  return fs::is_regular_file(path, error) && text_of(kind).is_beginning(beginning_of(path));
}

void check_output_file(const std::string& flag, const std::string& path, OutputKind kind,
                       const std::vector<std::string>& run_folders) {
  const KindText& text = text_of(kind);
  const auto refuse = [&](const std::string& reason) {
    throw ConfigurationError(fmt::format("{} {}: {}", flag, path, reason));
  };
  std::error_code error;
  for (const std::string& run : run_folders) {
    const std::string entry = run_entry_at(run, path);
    if (entry.empty()) continue;
    refuse(fmt::format("{} of the run in {} is what the run itself writes; name another file, {} say", entry, run,
                       (fs::path(run) / text.example).string()));
  }
  const auto is_run_folder = [&](const std::string& place) {
    return std::any_of(run_folders.begin(), run_folders.end(),
                       [&](const std::string& run) { return place_of(run) == place_of(place); });
  };
  if (fs::is_directory(path, error) || is_run_folder(path))
    refuse(fmt::format("is a folder; name a file in it, {} say", text.example));
  // Devices and open streams hold nothing that could be lost.
  if (fs::is_regular_file(path, error) && !fs::is_empty(path, error) && !is_output(path, kind)) {
    refuse(
        fmt::format("is there already and is not {} that ithaca wrote, so it is left as it is; name another file, "
                    "or move it away",
                    text.noun));
  }
  const fs::path parent = fs::path(path).parent_path();
  const fs::path folder = parent.empty() ? fs::path(".") : parent;
  if (!fs::is_directory(folder, error)) {
    if (!is_run_folder(folder.string())) refuse(fmt::format("there is no folder {}", folder.string()));
  } else if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    refuse(
        fmt::format("the folder {} cannot be written to: {}", folder.string(), std::generic_category().message(errno)));
  }
}

}  // namespace ithaca
