// `ithaca report`: runs as one HTML page that needs nothing else.
// Thread-safety: reads run folders and writes one file.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace ithaca {

struct ReportArguments {
  std::vector<std::string> runs;
  std::string output;  // empty: report.html in the run's folder, or here when there are several; "-": standard output
};

void declare_report(CLI::App& app, ReportArguments& arguments);

// Returns the exit status 0. Throws ConfigurationError, FileError, InputError.
int report_command(const ReportArguments& arguments, std::ostream& out);

}  // namespace ithaca
