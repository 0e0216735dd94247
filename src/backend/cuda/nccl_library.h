// NCCL, NVIDIA's library that moves bytes between GPUs, loaded when it is first asked for: programs do not depend on
// it. Internal to backend/cuda: includes NCCL's header. Thread-safety: any thread.
#pragma once

#include <nccl.h>

namespace ithaca::cuda {

// The functions that are used, as nccl.h declares them.
struct NcclLibrary {
  decltype(&::ncclGetErrorString) get_error_string = nullptr;
  decltype(&::ncclGetLastError) get_last_error = nullptr;
  decltype(&::ncclCommInitAll) init_all = nullptr;
  decltype(&::ncclCommDestroy) destroy = nullptr;
  decltype(&::ncclCommAbort) abort = nullptr;
  decltype(&::ncclCommGetAsyncError) get_async_error = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) receive = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
};

// Loaded by the first call, and then for good. Throws ConfigurationError, saying what to install.
const NcclLibrary& nccl_library();

}  // namespace ithaca::cuda
