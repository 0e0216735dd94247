// `ithaca inspect data RECIPE`: a recipe's training data as the model will see it: totals, lengths, how evenly the work
// is shared, and the sequences of a step with what is trained, documents, positions and the shards of the mesh.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "cli/terminal.h"

namespace CLI {
class App;
}

namespace ithaca {

struct InspectDataArguments {
  std::string recipe;
  std::vector<std::string> assignments;
  std::optional<int64_t> ranks;
  int64_t samples = 3;   // sequences to show
  int64_t tokens = 400;  // of each
  int64_t step = 1;      // whose sequences
};

// As a command of `inspect`.
CLI::App* declare_inspect_data(CLI::App& inspect, InspectDataArguments& arguments);

// Throws what opening data throws.
int inspect_data_command(const InspectDataArguments& arguments, const TerminalStyle& style, std::ostream& out,
                         std::ostream& err);

}  // namespace ithaca
