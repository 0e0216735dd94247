// Every operation on every number of ranks, against what it should give; order, reuse and overlap; bytes.
#include "comm/communicator.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "comm/collective_call.h"
#include "comm/comm_testing.h"

namespace ithaca {
namespace {

using testing::Block;
using testing::expect_block;
using testing::Flag;
using testing::kBlockStyles;
using testing::run_test_ranks;
using testing::tensors_of;
using testing::TestRank;

// Ranks, and whether operations run on the communication stream.
class Collectives : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  bool on_communication_stream() const { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(AnySize, Collectives,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 5, 8), ::testing::Bool()),
                         [](const auto& instance) {
                           return fmt::format("{}_{}", std::get<0>(instance.param),
                                              std::get<1>(instance.param) ? "communication" : "compute");
                         });

// Uneven block sizes, some of them 0.
int64_t uneven_count(int from, int to, int round) {
  return int64_t{(from * 7 + to * 3 + round * 5) % 11} * (round % 2 + 1);
}

double value_of(int from, int to, int64_t index) {
  return from * 100000.0 + to * 1000.0 + static_cast<double>(index);
}

// 0.1, 0.3, ... with mixed magnitudes: sums depend on their order.
float term_of(int rank, int64_t index) {
  const RandomStream random(11, "terms");
  const auto position = static_cast<uint64_t>(index * 64 + rank);
  return static_cast<float>(random.normal(position) * (random.bits(position) % 2 == 0 ? 1e5 : 1e-2));
}

float sum_of_terms(int size, int64_t index) {
  float sum = term_of(0, index);
  for (int rank = 1; rank < size; ++rank) sum += term_of(rank, index);
  return sum;
}

TEST_P(Collectives, AllToAll) {
  run_test_ranks(size(), [&](TestRank& self) {
    for (int round = 0; round < 8; ++round) {
      std::vector<Block<double>> send;
      std::vector<Block<double>> receive;
      for (int peer = 0; peer < size(); ++peer) {
        send.emplace_back(uneven_count(self.rank, peer, round), (round + peer) % kBlockStyles);
        send.back().fill([&](int64_t index) { return value_of(self.rank, peer, index); });
        receive.emplace_back(uneven_count(peer, self.rank, round), (round + 2 * peer + 1) % kBlockStyles);
      }
      std::vector<Tensor> sent = tensors_of(send);
      if (send[0].count() == 0) sent[0] = {};  // absent and empty are the same
      self.world.all_to_all(self.stream(on_communication_stream()), sent, tensors_of(receive));
      self.finish();
      for (int peer = 0; peer < size(); ++peer) {
        expect_block(
            receive[static_cast<size_t>(peer)], [&](int64_t index) { return value_of(peer, self.rank, index); },
            fmt::format("round {} from rank {} to rank {}", round, peer, self.rank));
      }
    }
  });
}

TEST_P(Collectives, AllGather) {
  run_test_ranks(size(), [&](TestRank& self) {
    for (int round = 0; round < 8; ++round) {
      std::vector<Block<float>> receive;
      receive.reserve(static_cast<size_t>(size()));
      for (int peer = 0; peer < size(); ++peer) {
        receive.emplace_back(uneven_count(peer, 0, round), (round + peer) % kBlockStyles);
      }
      const auto value = [](int rank) {
        return [rank](int64_t index) { return static_cast<float>(value_of(rank, 0, index)); };
      };
      Block<float> send(uneven_count(self.rank, 0, round), (round + 1) % kBlockStyles);
      send.fill(value(self.rank));
      // In every other round the own block lies in its place already.
      const bool is_in_place = round % 2 == 1;
      Block<float>& own = receive[static_cast<size_t>(self.rank)];
      if (is_in_place) own.fill(value(self.rank));
      self.world.all_gather(self.stream(on_communication_stream()), is_in_place ? own.tensor() : send.tensor(),
                            tensors_of(receive));
      self.finish();
      for (int peer = 0; peer < size(); ++peer) {
        expect_block(receive[static_cast<size_t>(peer)], value(peer), fmt::format("round {} block {}", round, peer));
      }
    }
  });
}

TEST_P(Collectives, ReduceScatter) {
  run_test_ranks(size(), [&](TestRank& self) {
    for (int round = 0; round < 8; ++round) {
      std::vector<Block<float>> send;
      for (int peer = 0; peer < size(); ++peer) {
        send.emplace_back(uneven_count(0, peer, round), (round + peer + self.rank) % kBlockStyles);
        send.back().fill([&](int64_t index) { return term_of(self.rank, index + int64_t{1000} * peer); });
      }
      Block<float> receive(uneven_count(0, self.rank, round), round % kBlockStyles);
      Block<float>& own = send[static_cast<size_t>(self.rank)];
      const bool is_in_place = round % 2 == 1;
      self.world.reduce_scatter(self.stream(on_communication_stream()), tensors_of(send),
                                is_in_place ? own.tensor() : receive.tensor());
      self.finish();
      expect_block(
          is_in_place ? own : receive,
          [&](int64_t index) { return sum_of_terms(size(), index + int64_t{1000} * self.rank); },
          fmt::format("round {} rank {}", round, self.rank));
    }
  });
}

TEST_P(Collectives, AllReduceSumsInRankOrderWithTheSameBitsEverywhere) {
  run_test_ranks(size(), [&](TestRank& self) {
    for (const int64_t count : {0, 1, 2, 7, 64, 5000}) {
      Block<float> floats(count);
      Block<double> doubles(count);
      Block<int64_t> integers(count);
      floats.fill([&](int64_t index) { return term_of(self.rank, index); });
      doubles.fill([&](int64_t index) { return term_of(self.rank, index) / 3.0; });
      integers.fill([&](int64_t index) { return (int64_t{1} << 40) * self.rank + index; });
      Stream& stream = self.stream(on_communication_stream());
      self.world.all_reduce(stream, floats.tensor());
      self.world.all_reduce(stream, doubles.tensor());
      self.world.all_reduce(stream, integers.tensor());
      self.finish();
      const std::string where = fmt::format("{} elements on rank {}", count, self.rank);
      expect_block(
          floats, [&](int64_t index) { return sum_of_terms(size(), index); }, where);
      expect_block(
          doubles,
          [&](int64_t index) {
            double sum = term_of(0, index) / 3.0;
            for (int rank = 1; rank < size(); ++rank) sum += term_of(rank, index) / 3.0;
            return sum;
          },
          where);
      expect_block(
          integers, [&](int64_t index) { return (int64_t{1} << 40) * (size() * (size() - 1) / 2) + index * size(); },
          where);
    }
  });
}

TEST_P(Collectives, Broadcast) {
  run_test_ranks(size(), [&](TestRank& self) {
    for (int root = 0; root < size(); ++root) {
      for (const int64_t count : {0, 1, 12}) {
        Block<double> data(count, (self.rank + root) % kBlockStyles);
        data.fill([&](int64_t index) { return value_of(self.rank, 0, index); });
        self.world.broadcast(self.stream(on_communication_stream()), data.tensor(), root);
        self.finish();
        expect_block(
            data, [&](int64_t index) { return value_of(root, 0, index); }, fmt::format("root {}", root));
      }
    }
  });
}

TEST_P(Collectives, SendReceiveAroundTheRing) {
  run_test_ranks(size(), [&](TestRank& self) {
    const int next = (self.rank + 1) % size();
    const int previous = (self.rank + size() - 1) % size();
    for (int round = 0; round < 12; ++round) {
      const int64_t count = uneven_count(round, 0, 1);  // the same on all ranks, sometimes 0
      Block<double> send(count, (round + self.rank) % kBlockStyles);
      Block<double> receive(count, (round + 2) % kBlockStyles);
      send.fill([&](int64_t index) { return value_of(self.rank, round, index); });
      self.world.send_receive(self.stream(on_communication_stream()), send.tensor(), next, receive.tensor(), previous);
      self.finish();
      expect_block(
          receive, [&](int64_t index) { return value_of(previous, round, index); },
          fmt::format("round {} rank {}", round, self.rank));
    }
  });
}

// A chain without a closing link: the first rank only sends, the last one only receives.
TEST_P(Collectives, SendReceiveAlongAChain) {
  run_test_ranks(size(), [&](TestRank& self) {
    Block<double> carried(9, self.rank % kBlockStyles);
    carried.fill([&](int64_t index) { return value_of(self.rank, 0, index); });
    Block<double> received(9, 1);
    const bool has_next = self.rank + 1 < size();
    const bool has_previous = self.rank > 0;
    self.world.send_receive(self.stream(on_communication_stream()), has_next ? carried.tensor() : Tensor{},
                            self.rank + 1, has_previous ? received.tensor() : Tensor{}, self.rank - 1);
    self.finish();
    if (has_previous) {
      expect_block(
          received, [&](int64_t index) { return value_of(self.rank - 1, 0, index); }, "chain");
    }
  });
}

TEST_P(Collectives, TrafficFollowsTheFormulas) {
  const int n = size();
  run_test_ranks(n, [&](TestRank& self) {
    Stream& stream = self.stream(on_communication_stream());
    const auto sent = [&](Collective collective) {
      return self.world.traffic().bytes_sent[static_cast<size_t>(collective)];
    };
    std::vector<Block<float>> blocks;
    std::vector<Block<float>> others;
    for (int peer = 0; peer < n; ++peer) {
      blocks.emplace_back(10 + self.rank + 2 * peer);
      others.emplace_back(10 + peer + 2 * self.rank);
    }
    self.world.all_to_all(stream, tensors_of(blocks), tensors_of(others));
    int64_t expected = 0;
    for (int peer = 0; peer < n; ++peer) expected += peer == self.rank ? 0 : 4 * (10 + self.rank + 2 * peer);
    EXPECT_EQ(sent(Collective::all_to_all), expected);

    std::vector<Block<float>> gathered;
    gathered.reserve(static_cast<size_t>(n));
    for (int peer = 0; peer < n; ++peer) gathered.emplace_back(5 + peer);
    self.world.all_gather(stream, gathered[static_cast<size_t>(self.rank)].tensor(), tensors_of(gathered));
    EXPECT_EQ(sent(Collective::all_gather), (n - 1) * 4 * (5 + self.rank));

    self.world.reduce_scatter(stream, tensors_of(gathered), gathered[static_cast<size_t>(self.rank)].tensor());
    EXPECT_EQ(sent(Collective::reduce_scatter), 4 * (5 * n + n * (n - 1) / 2 - (5 + self.rank)));

    Block<double> even(int64_t{12} * n);
    self.world.all_reduce(stream, even.tensor());
    EXPECT_EQ(sent(Collective::all_reduce), 2 * (n - 1) * 8 * 12);  // 2 * (n - 1) / n * bytes

    Block<double> data(3);
    self.world.broadcast(stream, data.tensor(), n - 1);
    EXPECT_EQ(sent(Collective::broadcast), self.rank == n - 1 ? (n - 1) * 24 : 0);

    Block<double> received(3);
    self.world.send_receive(stream, data.tensor(), (self.rank + 1) % n, received.tensor(), (self.rank + n - 1) % n);
    EXPECT_EQ(sent(Collective::send_receive), n == 1 ? 0 : 24);

    self.world.barrier();
    EXPECT_EQ(self.world.traffic().calls[static_cast<size_t>(Collective::barrier)], 1);
    EXPECT_EQ(self.world.traffic().calls[static_cast<size_t>(Collective::all_reduce)], 1);
    int64_t total = 0;
    for (const int64_t bytes : self.world.traffic().bytes_sent) total += bytes;
    EXPECT_EQ(self.world.traffic().total_bytes_sent(), total);
    // A group counts for itself.
    const auto group = self.world.split(0, self.rank);
    EXPECT_EQ(group->traffic().total_bytes_sent(), 0);
    group->all_reduce(stream, even.tensor());
    EXPECT_EQ(group->traffic().total_bytes_sent(), 2 * (n - 1) * 8 * 12);
    EXPECT_EQ(self.world.traffic().total_bytes_sent(), total);
    self.finish();
  });
}

// ---- order ----

TEST(Order, BuffersMayBeReusedRightAfterTheEvent) {
  constexpr int kRanks = 3;
  constexpr int64_t kCount = 20000;
  run_test_ranks(kRanks, [](TestRank& self) {
    Block<float> send(kCount);
    Block<float> receive(kCount);
    Block<float> gathered(kCount * kRanks);
    std::vector<Tensor> gathered_blocks;
    gathered_blocks.reserve(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      gathered_blocks.push_back(gathered.tensor().slice(0, rank * kCount, (rank + 1) * kCount));
    }
    Stream& stream = self.backend.communication_stream();
    for (int round = 0; round < 60; ++round) {
      const auto value = [&](int rank) {
        return [=](int64_t index) { return static_cast<float>(round * 10 + rank) + static_cast<float>(index) / 64; };
      };
      send.fill(value(self.rank));
      if (round % 2 == 0) {
        self.world.send_receive(stream, send.tensor(), (self.rank + 1) % kRanks, receive.tensor(),
                                (self.rank + kRanks - 1) % kRanks);
      } else {
        self.world.all_gather(stream, send.tensor(), gathered_blocks);
      }
      self.backend.finish(self.backend.record(stream));
      send.fill([](int64_t) { return -1.0f; });  // at once: nobody may read this
      if (round % 2 == 0) {
        expect_block(receive, value((self.rank + kRanks - 1) % kRanks), fmt::format("round {}", round));
      } else {
        for (int64_t position = 0; position < kCount * kRanks; position += 977) {
          EXPECT_EQ(gathered.get(position), value(static_cast<int>(position / kCount))(position % kCount));
        }
      }
    }
  });
}

TEST(Order, SendReceiveOnTheCommunicationStreamDoesNotHoldUpCompute) {
  Flag computed;
  run_test_ranks(2, [&](TestRank& self) {
    Block<float> send(100);
    Block<float> receive(100);
    send.fill([&](int64_t) { return static_cast<float>(self.rank + 1); });
    // Rank 1 comes to the exchange only after rank 0 has computed: rank 0 must not wait for it before.
    if (self.rank == 1) computed.wait();
    self.world.send_receive(self.backend.communication_stream(), send.tensor(), 1 - self.rank, receive.tensor(),
                            1 - self.rank);
    if (self.rank == 0) self.backend.enqueue(self.backend.compute_stream(), [&] { computed.set(); });
    self.backend.wait(self.backend.compute_stream(), self.backend.record(self.backend.communication_stream()));
    float seen = 0.0f;
    self.backend.enqueue(self.backend.compute_stream(), [&] { seen = receive.get(99); });
    self.finish();
    EXPECT_EQ(seen, static_cast<float>(2 - self.rank));
  });
}

TEST(Order, OnlyRanksThatExchangeDataWaitForEachOther) {
  Flag pair_is_done;
  run_test_ranks(3, [&](TestRank& self) {
    std::vector<Block<float>> send;
    std::vector<Block<float>> receive;
    for (int peer = 0; peer < 3; ++peer) {
      // Blocks flow between ranks 0 and 1 alone.
      const int64_t count = self.rank < 2 && peer < 2 ? 50 : 0;
      send.emplace_back(count);
      receive.emplace_back(count);
    }
    // Rank 2 calls nothing before the others are through with all of it.
    if (self.rank == 2) pair_is_done.wait();
    Stream& stream = self.backend.communication_stream();
    self.world.all_to_all(stream, tensors_of(send), tensors_of(receive));
    if (self.rank < 2) {
      self.world.send_receive(stream, send[0].tensor(), 1 - self.rank, receive[0].tensor(), 1 - self.rank);
    }
    self.finish();
    if (self.rank < 2) {
      // Both of the pair are through when each has heard of the other.
      self.world.send_receive(stream, send[0].tensor(), 1 - self.rank, receive[0].tensor(), 1 - self.rank);
      self.finish();
      pair_is_done.set();
    }
  });
}

// Ranks of a chain pass work on at their own pace: the first one is three steps ahead before the last one starts.
TEST(Order, RingStepsDrift) {
  Flag first_is_ahead;
  constexpr int kSteps = 6;
  run_test_ranks(3, [&](TestRank& self) {
    Stream& stream = self.backend.communication_stream();
    std::vector<Block<double>> blocks;
    blocks.reserve(kSteps);
    for (int step = 0; step < kSteps; ++step) blocks.emplace_back(16);
    const auto value = [](int step) { return [step](int64_t index) { return value_of(step, 0, index); }; };
    if (self.rank == 2) first_is_ahead.wait();
    for (int step = 0; step < kSteps; ++step) {
      Block<double>& block = blocks[static_cast<size_t>(step)];
      if (self.rank == 0) block.fill(value(step));
      if (self.rank > 0) self.world.send_receive(stream, {}, -1, block.tensor(), self.rank - 1);
      // Rank 1 takes in three blocks before it hands the first one on.
      if (self.rank == 0) self.world.send_receive(stream, block.tensor(), 1, {}, -1);
      if (self.rank == 1 && step >= 2) {
        for (int late = step == 2 ? 0 : step; late <= step; ++late) {
          self.world.send_receive(stream, blocks[static_cast<size_t>(late)].tensor(), 2, {}, -1);
        }
      }
      if (self.rank == 0 && step == 2) {
        self.backend.finish(self.backend.record(stream));
        first_is_ahead.set();
      }
    }
    self.finish();
    for (int step = 0; step < kSteps; ++step) {
      expect_block(blocks[static_cast<size_t>(step)], value(step), fmt::format("rank {} step {}", self.rank, step));
    }
  });
}

TEST(Order, BarrierWaitsForAll) {
  constexpr int kRanks = 5;
  std::atomic<int> arrived{0};
  run_test_ranks(kRanks, [&](TestRank& self) {
    for (int round = 1; round <= 50; ++round) {
      arrived.fetch_add(1);
      self.world.barrier();
      EXPECT_GE(arrived.load(), round * kRanks);
    }
  });
}

// ---- groups ----

TEST(Split, OrdersByKeyThenByRank) {
  run_test_ranks(6, [](TestRank& self) {
    // Colours 0 and 1 by parity; keys fall with the rank, except that ranks 0 and 4 share one.
    const int key = self.rank == 4 ? 0 : -self.rank;
    const auto group = self.world.split(self.rank % 2, key, "parity");
    ASSERT_EQ(group->size(), 3);
    const std::vector<std::vector<int>> expected = {{2, 0, 4}, {5, 3, 1}};
    EXPECT_EQ(expected[static_cast<size_t>(self.rank % 2)][static_cast<size_t>(group->rank())], self.rank);
    // And groups of groups.
    const auto pairs = group->split(group->rank() == 0 ? -7 : 9, 0);
    EXPECT_EQ(pairs->size(), group->rank() == 0 ? 1 : 2);
    Block<int64_t> sum(1);
    sum.set(0, self.rank);
    pairs->all_reduce(self.backend.compute_stream(), sum.tensor());
    self.finish();
    const int64_t evens = group->rank() == 0 ? 2 : 4;
    const int64_t odds = group->rank() == 0 ? 5 : 4;
    EXPECT_EQ(sum.get(0), self.rank % 2 == 0 ? evens : odds);
  });
}

// Two groups whose operations are called in different orders by different ranks, on different streams. (The form of
// NCCL asks for one order.)
TEST(Split, GroupsDoNotDisturbEachOther) {
  run_test_ranks(4, [](TestRank& self) {
    const auto rows = self.world.split(self.rank / 2, self.rank, "rows");
    const auto columns = self.world.split(self.rank % 2, self.rank, "columns");
    const bool rows_first = testing::kForm == testing::Form::nccl || self.rank == 0 || self.rank == 3;
    for (int round = 0; round < 30; ++round) {
      Block<float> in_row(64);
      Block<float> in_column(64);
      in_row.fill([&](int64_t) { return static_cast<float>(self.rank + round); });
      in_column.fill([&](int64_t) { return static_cast<float>(self.rank * 10 + round); });
      for (const bool now_rows : {rows_first, !rows_first}) {
        if (now_rows) {
          rows->all_reduce(self.backend.communication_stream(), in_row.tensor());
        } else {
          columns->all_reduce(self.backend.copy_stream(), in_column.tensor());
        }
      }
      self.backend.finish(self.backend.record(self.backend.copy_stream()));
      self.finish();
      const int row = self.rank / 2;
      const int column = self.rank % 2;
      expect_block(
          in_row, [&](int64_t) { return static_cast<float>(row * 4 + 1 + 2 * round); }, "row");
      expect_block(
          in_column, [&](int64_t) { return static_cast<float>((column * 2 + 2) * 10 + 2 * round); }, "column");
    }
  });
}

// ---- random programs ----

// The same pseudo-random program on all ranks: mixed operations of the world and of two kinds of groups, spread over
// both streams, with few waits, while each rank dawdles at moments of its own. Every result is checked.
void run_random_program(int size, uint64_t seed) {
  SCOPED_TRACE(fmt::format("{} ranks, seed {}", size, seed));
  run_test_ranks(size, [&](TestRank& self) {
    const RandomStream random(seed, "program");
    const RandomStream dawdling(seed, fmt::format("rank {}", self.rank));
    uint64_t position = 0;
    const auto choose = [&](int count) {
      return static_cast<int>(random.bits(position++) % static_cast<uint64_t>(count));
    };
    const auto halves = self.world.split(self.rank < (size + 1) / 2 ? 0 : 1, self.rank, "halves");
    const auto parities = self.world.split(self.rank % 2, -self.rank, "parities");
    const std::array<Communicator*, 3> groups = {&self.world, halves.get(), parities.get()};
    struct Pending {
      std::vector<Block<double>> sent;
      std::vector<Block<double>> received;
      std::vector<std::function<double(int64_t)>> expected;  // of `received`
    };
    std::vector<std::unique_ptr<Pending>> pending;
    const auto check_all = [&] {
      self.finish();
      for (const auto& operation : pending) {
        for (size_t block = 0; block < operation->received.size(); ++block) {
          expect_block(operation->received[block], operation->expected[block], "random program");
        }
      }
      pending.clear();
    };
    for (int step = 0; step < 60; ++step) {
      Communicator& group = *groups[static_cast<size_t>(choose(3))];
      Stream& stream = self.stream(choose(2) == 1);
      const int kind = choose(6);
      const int salt = choose(7);
      const int shift = 1 + choose(7);
      const int style = choose(kBlockStyles);
      const bool wait_now = choose(5) == 0;
      if (dawdling.uniform(static_cast<uint64_t>(step)) < 0.2) {
        const auto pause = std::chrono::microseconds(dawdling.bits(static_cast<uint64_t>(step)) % 300);
        self.backend.enqueue(self.stream(step % 2 == 0), [pause] { std::this_thread::sleep_for(pause); });
      }
      const int n = group.size();
      const int own = group.rank();
      const auto count_of = [=](int from, int to) { return static_cast<int64_t>((from * 5 + to * 3 + salt) % 9 * 20); };
      const auto value = [=](int from, int to) {
        return [=](int64_t index) { return step * 1e7 + value_of(from, to, index); };
      };
      pending.push_back(std::make_unique<Pending>());
      Pending& now = *pending.back();
      const auto add = [&](std::vector<Block<double>>& blocks, int64_t count,
                           const std::function<double(int64_t)>& fill) {
        blocks.emplace_back(count, style);
        if (fill) blocks.back().fill(fill);
      };
      const auto sum = [=](int to) {
        return [=](int64_t index) {
          double total = 0.0;
          for (int from = 0; from < n; ++from) total += value(from, to)(index);
          return total;
        };
      };
      switch (kind) {
        case 0:
          for (int peer = 0; peer < n; ++peer) {
            add(now.sent, count_of(own, peer), value(own, peer));
            add(now.received, count_of(peer, own), nullptr);
            now.expected.emplace_back(value(peer, own));
          }
          group.all_to_all(stream, tensors_of(now.sent), tensors_of(now.received));
          break;
        case 1:
          add(now.sent, count_of(own, 0), value(own, 0));
          for (int peer = 0; peer < n; ++peer) {
            add(now.received, count_of(peer, 0), nullptr);
            now.expected.emplace_back(value(peer, 0));
          }
          group.all_gather(stream, now.sent[0].tensor(), tensors_of(now.received));
          break;
        case 2:
          for (int peer = 0; peer < n; ++peer) add(now.sent, count_of(0, peer), value(own, peer));
          add(now.received, count_of(0, own), nullptr);
          now.expected.emplace_back(sum(own));
          group.reduce_scatter(stream, tensors_of(now.sent), now.received[0].tensor());
          break;
        case 3:
          now.received.emplace_back(count_of(1, 2));
          now.received.back().fill(value(own, 0));
          now.expected.emplace_back(sum(0));
          group.all_reduce(stream, now.received[0].tensor());
          break;
        case 4:
          add(now.received, count_of(3, 4), value(own, 0));
          now.expected.emplace_back(value(salt % n, 0));
          group.broadcast(stream, now.received[0].tensor(), salt % n);
          break;
        default: {
          const int to = (own + shift) % n;
          const int from = (own + n - shift % n) % n;
          add(now.sent, count_of(1, 1), value(own, to));
          add(now.received, count_of(1, 1), nullptr);
          now.expected.emplace_back(value(from, own));
          group.send_receive(stream, now.sent[0].tensor(), to, now.received[0].tensor(), from);
          break;
        }
      }
      if (wait_now) check_all();
    }
    check_all();
  });
}

TEST(RandomPrograms, OverSeveralGroupsAndBothStreams) {
  for (const int size : {2, 3, 5, 8}) {
    for (uint64_t seed = 1; seed <= 6; ++seed) run_random_program(size, seed);
  }
}

}  // namespace
}  // namespace ithaca
