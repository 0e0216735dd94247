// The device form of the communicator over CUDA memory: several ranks share one GPU (or have one each, where there are
// enough). What is tested is the order of streams: data is made late, buffers are overwritten at once.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "comm/collective_call.h"
#include "comm/communicator.h"
#include "comm/thread_ranks.h"

namespace ithaca {
namespace {

struct GpuRank {
  int rank = 0;
  int size = 0;
  Backend& backend;
  Communicator& world;

  Buffer floats(int64_t count, Stream& stream) const {
    return backend.arena(Tier::device).allocate("floats", MemoryClass::communication, DType::float32, {count}, stream);
  }
  void fill(Stream& stream, const Tensor& tensor, double value) const { backend.fill(stream, {tensor, value}); }
  // Holds the stream up on the device for a while that differs between ranks.
  void dawdle(Stream& stream, int step) const {
    const int milliseconds = (rank * 7 + step * 3) % 5;
    backend.enqueue(stream, [milliseconds] { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); });
  }
  std::vector<float> download(const Tensor& tensor, Stream& stream) const {
    std::vector<float> values(static_cast<size_t>(tensor.element_count()));
    backend.copy_to_host(stream, tensor, std::as_writable_bytes(std::span(values)));
    backend.finish(backend.record(stream));
    return values;
  }
};

class GpuRanks : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no NVIDIA GPU here: " << cuda_absence_reason();
  }
  static int size() { return std::get<0>(GetParam()); }
  static Stream& stream_of(const GpuRank& self) {
    return std::get<1>(GetParam()) ? self.backend.communication_stream() : self.backend.compute_stream();
  }
  static void run(const std::function<void(const GpuRank&)>& body) {
    ThreadRankOptions options;
    options.timeout_seconds = 20.0;
    run_thread_ranks(size(), options, [&](ThreadRank& rank) {
      CudaBackendOptions backend_options;
      backend_options.device = rank.rank() % cuda_device_count();
      backend_options.memory_limit_bytes = int64_t{64} << 20;
      const auto backend = make_cuda_backend(backend_options);
      const auto world = rank.connect(*backend);
      body({rank.rank(), rank.size(), *backend, *world});
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Gpu, GpuRanks, testing::Combine(testing::Values(1, 2, 3, 4, 8), testing::Bool()),
                         [](const auto& instance) {
                           return fmt::format("{}_{}", std::get<0>(instance.param),
                                              std::get<1>(instance.param) ? "communication" : "compute");
                         });

constexpr int64_t kCount = 100003;

TEST_P(GpuRanks, AllToAllOfUnevenBlocks) {
  run([](const GpuRank& self) {
    Stream& stream = stream_of(self);
    const auto count = [](int from, int to) { return int64_t{1000} * ((from * 3 + to * 5) % 4) + from; };
    for (int round = 0; round < 4; ++round) {
      std::vector<Buffer> sent;
      std::vector<Buffer> received;
      std::vector<Tensor> send;
      std::vector<Tensor> receive;
      self.dawdle(stream, round);
      for (int peer = 0; peer < self.size; ++peer) {
        sent.push_back(self.floats(count(self.rank, peer), stream));
        received.push_back(self.floats(count(peer, self.rank), stream));
        self.fill(stream, sent.back().tensor(), 100.0 * round + 10.0 * self.rank + peer);
        send.push_back(sent.back().tensor());
        receive.push_back(received.back().tensor());
      }
      self.world.all_to_all(stream, send, receive);
      for (const Tensor& block : send) self.fill(stream, block, -1.0);  // readers must be done by now
      for (int peer = 0; peer < self.size; ++peer) {
        const auto expected = static_cast<float>(100.0 * round + 10.0 * peer + self.rank);
        EXPECT_EQ(self.download(receive[static_cast<size_t>(peer)], stream),
                  std::vector<float>(static_cast<size_t>(count(peer, self.rank)), expected));
      }
    }
  });
}

TEST_P(GpuRanks, AllGatherAndReduceScatter) {
  run([](const GpuRank& self) {
    Stream& stream = stream_of(self);
    const Buffer own = self.floats(kCount, stream);
    const Buffer all = self.floats(kCount * self.size, stream);
    const Buffer sum = self.floats(kCount, stream);
    std::vector<Tensor> blocks;
    for (int rank = 0; rank < self.size; ++rank) {
      blocks.push_back(all.tensor().slice(0, rank * kCount, (rank + 1) * kCount));
    }
    for (int round = 0; round < 4; ++round) {
      self.dawdle(stream, round);
      self.fill(stream, own.tensor(), self.rank + 10.0 * round);
      self.world.all_gather(stream, own.tensor(), blocks);
      self.fill(stream, own.tensor(), -1.0);
      self.world.reduce_scatter(stream, blocks, sum.tensor());
      self.fill(stream, all.tensor(), -2.0);
      // Every rank has the same blocks, so block r summed over all ranks is size times its value.
      EXPECT_EQ(self.download(sum.tensor(), stream),
                std::vector<float>(kCount, static_cast<float>(self.size * (self.rank + 10.0 * round))));
    }
  });
}

TEST_P(GpuRanks, AllReduceHasTheSameBitsEverywhere) {
  run([](const GpuRank& self) {
    Stream& stream = stream_of(self);
    for (const int64_t count : {int64_t{1}, int64_t{7}, kCount}) {
      const Buffer data = self.floats(count, stream);
      const float term = 0.1f * static_cast<float>(self.rank + 1);
      self.dawdle(stream, static_cast<int>(count));
      self.fill(stream, data.tensor(), static_cast<double>(term));
      self.world.all_reduce(stream, data.tensor());
      float sum = 0.1f * 1.0f;
      for (int rank = 1; rank < self.size; ++rank) sum += 0.1f * static_cast<float>(rank + 1);
      EXPECT_EQ(self.download(data.tensor(), stream), std::vector<float>(static_cast<size_t>(count), sum));
    }
  });
}

TEST_P(GpuRanks, Broadcast) {
  run([](const GpuRank& self) {
    Stream& stream = stream_of(self);
    const Buffer data = self.floats(kCount, stream);
    for (int root = 0; root < self.size; ++root) {
      self.dawdle(stream, root);
      self.fill(stream, data.tensor(), self.rank + 5.0);
      self.world.broadcast(stream, data.tensor(), root);
      EXPECT_EQ(self.download(data.tensor(), stream), std::vector<float>(kCount, static_cast<float>(root + 5)));
    }
  });
}

TEST_P(GpuRanks, RingStepsOverlapWithCompute) {
  // As ring attention does it: the block at hand is used on the compute stream while it travels on the other one.
  run([](const GpuRank& self) {
    Stream& exchange = stream_of(self);
    Stream& compute = self.backend.compute_stream();
    const int next = (self.rank + 1) % self.size;
    const int previous = (self.rank + self.size - 1) % self.size;
    Buffer blocks[2] = {self.floats(kCount, exchange), self.floats(kCount, exchange)};
    const Buffer sum = self.floats(kCount, compute);
    self.fill(compute, sum.tensor(), 0.0);
    self.dawdle(exchange, 1);
    self.fill(exchange, blocks[0].tensor(), self.rank + 1.0);
    Event used;  // the block that the next step overwrites is no longer read by compute
    for (int step = 0; step < self.size; ++step) {
      const Tensor& at_hand = blocks[step % 2].tensor();
      const Tensor& arriving = blocks[(step + 1) % 2].tensor();
      const Event here = self.backend.record(exchange);
      self.backend.wait(exchange, used);
      if (step + 1 < self.size) self.world.send_receive(exchange, at_hand, next, arriving, previous);
      self.backend.wait(compute, here);
      self.dawdle(compute, step);
      self.backend.add(compute, {at_hand, sum.tensor(), 1.0f});
      used = self.backend.record(compute);
    }
    const auto expected = static_cast<float>(self.size * (self.size + 1) / 2);
    EXPECT_EQ(self.download(sum.tensor(), compute), std::vector<float>(kCount, expected));
    self.backend.finish(self.backend.record(exchange));
  });
}

TEST_P(GpuRanks, AFailingRankEndsTheOthers) {
  if (size() == 1) return;
  const auto begin = std::chrono::steady_clock::now();
  try {
    run([](const GpuRank& self) {
      Stream& stream = stream_of(self);
      const Buffer data = self.floats(1000, stream);
      self.fill(stream, data.tensor(), 1.0);
      self.world.all_reduce(stream, data.tensor());
      if (self.rank == 1) throw ConfigurationError("no such option");
      self.world.all_reduce(stream, data.tensor());
      self.backend.finish(self.backend.record(stream));
    });
    FAIL() << "the ranks should have failed";
  } catch (const ConfigurationError& error) {
    EXPECT_STREQ(error.what(), "rank 1: no such option");
  }
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 15.0);
}

}  // namespace
}  // namespace ithaca
