// What happens when ranks fail, do not match, stall or leave: everybody ends soon, with the first cause.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <ctime>
#include <functional>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "comm/comm_testing.h"
#include "comm/communicator.h"

namespace ithaca {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::Block;
using testing::Ending;
using testing::ending_of;
using testing::Flag;
using ::testing::HasSubstr;
using testing::run_test_ranks;
using ::testing::StartsWith;
using testing::tensors_of;
using testing::TestRank;

// Far below the timeout of 60 s that these runs have: nothing ends because of that.
constexpr double kSoonSeconds = 5.0;

// The texts that ranks saw themselves.
class SeenErrors {
 public:
  // Runs `work`, notes the CommunicationError that ends it and passes it on.
  void watch(int rank, const std::function<void()>& work) {
    try {
      work();
    } catch (const CommunicationError& error) {
      const std::lock_guard<std::mutex> lock(mutex_);
      ranks_.push_back(rank);
      texts_.emplace_back(error.what());
      throw;
    }
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::mutex mutex_;
  std::vector<int> ranks_;
  std::vector<std::string> texts_;
};

// One operation of each kind in which a rank of 4 waits for all others (send_receive: for its neighbours).
constexpr int kOperations = 7;
void call_operation(TestRank& self, Communicator& group, int operation, bool on_communication_stream) {
  Stream& stream = self.stream(on_communication_stream);
  const int size = group.size();
  auto& send = self.keep(std::vector<Block<float>>(static_cast<size_t>(size), Block<float>(16)));
  auto& receive = self.keep(std::vector<Block<float>>(static_cast<size_t>(size), Block<float>(16)));
  auto& data = self.keep(Block<float>(16));
  switch (operation) {
    case 0:
      group.all_to_all(stream, tensors_of(send), tensors_of(receive));
      break;
    case 1:
      group.all_gather(stream, send[0].tensor(), tensors_of(receive));
      break;
    case 2:
      group.reduce_scatter(stream, tensors_of(send), data.tensor());
      break;
    case 3:
      group.all_reduce(stream, data.tensor());
      break;
    case 4:
      group.broadcast(stream, data.tensor(), 2 % size);
      break;
    case 5:
      group.send_receive(stream, send[0].tensor(), (group.rank() + 1) % size, data.tensor(),
                         (group.rank() + size - 1) % size);
      break;
    default:
      group.barrier();
      break;
  }
  self.finish();
}

TEST(Failure, EndsEveryOtherRankInEveryOperation) {
  for (int operation = 0; operation < kOperations; ++operation) {
    for (const bool on_communication_stream : {false, true}) {
      SCOPED_TRACE(fmt::format("operation {} communication stream {}", operation, on_communication_stream));
      SeenErrors seen;
      const Ending ending = ending_of(4, [&](TestRank& self) {
        if (self.rank == 2) throw InputError("line 7 is not JSON");
        seen.watch(self.rank, [&] {
          call_operation(self, self.world, operation, on_communication_stream);
          // Ranks whose neighbours were alive come this far; nobody comes further.
          self.world.barrier();
        });
      });
      EXPECT_EQ(ending.type, "InputError");
      EXPECT_EQ(ending.text, "rank 2: line 7 is not JSON");
      EXPECT_LT(ending.seconds, kSoonSeconds);
      EXPECT_EQ(seen.texts().size(), 3u);
      for (const std::string& text : seen.texts()) EXPECT_EQ(text, "rank 2 failed: line 7 is not JSON");
    }
  }
}

TEST(Failure, KeepsTheTypeOfTheFirstCause) {
  const auto thrown_type = [](const std::function<void()>& thrower) {
    return ending_of(3, [&](TestRank& self) {
      if (self.rank == 1) thrower();
      self.world.barrier();
    });
  };
  const auto expect = [&](const std::function<void()>& thrower, const std::string& type, const std::string& text) {
    const Ending ending = thrown_type(thrower);
    EXPECT_EQ(ending.type, type);
    EXPECT_EQ(ending.text, text);
  };
  expect([] { throw ConfigurationError("x"); }, "ConfigurationError", "rank 1: x");
  expect([] { throw InputError("x"); }, "InputError", "rank 1: x");
  expect([] { throw FileError("x"); }, "FileError", "rank 1: x");
  expect([] { throw CommunicationError("x"); }, "CommunicationError", "rank 1: x");
  expect([] { throw OutOfMemoryError("x"); }, "OutOfMemoryError", "rank 1: x");
  expect([] { throw ContractError("x"); }, "ContractError", "rank 1: x");
  expect([] { throw Error("x"); }, "Error", "rank 1: x");
  expect([] { throw std::out_of_range("x"); }, "Error", "rank 1: x");
  expect([] { throw std::bad_alloc(); }, "Error", "rank 1: std::bad_alloc");
  expect([] { throw 42; }, "Error", "rank 1: an exception that is not a std::exception");
}

TEST(Failure, OfAStreamReachesAllRanks) {
  const Ending ending = ending_of(3, [](TestRank& self) {
    auto& data = self.keep(Block<float>(8));
    Stream& stream = self.backend.communication_stream();
    if (self.rank == 0) {
      self.backend.enqueue(stream, [] { throw FileError("cannot write spill file"); });
      self.finish();
    }
    self.world.all_reduce(stream, data.tensor());
    self.finish();
  });
  EXPECT_EQ(ending.type, "FileError");
  EXPECT_EQ(ending.text, "rank 0: cannot write spill file");
  EXPECT_LT(ending.seconds, kSoonSeconds);
}

// A rank throws while its own communication stream is in the middle of operations that will never be met: the backend
// joins that stream on the way out, before the cause is known to anybody else.
TEST(Failure, ReachesOthersThoughTheRanksOwnStreamWaits) {
  for (int operation = 0; operation < kOperations - 1; ++operation) {
    SCOPED_TRACE(operation);
    const Ending ending = ending_of(4, [&](TestRank& self) {
      // Ranks 0, 1 and 2 wait for rank 3, who never comes; then rank 1 throws.
      auto& send = self.keep(std::vector<Block<float>>(4, Block<float>(4096)));
      auto& receive = self.keep(std::vector<Block<float>>(4, Block<float>(4096)));
      Stream& stream = self.backend.communication_stream();
      const auto group = self.world.split(self.rank / 2, self.rank, "pairs");
      if (self.rank != 3) {
        if (operation == 0) self.world.all_to_all(stream, tensors_of(send), tensors_of(receive));
        if (operation == 1) self.world.all_gather(stream, send[0].tensor(), tensors_of(receive));
        if (operation == 2) self.world.reduce_scatter(stream, tensors_of(send), receive[0].tensor());
        if (operation == 3) self.world.all_reduce(stream, send[0].tensor());
        if (operation == 4) self.world.broadcast(stream, send[0].tensor(), 3);
        if (operation == 5) {
          self.world.send_receive(stream, send[0].tensor(), (self.rank + 1) % 4, receive[0].tensor(),
                                  (self.rank + 3) % 4);
        }
      } else {
        group->barrier();  // rank 2 does not come to it
      }
      if (self.rank == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        throw ConfigurationError("no such option");
      }
      self.finish();
    });
    EXPECT_EQ(ending.text, "rank 1: no such option");
    EXPECT_EQ(ending.type, "ConfigurationError");
    EXPECT_LT(ending.seconds, kSoonSeconds);
  }
}

TEST(Failure, CrossesGroups) {
  SeenErrors seen;
  const Ending ending = ending_of(4, [&](TestRank& self) {
    seen.watch(self.rank, [&] {
      const auto pair = self.world.split(self.rank / 2, self.rank, "pair");
      if (self.rank == 3) throw InputError("broken");
      // Ranks 0 and 1 do not depend on rank 3 in any way, but the run is over.
      for (int round = 0; round < 1000000; ++round) pair->barrier();
    });
  });
  EXPECT_EQ(ending.text, "rank 3: broken");
  EXPECT_LT(ending.seconds, kSoonSeconds);
  EXPECT_EQ(seen.texts(), std::vector<std::string>(3, "rank 3 failed: broken"));
}

TEST(Failure, ByAbort) {
  SeenErrors seen;
  const Ending ending = ending_of(3, [&](TestRank& self) {
    if (self.rank == 1) self.world.abort("the user pressed stop");
    if (self.rank == 2) self.world.abort("me too");
    seen.watch(self.rank, [&] {
      self.world.barrier();
      self.world.barrier();
    });
  });
  EXPECT_EQ(ending.type, "CommunicationError");
  EXPECT_THAT(ending.text, AnyOf("rank 1: the user pressed stop", "rank 2: me too"));
  EXPECT_LT(ending.seconds, kSoonSeconds);
  ASSERT_EQ(seen.texts().size(), 3u);
  EXPECT_THAT(seen.texts()[0], AnyOf("rank 1 aborted: the user pressed stop", "rank 2 aborted: me too"));
  EXPECT_EQ(seen.texts()[0], seen.texts()[1]);
  EXPECT_EQ(seen.texts()[0], seen.texts()[2]);
}

TEST(Failure, ByAbortIsReportedThoughNobodyThrows) {
  const Ending ending = ending_of(2, [&](TestRank& self) {
    if (self.rank == 1) self.world.abort("enough");
  });
  EXPECT_EQ(ending.text, "rank 1: enough");
}

// ---- calls that do not match ----

// Runs two ranks, rank 1 of which calls `second`; returns the text that every rank saw.
std::string mismatch_of(const std::function<void(TestRank&)>& first, const std::function<void(TestRank&)>& second) {
  SeenErrors seen;
  const Ending ending = ending_of(2, [&](TestRank& self) {
    seen.watch(self.rank, [&] {
      (self.rank == 0 ? first : second)(self);
      self.finish();
      self.world.barrier();
    });
  });
  EXPECT_EQ(ending.type, "CommunicationError");
  EXPECT_LT(ending.seconds, kSoonSeconds);
  EXPECT_EQ(seen.texts().size(), 2u);
  for (const std::string& text : seen.texts()) {
    EXPECT_EQ(text, seen.texts()[0]);
    EXPECT_THAT(ending.text, HasSubstr(text));
  }
  EXPECT_THAT(ending.text, AnyOf(StartsWith("rank 0: "), StartsWith("rank 1: ")));
  return seen.texts().empty() ? "" : seen.texts()[0];
}

TEST(Mismatch, OfOperations) {
  Block<float> data(8);
  Block<float> other(8);
  const std::string text =
      mismatch_of([&](TestRank& self) { self.world.all_reduce(self.backend.compute_stream(), data.tensor()); },
                  [&](TestRank& self) { self.world.broadcast(self.backend.compute_stream(), other.tensor(), 0); });
  EXPECT_THAT(text, AllOf(HasSubstr("operation 0 of group world (ranks 0, 1)"), HasSubstr("all_reduce of 8 float32"),
                          HasSubstr("broadcast of 8 float32")));
}

TEST(Mismatch, OfSizes) {
  const auto exchange = [](int64_t to_peer, int64_t from_peer) {
    return [=](TestRank& self) {
      auto& send = self.keep(std::vector<Block<float>>(2));
      auto& receive = self.keep(std::vector<Block<float>>(2));
      send[static_cast<size_t>(1 - self.rank)] = Block<float>(to_peer);
      receive[static_cast<size_t>(1 - self.rank)] = Block<float>(from_peer);
      self.world.all_to_all(self.backend.communication_stream(), tensors_of(send), tensors_of(receive));
      self.finish();
    };
  };
  EXPECT_THAT(mismatch_of(exchange(128, 32), exchange(32, 64)),
              HasSubstr("rank 0 calls all_to_all sending 128 float32 to rank 1, which expects 64 float32"));
  EXPECT_THAT(mismatch_of(exchange(128, 32), exchange(0, 128)),
              HasSubstr("rank 1 calls all_to_all sending nothing to rank 0, which expects 32 float32"));
}

TEST(Mismatch, OfMessages) {
  const auto message = [](int64_t to_peer, int64_t from_peer) {
    return [=](TestRank& self) {
      auto& send = self.keep(Block<double>(to_peer));
      auto& receive = self.keep(Block<double>(from_peer));
      self.world.send_receive(self.backend.communication_stream(), send.tensor(), 1 - self.rank, receive.tensor(),
                              1 - self.rank);
      self.finish();
    };
  };
  EXPECT_THAT(mismatch_of(message(8, 8), message(8, 9)),
              AllOf(HasSubstr("message 0 from rank 0 to rank 1 in group world (ranks 0, 1)"),
                    HasSubstr("rank 0 calls send_receive sending 8 float64 to rank 1, which expects 9 float64")));
  // An empty block is a message.
  EXPECT_THAT(mismatch_of(message(0, 8), message(8, 9)),
              HasSubstr("rank 0 calls send_receive sending nothing to rank 1, which expects 9 float64"));
}

TEST(Mismatch, OfTypesAndRoots) {
  Block<float> floats(4);
  Block<double> doubles(4);
  EXPECT_THAT(
      mismatch_of([&](TestRank& self) { self.world.all_reduce(self.backend.compute_stream(), floats.tensor()); },
                  [&](TestRank& self) { self.world.all_reduce(self.backend.compute_stream(), doubles.tensor()); }),
      AllOf(HasSubstr("4 float32"), HasSubstr("4 float64"), HasSubstr("all_reduce")));
  Block<float> other(4);
  EXPECT_THAT(
      mismatch_of([&](TestRank& self) { self.world.broadcast(self.backend.compute_stream(), floats.tensor(), 0); },
                  [&](TestRank& self) { self.world.broadcast(self.backend.compute_stream(), other.tensor(), 1); }),
      AllOf(HasSubstr("from root 0"), HasSubstr("from root 1")));
}

TEST(Mismatch, OfOrderBetweenMessagesAndCollectives) {
  Block<float> sent(4);
  Block<float> received(4);
  Block<float> first(4);
  Block<float> second(4);
  for (const bool sender_is_first : {true, false}) {
    Flag is_called;
    const std::string text = mismatch_of(
        [&](TestRank& self) {
          if (!sender_is_first) is_called.wait();
          self.world.send_receive(self.backend.communication_stream(), sent.tensor(), 1, {}, -1);
          if (sender_is_first) is_called.set();
          self.world.all_reduce(self.backend.communication_stream(), first.tensor());
        },
        [&](TestRank& self) {
          if (sender_is_first) is_called.wait();
          self.world.all_reduce(self.backend.communication_stream(), second.tensor());
          is_called.set();
          self.world.send_receive(self.backend.communication_stream(), {}, -1, received.tensor(), 0);
        });
    EXPECT_THAT(text, AllOf(HasSubstr("message 0 from rank 0 to rank 1"), HasSubstr("rank 0 calls send_receive")));
  }
}

TEST(Mismatch, OfAGroupNamesIt) {
  SeenErrors seen;
  const Ending ending = ending_of(4, [&](TestRank& self) {
    Block<float> data(self.rank == 3 ? 5 : 4);
    seen.watch(self.rank, [&] {
      const auto ring = self.world.split(self.rank % 2, self.rank, "ring");
      ring->all_reduce(self.backend.compute_stream(), data.tensor());
      self.world.barrier();
    });
  });
  EXPECT_THAT(ending.text, AllOf(HasSubstr("operation 0 of group ring (ranks 1, 3)"), HasSubstr("rank 1 calls"),
                                 HasSubstr("4 float32"), HasSubstr("5 float32"), HasSubstr("rank 3 calls")));
  EXPECT_EQ(seen.texts().size(), 4u);
}

TEST(Mismatch, OfOwnArgumentsIsAContractError) {
  const Ending ending = ending_of(2, [&](TestRank& self) {
    Block<float> data(4);
    if (self.rank == 1) self.world.broadcast(self.backend.compute_stream(), data.tensor(), 7);
    self.world.barrier();
  });
  EXPECT_EQ(ending.type, "ContractError");
  EXPECT_THAT(ending.text, StartsWith("rank 1: broadcast: `root` is 7, but the group has ranks 0 to 1"));
}

// ---- ranks that do not come ----

TEST(Stall, NamesTheOperationAndWhoDidNotCome) {
  SeenErrors seen;
  Flag is_over;
  const Ending ending = ending_of(
      4,
      [&](TestRank& self) {
        Block<float> data(4);
        self.world.barrier();
        if (self.rank == 3) {  // asleep until somebody has given up on it
          is_over.wait();
          seen.watch(self.rank, [&] { self.world.barrier(); });
        }
        try {
          seen.watch(self.rank, [&] { self.world.all_reduce(self.backend.compute_stream(), data.tensor()); });
        } catch (const CommunicationError&) {
          is_over.set();
          throw;
        }
      },
      0.2);
  EXPECT_EQ(ending.type, "CommunicationError");
  EXPECT_THAT(ending.text, AllOf(HasSubstr("all_reduce (operation 1 of group world (ranks 0-3))"),
                                 HasSubstr("has waited 0.2 s for rank 3"),
                                 HasSubstr("rank 3 has not called it and last called barrier")));
  EXPECT_LT(ending.seconds, kSoonSeconds);
  EXPECT_EQ(seen.texts().size(), 4u);
  for (const std::string& text : seen.texts()) EXPECT_EQ(text, seen.texts()[0]);
}

// Everybody waits, in a circle: the text tells who waits where.
TEST(Stall, OfRanksThatWaitForEachOther) {
  const Ending ending = ending_of(
      2,
      [&](TestRank& self) {
        auto& data = self.keep(Block<float>(4));
        auto& other = self.keep(Block<float>(4));
        Stream& stream = self.backend.communication_stream();
        // Both send before they receive, in separate calls.
        self.world.send_receive(stream, data.tensor(), 1 - self.rank, {}, -1);
        self.world.send_receive(stream, {}, -1, other.tensor(), 1 - self.rank);
        self.finish();
      },
      0.2);
  EXPECT_THAT(ending.text, AllOf(HasSubstr("send_receive (message 0 from rank"), HasSubstr("has waited 0.2 s"),
                                 HasSubstr("has called it, but its stream has not come to it, it waits for rank")));
  EXPECT_LT(ending.seconds, kSoonSeconds);
}

// Rank 1 works on the host while rank 0 waits for it, longer than the timeout.
void wait_for_host_work(TestRank& self, const std::function<void()>& work) {
  auto& data = self.keep(Block<float>(4));
  self.world.barrier();
  if (self.rank == 1) {
    const HostWork working(self.world);
    work();
  }
  self.world.all_reduce(self.backend.compute_stream(), data.tensor());
  self.finish();
  self.world.barrier();
}

TEST(Stall, IsNotHostWork) {
  run_test_ranks(
      3,
      [](TestRank& self) {
        wait_for_host_work(self, [] { std::this_thread::sleep_for(std::chrono::milliseconds(3000)); });
      },
      2.0);  // a busy machine may let a rank wait for a processor
}

TEST(Failure, OfHostWorkEndsAllRanks) {
  const Ending ending =
      ending_of(3, [](TestRank& self) { wait_for_host_work(self, [] { throw FileError("the disk is full"); }); });
  EXPECT_EQ(ending.text, "rank 1: the disk is full");
  EXPECT_LT(ending.seconds, kSoonSeconds);
}

// After host work the clock runs again.
TEST(Stall, BehindHostWorkIsOne) {
  Flag is_over;
  const Ending ending = ending_of(
      2,
      [&](TestRank& self) {
        { const HostWork working(self.world); }
        self.world.barrier();
        if (self.rank == 1) is_over.wait();
        try {
          self.world.barrier();
        } catch (const CommunicationError&) {
          is_over.set();
          throw;
        }
      },
      1.0);
  EXPECT_THAT(ending.text, HasSubstr("has waited 1 s for rank 1"));
  EXPECT_LT(ending.seconds, kSoonSeconds);
}

TEST(Stall, NamesWhatSetsTheTimeout) {
  ThreadRankOptions options;
  options.timeout_seconds = 0.1;
  options.timeout_name = "parallel.patience";
  Flag is_over;
  try {
    run_thread_ranks(2, options, [&](ThreadRank& rank) {
      const auto backend = make_cpu_backend({});
      const auto world = rank.connect(*backend);
      if (rank.rank() == 1) is_over.wait();
      try {
        world->barrier();
      } catch (const CommunicationError&) {
        is_over.set();
        throw;
      }
    });
    ADD_FAILURE() << "the ranks should have failed";
  } catch (const CommunicationError& error) {
    EXPECT_THAT(error.what(), HasSubstr("has waited 0.1 s (parallel.patience) for rank 1"));
  }
}

// Uses the processor for so long, however long that takes.
void compute_for(double seconds) {
  const auto used = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double end = used() + seconds;
  while (used() < end) {
  }
}

// Stops this process in 0.1 s, and lets it go on 4 s later.
void suspend_this_process() {
  const pid_t own = getpid();
  if (fork() != 0) return;
  usleep(100'000);
  kill(own, SIGSTOP);
  usleep(4'000'000);
  kill(own, SIGCONT);
  _exit(0);
}

// While rank 1 computes, for a fraction of the timeout, the process is stopped for longer than that.
TEST(StallDeathTest, IsNoSuspension) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        suspend_this_process();
        run_test_ranks(
            2,
            [](TestRank& self) {
              self.world.barrier();
              if (self.rank == 1) compute_for(0.3);
              self.world.barrier();
            },
            3.0);
        _exit(7);
      },
      ::testing::ExitedWithCode(7), "");
}

