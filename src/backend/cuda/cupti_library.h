// CUPTI, NVIDIA's library that tells when kernels ran, loaded when a trace is asked for: programs do not depend on it.
// Internal to backend/cuda: includes CUPTI headers.
//
// Looked for where the loader looks, then in the folders of CUDA toolkits and of NVIDIA's Python wheels.
// Thread-safety: any thread.
#pragma once

#include <cupti.h>

#include <string>

namespace ithaca::cuda {

// The functions that are used, as cupti.h declares them.
struct CuptiLibrary {
  decltype(&::cuptiGetVersion) get_version = nullptr;
  decltype(&::cuptiGetResultString) get_result_string = nullptr;
  decltype(&::cuptiGetTimestamp) get_timestamp = nullptr;
  decltype(&::cuptiGetStreamIdEx) get_stream_id = nullptr;
  decltype(&::cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&::cuptiActivityEnable) enable = nullptr;
  decltype(&::cuptiActivityDisable) disable = nullptr;
  decltype(&::cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&::cuptiActivityGetNextRecord) get_next_record = nullptr;
  decltype(&::cuptiActivityGetNumDroppedRecords) get_dropped_records = nullptr;
  decltype(&::cuptiActivityPushExternalCorrelationId) push_external_id = nullptr;
  decltype(&::cuptiActivityPopExternalCorrelationId) pop_external_id = nullptr;

  // Throws Error when a call has failed; `call` is its name.
  void check(CUptiResult result, const char* call) const;
};

// Loaded by the first call, and then for good. Throws ConfigurationError, saying what to install.
const CuptiLibrary& cupti_library();

}  // namespace ithaca::cuda
