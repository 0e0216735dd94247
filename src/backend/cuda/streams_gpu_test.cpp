// Streams, events, memory and failures of the CUDA backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/cuda_testing.h"

namespace ithaca {
namespace {

using testing_support::make_test_backend;

void sleep_milliseconds(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

class CudaStreams : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no NVIDIA GPU here: " << cuda_absence_reason();
    backend_ = make_test_backend(DType::bfloat16, int64_t{64} << 20, false);
  }

  Backend& backend() { return *backend_; }
  Arena& arena() { return backend_->arena(Tier::device); }
  Stream& compute() { return backend_->compute_stream(); }
  Stream& communication() { return backend_->communication_stream(); }
  Stream& copying() { return backend_->copy_stream(); }

  Buffer floats(int64_t count, Stream& stream) {
    return arena().allocate("floats", MemoryClass::workspace, DType::float32, {count}, stream);
  }
  std::vector<float> download(const Tensor& tensor, Stream& stream) {
    std::vector<float> values(static_cast<size_t>(tensor.element_count()));
    backend().copy_to_host(stream, tensor, std::as_writable_bytes(std::span(values)));
    backend().finish(backend().record(stream));
    return values;
  }
  void finish_all() {
    for (Stream* stream : {&compute(), &communication(), &copying()}) backend().finish(backend().record(*stream));
  }

