// NVIDIA's libraries that are loaded when they are first needed, so that programs run where they are missing.
// Internal to backend/cuda. Thread-safety: any thread.
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>

#include <initializer_list>
#include <string>

#include "base/error.h"

namespace ithaca::cuda {

// `handle` is null when the library was not found; `failure` says what the loader said last.
struct SharedLibrary {
  void* handle = nullptr;
  std::string failure;
};

// Looks for `name` ("libnccl.so.2") where the loader looks, then in the folders of CUDA toolkits and of those of
// NVIDIA's Python wheels that may have it (site-packages/nvidia/WHEEL/lib). Never closed.
SharedLibrary open_shared_library(const std::string& name, std::initializer_list<const char*> wheels);

// Sets `function` to the library's. Throws ConfigurationError when it has none of the name.
template <typename Function>
void find_function(void* library, const std::string& library_name, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    throw ConfigurationError(fmt::format("{} has no function {}; another version of it may", library_name, name));
  }
}

}  // namespace ithaca::cuda
