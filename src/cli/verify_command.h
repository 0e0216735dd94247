// `ithaca verify`: the first steps of a recipe on one rank and on other meshes, as a table.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace ithaca {

struct VerifyArguments {
  std::string recipe;
  std::vector<std::string> assignments;
  std::optional<std::string> backend;  // train.backend
  std::string meshes;                  // empty: those that suit the model
  int64_t steps = 2;
  std::optional<double> bound;  // absent: the bound for float32
};

void declare_verify(CLI::App& app, VerifyArguments& arguments);

// Exit status 0 when every mesh agrees, 1 when one does not.
int verify_command(const VerifyArguments& arguments, std::ostream& out);

}  // namespace ithaca
