// Order, overlap and failure of the CPU backend's streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/error.h"

namespace ithaca {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class CpuStreams : public testing::Test {
 protected:
  Stream& compute() { return backend_->compute_stream(); }
  Stream& communication() { return backend_->communication_stream(); }
  Stream& copies() { return backend_->copy_stream(); }

  std::unique_ptr<Backend> backend_ = make_cpu_backend();
};

template <typename E>
std::string thrown_text(const std::function<void()>& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing of the expected type";
}

TEST_F(CpuStreams, HaveNames) {
  EXPECT_EQ(compute().name(), "compute");
  EXPECT_EQ(communication().name(), "communication");
  EXPECT_EQ(copies().name(), "copy");
  EXPECT_EQ(backend_->name(), "cpu");
  EXPECT_EQ(backend_->compute_dtype(), DType::float32);
  EXPECT_EQ(backend_->preferred_length_multiple(), 1);
}

TEST_F(CpuStreams, RunWorkInOrder) {
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) backend_->enqueue(communication(), [&order, i] { order.push_back(i); });
  backend_->finish(backend_->record(communication()));
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST_F(CpuStreams, ComputeRunsInlineTheOthersOnThreadsOfTheirOwn) {
  std::thread::id on_compute;
  std::thread::id on_communication;
  std::thread::id on_copies;
  backend_->enqueue(compute(), [&] { on_compute = std::this_thread::get_id(); });
  EXPECT_EQ(on_compute, std::this_thread::get_id());
  backend_->enqueue(communication(), [&] { on_communication = std::this_thread::get_id(); });
  backend_->enqueue(copies(), [&] { on_copies = std::this_thread::get_id(); });
  backend_->finish(backend_->record(communication()));
  backend_->finish(backend_->record(copies()));
  EXPECT_NE(on_communication, std::this_thread::get_id());
  EXPECT_NE(on_copies, std::this_thread::get_id());
  EXPECT_NE(on_copies, on_communication);
}

// The point of a communication stream: while it waits for somebody else, computation goes on.
TEST_F(CpuStreams, CommunicationThatWaitsDoesNotBlockCompute) {
  std::promise<void> peer;
  std::atomic<bool> received = false;
  backend_->enqueue(communication(), [&, arrival = peer.get_future().share()] {
    arrival.wait();
    received = true;
  });
  const Event exchange = backend_->record(communication());
  int computed = 0;
  for (int i = 0; i < 10; ++i) backend_->enqueue(compute(), [&] { ++computed; });
  EXPECT_EQ(computed, 10);
  EXPECT_FALSE(received);
  peer.set_value();  // only now can the exchange end
  backend_->wait(compute(), exchange);
  EXPECT_TRUE(received);
}

TEST_F(CpuStreams, WaitOrdersQueuesWithoutBlockingTheHost) {
  std::promise<void> gate;
  std::vector<int> order;
  backend_->enqueue(copies(), [&order, opened = gate.get_future().share()] {
    opened.wait();
    order.push_back(1);
  });
  backend_->wait(communication(), backend_->record(copies()));
  backend_->enqueue(communication(), [&order] { order.push_back(2); });
  backend_->wait(copies(), backend_->record(communication()));
  backend_->enqueue(copies(), [&order] { order.push_back(3); });
  const Event end = backend_->record(copies());
  EXPECT_TRUE(order.empty());  // the host came here before anything ran
  gate.set_value();
  backend_->finish(end);
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST_F(CpuStreams, EmptyEventsHaveHappened) {
  backend_->finish(Event{});
  backend_->wait(compute(), Event{});
  backend_->wait(communication(), Event{});
  backend_->finish(backend_->record(compute()));
  backend_->finish(backend_->record(communication()));  // nothing was ever enqueued
}

TEST_F(CpuStreams, EventsOfTheSameStreamAndOldEventsDoNotBlock) {
  backend_->enqueue(communication(), [] {});
  const Event first = backend_->record(communication());
  backend_->wait(communication(), first);
  backend_->finish(backend_->record(communication()));
  backend_->finish(first);
  backend_->wait(compute(), first);
}

TEST_F(CpuStreams, CountTheTimeThatComputeWaits) {
  EXPECT_EQ(backend_->exposed_wait_seconds(), 0.0);
  backend_->enqueue(communication(), [] { std::this_thread::sleep_for(std::chrono::milliseconds(30)); });
  const Event hidden = backend_->record(communication());
  backend_->finish(hidden);  // the host waits, compute does not
  backend_->wait(compute(), hidden);
  EXPECT_EQ(backend_->exposed_wait_seconds(), 0.0);
  // Far longer than a busy machine keeps this thread from coming to its wait.
  backend_->enqueue(communication(), [] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); });
  backend_->wait(compute(), backend_->record(communication()));
  EXPECT_GT(backend_->exposed_wait_seconds(), 0.010);
  EXPECT_LT(backend_->exposed_wait_seconds(), 10.0);
}

