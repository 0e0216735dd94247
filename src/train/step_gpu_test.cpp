// What a training step on a GPU must not do: allocate, or wait for the device before its end.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "backend/cuda/stream_gate.h"
#include "comm/thread_ranks.h"
#include "train/gpu_testing.h"
#include "train/hooked_schedule.h"
#include "train/initialize.h"
#include "train/rank.h"
#include "train/thread_stacks.h"

namespace ithaca::testing {
namespace {

// A rank that has made two steps, and what is called where its attention is.
struct WarmRank {
  TrainingRank& rank;
  const StepBatch& batch;
  HookedSchedule::Hook& hook;
};

class GpuStep : public GpuModelTest {
 protected:
  void SetUp() override {
    GpuModelTest::SetUp();
    options_.backend = cuda_choice(DType::bfloat16);
    options_.memory_limit_bytes = int64_t{1} << 30;
  }

  // Calls work(WarmRank) on ranks of one sequence. None begins before or goes after the others.
  template <typename Work>
  void run(RecomputePolicy policy, int ranks, const Work& work) {
    options_.model.recompute = policy;
    options_.mesh.ring = ranks;
    options_.layout = Layout::zigzag;
    const Sequence sequence = random_sequence(1100, model_.vocabulary, {700, 400}, 3);
    const ListedDataset dataset({sequence});
    const StepLoader loader(dataset, {});
    run_thread_ranks(ranks, {120.0}, [&](ThreadRank& thread) {
      HookedSchedule::Hook hook;
      TrainingRankOptions options = options_;
      options.wrap_schedule = [&](std::unique_ptr<AttentionSchedule> schedule, Backend&) {
        return std::make_unique<HookedSchedule>(std::move(schedule), hook);
      };
      TrainingRank rank(thread, model_, options);
      initialize_weights(model_, 7, rank.parameters());
      const StepBatch batch = loader.load(0, rank.batch_position());
      for (int step = 0; step < 2; ++step) static_cast<void>(rank.step().run(batch, 1e-4));
      rank.mesh().world().barrier();
      work({rank, batch, hook});
      rank.mesh().world().barrier();
    });
  }

  // One rank with every policy, and two with one: each updates its part of the weights and gathers the rest.
  template <typename Work>
  void run_all(const Work& work) {
    for (const RecomputePolicy policy : {RecomputePolicy::none, RecomputePolicy::attention, RecomputePolicy::full}) {
      run(policy, 1, work);
    }
    run(RecomputePolicy::attention, 2, work);
  }

  TrainingRankOptions options_;
};

size_t free_device_bytes() {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  EXPECT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  return free_bytes;
}

TEST_F(GpuStep, AllocatesNothingOnTheDevice) {
  run_all([](const WarmRank& warm) {
    const size_t before = free_device_bytes();
    for (int step = 0; step < 3; ++step) static_cast<void>(warm.rank.step().run(warm.batch, 1e-4));
    EXPECT_EQ(free_device_bytes(), before);
  });
}

// Follows the host through a step. Where it gets no further for a while, the watch says where all threads stand, opens
// the gate for good, and remembers the place.
class HostWatch {
 public:
  explicit HostWatch(cuda::StreamGate& gate) : gate_(gate), thread_([this] { watch(); }) {}
  HostWatch(const HostWatch&) = delete;
  HostWatch& operator=(const HostWatch&) = delete;
  ~HostWatch() { finish(); }

  void reached(std::string place) {
    const std::lock_guard lock(mutex_);
    place_ = std::move(place);
    ++places_;
    changed_.notify_one();
  }
  // The place behind which the host stood still; empty when it never did.
  std::string finish() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
      changed_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
    return stopped_behind_;
  }

 private:
  void watch() {
    constexpr std::chrono::seconds kLongest{5};
    std::unique_lock lock(mutex_);
    while (!is_over_) {
      const int64_t seen = places_;
      if (changed_.wait_for(lock, kLongest, [&] { return is_over_ || places_ != seen; })) continue;
      stopped_behind_ = place_;
      static std::atomic<bool> is_told{false};
      if (!is_told.exchange(true)) write_all_stacks();
      gate_.open();
      return;
    }
  }

  cuda::StreamGate& gate_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string place_;
  std::string stopped_behind_;
  int64_t places_ = 0;
  bool is_over_ = false;
  std::thread thread_;
};

// The compute stream never comes further than to the attention that the host has come to before: a host that waits for
// anything that it has enqueued since waits for ever. The driver's queue holds some hundred operations of a stream, so
// it could not hold a whole step.
TEST_F(GpuStep, TheHostDoesNotWaitForTheDeviceBeforeTheEnd) {
  run_all([](const WarmRank& warm) {
    cuda::StreamGate gate(warm.rank.backend().compute_stream());
    std::string stopped_behind;
    int places = 0;
    {
      HostWatch watch(gate);
      warm.hook = [&](std::string_view place) {
        gate.move_up();
        watch.reached(fmt::format("{} (place {} of the step)", place, ++places));
      };
      warm.hook("the beginning");
      warm.rank.step().accumulate_gradients(warm.batch);
      warm.hook = nullptr;
      stopped_behind = watch.finish();
    }
    gate.open();
    EXPECT_EQ(stopped_behind, "") << "the host stood still behind this place; where its threads were is above";
    EXPECT_TRUE(std::isfinite(warm.rank.step().update(warm.batch, 1e-4).loss));
  });
}

}  // namespace
}  // namespace ithaca::testing
