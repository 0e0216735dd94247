#include "backend/cuda/cuda_stream.h"

#include <utility>

#include "backend/cuda/cuda_check.h"
#include "base/error.h"

namespace ithaca::cuda {

// ---- EventPool, CudaEvent ----

EventPool::~EventPool() {
  for (const cudaEvent_t event : idle_) static_cast<void>(cudaEventDestroy(event));
}

cudaEvent_t EventPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      const cudaEvent_t event = idle_.back();
      idle_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  // A host that waits sleeps: ranks may be more than cores.
  const unsigned flags = cudaEventBlockingSync | (timed_ ? 0u : cudaEventDisableTiming);
  ITHACA_CUDA_CHECK(cudaEventCreateWithFlags(&event, flags));
  return event;
}

void EventPool::give_back(cudaEvent_t event) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    idle_.push_back(event);
  } catch (...) {  // no memory for the list
    static_cast<void>(cudaEventDestroy(event));
  }
}

CudaEvent::CudaEvent(std::shared_ptr<EventPool> pool, const CudaStream& stream)
    : pool_(std::move(pool)), stream_(&stream), handle_(pool_->take()) {}

CudaEvent::~CudaEvent() {
  pool_->give_back(handle_);
}

bool CudaEvent::has_happened() const {
  const cudaError_t status = cudaEventQuery(handle_);
  if (status == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  check_cuda(status, "cudaEventQuery", __FILE__, __LINE__);
  return true;
}

std::shared_ptr<const CudaEvent> cuda_event(const Event& event) {
  if (event.is_empty()) return nullptr;
  auto state = std::dynamic_pointer_cast<const CudaEvent>(event.state());
  require(state != nullptr, "the CUDA backend was given an event of another backend");
  return state;
}

// ---- HostFailure ----

void HostFailure::set(std::exception_ptr exception) noexcept {
  const std::lock_guard lock(mutex_);
  if (exception_ != nullptr) return;
  exception_ = std::move(exception);
  is_set_.store(true, std::memory_order_release);
}

void HostFailure::rethrow_if_set() const {
  if (!is_set()) return;
  std::exception_ptr exception;
  {
    const std::lock_guard lock(mutex_);
    exception = exception_;
  }
  std::rethrow_exception(exception);
}

// ---- CudaStream ----

CudaStream::CudaStream(std::string name, int priority, std::shared_ptr<EventPool> pool)
    : name_(std::move(name)), pool_(std::move(pool)) {
  ITHACA_CUDA_CHECK(cudaStreamCreateWithPriority(&handle_, cudaStreamNonBlocking, priority));
}

CudaStream::~CudaStream() {
  static_cast<void>(cudaStreamDestroy(handle_));
}

Event CudaStream::record() {
  if (!has_new_work_) return last_;
  auto event = std::make_shared<CudaEvent>(pool_, *this);
  ITHACA_CUDA_CHECK(cudaEventRecord(event->handle(), handle_));
  last_ = Event(std::move(event));
  has_new_work_ = false;
  return last_;
}

void CudaStream::wait(const CudaEvent& event) {
  ITHACA_CUDA_CHECK(cudaStreamWaitEvent(use(), event.handle(), cudaEventWaitDefault));
}

namespace {

struct HostWork {
  std::function<void()> work;
  std::shared_ptr<HostFailure> failure;
};

void CUDART_CB run_host_work(void* argument) noexcept {
  const std::unique_ptr<HostWork> item(static_cast<HostWork*>(argument));
  if (item->failure->is_set()) return;
  try {
    item->work();
  } catch (...) {
    item->failure->set(std::current_exception());
  }
}

}  // namespace

void CudaStream::enqueue(std::function<void()> work, std::shared_ptr<HostFailure> failure) {
  auto item = std::make_unique<HostWork>(HostWork{std::move(work), std::move(failure)});
  ITHACA_CUDA_CHECK(cudaLaunchHostFunc(use(), run_host_work, item.get()));
  static_cast<void>(item.release());  // run_host_work owns it now
}

void CudaStream::synchronize() {
  ITHACA_CUDA_CHECK(cudaStreamSynchronize(handle_));
}

// ---- WaitMeter ----

WaitMeter::~WaitMeter() {
  for (const Wait& wait : pending_) {
    pool_->give_back(wait.begin);
    pool_->give_back(wait.end);
  }
  if (open_ != nullptr) pool_->give_back(open_);
}

void WaitMeter::begin_wait(cudaStream_t stream) {
  if (open_ == nullptr) open_ = pool_->take();
  ITHACA_CUDA_CHECK(cudaEventRecord(open_, stream));
}

void WaitMeter::end_wait(cudaStream_t stream) {
  const cudaEvent_t end = pool_->take();
  pending_.push_back({std::exchange(open_, nullptr), end});
  ITHACA_CUDA_CHECK(cudaEventRecord(end, stream));
  constexpr size_t kManyPending = 256;
  if (pending_.size() > kManyPending) collect();
}

double WaitMeter::seconds() {
  collect();
  return seconds_;
}

void WaitMeter::collect() {
  while (!pending_.empty()) {
    const Wait wait = pending_.front();
    const cudaError_t status = cudaEventQuery(wait.end);
    if (status == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());
      return;
    }
    check_cuda(status, "cudaEventQuery", __FILE__, __LINE__);
    float milliseconds = 0.0f;
    ITHACA_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, wait.begin, wait.end));
    seconds_ += static_cast<double>(milliseconds) * 1e-3;
    pool_->give_back(wait.begin);
    pool_->give_back(wait.end);
    pending_.pop_front();
  }
}

}  // namespace ithaca::cuda
