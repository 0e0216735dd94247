#include "backend/cuda/nccl_library.h"

#include <fmt/format.h>

#include <string>

#include "backend/cuda/shared_library.h"
#include "base/error.h"

namespace ithaca::cuda {

namespace {

NcclLibrary load() {
  const std::string name = fmt::format("libnccl.so.{}", NCCL_MAJOR);
  const SharedLibrary library = open_shared_library(name, {"nccl", "cu13"});
  if (library.handle == nullptr) {
    throw ConfigurationError(
        fmt::format("NVIDIA's NCCL ({}) was not found ({}); it comes as the package libnccl2 and with `pip install "
                    "nvidia-nccl-cu13`; LD_LIBRARY_PATH may name its folder",
                    name, library.failure));
  }
  NcclLibrary result;
  const auto find = [&](const char* function_name, auto& function) {
    find_function(library.handle, name, function_name, function);
  };
  find("ncclGetErrorString", result.get_error_string);
  find("ncclGetLastError", result.get_last_error);
  find("ncclCommInitAll", result.init_all);
  find("ncclCommDestroy", result.destroy);
  find("ncclCommAbort", result.abort);
  find("ncclCommGetAsyncError", result.get_async_error);
  find("ncclSend", result.send);
  find("ncclRecv", result.receive);
  find("ncclGroupStart", result.group_start);
  find("ncclGroupEnd", result.group_end);
  return result;
}

}  // namespace

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = load();
  return library;
}

}  // namespace ithaca::cuda
