// What a device backend does for communicators, with host memory: so that their device forms are tested on any machine.
//
// Everything has happened when it is issued, but for messages: a stream that exchanges some stands still until their
// peers have come, as a device does.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/device_movement.h"
#include "base/error.h"
#include "comm/host_movement.h"

namespace ithaca::testing {

// Messages between ranks, matched in order for each pair.
class HostDeviceExchange final : public DeviceExchange {
 public:
  explicit HostDeviceExchange(size_t ranks) : busy_(ranks) {}

  // What failure() says from now on.
  void fail(Failure failure) {
    const std::lock_guard lock(mutex_);
    failure_ = std::move(failure);
  }
  std::optional<Failure> failure() override {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  bool has_happened(const Event& event) override { return event.is_empty(); }
  void abort() noexcept override {
    {
      const std::lock_guard lock(mutex_);
      is_aborted_ = true;
    }
    changed_.notify_all();
  }

  // As NCCL does not allow, no two calls of a rank overlap.
  void run(int rank, std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives) {
    std::atomic<bool>& busy = busy_.at(static_cast<size_t>(rank));
    EXPECT_FALSE(busy.exchange(true)) << "two exchanges of rank " << rank << " at the same time";
    std::unique_lock lock(mutex_);
    std::vector<std::shared_ptr<Letter>> sent;
    for (const DeviceMessage& message : sends) {
      expect_message(rank, message);
      sent.push_back(std::make_shared<Letter>(Letter{message.data}));
      letters_[{rank, message.peer}].push_back(sent.back());
    }
    changed_.notify_all();
    for (const DeviceMessage& message : receives) {
      expect_message(rank, message);
      std::deque<std::shared_ptr<Letter>>& letters = letters_[{message.peer, rank}];
      wait(lock, [&] { return !letters.empty(); });
      const std::shared_ptr<Letter> letter = letters.front();
      letters.pop_front();
      EXPECT_EQ(letter->data.byte_count(), message.data.byte_count());
      std::memcpy(message.data.data, letter->data.data, static_cast<size_t>(message.data.byte_count()));
      letter->is_taken = true;
      changed_.notify_all();
    }
    for (const std::shared_ptr<Letter>& letter : sent) {
      wait(lock, [&] { return letter->is_taken; });
    }
    busy = false;
  }

 private:
  struct Letter {
    Tensor data;
    bool is_taken = false;
  };

  static void expect_message(int rank, const DeviceMessage& message) {
    EXPECT_NE(message.peer, rank);
    EXPECT_TRUE(message.data.is_contiguous());
    EXPECT_GT(message.data.element_count(), 0);
  }
  template <typename Condition>
  void wait(std::unique_lock<std::mutex>& lock, const Condition& condition) {
    changed_.wait(lock, [&] { return is_aborted_ || condition(); });
    if (is_aborted_) throw CommunicationError("the exchange has been aborted");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Letter>>> letters_;  // by sender and receiver
  bool is_aborted_ = false;
  std::optional<Failure> failure_;
  std::deque<std::atomic<bool>> busy_;
};

class HostDeviceIssuer final : public DeviceIssuer {
 public:
  void copy_elements(const Tensor& from, const Tensor& to) override { ithaca::copy_elements(from, to); }
  void sum_elements(std::span<const Tensor> parts, const Tensor& to) override { ithaca::sum_elements(parts, to); }
  void exchange(DeviceExchange& exchange, int rank, std::span<const DeviceMessage> sends,
                std::span<const DeviceMessage> receives) override {
    dynamic_cast<HostDeviceExchange&>(exchange).run(rank, sends, receives);
  }
  Event record() override { return {}; }
  void wait(const Event& event) override { EXPECT_TRUE(event.is_empty()); }
};

class HostDeviceMovement : public DeviceMovement {
 public:
  explicit HostDeviceMovement(Backend& backend) : backend_(backend) {}
  void issue(Stream& stream, std::function<void(DeviceIssuer&)> work) override {
    backend_.enqueue(stream, [work = std::move(work)] {
      HostDeviceIssuer issuer;
      work(issuer);
    });
  }
  int most_sum_parts() const override { return 32; }
  // The tests' memory is the host's: the board lets nobody go whose buffers are being read.
  std::shared_ptr<const void> hold_memory() override { return nullptr; }
  std::unique_ptr<DeviceExchange> make_exchange(std::span<DeviceMovement* const> ranks) override {
    return std::make_unique<HostDeviceExchange>(ranks.size());
  }
  // Streams fail by themselves here, when what they wait in is aborted.
  std::function<void(std::exception_ptr)> failure_handle() override {
    return [](const std::exception_ptr& exception) { EXPECT_NE(exception, nullptr); };
  }

 protected:
  Backend& backend() const { return backend_; }

 private:
  Backend& backend_;
};

}  // namespace ithaca::testing
