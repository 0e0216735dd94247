#include "comm/thread_ranks.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "backend/cpu/cpu_backend.h"
#include "base/error.h"
#include "comm/device_testing.h"

namespace ithaca {
namespace {

// A device whose memory can be watched.
class HeldMovement final : public testing::HostDeviceMovement {
 public:
  explicit HeldMovement(Backend& backend) : HostDeviceMovement(backend) {}
  std::shared_ptr<const void> hold_memory() override { return memory_; }
  std::weak_ptr<const void> memory() const { return memory_; }

 private:
  std::shared_ptr<const void> memory_ = std::make_shared<int>(0);
};

// Says that everything made after it in a body has gone.
class SaysGone {
 public:
  explicit SaysGone(std::atomic<bool>& gone) : gone_(gone) {}
  SaysGone(const SaysGone&) = delete;
  SaysGone& operator=(const SaysGone&) = delete;
  ~SaysGone() { gone_ = true; }

 private:
  std::atomic<bool>& gone_;
};

// A rank that fails does not take its memory away from ranks whose devices may still be reading it.
TEST(ThreadRanks, MemoryOfDevicesStaysUntilAllRanksHaveEnded) {
  std::array<std::weak_ptr<const void>, 2> memories;
  std::array<std::atomic<bool>, 2> gone{};
  const auto body = [&](ThreadRank& rank) {
    const SaysGone says_gone(gone[static_cast<size_t>(rank.rank())]);
    const auto backend = make_cpu_backend({});
    HeldMovement movement(*backend);
    const std::unique_ptr<Communicator> world = rank.connect(*backend, movement);
    memories[static_cast<size_t>(rank.rank())] = movement.memory();
    world->barrier();
    if (rank.rank() == 0) throw InputError("rank 0 has had enough");
    EXPECT_THROW(world->barrier(), CommunicationError);
    while (!gone[0]) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_FALSE(memories[0].expired());
  };
  EXPECT_THROW(run_thread_ranks(2, {.timeout_seconds = 60.0}, body), InputError);
  EXPECT_TRUE(memories[0].expired());
  EXPECT_TRUE(memories[1].expired());
}

}  // namespace
}  // namespace ithaca
