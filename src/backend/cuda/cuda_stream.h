// The streams and events of the CUDA backend, the failure that host work leaves behind, and the meter of exposed waits.
// Internal to backend/cuda: includes CUDA headers.
//
// Work is issued to CUDA by the rank's thread, at once. Only work that must first wait for other threads (exchanges
// with ranks of this process) is posted to a thread of the stream, which issues it when it may; until that thread has
// nothing left, what follows on the stream is posted behind it. Events of posted work are pending until they are
// issued: only then can CUDA be told to wait for them.
//
// Thread-safety: streams and the meter belong to one thread (the rank's). Events may be waited for and dropped by other
// ranks' threads. Host work runs on a thread of the driver and never calls CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "backend/cuda/device_recording.h"
#include "backend/stream.h"

namespace ithaca::cuda {

// CUDA events of one device for reuse. A CUDA event may be recorded again while earlier waits for it are still pending:
// each wait is for the state at the time of its call.
class EventPool {
 public:
  // Of the current device. Timed events can be measured and cost more. `count` events are made at once: CUDA may wait
  // for the device where it makes something, so a step should find its events made.
  explicit EventPool(bool timed, int count = 0);
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  ~EventPool();

  // An event of the current device.
  cudaEvent_t take();
  void give_back(cudaEvent_t event) noexcept;

 private:
  cudaEvent_t make() const;

  bool timed_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> idle_;
};

// The first exception that work of any stream of a backend has thrown; the whole backend has failed then.
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

class CudaStream;

class CudaEvent final : public Event::State {
 public:
  CudaEvent(std::shared_ptr<EventPool> pool, std::shared_ptr<HostFailure> failure, const CudaStream& stream);
  ~CudaEvent() override;

  cudaEvent_t handle() const { return handle_; }
  bool is_of(const CudaStream& stream) const { return stream_ == &stream; }

  // Tells CUDA to record it, behind everything that has been issued on the stream.
  void issue(cudaStream_t stream);
  // It will not be issued: the backend has failed.
  void drop() noexcept;
  // Waits on the host until it has been issued; throws the failure when it never will be.
  void wait_until_issued() const;
  // Of an issued event. Throws CudaError when the work before it has failed.
  bool has_happened() const;

 private:
  enum class State : int { pending, issued, dropped };

  std::shared_ptr<EventPool> pool_;
  std::shared_ptr<HostFailure> failure_;
  const CudaStream* stream_;  // only compared
  cudaEvent_t handle_;
  std::atomic<State> state_{State::pending};
};

// Null for an empty event; ContractError for an event of another kind of backend.
std::shared_ptr<const CudaEvent> cuda_event(const Event& event);
// Of an event that has been issued, or an empty one.
bool has_happened(const Event& event);

class CudaStream final : public Stream {
 public:
  CudaStream(std::string name, int device, int priority, std::shared_ptr<EventPool> pool,
             std::shared_ptr<HostFailure> failure);
  ~CudaStream() override;
  std::string_view name() const override { return name_; }
  cudaStream_t handle() const { return handle_; }

  // Runs `work(handle)`, which issues CUDA work: now, or behind what has been posted. `work` is copied then.
  template <typename Work>
  void run(const Work& work) {
    if (is_idle()) {
      work(use());
      has_new_work_ = true;  // also behind an event that `work` has recorded
    } else {
      post([this, work] { work(handle_); });
    }
  }
  // For issuing work from the calling thread now: waits until everything that has been posted is issued. The next
  // record() makes a new event.
  cudaStream_t use();
  // Runs `work` on the stream's own thread, behind everything posted before. It may wait for other threads.
  void post(std::function<void()> work);
  // Nothing that has been posted is left.
  bool is_idle();

  Event record();
  // An event at the point that has been issued so far; from the thread that issues.
  Event record_issued();
  // Makes the stream wait for `event`. Waits on the host when the event is pending and nothing is posted here.
  void wait(std::shared_ptr<const CudaEvent> event);
  // Runs `work` on the host when the stream gets there, unless something has failed before.
  void enqueue(std::function<void()> work);
  // Waits on the host for everything enqueued so far.
  void synchronize();
  // What is posted from now on belongs to the scope that `recording` is in at that time; null: to none. From the rank's
  // thread, with nothing posted.
  void record_to(const DeviceRecording* recording) { recording_ = recording; }
  // No more work will come: what has been posted is issued, or dropped when the backend has failed. Never throws.
  void close() noexcept;

 private:
  struct Posted {
    std::function<void()> work;
    std::shared_ptr<CudaEvent> event;  // or an event to issue
    uint64_t scope = 0;                // that it belongs to in a recording
  };
  void post(Posted posted);
  void serve();

  std::string name_;
  int device_;
  std::shared_ptr<EventPool> pool_;
  std::shared_ptr<HostFailure> failure_;
  cudaStream_t handle_ = nullptr;
  const DeviceRecording* recording_ = nullptr;
  bool has_new_work_ = false;
  Event last_;  // recorded behind all work, unless has_new_work_

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Posted> posted_;
  bool is_serving_ = false;  // a posted item is being issued
  bool is_closing_ = false;
  std::thread thread_;  // started by the first post()
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
