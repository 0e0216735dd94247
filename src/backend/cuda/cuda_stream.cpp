#include "backend/cuda/cuda_stream.h"

#include <exception>
#include <utility>

#include "backend/cuda/cuda_check.h"
#include "base/error.h"

namespace ithaca::cuda {

// ---- EventPool, CudaEvent ----

EventPool::EventPool(bool timed, int count) : timed_(timed) {
  for (int made = 0; made < count; ++made) idle_.push_back(make());
}

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
  return make();
}

cudaEvent_t EventPool::make() const {
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

CudaEvent::CudaEvent(std::shared_ptr<EventPool> pool, std::shared_ptr<HostFailure> failure, const CudaStream& stream)
    : pool_(std::move(pool)), failure_(std::move(failure)), stream_(&stream), handle_(pool_->take()) {}

CudaEvent::~CudaEvent() {
  pool_->give_back(handle_);
}

void CudaEvent::issue(cudaStream_t stream) {
  ITHACA_CUDA_CHECK(cudaEventRecord(handle_, stream));
  state_.store(State::issued, std::memory_order_release);
  state_.notify_all();
}

void CudaEvent::drop() noexcept {
  state_.store(State::dropped, std::memory_order_release);
  state_.notify_all();
}

void CudaEvent::wait_until_issued() const {
  state_.wait(State::pending, std::memory_order_acquire);
  if (state_.load(std::memory_order_acquire) == State::issued) return;
  failure_->rethrow_if_set();
  throw ContractError("the CUDA event was dropped with its stream");
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

bool has_happened(const Event& event) {
  const std::shared_ptr<const CudaEvent> state = cuda_event(event);
  return state == nullptr || state->has_happened();
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

CudaStream::CudaStream(std::string name, int device, int priority, std::shared_ptr<EventPool> pool,
                       std::shared_ptr<HostFailure> failure)
    : name_(std::move(name)), device_(device), pool_(std::move(pool)), failure_(std::move(failure)) {
  ITHACA_CUDA_CHECK(cudaStreamCreateWithPriority(&handle_, cudaStreamNonBlocking, priority));
}

CudaStream::~CudaStream() {
  close();
  static_cast<void>(cudaStreamDestroy(handle_));
}

cudaStream_t CudaStream::use() {
  if (thread_.joinable()) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return posted_.empty() && !is_serving_; });
    lock.unlock();
    failure_->rethrow_if_set();
  }
  has_new_work_ = true;
  return handle_;
}

bool CudaStream::is_idle() {
  if (!thread_.joinable()) return true;
  const std::lock_guard lock(mutex_);
  return posted_.empty() && !is_serving_;
}

void CudaStream::post(std::function<void()> work) {
  post(Posted{std::move(work), nullptr});
}

void CudaStream::post(Posted posted) {
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  has_new_work_ = true;
  if (recording_ != nullptr) posted.scope = recording_->launch_scope();
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(posted));
  }
  changed_.notify_all();
}

void CudaStream::serve() {
  try {
    ITHACA_CUDA_CHECK(cudaSetDevice(device_));
  } catch (...) {
    failure_->set(std::current_exception());
  }
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_closing_ || !posted_.empty(); });
    if (posted_.empty()) return;
    Posted posted = std::move(posted_.front());
    posted_.pop_front();
    is_serving_ = true;
    lock.unlock();
    try {
      if (!failure_->is_set()) {
        const LaunchScope scope(posted.scope);
        if (posted.event != nullptr) {
          posted.event->issue(handle_);
        } else {
          posted.work();
        }
      }
    } catch (...) {
      failure_->set(std::current_exception());
    }
    if (posted.event != nullptr && failure_->is_set()) posted.event->drop();
    posted = {};  // what the work holds goes before anybody learns that it is issued
    lock.lock();
    is_serving_ = false;
    changed_.notify_all();
  }
}

Event CudaStream::record() {
  if (!has_new_work_) return last_;
  auto event = std::make_shared<CudaEvent>(pool_, failure_, *this);
  if (!is_idle()) {
    post(Posted{nullptr, event});
    return Event(std::move(event));
  }
  event->issue(handle_);
  last_ = Event(std::move(event));
  has_new_work_ = false;
  return last_;
}

Event CudaStream::record_issued() {
  auto event = std::make_shared<CudaEvent>(pool_, failure_, *this);
  event->issue(handle_);
  return Event(std::move(event));
}

void CudaStream::wait(std::shared_ptr<const CudaEvent> event) {
  run([event = std::move(event)](cudaStream_t handle) {
    event->wait_until_issued();
    ITHACA_CUDA_CHECK(cudaStreamWaitEvent(handle, event->handle(), cudaEventWaitDefault));
  });
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

void CudaStream::enqueue(std::function<void()> work) {
  run([work = std::move(work), failure = failure_](cudaStream_t handle) {
    auto item = std::make_unique<HostWork>(HostWork{work, failure});
    ITHACA_CUDA_CHECK(cudaLaunchHostFunc(handle, run_host_work, item.get()));
    static_cast<void>(item.release());  // run_host_work owns it now
  });
}

void CudaStream::synchronize() {
  ITHACA_CUDA_CHECK(cudaStreamSynchronize(use()));
}

void CudaStream::close() noexcept {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
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
