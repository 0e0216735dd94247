// The device forms of the communicator over CUDA memory: ranks that read each other's memory, of which several share
// one GPU (or have one each, where there are enough), and ranks with a GPU each whose bytes NCCL moves. What is tested
// is the order of streams: data is made late, buffers are overwritten at once.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "base/random.h"
#include "comm/collective_call.h"
#include "comm/communicator.h"
#include "comm/thread_ranks.h"

namespace ithaca {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
  void upload(const std::vector<float>& values, const Tensor& tensor, Stream& stream) const {
    backend.copy_from_host(stream, std::as_bytes(std::span(values)), tensor);
  }
  std::vector<float> download(const Tensor& tensor, Stream& stream) const {
    std::vector<float> values(static_cast<size_t>(tensor.element_count()));
    backend.copy_to_host(stream, tensor, std::as_writable_bytes(std::span(values)));
    backend.finish(backend.record(stream));
    return values;
  }
};

struct GpuCase {
  Transport transport = Transport::peer;
  int ranks = 1;
  bool on_communication_stream = false;
};

std::vector<GpuCase> gpu_cases() {
  std::vector<GpuCase> cases;
  for (const bool communication : {false, true}) {
    for (const int ranks : {1, 2, 3, 4, 8}) cases.push_back({Transport::peer, ranks, communication});
    for (const int ranks : {2, 4, 8}) cases.push_back({Transport::nccl, ranks, communication});
  }
  return cases;
}

class GpuRanks : public testing::TestWithParam<GpuCase> {
 protected:
  void SetUp() override {
    const int devices = cuda_device_count();
    if (devices == 0) GTEST_SKIP() << "no NVIDIA GPU here: " << cuda_absence_reason();
    if (transport() == Transport::peer) return;
    if (devices < size()) GTEST_SKIP() << "NCCL wants a GPU for each of " << size() << " ranks; here are " << devices;
    const std::string absence = cuda_nccl_absence_reason();
    if (!absence.empty()) GTEST_SKIP() << absence;
  }
  static Transport transport() { return GetParam().transport; }
  static int size() { return GetParam().ranks; }
  static Stream& stream_of(const GpuRank& self) {
    return GetParam().on_communication_stream ? self.backend.communication_stream() : self.backend.compute_stream();
  }
  static void run(const std::function<void(const GpuRank&)>& body, double timeout_seconds = 20.0) {
    ThreadRankOptions options;
    options.timeout_seconds = timeout_seconds;
    options.transport = transport();
    std::latch ready(size());  // what a device takes to start is not part of a short timeout
    run_thread_ranks(size(), options, [&](ThreadRank& rank) {
      CudaBackendOptions backend_options;
      backend_options.device = rank.rank() % cuda_device_count();
      backend_options.memory_limit_bytes = int64_t{64} << 20;
      std::unique_ptr<Backend> backend;
      {
        struct CountDown {
          std::latch& latch;
          ~CountDown() { latch.count_down(); }
        } const count_down{ready};
        backend = make_cuda_backend(backend_options);
      }
      ready.wait();
      const auto world = rank.connect(*backend);
      body({rank.rank(), rank.size(), *backend, *world});
    });
  }
  // How a run that must fail has ended, and that it did so soon.
  static std::string ending(const std::function<void(const GpuRank&)>& body, double timeout_seconds = 20.0) {
    const auto begin = std::chrono::steady_clock::now();
    std::string text;
    try {
      run(body, timeout_seconds);
      ADD_FAILURE() << "the ranks should have failed";
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 15.0);
    return text;
  }
};

