// Stream and Event: the order of asynchronous work.
//
// A Stream runs the work enqueued on it in order. Work on different streams is unordered except through events:
// Backend::record() marks a point of one stream, Backend::wait() makes another stream wait for it. Neither blocks the
// host on a backend whose streams are asynchronous. Thread-safety: the thread of the rank that owns the backend.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

namespace ithaca {

class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  // "compute", "communication", "copy".
  virtual std::string_view name() const = 0;
};

// A point of a stream, made by Backend::record(). An empty Event has always happened. Cheap to copy.
class Event {
 public:
  // What a backend keeps behind an event.
  class State {
   public:
    State() = default;
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    virtual ~State() = default;
  };

  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}

  bool is_empty() const { return state_ == nullptr; }
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace ithaca
