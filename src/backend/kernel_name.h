// Names of compiled functions, for people. Thread-safety: pure functions.
#pragma once

#include <string>

namespace ithaca {

// What a trace calls a kernel with this symbol: demangled, without its result, its parameters, and the namespaces that
// only say where it was written; cut in the middle when it is very long. A name that is not mangled stays what it is.
std::string kernel_name(const char* symbol);

}  // namespace ithaca