INSTANTIATE_TEST_SUITE_P(Gpu, GpuRanks, testing::ValuesIn(gpu_cases()), [](const auto& instance) {
  return fmt::format("{}_{}_{}", transport_name(instance.param.transport), instance.param.ranks,
                     instance.param.on_communication_stream ? "communication" : "compute");
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

// As ulysses does it: slices of heads, which lie strided, become rows of tokens, and come back.
void send_head_slices(const GpuRank& self, Stream& stream, int64_t tokens, int64_t heads, int64_t size) {
  const int64_t all_heads = heads * self.size;
  const auto allocate = [&](const Extents& extents) {
    return self.backend.arena(Tier::device)
        .allocate("heads", MemoryClass::communication, DType::float32, extents, stream);
  };
  const Buffer mine = allocate({tokens, all_heads, size});
  const Buffer gathered = allocate({tokens * self.size, heads, size});
  const Buffer back = allocate({tokens, all_heads, size});
  const auto value = [&](int rank, int64_t token, int64_t head, int64_t at) {
    return static_cast<float>(((rank * tokens + token) * all_heads + head) * size + at);
  };
  std::vector<float> values;
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t head = 0; head < all_heads; ++head) {
      for (int64_t at = 0; at < size; ++at) values.push_back(value(self.rank, token, head, at));
    }
  }
  self.upload(values, mine.tensor(), stream);
  self.fill(stream, back.tensor(), -1.0);
  std::vector<Tensor> slices;
  std::vector<Tensor> rows;
  std::vector<Tensor> returned;
  for (int peer = 0; peer < self.size; ++peer) {
    slices.push_back(mine.tensor().slice(1, peer * heads, (peer + 1) * heads));
    rows.push_back(gathered.tensor().slice(0, peer * tokens, (peer + 1) * tokens));
    returned.push_back(back.tensor().slice(1, peer * heads, (peer + 1) * heads));
  }
  self.dawdle(stream, 1);
  self.world.all_to_all(stream, slices, rows);
  self.world.all_to_all(stream, rows, returned);
  const std::vector<float> received = self.download(gathered.tensor(), stream);
  for (int peer = 0; peer < self.size; ++peer) {
    EXPECT_EQ(received[static_cast<size_t>(((peer * tokens + 7) * heads + 2) * size + 3)],
              value(peer, 7, self.rank * heads + 2, 3));
  }
  EXPECT_EQ(self.download(back.tensor(), stream), values);
}

TEST_P(GpuRanks, StridedBlocksGoAndComeBack) {
  run([](const GpuRank& self) {
    constexpr int64_t kHeads = 3;
    struct Slices {
      int64_t tokens, size;
    };
    std::vector<Slices> cases = {{37, 5}, {37, 64}};
    if (self.size <= 2) cases.push_back({5462, 64});  // rows, and enough of them, for a copy engine
    int64_t sent = 0;
    for (const auto& [tokens, size] : cases) {
      send_head_slices(self, stream_of(self), tokens, kHeads, size);
      sent += 2 * 4 * tokens * kHeads * size * (self.size - 1);
      EXPECT_EQ(self.world.traffic().bytes_sent[static_cast<size_t>(Collective::all_to_all)], sent);
    }
  });
}

// Columns of one matrix lie alike on all ranks; a rank may also give its terms in another place, without gaps.
TEST_P(GpuRanks, SumsOfPartsThatLieAlikeAndOfPartsThatDoNot) {
  run([](const GpuRank& self) {
    Stream& stream = stream_of(self);
    constexpr int64_t kRows = 37;
    for (const int64_t columns : {int64_t{5}, int64_t{8}}) {  // 8: vectors
      const int64_t all_columns = columns * self.size;
      const auto allocate = [&](int64_t width) {
        return self.backend.arena(Tier::device)
            .allocate("terms", MemoryClass::communication, DType::float32, {kRows, width}, stream);
      };
      const auto value = [&](int rank, int64_t row, int64_t column) {
        return static_cast<float>(1000 * rank * rank + row * all_columns + column);
      };
      const Buffer matrix = allocate(all_columns);
      std::vector<float> values;
      std::vector<float> sums;
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t column = 0; column < all_columns; ++column) {
          values.push_back(value(self.rank, row, column));
          if (column / columns != self.rank) continue;
          sums.push_back(0.0f);
          for (int rank = 0; rank < self.size; ++rank) sums.back() += value(rank, row, column);
        }
      }
      self.upload(values, matrix.tensor(), stream);
      for (const bool are_alike : {true, false}) {
        std::vector<Buffer> moved;
        std::vector<Tensor> blocks;
        for (int peer = 0; peer < self.size; ++peer) {
          blocks.push_back(matrix.tensor().slice(1, peer * columns, (peer + 1) * columns));
          if (are_alike || self.rank % 2 == 0) continue;
          moved.push_back(allocate(columns));
          self.backend.copy(stream, {blocks.back(), moved.back().tensor()});
          blocks.back() = moved.back().tensor();
        }
        const Buffer sum = allocate(columns);
        self.world.reduce_scatter(stream, blocks, sum.tensor());
        EXPECT_EQ(self.download(sum.tensor(), stream), sums) << columns << (are_alike ? ", alike" : "");
      }
    }
  });
}

