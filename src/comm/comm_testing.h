// What the tests of comm share: ranks with a CPU backend each, blocks of any strides whose gaps are watched, and the
// failure that a run of ranks ends with.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <latch>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "comm/communicator.h"
#include "comm/device_testing.h"
#include "comm/thread_ranks.h"
#include "tensor/tensor.h"

namespace ithaca::testing {

// The form of the communicator that the ranks of this test program have, so that everything is tested in every form.
// Those of devices have host memory all the same (comm/device_testing.h).
enum class Form { host, device, nccl };
#if defined(ITHACA_TEST_DEVICE_FORM)
inline constexpr Form kForm = Form::device;
#elif defined(ITHACA_TEST_NCCL_FORM)
inline constexpr Form kForm = Form::nccl;
#else
inline constexpr Form kForm = Form::host;
#endif

// One rank of a test run.
struct TestRank {
  int rank = 0;
  int size = 0;
  Backend& backend;
  Communicator& world;
  std::deque<std::shared_ptr<void>>& kept;

  // Memory for operations of a program that may end by an exception: it lives until the streams have stopped, as that
  // of an arena does.
  template <typename T>
  T& keep(T value) {
    auto owner = std::make_shared<T>(std::move(value));
    kept.push_back(owner);
    return *owner;
  }
  Stream& stream(bool on_communication_stream) const {
    return on_communication_stream ? backend.communication_stream() : backend.compute_stream();
  }
  // Waits for everything on both streams.
  void finish() const {
    backend.finish(backend.record(backend.communication_stream()));
    backend.finish(backend.record(backend.compute_stream()));
  }
};

inline void run_test_ranks(int size, const std::function<void(TestRank&)>& body, double timeout_seconds = 60.0) {
  ThreadRankOptions options;
  options.timeout_seconds = timeout_seconds;
  if (kForm == Form::nccl) options.transport = Transport::nccl;
  std::latch connected(size);
  run_thread_ranks(size, options, [&](ThreadRank& thread_rank) {
    CpuBackendOptions backend_options;
    backend_options.memory_limit_bytes = 1 << 20;
    backend_options.host_memory_limit_bytes = 1 << 20;
    std::deque<std::shared_ptr<void>> kept;
    const auto backend = make_cpu_backend(backend_options);
    HostDeviceMovement movement(*backend);
    const auto world = kForm == Form::host ? thread_rank.connect(*backend) : thread_rank.connect(*backend, movement);
    connected.arrive_and_wait();  // so that no body ends before another has begun
    TestRank self{thread_rank.rank(), thread_rank.size(), *backend, *world, kept};
    body(self);
  });
}

// How a run that must fail has ended.
struct Ending {
  std::string text;
  std::string type;
  double seconds = 0.0;
};

// Runs ranks that must fail.
inline Ending ending_of(int size, const std::function<void(TestRank&)>& body, double timeout_seconds = 60.0) {
  Ending ending;
  make_cpu_backend();  // what the first backend of a process checks is not part of the time
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_test_ranks(size, body, timeout_seconds);
    ADD_FAILURE() << "the ranks should have failed";
  } catch (const Error& error) {
    ending.text = error.what();
    ending.type = dynamic_cast<const ConfigurationError*>(&error) != nullptr   ? "ConfigurationError"
                  : dynamic_cast<const InputError*>(&error) != nullptr         ? "InputError"
                  : dynamic_cast<const FileError*>(&error) != nullptr          ? "FileError"
                  : dynamic_cast<const CommunicationError*>(&error) != nullptr ? "CommunicationError"
                  : dynamic_cast<const OutOfMemoryError*>(&error) != nullptr   ? "OutOfMemoryError"
                  : dynamic_cast<const ContractError*>(&error) != nullptr      ? "ContractError"
                                                                               : "Error";
  }
  ending.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return ending;
}

// A flag that ranks of a test pass to each other outside of what is tested.
class Flag {
 public:
  void set() {
    flag_.test_and_set();
    flag_.notify_all();
  }
  void wait() const { flag_.wait(false); }

 private:
  std::atomic_flag flag_{};
};

inline constexpr int kBlockStyles = 4;

// `count` elements of T under a view of one of several shapes and strides, with gaps that nobody may write.
template <typename T>
class Block {
 public:
  Block() = default;
  explicit Block(int64_t count, int style = 0) {
    if (style >= 2 && count % 2 != 0) style = 1;
    const int64_t half = count / 2;
    const DType dtype = DTypeOf<T>::value;
    switch (style) {
      case 0:
        view_ = {nullptr, dtype, {count}, {1}};
        break;
      case 1:
        view_ = {nullptr, dtype, {count}, {3}};
        break;
      case 2:  // rows of two with a gap behind each
        view_ = {nullptr, dtype, {half, 1, 2}, {5, 2, 1}};
        break;
      default:  // columns, as a transposed matrix has them
        view_ = {nullptr, dtype, {2, half}, {1, 3}};
        break;
    }
    int64_t last = 0;
    for (int dimension = 0; dimension < view_.rank(); ++dimension) {
      last += std::max<int64_t>(view_.extent(dimension) - 1, 0) * view_.stride(dimension);
    }
    storage_.assign(static_cast<size_t>(last + 2), kGap);
    for (int64_t index = 0; index < count; ++index) storage_[static_cast<size_t>(offset(index))] = T{};
    count_ = count;
  }

  Tensor tensor() {
    Tensor view = view_;
    view.data = storage_.data();
    return view;
  }
  int64_t count() const { return count_; }
  T get(int64_t index) const { return storage_[static_cast<size_t>(offset(index))]; }
  void set(int64_t index, T value) { storage_[static_cast<size_t>(offset(index))] = value; }
  template <typename Value>
  void fill(const Value& value) {
    for (int64_t index = 0; index < count_; ++index) set(index, value(index));
  }
  bool are_gaps_untouched() const {
    std::vector<bool> used(storage_.size(), false);
    for (int64_t index = 0; index < count_; ++index) used[static_cast<size_t>(offset(index))] = true;
    for (size_t position = 0; position < storage_.size(); ++position) {
      if (!used[position] && storage_[position] != kGap) return false;
    }
    return true;
  }

 private:
  static constexpr T kGap = static_cast<T>(-12345);

  int64_t offset(int64_t index) const {  // of the element at `index` in row-major order
    int64_t result = 0;
    for (int dimension = view_.rank() - 1; dimension >= 0; --dimension) {
      result += index % view_.extent(dimension) * view_.stride(dimension);
      index /= view_.extent(dimension);
    }
    return result;
  }

  std::vector<T> storage_;
  Tensor view_;
  int64_t count_ = 0;
};

// Fails the test when the block does not hold value(i) everywhere, or when a gap has been written.
template <typename T, typename Value>
void expect_block(const Block<T>& block, const Value& value, const std::string& where) {
  for (int64_t index = 0; index < block.count(); ++index) {
    const T expected = value(index);
    const T actual = block.get(index);
    if (std::memcmp(&actual, &expected, sizeof(T)) != 0) {
      ADD_FAILURE() << where << ": element " << index << " is " << actual << " instead of " << expected;
      return;
    }
  }
  EXPECT_TRUE(block.are_gaps_untouched()) << where;
}

template <typename T>
std::vector<Tensor> tensors_of(std::vector<Block<T>>& blocks) {
  std::vector<Tensor> result;
  result.reserve(blocks.size());
  for (Block<T>& block : blocks) result.push_back(block.tensor());
  return result;
}

}  // namespace ithaca::testing
