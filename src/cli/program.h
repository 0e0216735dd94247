// The `ithaca` program: its commands, and how failures become exit statuses.
// Thread-safety: call once, from main.
#pragma once

#include <iosfwd>

namespace ithaca {

// What the program ends with.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;         // command line, recipe or a combination of options
inline constexpr int kExitStoppedEarly = 3;  // SIGINT or SIGTERM; what was trained so far is kept

// Runs one command. Prints to `out`, and warnings and errors to `err`; throws nothing.
int run_program(int argument_count, const char* const* arguments, std::ostream& out, std::ostream& err) noexcept;

}  // namespace ithaca