 private:
  std::unique_ptr<Backend> backend_;
};

TEST_F(CudaStreams, KnowsWhatItIs) {
  EXPECT_EQ(backend().name(), "cuda");
  EXPECT_EQ(backend().compute_dtype(), DType::bfloat16);
  EXPECT_EQ(backend().preferred_length_multiple(), 128);
  EXPECT_EQ(compute().name(), "compute");
  EXPECT_EQ(communication().name(), "communication");
  EXPECT_EQ(copying().name(), "copy");
  EXPECT_EQ(arena().capacity(), int64_t{64} << 20);
}

TEST_F(CudaStreams, WorkOfOneStreamRunsInOrder) {
  const Buffer buffer = floats(1000, compute());
  backend().enqueue(compute(), [] { sleep_milliseconds(20); });
  backend().fill(compute(), {buffer.tensor(), 1.0});
  backend().add(compute(), {buffer.tensor(), buffer.tensor(), 2.0f});
  EXPECT_EQ(download(buffer.tensor(), compute()), std::vector<float>(1000, 3.0f));
}

TEST_F(CudaStreams, AStreamWaitsForAnEventOfAnother) {
  const Buffer buffer = floats(1000, communication());
  const Buffer sum = floats(1000, compute());
  backend().fill(compute(), {sum.tensor(), 1.0});
  backend().enqueue(communication(), [] { sleep_milliseconds(60); });
  backend().fill(communication(), {buffer.tensor(), 5.0});
  const auto begin = std::chrono::steady_clock::now();
  backend().wait(compute(), backend().record(communication()));
  backend().add(compute(), {buffer.tensor(), sum.tensor(), 1.0f});
  const double host_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_LT(host_seconds, 0.05) << "the host waited, not the stream";
  EXPECT_EQ(download(sum.tensor(), compute()), std::vector<float>(1000, 6.0f));
  EXPECT_GT(backend().exposed_wait_seconds(), 0.03);
  EXPECT_LT(backend().exposed_wait_seconds(), 5.0);
}

TEST_F(CudaStreams, HiddenWorkIsNoExposedWait) {
  const Buffer buffer = floats(1000, communication());
  backend().fill(communication(), {buffer.tensor(), 5.0});
  const Event done = backend().record(communication());
  backend().enqueue(compute(), [] { sleep_milliseconds(30); });
  backend().wait(compute(), done);
  backend().fill(compute(), {buffer.tensor(), 6.0});
  finish_all();
  EXPECT_LT(backend().exposed_wait_seconds(), 0.02);
}

TEST_F(CudaStreams, MemoryPassesBetweenStreamsInOrder) {
  // The block is freed on one stream while its work is still waiting, and the next stream gets the same place.
  const int64_t count = arena().capacity() / 4 * 3 / 4;
  const Buffer kept = floats(1000, communication());
  void* place = nullptr;
  {
    const Buffer first = floats(count, communication());
    place = first.tensor().data;
    backend().enqueue(communication(), [] { sleep_milliseconds(40); });
    backend().fill(communication(), {first.tensor(), 7.0});
    backend().copy(communication(), {first.tensor().slice(0, count - 1000, count), kept.tensor()});
  }
  const Buffer second = floats(count, compute());
  EXPECT_EQ(second.tensor().data, place);
  backend().fill(compute(), {second.tensor(), 9.0});
  EXPECT_EQ(download(kept.tensor(), communication()), std::vector<float>(1000, 7.0f));
  EXPECT_EQ(download(second.tensor().slice(0, count - 1000, count), compute()), std::vector<float>(1000, 9.0f));
}

TEST_F(CudaStreams, HostBytesAreTakenBeforeTheCallReturns) {
  constexpr int64_t kCount = 10 << 20;  // 40 MiB: more than the staging memory
  std::vector<float> host(kCount);
  std::iota(host.begin(), host.end(), 0.0f);
  const std::vector<float> expected = host;
  const Buffer buffer = floats(kCount, copying());
  backend().enqueue(copying(), [] { sleep_milliseconds(30); });
  backend().copy_from_host(copying(), std::as_bytes(std::span(host)), buffer.tensor());
  std::fill(host.begin(), host.end(), -1.0f);
  EXPECT_EQ(download(buffer.tensor(), copying()), expected);
}

TEST_F(CudaStreams, HostBytesGoToStridedTensors) {
  const Buffer buffer = floats(24, compute());
  backend().fill(compute(), {buffer.tensor(), -1.0});
  const std::vector<float> host = {1, 2, 3, 4, 5, 6};
  const Tensor view = buffer.tensor().reshape({4, 6}).slice(0, 0, 3).slice(1, 2, 4);
  backend().copy_from_host(compute(), std::as_bytes(std::span(host)), view);
  std::vector<float> expected(24, -1.0f);
  for (size_t i = 0; i < 6; ++i) expected[i / 2 * 6 + 2 + i % 2] = host[i];
  EXPECT_EQ(download(buffer.tensor(), compute()), expected);
}

TEST_F(CudaStreams, TheHostArenaCopiesBothWays) {
  const Buffer host =
      backend().arena(Tier::host).allocate("host", MemoryClass::saved, DType::float32, {1000}, copying());
  const Buffer device = floats(1000, copying());
  const Buffer back = floats(1000, copying());
  backend().fill(copying(), {device.tensor(), 4.0});
  backend().copy(copying(), {device.tensor(), host.tensor()});
  backend().copy(copying(), {host.tensor(), back.tensor()});
  EXPECT_EQ(download(back.tensor(), copying()), std::vector<float>(1000, 4.0f));
  backend().fill(copying(), {device.tensor(), 6.0});
  auto* const values = host.tensor().as<float>();
  backend().copy_to_host(copying(), device.tensor(), std::as_writable_bytes(std::span(values, 1000)));
  finish_all();
  EXPECT_EQ(std::vector<float>(values, values + 1000), std::vector<float>(1000, 6.0f));
}

TEST_F(CudaStreams, HostWorkRunsWhenTheStreamGetsThere) {
  std::atomic<int> order{0};
  std::array<int, 3> places{};
  backend().enqueue(communication(), [&] {
    sleep_milliseconds(20);
    places[0] = ++order;
  });
  backend().wait(compute(), backend().record(communication()));
  backend().enqueue(compute(), [&] { places[1] = ++order; });
  backend().wait(copying(), backend().record(compute()));
  backend().enqueue(copying(), [&] { places[2] = ++order; });
  finish_all();
  EXPECT_EQ(places, (std::array<int, 3>{1, 2, 3}));
}

TEST_F(CudaStreams, AFailureOfHostWorkIsThrownByTheNextCall) {
  std::atomic<bool> later_ran{false};
  backend().enqueue(communication(), [] {
    sleep_milliseconds(30);  // until the calls below are made
    throw CommunicationError("rank 3 is lost");
  });
  backend().enqueue(communication(), [&] { later_ran = true; });
  const Event event = backend().record(communication());
  EXPECT_THROW(backend().finish(event), CommunicationError);
  EXPECT_FALSE(later_ran);
  EXPECT_THROW(backend().enqueue(communication(), [] {}), CommunicationError);
  EXPECT_THROW(backend().wait(communication(), event), CommunicationError);
  try {
    backend().fill(communication(), {Tensor::contiguous(nullptr, DType::float32, {0}), 0.0});
    FAIL() << "a failed backend went on";
  } catch (const CommunicationError& error) {
    EXPECT_STREQ(error.what(), "rank 3 is lost");
  }
}

TEST_F(CudaStreams, EmptyEventsHaveHappened) {
  backend().wait(compute(), {});
  backend().finish({});
  EXPECT_TRUE(backend().record(copying()).is_empty());
  backend().wait(compute(), backend().record(copying()));
}

TEST_F(CudaStreams, ArgumentsAreChecked) {
  const auto other = make_test_backend(DType::bfloat16, int64_t{8} << 20, false);
  const Buffer buffer = floats(10, compute());
  EXPECT_THROW(backend().fill(other->compute_stream(), {buffer.tensor(), 0.0}), ContractError);
  EXPECT_THROW(backend().arena(Tier::disk), ContractError);
  std::vector<std::byte> bytes(39);
  EXPECT_THROW(backend().copy_to_host(compute(), buffer.tensor(), bytes), ContractError);
  EXPECT_THROW(backend().copy_from_host(compute(), bytes, buffer.tensor()), ContractError);
  EXPECT_THROW(backend().add(compute(), {buffer.tensor(), buffer.tensor().slice(0, 0, 3)}), ContractError);
}

TEST_F(CudaStreams, OutOfMemoryNamesTheTensor) {
  try {
    floats(arena().capacity(), compute());
    FAIL() << "there was room";
  } catch (const OutOfMemoryError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("\"floats\""));
    EXPECT_THAT(error.what(), testing::HasSubstr("device memory"));
  }
}