TEST_F(CpuStreams, RefuseStreamsAndEventsOfOthers) {
  const std::unique_ptr<Backend> other = make_cpu_backend();
  EXPECT_THROW(backend_->record(other->compute_stream()), ContractError);
  EXPECT_THROW(backend_->enqueue(other->copy_stream(), [] {}), ContractError);
  class Foreign : public Event::State {};
  const Event foreign(std::make_shared<Foreign>());
  EXPECT_THROW(backend_->wait(compute(), foreign), ContractError);
}

// ---- failures ----

TEST_F(CpuStreams, AFailureIsThrownAtTheNextWaitWithItsTypeAndText) {
  backend_->enqueue(communication(), [] { throw CommunicationError("rank 3 was lost"); });
  const Event event = backend_->record(communication());
  EXPECT_THAT(thrown_text<CommunicationError>([&] { backend_->wait(compute(), event); }), HasSubstr("rank 3 was lost"));
}

TEST_F(CpuStreams, AFailureIsThrownByEveryFollowingCall) {
  backend_->enqueue(communication(), [] { throw FileError("disk full"); });
  const Event event = backend_->record(communication());
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_EQ(thrown_text<FileError>([&] { backend_->finish(event); }), "disk full");
    EXPECT_EQ(thrown_text<FileError>([&] { backend_->enqueue(communication(), [] {}); }), "disk full");
    EXPECT_EQ(thrown_text<FileError>([&] { backend_->finish(backend_->record(communication())); }), "disk full");
    EXPECT_EQ(thrown_text<FileError>([&] { backend_->wait(communication(), Event{}); }), "disk full");
  }
  // Streams that have not waited for it go on.
  int ran = 0;
  backend_->enqueue(compute(), [&] { ++ran; });
  EXPECT_EQ(ran, 1);
}

TEST_F(CpuStreams, EveryErrorTypeIsKept) {
  const auto is_kept = [](const auto& error) {
    using E = std::decay_t<decltype(error)>;
    const std::unique_ptr<Backend> backend = make_cpu_backend();
    backend->enqueue(backend->copy_stream(), [error] { throw E(error); });
    EXPECT_EQ(thrown_text<E>([&] { backend->finish(backend->record(backend->copy_stream())); }), error.what());
  };
  is_kept(Error("a"));
  is_kept(ConfigurationError("b"));
  is_kept(InputError("c"));
  is_kept(FileError("d"));
  is_kept(CommunicationError("e"));
  is_kept(OutOfMemoryError("f"));
  is_kept(ContractError("g"));
  is_kept(std::invalid_argument("h"));
}

TEST_F(CpuStreams, WorkBehindAFailureIsNotRun) {
  std::promise<void> gate;
  std::atomic<int> ran = 0;
  backend_->enqueue(communication(), [opened = gate.get_future().share()] {
    opened.wait();
    throw CommunicationError("lost");
  });
  for (int i = 0; i < 5; ++i) backend_->enqueue(communication(), [&] { ++ran; });
  backend_->wait(copies(), backend_->record(communication()));
  backend_->enqueue(copies(), [&] { ++ran; });
  const Event end = backend_->record(copies());
  gate.set_value();
  EXPECT_THROW(backend_->finish(end), CommunicationError);
  EXPECT_EQ(ran, 0);
}

TEST_F(CpuStreams, EventsBeforeAFailureHaveHappened) {
  int value = 0;
  backend_->enqueue(communication(), [&] { value = 7; });
  const Event before = backend_->record(communication());
  backend_->enqueue(communication(), [] { throw CommunicationError("later"); });
  const Event after = backend_->record(communication());
  backend_->finish(before);
  EXPECT_EQ(value, 7);
  EXPECT_THROW(backend_->finish(after), CommunicationError);
  backend_->finish(before);
}

