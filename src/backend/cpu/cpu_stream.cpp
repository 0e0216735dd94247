#include "backend/cpu/cpu_stream.h"

#include <chrono>
#include <exception>
#include <typeinfo>
#include <utility>

#include "base/error.h"

namespace ithaca::cpu {
namespace {

template <typename E>
bool keep(const Error& error, std::function<void()>& throw_again) {
  if (typeid(error) != typeid(E)) return false;
  throw_again = [text = std::string(error.what())] { throw E(text); };
  return true;
}

}  // namespace

Failure Failure::current() {
  Failure failure;
  try {
    throw;
  } catch (const Error& error) {
    const bool kept = keep<CommunicationError>(error, failure.throw_again_) ||
                      keep<OutOfMemoryError>(error, failure.throw_again_) ||
                      keep<FileError>(error, failure.throw_again_) || keep<InputError>(error, failure.throw_again_) ||
                      keep<ConfigurationError>(error, failure.throw_again_) ||
                      keep<ContractError>(error, failure.throw_again_) || keep<Error>(error, failure.throw_again_);
    if (kept) return failure;
  } catch (...) {
    // Some other type: kept as the object itself, below.
  }
  failure.throw_again_ = [exception = std::current_exception()] { std::rethrow_exception(exception); };
  return failure;
}

void Failure::rethrow() const {
  throw_again_();
  std::terminate();  // not reached: every throw_again_ throws
}

double Progress::await(int64_t count) {
  std::unique_lock lock(mutex_);
  const auto over = [&] { return done_ >= count || failure_ != nullptr; };
  double seconds = 0.0;
  if (!over()) {
    const auto begin = std::chrono::steady_clock::now();
    changed_.wait(lock, over);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  if (done_ < count) {
    const Failure failure = *failure_;
    lock.unlock();
    failure.rethrow();
  }
  return seconds;
}

std::shared_ptr<Progress> Progress::failed(const Failure& failure) {
  auto progress = std::make_shared<Progress>();
  progress->failure_ = std::make_unique<Failure>(failure);
  return progress;
}

namespace {

// Null for an event that has always happened.
std::shared_ptr<const CpuEvent> cpu_event(const Event& event) {
  if (event.is_empty()) return nullptr;
  auto state = std::dynamic_pointer_cast<const CpuEvent>(event.state());
  require(state != nullptr, "the CPU backend was given an event of another backend");
  return state;
}

}  // namespace

double await(const Event& event) {
  const std::shared_ptr<const CpuEvent> state = cpu_event(event);
  return state == nullptr ? 0.0 : state->await();
}

// ---- InlineStream ----

// Whatever came before has happened, unless the stream has failed.
Event InlineStream::record() {
  if (failure_ == nullptr) return {};
  return Event(std::make_shared<CpuEvent>(Progress::failed(*failure_), 1));
}

double InlineStream::wait(const Event& event) {
  check();
  double seconds = 0.0;
  run([&] { seconds = await(event); });
  return seconds;
}

void InlineStream::check() {
  if (failure_ != nullptr) failure_->rethrow();
}

// ---- QueueStream ----

QueueStream::QueueStream(std::string name) : CpuStream(std::move(name)), progress_(std::make_shared<Progress>()) {}

QueueStream::~QueueStream() {
  close(false);
  if (thread_.joinable()) thread_.join();
}

void QueueStream::enqueue(std::function<void()> work) {
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  std::unique_lock lock(progress_->mutex_);
  if (progress_->failure_ != nullptr) {
    const Failure failure = *progress_->failure_;
    lock.unlock();
    failure.rethrow();
  }
  progress_->queue_.push_back(std::move(work));
  ++progress_->enqueued_;
  lock.unlock();
  progress_->changed_.notify_all();
}

Event QueueStream::record() {
  const std::lock_guard lock(progress_->mutex_);
  if (progress_->done_ == progress_->enqueued_ && progress_->failure_ == nullptr) return {};
  // On a failed stream this counts one item more than will ever be done.
  const int64_t count = progress_->enqueued_ + (progress_->failure_ != nullptr ? 1 : 0);
  return Event(std::make_shared<CpuEvent>(progress_, count));
}

double QueueStream::wait(const Event& event) {
  check();
  std::shared_ptr<const CpuEvent> state = cpu_event(event);
  if (state == nullptr || state->is_of(*progress_)) return 0.0;
  enqueue([state = std::move(state)] { state->await(); });
  return 0.0;
}

void QueueStream::check() {
  std::unique_lock lock(progress_->mutex_);
  if (progress_->failure_ == nullptr) return;
  const Failure failure = *progress_->failure_;
  lock.unlock();
  failure.rethrow();
}

void QueueStream::close(bool abandon) noexcept {
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock(progress_->mutex_);
    progress_->closing_ = true;
    if (abandon && progress_->failure_ == nullptr && progress_->done_ < progress_->enqueued_) {
      try {
        throw ContractError("the " + std::string(name()) + " stream was closed before its work was done");
      } catch (...) {
        progress_->failure_ = std::make_unique<Failure>(Failure::current());
      }
      dropped.swap(progress_->queue_);
    }
  }
  progress_->changed_.notify_all();
}

void QueueStream::serve() {
  Progress& progress = *progress_;
  std::unique_lock lock(progress.mutex_);
  while (true) {
    progress.changed_.wait(lock, [&] { return progress.closing_ || !progress.queue_.empty(); });
    if (progress.queue_.empty()) return;
    std::function<void()> work = std::move(progress.queue_.front());
    progress.queue_.pop_front();
    lock.unlock();
    std::unique_ptr<Failure> failure;
    try {
      work();
    } catch (...) {
      failure = std::make_unique<Failure>(Failure::current());
    }
    work = nullptr;  // what the work holds goes before anybody learns that it is done
    std::deque<std::function<void()>> dropped;
    lock.lock();
    if (failure == nullptr) {
      ++progress.done_;
    } else {
      if (progress.failure_ == nullptr) progress.failure_ = std::move(failure);
      dropped.swap(progress.queue_);
    }
    progress.changed_.notify_all();
    if (!dropped.empty()) {
      lock.unlock();
      dropped.clear();
      lock.lock();
    }
  }
}

}  // namespace ithaca::cpu
