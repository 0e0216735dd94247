// What is the NCCL form's own: one order for all groups and streams, devices that wait, failures of the library, and
// what is asked of the ranks' backends.
#include "comm/nccl_communicator.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/comm_testing.h"

namespace ithaca {
namespace {

using ::testing::AllOf;
using testing::Block;
using testing::Ending;
using testing::ending_of;
using ::testing::HasSubstr;
using testing::HostDeviceMovement;
using ::testing::StartsWith;
using testing::TestRank;

// Ranks that call two groups in orders that do not agree would wait on their devices for ever; here they end by name.
TEST(NcclOrder, RanksWhoseOrdersDisagreeEndByTheTimeout) {
  const Ending ending = ending_of(
      2,
      [](TestRank& self) {
        const auto first = self.world.split(0, self.rank, "first");
        const auto second = self.world.split(0, self.rank, "second");
        auto& data = self.keep(std::vector<Block<float>>(2, Block<float>(8)));
        Communicator& early = self.rank == 0 ? *first : *second;
        Communicator& late = self.rank == 0 ? *second : *first;
        early.all_reduce(self.backend.communication_stream(), data[0].tensor());
        late.all_reduce(self.backend.copy_stream(), data[1].tensor());
        self.backend.finish(self.backend.record(self.backend.copy_stream()));
        self.finish();
      },
      0.5);
  EXPECT_EQ(ending.type, "CommunicationError");
  EXPECT_THAT(ending.text, AllOf(HasSubstr("has waited 0.5 s"), HasSubstr("(ranks 0, 1)")));
  EXPECT_LT(ending.seconds, 5.0);
}

// Streams do not change the order: one that is late holds up what was called behind it on the other.
TEST(NcclOrder, IsThatOfTheProgramOnAllStreams) {
  testing::run_test_ranks(3, [](TestRank& self) {
    std::vector<Block<float>> data(8, Block<float>(100));
    for (int round = 0; round < 50; ++round) {
      for (size_t call = 0; call < data.size(); ++call) {
        Block<float>& block = data[call];
        self.finish();
        block.fill([&](int64_t) { return static_cast<float>(self.rank + round); });
      }
      for (size_t call = 0; call < data.size(); ++call) {
        Stream& stream = self.stream((call + static_cast<size_t>(round)) % 3 == 0);
        if (self.rank == round % 3 && call == 2) {
          self.backend.enqueue(stream, [] { std::this_thread::sleep_for(std::chrono::microseconds(200)); });
        }
        self.world.all_reduce(stream, data[call].tensor());
      }
      self.finish();
      for (const Block<float>& block : data) {
        testing::expect_block(
            block, [&](int64_t) { return static_cast<float>(3 + 3 * round); }, "sum");
      }
    }
  });
}

// A device that never comes to the end of an exchange: what a rank leaves behind that has died on the way to it.
class StuckEvent final : public Event::State {};

class StuckIssuer final : public DeviceIssuer {
 public:
  void copy_elements(const Tensor&, const Tensor&) override {}
  void sum_elements(std::span<const Tensor>, const Tensor&) override {}
  void exchange(DeviceExchange&, int, std::span<const DeviceMessage>, std::span<const DeviceMessage>) override {
    is_stuck_ = true;
  }
  Event record() override { return is_stuck_ ? Event(std::make_shared<StuckEvent>()) : Event(); }
  void wait(const Event&) override {}

 private:
  bool is_stuck_ = false;
};

// Notes what it was told, in order.
struct Log {
  std::mutex mutex;
  std::vector<std::string> lines;
  void add(std::string line) {
    const std::lock_guard lock(mutex);
    lines.push_back(std::move(line));
  }
};

class LoggedExchange final : public DeviceExchange {
 public:
  LoggedExchange(Log& log, std::optional<Failure> failure) : log_(log), failure_(std::move(failure)) {}
  std::optional<Failure> failure() override { return failure_; }
  bool has_happened(const Event& event) override { return event.is_empty(); }
  void abort() noexcept override { log_.add("abort"); }

 private:
  Log& log_;
  std::optional<Failure> failure_;
};

class StuckMovement final : public HostDeviceMovement {
 public:
  StuckMovement(Backend& backend, Log& log, std::optional<DeviceExchange::Failure> failure)
      : HostDeviceMovement(backend), log_(log), failure_(std::move(failure)) {}
  void issue(Stream& stream, std::function<void(DeviceIssuer&)> work) override {
    backend().enqueue(stream, [work = std::move(work)] {
      StuckIssuer issuer;
      work(issuer);
    });
  }
  std::unique_ptr<DeviceExchange> make_exchange(std::span<DeviceMovement* const> /*ranks*/) override {
    return std::make_unique<LoggedExchange>(log_, failure_);
  }
  std::function<void(std::exception_ptr)> failure_handle() override {
    return [&log = log_](const std::exception_ptr& exception) {
      try {
        std::rethrow_exception(exception);
      } catch (const CommunicationError& error) {
        log.add(error.what());
      }
    };
  }