TEST_F(CpuStreams, AFailureOfComputeIsThrownAtOnceAndStays) {
  EXPECT_THROW(backend_->enqueue(compute(), [] { throw InputError("bad"); }), InputError);
  EXPECT_THROW(backend_->enqueue(compute(), [] {}), InputError);
  const Event event = backend_->record(compute());
  EXPECT_THROW(backend_->finish(event), InputError);
  backend_->wait(communication(), event);
  bool ran = false;
  // Thrown by whichever call comes after the stream has seen it.
  EXPECT_THROW(
      {
        backend_->enqueue(communication(), [&] { ran = true; });
        backend_->finish(backend_->record(communication()));
      },
      InputError);
  EXPECT_FALSE(ran);
}

TEST_F(CpuStreams, ArgumentErrorsDoNotFailTheStream) {
  EXPECT_THROW(backend_->copy(compute(), {Tensor::contiguous(nullptr, DType::float32, {1}), Tensor{}}), ContractError);
  bool ran = false;
  backend_->enqueue(compute(), [&] { ran = true; });
  EXPECT_TRUE(ran);
}

// ---- the end ----

TEST_F(CpuStreams, QueuedWorkIsDoneBeforeTheBackendGoes) {
  int done = 0;
  std::promise<void> gate;
  backend_->enqueue(copies(), [opened = gate.get_future().share()] { opened.wait(); });
  backend_->wait(communication(), backend_->record(copies()));
  for (int i = 0; i < 10; ++i) backend_->enqueue(communication(), [&] { ++done; });
  gate.set_value();
  backend_.reset();
  EXPECT_EQ(done, 10);
}

TEST_F(CpuStreams, AFailedStreamMayGoWithoutBeingAsked) {
  backend_->enqueue(communication(), [] { throw CommunicationError("never looked at"); });
  backend_->wait(copies(), backend_->record(communication()));
  backend_.reset();
}

TEST_F(CpuStreams, EventsMayOutliveTheBackend) {
  backend_->enqueue(communication(), [] {});
  const Event event = backend_->record(communication());
  backend_.reset();
}

// When an exception passes, work that has not begun is dropped, also where streams wait for each other.
TEST_F(CpuStreams, AnExceptionDropsQueuedWork) {
  std::promise<void> started;
  std::promise<void> gate;
  std::atomic<int> ran = 0;
  std::thread opener;
  try {
    const std::unique_ptr<Backend> backend = make_cpu_backend();
    backend->enqueue(backend->copy_stream(), [&started, opened = gate.get_future().share()] {
      started.set_value();
      opened.wait();
    });
    for (int i = 0; i < 5; ++i) backend->enqueue(backend->copy_stream(), [&] { ++ran; });
    backend->wait(backend->communication_stream(), backend->record(backend->copy_stream()));
    backend->enqueue(backend->communication_stream(), [&] { ++ran; });
    started.get_future().wait();
    // Opens the gate when the destructor below is (nearly always) waiting; the result is the same if it is not.
    opener = std::thread([&gate] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      gate.set_value();
    });
    throw InputError("something else went wrong");
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()), "something else went wrong");
  }
  opener.join();
  EXPECT_EQ(ran, 0);
}

// Many events in all directions: a check for the thread sanitizer, and that nothing is lost.
TEST_F(CpuStreams, SurviveManyCrossingEvents) {
  int64_t value = 0;  // written by all three streams, ordered by events alone
  for (int round = 0; round < 300; ++round) {
    backend_->enqueue(communication(), [&] { ++value; });
    backend_->wait(copies(), backend_->record(communication()));
    backend_->enqueue(copies(), [&] { ++value; });
    if (round % 3 == 0) {
      backend_->wait(compute(), backend_->record(copies()));
      backend_->enqueue(compute(), [&] { ++value; });
      backend_->wait(communication(), backend_->record(compute()));
    } else {
      backend_->wait(communication(), backend_->record(copies()));
    }
  }
  backend_->finish(backend_->record(copies()));
  backend_->finish(backend_->record(communication()));
  EXPECT_EQ(value, 700);
}

}  // namespace
}  // namespace ithaca
