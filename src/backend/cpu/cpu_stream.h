// The streams and events of the CPU backend.
//
// InlineStream runs work on the calling thread, at once. QueueStream has a thread of its own, started by the first work
// it gets. An event is a count of work items: it has happened when that many items of its stream are done. When an item
// throws, the stream has failed: items behind it are dropped, and the same failure is thrown by the next call on the
// stream and by every wait for an event behind it. Thread-safety: a stream belongs to one thread (the rank's); only
// await() is also called from the threads of other streams.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "backend/stream.h"

namespace ithaca::cpu {

// What ended a stream; can be thrown again any number of times, on any thread. Ithaca's own exceptions are kept as type
// and text and thrown as new objects, so that threads never share one exception object.
class Failure {
 public:
  // The exception that is being handled.
  static Failure current();
  [[noreturn]] void rethrow() const;

 private:
  std::function<void()> throw_again_;
};

// How far a stream has come: what its events look at. Outlives the stream as long as there are events.
class Progress {
 public:
  // That of a stream which failed at its first item.
  static std::shared_ptr<Progress> failed(const Failure& failure);

  // Waits until `count` items are done, or throws the failure that prevents it. Returns the seconds waited.
  double await(int64_t count);

 private:
  friend class QueueStream;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  int64_t enqueued_ = 0;
  int64_t done_ = 0;
  std::unique_ptr<Failure> failure_;  // of item done_ + 1
  bool closing_ = false;              // no more items will come
};

class CpuEvent : public Event::State {
 public:
  CpuEvent(std::shared_ptr<Progress> progress, int64_t count) : progress_(std::move(progress)), count_(count) {}
  // As Progress::await.
  double await() const { return progress_->await(count_); }
  bool is_of(const Progress& progress) const { return progress_.get() == &progress; }

 private:
  std::shared_ptr<Progress> progress_;
  int64_t count_;
};

// The calling thread waits for `event`, as Progress::await. Throws ContractError for an event of another backend.
double await(const Event& event);

class CpuStream : public Stream {
 public:
  explicit CpuStream(std::string name) : name_(std::move(name)) {}
  std::string_view name() const override { return name_; }

  // Runs `work` after everything enqueued so far; throws the stream's failure instead if it has one.
  virtual void enqueue(std::function<void()> work) = 0;
  virtual Event record() = 0;
  // Work enqueued from now on runs after `event`. Returns the seconds that the calling thread was blocked.
  virtual double wait(const Event& event) = 0;
  // Throws the failure, if there is one.
  virtual void check() = 0;
  // True when enqueue() runs its work before it returns.
  virtual bool is_inline() const = 0;

 private:
  std::string name_;
};

class InlineStream final : public CpuStream {
 public:
  using CpuStream::CpuStream;
  void enqueue(std::function<void()> work) override { run(work); }
  Event record() override;
  double wait(const Event& event) override;
  void check() override;
  bool is_inline() const override { return true; }

  // enqueue() without the cost of a std::function.
  template <typename Work>
  void run(const Work& work) {
    check();
    try {
      work();
    } catch (...) {
      failure_ = std::make_unique<Failure>(Failure::current());
      throw;
    }
  }

 private:
  std::unique_ptr<Failure> failure_;
};

class QueueStream final : public CpuStream {
 public:
  explicit QueueStream(std::string name);
  ~QueueStream() override;

  void enqueue(std::function<void()> work) override;
  Event record() override;
  double wait(const Event& event) override;
  void check() override;
  bool is_inline() const override { return false; }

  // The first half of destruction: no more work will come; `abandon` drops what has not begun, and waits of this
  // stream's thread end. Call it on all streams of a backend before the first is destroyed, as they may wait for each
  // other.
  void close(bool abandon) noexcept;

 private:
  void serve();

  std::shared_ptr<Progress> progress_;
  std::thread thread_;
};

}  // namespace ithaca::cpu