TEST_P(GpuRanks, BlocksOfAnyCount) {
  run([](const GpuRank& self) {
    Stream& stream = stream_of(self);
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{7}}) {
      const Buffer own = self.floats(count, stream);
      const Buffer all = self.floats(count * self.size, stream);
      std::vector<Tensor> blocks;
      for (int rank = 0; rank < self.size; ++rank) {
        blocks.push_back(all.tensor().slice(0, rank * count, (rank + 1) * count));
      }
      self.fill(stream, own.tensor(), self.rank + 1.0);
      self.world.all_gather(stream, own.tensor(), blocks);
      self.world.reduce_scatter(stream, blocks, own.tensor());
      self.world.all_reduce(stream, own.tensor());
      self.world.broadcast(stream, own.tensor(), self.size - 1);
      const int next = (self.rank + 1) % self.size;
      const int previous = (self.rank + self.size - 1) % self.size;
      self.world.send_receive(stream, own.tensor(), next, blocks[0], previous);
      // size * (rank + 1) on each rank, summed over the ranks.
      const int64_t sum = int64_t{self.size} * self.size * (self.size + 1) / 2;
      const std::vector<float> expected(static_cast<size_t>(count), static_cast<float>(sum));
      EXPECT_EQ(self.download(own.tensor(), stream), expected);
      EXPECT_EQ(self.download(blocks[0], stream), expected);
    }
    // Bytes as the formulas say, whatever moves them: of 8 elements in all.
    const auto sent = [&](Collective collective) {
      return self.world.traffic().bytes_sent[static_cast<size_t>(collective)];
    };
    EXPECT_EQ(sent(Collective::all_gather), 4 * 8 * (self.size - 1));
    EXPECT_EQ(sent(Collective::reduce_scatter), 4 * 8 * (self.size - 1));
    EXPECT_EQ(sent(Collective::broadcast), self.rank == self.size - 1 ? 4 * 8 * (self.size - 1) : 0);
    EXPECT_EQ(sent(Collective::send_receive), self.size == 1 ? 0 : 4 * 8);
  });
}

// Sums in rank order have the same bits in every run, whatever else the GPUs do meanwhile.
TEST_P(GpuRanks, TheSameBitsAHundredTimesUnderLoad) {
  run([](const GpuRank& self) {
    Stream& stream = stream_of(self);
    Stream& load_stream =
        GetParam().on_communication_stream ? self.backend.compute_stream() : self.backend.communication_stream();
    const auto values_of = [](int rank) {
      const RandomStream random(11, fmt::format("rank {}", rank));
      std::vector<float> values;
      for (uint64_t at = 0; at < kCount; ++at) values.push_back(static_cast<float>(random.uniform(at) - 0.5));
      return values;
    };
    std::vector<float> sum = values_of(0);
    for (int rank = 1; rank < self.size; ++rank) {
      const std::vector<float> terms = values_of(rank);
      for (size_t at = 0; at < sum.size(); ++at) sum[at] += terms[at];
    }
    const Buffer own = self.floats(kCount, stream);
    const Buffer data = self.floats(kCount, stream);
    const Buffer load = self.floats(int64_t{1} << 22, load_stream);
    self.upload(values_of(self.rank), own.tensor(), stream);
    for (int round = 0; round < 100; ++round) {
      for (int work = 0; work < round % 4; ++work) self.fill(load_stream, load.tensor(), work);
      self.backend.copy(stream, {own.tensor(), data.tensor()});
      self.world.all_reduce(stream, data.tensor());
      const std::vector<float> result = self.download(data.tensor(), stream);
      ASSERT_EQ(std::memcmp(result.data(), sum.data(), sum.size() * sizeof(float)), 0) << "round " << round;
    }
    self.backend.finish(self.backend.record(load_stream));
  });
}

// A step has collectives on both streams, of several groups.
TEST_P(GpuRanks, BothStreamsAndTwoGroupsInOneOrder) {
  run([](const GpuRank& self) {
    Stream& compute = self.backend.compute_stream();
    Stream& communication = self.backend.communication_stream();
    const auto group = self.world.split(0, -self.rank, "backwards");
    const Buffer on_compute = self.floats(kCount, compute);
    const Buffer on_communication = self.floats(kCount, communication);
    for (int round = 0; round < 20; ++round) {
      self.fill(compute, on_compute.tensor(), self.rank + round);
      self.fill(communication, on_communication.tensor(), self.rank - round);
      self.dawdle(round % 2 == 0 ? compute : communication, round);
      group->all_reduce(communication, on_communication.tensor());
      self.world.all_reduce(compute, on_compute.tensor());
      group->all_reduce(communication, on_communication.tensor());
    }
    const int ranks = self.size;
    const int sum = ranks * (ranks - 1) / 2;
    EXPECT_EQ(self.download(on_compute.tensor(), compute),
              std::vector<float>(kCount, static_cast<float>(sum + 19 * ranks)));
    EXPECT_EQ(self.download(on_communication.tensor(), communication),
              std::vector<float>(kCount, static_cast<float>((sum - 19 * ranks) * ranks)));
  });
}

