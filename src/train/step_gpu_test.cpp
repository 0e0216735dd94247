// What a training step on a GPU must not do: allocate, or wait for the device before its end.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "comm/thread_ranks.h"
#include "train/gpu_testing.h"
#include "train/initialize.h"
#include "train/rank.h"

namespace ithaca::testing {
namespace {

class GpuStep : public GpuModelTest {
 protected:
  void SetUp() override {
    GpuModelTest::SetUp();
    model_.layers.resize(1);  // the driver's launch queue has to hold a whole step while the stream stands still
    options_.backend = cuda_choice(DType::bfloat16);
    options_.memory_limit_bytes = int64_t{1} << 30;
  }

  // Calls work(rank, batch) on ranks of one sequence that have made two steps. None begins before or goes after the
  // others.
  template <typename Work>
  void run(RecomputePolicy policy, int ranks, const Work& work) {
    options_.model.recompute = policy;
    options_.mesh.ring = ranks;
    options_.layout = Layout::zigzag;
    const Sequence sequence = random_sequence(1100, model_.vocabulary, {700, 1, 399}, 3);
    const ListedDataset dataset({sequence});
    const StepLoader loader(dataset, {});
    run_thread_ranks(ranks, {120.0}, [&](ThreadRank& thread) {
      TrainingRank rank(thread, model_, options_);
      initialize_weights(model_, 7, rank.parameters());
      const StepBatch batch = loader.load(0, rank.batch_position());
      for (int step = 0; step < 2; ++step) static_cast<void>(rank.step().run(batch, 1e-4));
      rank.mesh().world().barrier();
      work(rank, batch);
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
  run_all([](TrainingRank& rank, const StepBatch& batch) {
    const size_t before = free_device_bytes();
    for (int step = 0; step < 3; ++step) static_cast<void>(rank.step().run(batch, 1e-4));
    EXPECT_EQ(free_device_bytes(), before);
  });
}

TEST_F(GpuStep, TheHostDoesNotWaitForTheDeviceBeforeTheEnd) {
  run_all([](TrainingRank& rank, const StepBatch& batch) {
    // The compute stream stands still until the gate opens. Whoever waits for it meanwhile waits for the watch, which
    // opens the gate after a while and says so.
    std::promise<void> gate;
    const std::shared_future<void> opened = gate.get_future().share();
    rank.backend().enqueue(rank.backend().compute_stream(), [opened] { opened.wait(); });
    std::mutex mutex;
    std::condition_variable enqueued;
    bool is_enqueued = false;
    bool had_to_open = false;
    {
      const std::jthread watch([&] {
        std::unique_lock lock(mutex);
        had_to_open = !enqueued.wait_for(lock, std::chrono::seconds(20), [&] { return is_enqueued; });
        gate.set_value();
      });
      rank.step().accumulate_gradients(batch);
      {
        const std::lock_guard lock(mutex);
        is_enqueued = true;
      }
      enqueued.notify_one();
    }
    EXPECT_FALSE(had_to_open);
    EXPECT_TRUE(std::isfinite(rank.step().update(batch, 1e-4).loss));
  });
}

}  // namespace
}  // namespace ithaca::testing