 private:
  Log& log_;
  std::optional<DeviceExchange::Failure> failure_;
};

// Runs two ranks over devices that are stuck in their first exchange.
std::string ending_of_stuck_ranks(Log& log, double timeout_seconds, std::optional<DeviceExchange::Failure> failure) {
  ThreadRankOptions options;
  options.timeout_seconds = timeout_seconds;
  options.transport = Transport::nccl;
  try {
    run_thread_ranks(2, options, [&](ThreadRank& rank) {
      const auto backend = make_cpu_backend();
      StuckMovement movement(*backend, log, failure);
      const auto world = rank.connect(*backend, movement);
      Block<float> data(8);
      world->all_reduce(backend->communication_stream(), data.tensor());
      backend->finish(backend->record(backend->communication_stream()));
      while (true) {  // as one who computes: it hears of it at its next call
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        world->send_receive(backend->compute_stream(), {}, -1, {}, -1);
        world->barrier();
      }
    });
  } catch (const CommunicationError& error) {
    return error.what();
  }
  return "";
}

TEST(NcclWorld, ADeviceThatWaitsTooLongEndsAllRanks) {
  Log log;
  const std::string text = ending_of_stuck_ranks(log, 0.3, std::nullopt);
  EXPECT_THAT(text, AllOf(StartsWith("rank "), HasSubstr("all_reduce (operation 0 of group world (ranks 0, 1))"),
                          HasSubstr("has waited 0.3 s in it for other ranks")));
  // Ranks are told before their devices are let go: whoever waits for one must not take it for done.
  ASSERT_EQ(log.lines.size(), 3u);
  EXPECT_THAT(text, HasSubstr(log.lines[0]));
  EXPECT_EQ(log.lines[0], log.lines[1]);
  EXPECT_EQ(log.lines[2], "abort");
}

TEST(NcclWorld, AFailureOfTheLibraryEndsAllRanks) {
  Log log;
  const std::string text = ending_of_stuck_ranks(log, 60.0, DeviceExchange::Failure{1, "NCCL: a link is down"});
  EXPECT_THAT(text, AllOf(StartsWith("rank 1: "), HasSubstr("NCCL: a link is down")));
  EXPECT_EQ(log.lines.back(), "abort");
}

// The text of the rank that throws while others are inside of an exchange with it.
TEST(NcclWorld, ARankThatFailsLeavesNobodyWaitingOnADevice) {
  for (int moment = 0; moment < 6; ++moment) {
    const Ending ending = ending_of(3, [&](TestRank& self) {
      auto& data = self.keep(Block<float>(1000));
      for (int step = 0;; ++step) {
        if (self.rank == 1 && step == moment) throw InputError("dies here");
        self.world.all_reduce(self.stream(step % 2 == 0), data.tensor());
      }
    });
    EXPECT_EQ(ending.text, "rank 1: dies here");
    EXPECT_LT(ending.seconds, 5.0);
  }
}

TEST(NcclWorld, IsNotForHostMemory) {
  ThreadRankOptions options;
  options.transport = Transport::nccl;
  try {
    run_thread_ranks(2, options, [](ThreadRank& rank) {
      const auto backend = make_cpu_backend();
      const auto world = rank.connect(*backend);
    });
    FAIL() << "the ranks should have failed";
  } catch (const ConfigurationError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("the cpu backend's is the host's"), HasSubstr("peer works")));
  }
}

// Rank 0 connects for all of them; when it cannot, nobody waits for it.
TEST(NcclWorld, AllEndWhenTheLibraryCannotConnect) {
  class RefusingMovement final : public HostDeviceMovement {
   public:
    using HostDeviceMovement::HostDeviceMovement;
    std::unique_ptr<DeviceExchange> make_exchange(std::span<DeviceMovement* const> /*ranks*/) override {
      throw CommunicationError("NCCL cannot connect the GPUs 0, 1, 2");
    }
  };
  ThreadRankOptions options;
  options.transport = Transport::nccl;
  std::atomic<int> connected{0};
  try {
    run_thread_ranks(3, options, [&](ThreadRank& rank) {
      const auto backend = make_cpu_backend();
      RefusingMovement movement(*backend);
      const auto world = rank.connect(*backend, movement);
      ++connected;
    });
    FAIL() << "the ranks should have failed";
  } catch (const CommunicationError& error) {
    EXPECT_STREQ(error.what(), "rank 0: NCCL cannot connect the GPUs 0, 1, 2");
  }
  EXPECT_EQ(connected.load(), 0);
}

// A rank that fails before it is connected: nobody waits for it in the library.
TEST(NcclWorld, NobodyIsConnectedWhenARankFailsBefore) {
  std::atomic<int> made{0};
  class CountedMovement final : public HostDeviceMovement {
   public:
    CountedMovement(Backend& backend, std::atomic<int>& made) : HostDeviceMovement(backend), made_(made) {}
    std::unique_ptr<DeviceExchange> make_exchange(std::span<DeviceMovement* const> ranks) override {
      ++made_;
      return HostDeviceMovement::make_exchange(ranks);
    }

   private:
    std::atomic<int>& made_;
  };
  ThreadRankOptions options;
  options.transport = Transport::nccl;
  EXPECT_THROW(run_thread_ranks(3, options,
                                [&](ThreadRank& rank) {
                                  const auto backend = make_cpu_backend();
                                  if (rank.rank() == 2) throw ConfigurationError("no such device");
                                  CountedMovement movement(*backend, made);
                                  const auto world = rank.connect(*backend, movement);
                                }),
               ConfigurationError);
  EXPECT_EQ(made.load(), 0);
}

}  // namespace
}  // namespace ithaca