TEST_P(GpuRanks, AFailingRankEndsTheOthers) {
  if (size() == 1) return;
  const std::string text = ending([](const GpuRank& self) {
    Stream& stream = stream_of(self);
    const Buffer data = self.floats(1000, stream);
    self.fill(stream, data.tensor(), 1.0);
    self.world.all_reduce(stream, data.tensor());
    if (self.rank == 1) throw ConfigurationError("no such option");
    self.world.all_reduce(stream, data.tensor());
    self.backend.finish(self.backend.record(stream));
  });
  EXPECT_EQ(text, "rank 1: no such option");
}

TEST_P(GpuRanks, CallsThatDoNotMatchAreNamed) {
  if (size() == 1) return;
  const std::string text = ending([](const GpuRank& self) {
    Stream& stream = stream_of(self);
    const Buffer data = self.floats(self.rank == 1 ? 1001 : 1000, stream);
    self.fill(stream, data.tensor(), 1.0);
    self.world.all_reduce(stream, data.tensor());
    self.backend.finish(self.backend.record(stream));
    self.world.barrier();
  });
  EXPECT_THAT(text, AllOf(HasSubstr("operation 0 of group world"), HasSubstr("1000 float32"), HasSubstr("1001 float32"),
                          HasSubstr("rank 1 calls")));
}

TEST_P(GpuRanks, ARankThatDoesNotComeIsNamed) {
  if (size() == 1) return;
  std::atomic<bool> is_over{false};
  const std::string text = ending(
      [&](const GpuRank& self) {
        Stream& stream = stream_of(self);
        const Buffer data = self.floats(1000, stream);
        self.fill(stream, data.tensor(), 1.0);
        self.world.all_reduce(stream, data.tensor());
        self.backend.finish(self.backend.record(stream));
        if (self.rank == 1) {
          for (int wait = 0; wait < 800 && !is_over; ++wait) std::this_thread::sleep_for(std::chrono::milliseconds(10));
          return self.world.barrier();
        }
        try {
          self.world.all_reduce(stream, data.tensor());
          self.backend.finish(self.backend.record(stream));
        } catch (const CommunicationError&) {
          is_over = true;
          throw;
        }
      },
      0.5);
  EXPECT_THAT(text, AllOf(HasSubstr("all_reduce (operation 1 of group world"), HasSubstr("has waited 0.5 s for rank")));
}

// Rank 1 has come on the host, but its device is held up: the device of rank 0 waits, in a kernel that only the end of
// the whole exchange stops.
TEST_P(GpuRanks, ADeviceThatWaitsTooLongIsNamed) {
  if (transport() != Transport::nccl) return;  // peers' devices wait for events alone, without a limit
  const std::string text = ending(
      [](const GpuRank& self) {
        Stream& stream = stream_of(self);
        const Buffer data = self.floats(1000, stream);
        self.fill(stream, data.tensor(), 1.0);
        if (self.rank == 1) {
          self.backend.enqueue(stream, [] { std::this_thread::sleep_for(std::chrono::seconds(2)); });
        }
        self.world.all_reduce(stream, data.tensor());
        self.backend.finish(self.backend.record(stream));
      },
      0.5);
  EXPECT_THAT(text, AllOf(HasSubstr("all_reduce (operation 0 of group world"),
                          HasSubstr("has waited 0.5 s in it for other ranks")));
}

TEST(NcclGpuRanks, ShareNoGpu) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no NVIDIA GPU here: " << cuda_absence_reason();
  if (!cuda_nccl_absence_reason().empty()) GTEST_SKIP() << cuda_nccl_absence_reason();
  ThreadRankOptions options;
  options.transport = Transport::nccl;
  try {
    run_thread_ranks(2, options, [](ThreadRank& rank) {
      CudaBackendOptions backend_options;
      backend_options.memory_limit_bytes = int64_t{1} << 20;
      const auto backend = make_cuda_backend(backend_options);
      const auto world = rank.connect(*backend);
    });
    FAIL() << "the ranks should have failed";
  } catch (const ConfigurationError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("ranks 0 and 1 share GPU 0"), HasSubstr("peer works there")));
  }
}

}  // namespace
}  // namespace ithaca
