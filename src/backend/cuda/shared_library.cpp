#include "backend/cuda/shared_library.h"

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

namespace ithaca::cuda {

namespace {

namespace fs = std::filesystem;

fs::path environment_folder(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? fs::path() : fs::path(value);
}

// The folders in `parent` whose names begin with `prefix`.
std::vector<fs::path> folders_like(const fs::path& parent, std::string_view prefix) {
  std::vector<fs::path> result;
  std::error_code error;
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename().string().rfind(prefix, 0) == 0) result.push_back(entry->path());
  }
  return result;
}

// Every place beside the loader's own where CUDA's toolkits and wheels put it.
std::vector<fs::path> likely_folders(std::initializer_list<const char*> wheels) {
  std::vector<fs::path> toolkits = {environment_folder("CUDA_HOME"), environment_folder("CUDA_PATH")};
  for (const fs::path& folder : folders_like("/usr/local", "cuda")) toolkits.push_back(folder);
  std::vector<fs::path> folders;
  for (const fs::path& toolkit : toolkits) {
    if (toolkit.empty()) continue;
    for (const char* inside : {"lib64", "extras/CUPTI/lib64", "lib", "targets/x86_64-linux/lib"}) {
      folders.push_back(toolkit / inside);
    }
  }
  std::vector<fs::path> libraries = {"/usr/lib", "/usr/local/lib"};  // that hold python3.x
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const fs::path root = environment_folder(variable); !root.empty()) libraries.push_back(root / "lib");
  }
  if (const fs::path home = environment_folder("HOME"); !home.empty()) libraries.push_back(home / ".local" / "lib");
  for (const fs::path& library : libraries) {
    for (const fs::path& python : folders_like(library, "python3")) {
      for (const char* packages : {"site-packages", "dist-packages"}) {
        for (const char* wheel : wheels) folders.push_back(python / packages / "nvidia" / wheel / "lib");
      }
    }
  }
  return folders;
}

}  // namespace

SharedLibrary open_shared_library(const std::string& name, std::initializer_list<const char*> wheels) {
  SharedLibrary result;
  result.handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (result.handle != nullptr) return result;
  result.failure = dlerror();
  for (const fs::path& folder : likely_folders(wheels)) {
    std::error_code error;
    const fs::path file = folder / name;
    if (!fs::exists(file, error)) continue;
    result.handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (result.handle != nullptr) return result;
    result.failure = dlerror();
  }
  return result;
}

}  // namespace ithaca::cuda