TEST(EarlyReturn, IsNamedByThoseWhoWait) {
  for (int operation = 0; operation < kOperations; ++operation) {
    for (const bool on_communication_stream : {false, true}) {
      SCOPED_TRACE(fmt::format("operation {} communication stream {}", operation, on_communication_stream));
      SeenErrors seen;
      const Ending ending = ending_of(4, [&](TestRank& self) {
        if (self.rank == 2) return self.world.barrier();
        seen.watch(self.rank, [&] {
          self.world.barrier();
          call_operation(self, self.world, operation, on_communication_stream);
          self.world.barrier();
        });
      });
      EXPECT_EQ(ending.type, "CommunicationError");
      EXPECT_THAT(ending.text,
                  AllOf(StartsWith("rank 2: "), HasSubstr("waits for rank 2, which has returned without")));
      EXPECT_LT(ending.seconds, kSoonSeconds);
      EXPECT_EQ(seen.texts().size(), 3u);
    }
  }
}

// A rank that enqueues work and returns at once has not returned early: its backend finishes the work.
TEST(EarlyReturn, IsNotTheCaseWhileWorkIsQueued) {
  std::vector<Block<float>> data(3);
  for (size_t rank = 0; rank < 3; ++rank) {
    data[rank] = Block<float>(1000);
    data[rank].fill([&](int64_t) { return static_cast<float>(rank + 1); });
  }
  run_test_ranks(3, [&](TestRank& self) {
    if (self.rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (int round = 0; round < 3; ++round) {
      self.world.all_reduce(self.backend.communication_stream(), data[static_cast<size_t>(self.rank)].tensor());
    }
  });
  for (const Block<float>& sum : data) {
    testing::expect_block(
        sum, [](int64_t) { return 54.0f; }, "sum");
  }
}

// ---- everything at once ----

// A rank dies at a random place of a program of overlapping operations; whoever else is where, all end.
TEST(Failure, AtAnyMomentOfABusyProgram) {
  for (int moment = 0; moment < 24; ++moment) {
    SCOPED_TRACE(moment);
    const int victim = moment % 4;
    const Ending ending = ending_of(4, [&](TestRank& self) {
      auto& buffers = self.keep(std::vector<Block<float>>(8, Block<float>(4000)));
      const auto ring = self.world.split(self.rank / 2, self.rank, "ring");
      Stream& stream = self.backend.communication_stream();
      for (int step = 0;; ++step) {
        if (self.rank == victim && step == moment) throw InputError("dies here");
        const int peer = 1 - ring->rank();
        ring->send_receive(stream, buffers[0].tensor(), peer, buffers[1].tensor(), peer);
        self.world.all_reduce(self.backend.compute_stream(), buffers[2].tensor());
        ring->all_gather(stream, buffers[3].tensor(), std::vector<Tensor>{buffers[4].tensor(), buffers[5].tensor()});
        ring->send_receive(stream, buffers[1].tensor(), peer, buffers[6].tensor(), peer);
        if (step % 3 == 2) self.finish();
      }
    });
    EXPECT_EQ(ending.text, fmt::format("rank {}: dies here", victim));
    EXPECT_EQ(ending.type, "InputError");
    EXPECT_LT(ending.seconds, kSoonSeconds);
  }
}

TEST(ThreadRanks, SeveralRunsAtTheSameTime) {
  std::array<std::string, 2> texts;
  {
    std::vector<std::jthread> runs;
    for (size_t run = 0; run < texts.size(); ++run) {
      runs.emplace_back([&texts, run] {
        texts[run] = ending_of(3, [&](TestRank& self) {
                       for (int round = 0; round < 20; ++round) self.world.barrier();
                       if (self.rank == static_cast<int>(run)) throw InputError("here");
                       self.world.barrier();
                     }).text;
      });
    }
  }
  EXPECT_EQ(texts[0], "rank 0: here");
  EXPECT_EQ(texts[1], "rank 1: here");
}

TEST(ThreadRanks, ConnectOnce) {
  ThreadRankOptions options;
  EXPECT_THROW(run_thread_ranks(1, options,
                                [](ThreadRank& self) {
                                  const auto backend = make_cpu_backend();
                                  const auto world = self.connect(*backend);
                                  self.connect(*backend);
                                }),
               ContractError);
  EXPECT_THROW(run_thread_ranks(0, options, [](ThreadRank&) {}), ContractError);
  options.timeout_seconds = -1.0;
  EXPECT_THROW(run_thread_ranks(1, options, [](ThreadRank&) {}), ContractError);
}

TEST(ThreadRanks, EveryRankRunsOnce) {
  std::array<std::atomic<int>, 8> runs{};
  run_thread_ranks(8, {}, [&](ThreadRank& self) {
    EXPECT_EQ(self.size(), 8);
    runs[static_cast<size_t>(self.rank())].fetch_add(1);
  });
  for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
}

}  // namespace
}  // namespace ithaca
