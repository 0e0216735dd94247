#include "cli/report_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <ostream>

#include "checkpoint/file_output.h"
#include "cli/output_file.h"
#include "cli/program.h"
#include "cli/run_folder.h"
#include "train/report.h"

namespace ithaca {

void declare_report(CLI::App& app, ReportArguments& arguments) {
  CLI::App* command = app.add_subcommand("report", "Write a run, or several compared, as an HTML page");
  command->add_option("runs", arguments.runs, "Run folders; several are drawn over each other")
      ->required()
      ->type_name("RUN");
  command
      ->add_option("-o,--output", arguments.output,
                   "The page. Default: report.html in the run's folder, or in the current one for several runs; - is "
                   "standard output")
      ->type_name("FILE");
  command->footer(
      "The page has the curves of loss, gradient norm, learning rate, throughput and memory, and the configuration; it "
      "is one file, needs no network, and works from the disk. A run that is still going on may be reported too.");
}

int report_command(const ReportArguments& arguments, std::ostream& out) {
  const bool is_printed = arguments.output == "-";
  std::string path = arguments.output;
  if (!path.empty() && !is_printed) check_output_file("--output", path, OutputKind::report, arguments.runs);
  std::vector<ReportRun> runs;
  for (const std::string& folder : arguments.runs) runs.push_back(read_report_run(folder));
  if (path.empty()) {
    path = runs.size() == 1 ? (std::filesystem::path(runs.front().folder) / kRunReportFile).lexically_normal().string()
                            : std::string(kRunReportFile);
    check_output_file("--output", path, OutputKind::report, arguments.runs);
  }
  name_report_runs(runs);
  const std::string page = report_page(runs, "Made by ithaca " ITHACA_VERSION ".");
  if (is_printed) {
    out << page;
    return kExitDone;
  }
  write_whole_file(path, page);
  out << fmt::format("The report of {} is {}; open it in a browser.\n",
                     runs.size() == 1 ? runs.front().folder : fmt::format("{} runs", runs.size()), path);
  return kExitDone;
}

}  // namespace ithaca
