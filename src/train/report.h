// `ithaca report`: one or several runs as a single HTML page that needs nothing else: no network, no other file.
//
// The page has the runs' numbers, tables made here, and a script (report/report.js) that draws the curves. Everything
// that comes from a file or a path is escaped. Thread-safety: pure functions; read_report_run reads files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/plan_file.h"
#include "train/run_history.h"

namespace ithaca {

struct ReportOption {
  std::string section;
  std::string name;
  std::string value;
};

struct ReportRun {
  std::string name;    // how the page calls it
  std::string folder;  // as given
  RunHistory history;
  std::optional<SavedPlan> plan;
  std::vector<ReportOption> options;  // every option's value; empty when config.yaml cannot be used
  std::string config_text;            // of config.yaml, when it cannot be understood
  std::string config_problem;         // why options are missing
  bool exported = false;
};

// Reads a run folder. Throws FileError and InputError when it is not one, or when its metrics cannot be read. A missing
// or unreadable config.yaml or plan.json is a problem that the page mentions.
ReportRun read_report_run(const std::string& folder);

// Gives every run the shortest ending of its path that no other run has.
void name_report_runs(std::vector<ReportRun>& runs);

// Curves have at most this many points; of more steps each point is several, with their lowest, highest and mean value.
inline constexpr int64_t kReportPoints = 1500;

// The page. At least one run (ContractError). `made_by` stands at its foot.
std::string report_page(const std::vector<ReportRun>& runs, const std::string& made_by, int64_t points = kReportPoints);

// Whether a file that begins so is such a page; a few KiB are enough.
bool is_report_beginning(std::string_view bytes);

// The data that the script draws, as JSON text without the characters that could end a script element.
std::string report_data(const std::vector<ReportRun>& runs, int64_t points);

// `text` for HTML, in an element or in a quoted attribute. Bytes that are not UTF-8, and control characters, become
// U+FFFD.
std::string html_escape(std::string_view text);

}  // namespace ithaca
