// The streams and events of the CUDA backend, the failure that host work leaves behind, and the meter of exposed waits.
// Internal to backend/cuda: includes CUDA headers.
//
// Thread-safety: streams and the meter belong to one thread (the rank's). Events may be waited for and dropped by other
// ranks' threads. Host work runs on a thread of the driver and never calls CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "backend/stream.h"

namespace ithaca::cuda {

// CUDA events of one device for reuse. A CUDA event may be recorded again while earlier waits for it are still pending:
// each wait is for the state at the time of its call.
class EventPool {
 public:
  // Timed events can be measured and cost more.
  explicit EventPool(bool timed) : timed_(timed) {}
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  ~EventPool();

  // An event of the current device.
  cudaEvent_t take();
  void give_back(cudaEvent_t event) noexcept;

 private:
  bool timed_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> idle_;
};

class CudaStream;

class CudaEvent final : public Event::State {
 public:
  CudaEvent(std::shared_ptr<EventPool> pool, const CudaStream& stream);
  ~CudaEvent() override;

  cudaEvent_t handle() const { return handle_; }
  bool is_of(const CudaStream& stream) const { return stream_ == &stream; }
  // Throws CudaError when the work before it has failed.
  bool has_happened() const;

 private:
  std::shared_ptr<EventPool> pool_;
  const CudaStream* stream_;  // only compared
  cudaEvent_t handle_;
};

// Null for an empty event; ContractError for an event of another kind of backend.
std::shared_ptr<const CudaEvent> cuda_event(const Event& event);

// The first exception that host work of any stream of a backend has thrown; the whole backend has failed then.
class HostFailure {
 public:
  void set(std::exception_ptr exception) noexcept;
  bool is_set() const { return is_set_.load(std::memory_order_acquire); }
  void rethrow_if_set() const;

 private:
  std::atomic<bool> is_set_{false};
  mutable std::mutex mutex_;
  std::exception_ptr exception_;
};

class CudaStream final : public Stream {
 public:
  CudaStream(std::string name, int priority, std::shared_ptr<EventPool> pool);
  ~CudaStream() override;
  std::string_view name() const override { return name_; }

  // For enqueuing work: the next record() makes a new event.
  cudaStream_t use() {
    has_new_work_ = true;
    return handle_;
  }
  cudaStream_t handle() const { return handle_; }

  Event record();
  // Makes the stream wait for `event`, which has not happened yet.
  void wait(const CudaEvent& event);
  // Runs `work` on the host when the stream gets there, unless something has failed before.
  void enqueue(std::function<void()> work, std::shared_ptr<HostFailure> failure);
  // Waits on the host for everything enqueued so far.
  void synchronize();

 private:
  std::string name_;
  std::shared_ptr<EventPool> pool_;
  cudaStream_t handle_ = nullptr;
  bool has_new_work_ = false;
  Event last_;  // recorded behind all work, unless has_new_work_
};

// Adds up how long a stream has stood still in its waits: between two timed events around each wait, read when they
// have happened, so nothing ever waits for the measurement.
class WaitMeter {
 public:
  explicit WaitMeter(std::shared_ptr<EventPool> timed_pool) : pool_(std::move(timed_pool)) {}
  ~WaitMeter();
  WaitMeter(const WaitMeter&) = delete;
  WaitMeter& operator=(const WaitMeter&) = delete;

  void begin_wait(cudaStream_t stream);
  void end_wait(cudaStream_t stream);
  // Seconds in all waits whose end has happened.
  double seconds();

 private:
  struct Wait {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
  };
  void collect();

  std::shared_ptr<EventPool> pool_;
  std::deque<Wait> pending_;
  cudaEvent_t open_ = nullptr;
  double seconds_ = 0.0;
};

}  // namespace ithaca::cuda
