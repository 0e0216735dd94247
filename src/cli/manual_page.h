// `ithaca man`: the manual page, made from the program's commands and the table of recipe options.
// Thread-safety: pure functions.
#pragma once

#include <string>

#include "base/option_table.h"

namespace CLI {
class App;
}

namespace ithaca {

// The page as groff source (man macros): ithaca(1).
std::string manual_page(const CLI::App& app, const OptionCatalog& catalog, const std::string& version);

}  // namespace ithaca
