// Files that a command line names for a command to write: --trace of train, --output of report and bench.
//
// They may take the place of an earlier file of the same kind, and of nothing else: neither of what the command reads
// (recipes, data, models, runs) nor of what a run writes. Thread-safety: pure functions but for the files they look at.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ithaca {

enum class OutputKind : uint8_t { trace, report, rows };

// Whether `path` is a file that an earlier command wrote, by its first bytes.
bool is_output(const std::string& path, OutputKind kind);

// For a file that `flag` names. Throws ConfigurationError, saying what would work, when it is or lies in something that
// the runs in `run_folders` write or have written, when another file is in its place (an empty one is not in the way),
// or when its folder is not there or cannot be written to. A run folder need not be there yet.
void check_output_file(const std::string& flag, const std::string& path, OutputKind kind,
                       const std::vector<std::string>& run_folders);

}  // namespace ithaca
