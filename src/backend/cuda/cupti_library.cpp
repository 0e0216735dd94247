#include "backend/cuda/cupti_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"

namespace ithaca::cuda {

namespace {

namespace fs = std::filesystem;

constexpr uint32_t kMajorVersion = CUPTI_API_VERSION / 10000;

std::string library_name() {
  return fmt::format("libcupti.so.{}", kMajorVersion);
}

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
std::vector<fs::path> likely_folders() {
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
        for (const char* wheel : {"cu13", "cuda_cupti"})
          folders.push_back(python / packages / "nvidia" / wheel / "lib");
      }
    }
  }
  return folders;
}

void* open_library() {
  const std::string name = library_name();
  if (void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); handle != nullptr) return handle;
  std::string failure = dlerror();
  for (const fs::path& folder : likely_folders()) {
    std::error_code error;
    const fs::path file = folder / name;
    if (!fs::exists(file, error)) continue;
    if (void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL); handle != nullptr) return handle;
    failure = dlerror();
  }
  throw ConfigurationError(
      fmt::format("traces on CUDA need NVIDIA's CUPTI ({}), which was not found ({}); it comes with the CUDA toolkit "
                  "(package cuda-cupti-13-0) and with `pip install nvidia-cuda-cupti`; LD_LIBRARY_PATH may name its "
                  "folder",
                  name, failure));
}

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    throw ConfigurationError(fmt::format("{} has no function {}; another version of CUPTI may", library_name(), name));
  }
}

// Never closed: CUPTI stays hooked into the driver.
CuptiLibrary load() {
  void* const library = open_library();
  CuptiLibrary result;
  find(library, "cuptiGetVersion", result.get_version);
  find(library, "cuptiGetResultString", result.get_result_string);
  find(library, "cuptiGetTimestamp", result.get_timestamp);
  find(library, "cuptiGetStreamIdEx", result.get_stream_id);
  find(library, "cuptiActivityRegisterCallbacks", result.register_callbacks);
  find(library, "cuptiActivityEnable", result.enable);
  find(library, "cuptiActivityDisable", result.disable);
  find(library, "cuptiActivityFlushAll", result.flush_all);
  find(library, "cuptiActivityGetNextRecord", result.get_next_record);
  find(library, "cuptiActivityGetNumDroppedRecords", result.get_dropped_records);
  find(library, "cuptiActivityPushExternalCorrelationId", result.push_external_id);
  find(library, "cuptiActivityPopExternalCorrelationId", result.pop_external_id);
  uint32_t version = 0;
  result.check(result.get_version(&version), "cuptiGetVersion");
  if (version / 10000 != kMajorVersion) {
    throw ConfigurationError(fmt::format("CUPTI has version {}, but this program was built for {}; install CUDA {}'s",
                                         version, CUPTI_API_VERSION, kMajorVersion));
  }
  return result;
}

}  // namespace

void CuptiLibrary::check(CUptiResult result, const char* call) const {
  if (result == CUPTI_SUCCESS) return;
  const char* text = nullptr;
  if (get_result_string(result, &text) != CUPTI_SUCCESS || text == nullptr) text = "unknown";
  throw Error(fmt::format("{}: {} (CUPTI error {}); another profiler of this process may be in the way", call, text,
                          static_cast<int>(result)));
}

const CuptiLibrary& cupti_library() {
  static const CuptiLibrary library = load();
  return library;
}

}  // namespace ithaca::cuda
