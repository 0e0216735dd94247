// Test support: a gate on a stream of the CUDA backend, which is a wait of the device for a word in host memory. No
// thread of the driver stands in it, as one would in host work: CUDA does not promise that its functions return while
// host work waits. For test sources only.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <limits>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/cuda_memory.h"
#include "backend/cuda/cuda_stream.h"
#include "backend/cuda/shared_library.h"

namespace ithaca::cuda {

// Thread-safety: the rank's own thread, whose current device is the stream's; open() any thread.
class StreamGate {
 public:
  explicit StreamGate(Stream& stream) : stream_(dynamic_cast<CudaStream&>(stream)), word_(sizeof(uint32_t)) {
    const char* const library = "libcuda.so.1";
    find_function(open_shared_library(library, {}).handle, library, "cuStreamWaitValue32_v2", wait_value_);
    passed().store(0);
  }
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;
  ~StreamGate() {
    open();
    static_cast<void>(cudaStreamSynchronize(stream_.handle()));  // the device reads the word until it has passed
  }

  // The stream goes on to the end of what has been enqueued so far, and stands still there.
  void move_up() {
    ++gates_;
    const CUresult result =
        wait_value_(stream_.use(), reinterpret_cast<CUdeviceptr>(word_.data()), gates_, CU_STREAM_WAIT_VALUE_GEQ);
    require(result == CUDA_SUCCESS, "cuStreamWaitValue32 failed");
    raise(gates_ - 1);
  }
  // For good.
  void open() { raise(kOpen); }

 private:
  static constexpr uint32_t kOpen = std::numeric_limits<int32_t>::max();  // the device compares differences

  std::atomic_ref<uint32_t> passed() { return std::atomic_ref(*reinterpret_cast<uint32_t*>(word_.data())); }
  void raise(uint32_t value) {
    uint32_t now = passed().load();
    while (now < value && !passed().compare_exchange_weak(now, value)) {
    }
  }

  CudaStream& stream_;
  PinnedMemory word_;  // how many gates are open
  uint32_t gates_ = 0;
  CUresult (*wait_value_)(CUstream, CUdeviceptr, cuuint32_t, unsigned) = nullptr;
};

}  // namespace ithaca::cuda