TEST_F(CudaStreams, OptionsThatCannotBeHonoured) {
  CudaBackendOptions options;
  options.device = 4711;
  EXPECT_THROW(make_cuda_backend(options), ConfigurationError);
  options.device = 0;
  options.memory_limit_bytes = int64_t{1} << 50;
  EXPECT_THROW(make_cuda_backend(options), ConfigurationError);
}

TEST_F(CudaStreams, SeveralRanksShareTheDevice) {
  constexpr int kRanks = 4;
  std::array<double, kRanks> sums{};
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&sums, rank] {
        const auto own = make_test_backend(DType::bfloat16, int64_t{8} << 20, false);
        Stream& stream = own->compute_stream();
        const Buffer values =
            own->arena(Tier::device).allocate("values", MemoryClass::workspace, DType::float32, {1000}, stream);
        const Buffer sum =
            own->arena(Tier::device).allocate("sum", MemoryClass::workspace, DType::float64, {1}, stream);
        own->fill(stream, {sum.tensor(), 0.0});
        for (int step = 0; step < 50; ++step) {
          own->fill(stream, {values.tensor(), static_cast<double>(rank + 1)});
          own->square_sum(stream, {values.tensor(), sum.tensor()});
        }
        auto& result = sums[static_cast<size_t>(rank)];
        own->copy_to_host(stream, sum.tensor(), std::as_writable_bytes(std::span(&result, 1)));
        own->finish(own->record(stream));
      });
    }
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(sums[static_cast<size_t>(rank)], 50.0 * 1000.0 * (rank + 1) * (rank + 1));
  }
}

TEST_F(CudaStreams, NothingIsAllocatedOrAwaitedInAStep) {
  // A stream that is held up does not hold up the host, whatever is enqueued on it.
  const Buffer weights = floats(64 * 64, compute());
  const Buffer sum = arena().allocate("sum", MemoryClass::workspace, DType::float64, {1}, compute());
  const double one = 1.0;
  const auto enqueue_everything = [&] {
    backend().fill(compute(), {weights.tensor(), 0.5});
    const Tensor matrix = weights.tensor().reshape({64, 64});
    const Buffer product = arena().allocate("product", MemoryClass::workspace, DType::float32, {64, 64}, compute());
    backend().gemm(compute(), {matrix, matrix, product.tensor(), false, false, 1.0f, 0.0f, {}});
    backend().square_sum(compute(), {product.tensor(), sum.tensor()});
    backend().copy_from_host(compute(), std::as_bytes(std::span(&one, 1)), sum.tensor());
  };
  enqueue_everything();  // the first time loads modules
  finish_all();
  std::atomic<bool> released{false};
  backend().enqueue(compute(), [&] {
    for (int turn = 0; turn < 3000 && !released; ++turn) sleep_milliseconds(1);
  });
  const auto begin = std::chrono::steady_clock::now();
  enqueue_everything();
  const double host_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  released = true;
  finish_all();
  EXPECT_LT(host_seconds, 2.0) << "if it had waited for the stream, it would wait still";
}

TEST(CudaAbsence, IsExplained) {
  if (cuda_device_count() > 0) {
    EXPECT_EQ(cuda_absence_reason(), "");
    EXPECT_GT(cuda_device_info(0).memory_bytes, 0);
    return;
  }
  EXPECT_NE(cuda_absence_reason(), "");
  try {
    make_cuda_backend();
    FAIL() << "a backend without a device";
  } catch (const ConfigurationError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(cuda_absence_reason()));
  }
}

}  // namespace
}  // namespace ithaca
