#include "backend/cuda/cupti_library.h"

#include <fmt/format.h>

#include <string>

#include "backend/cuda/shared_library.h"
#include "base/error.h"

namespace ithaca::cuda {

namespace {

constexpr uint32_t kMajorVersion = CUPTI_API_VERSION / 10000;

std::string library_name() {
  return fmt::format("libcupti.so.{}", kMajorVersion);
}

void* open_library() {
  const std::string name = library_name();
  const SharedLibrary library = open_shared_library(name, {"cu13", "cuda_cupti"});
  if (library.handle != nullptr) return library.handle;
  throw ConfigurationError(
      fmt::format("traces on CUDA need NVIDIA's CUPTI ({}), which was not found ({}); it comes with the CUDA toolkit "
                  "(package cuda-cupti-13-0) and with `pip install nvidia-cuda-cupti`; LD_LIBRARY_PATH may name its "
                  "folder",
                  name, library.failure));
}

// Never closed: CUPTI stays hooked into the driver.
CuptiLibrary load() {
  void* const library = open_library();
  CuptiLibrary result;
  const auto find = [&](const char* name, auto& function) { find_function(library, library_name(), name, function); };
  find("cuptiGetVersion", result.get_version);
  find("cuptiGetResultString", result.get_result_string);
  find("cuptiGetTimestamp", result.get_timestamp);
  find("cuptiGetStreamIdEx", result.get_stream_id);
  find("cuptiActivityRegisterCallbacks", result.register_callbacks);
  find("cuptiActivityEnable", result.enable);
  find("cuptiActivityDisable", result.disable);
  find("cuptiActivityFlushAll", result.flush_all);
  find("cuptiActivityGetNextRecord", result.get_next_record);
  find("cuptiActivityGetNumDroppedRecords", result.get_dropped_records);
  find("cuptiActivityPushExternalCorrelationId", result.push_external_id);
  find("cuptiActivityPopExternalCorrelationId", result.pop_external_id);
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
