// Benchmarks on GPUs: that they run, count and recover there. Two ranks, which share a GPU where there is one.
#include <gtest/gtest.h>

#include "train/benchmark.h"
#include "train/benchmark_exchange.h"
#include "train/gpu_testing.h"

namespace ithaca::testing {
namespace {

// The name makes gpu_check.sh run it alone: benchmarks take all memory that is there.
class BenchmarksGpuStep : public GpuModelTest {
 protected:
  StepBenchmark small_step(RecomputePolicy recompute) const {
    StepBenchmark benchmark;
    benchmark.backend = cuda_choice(DType::bfloat16);
    benchmark.model = model_;
    benchmark.tokens = {8192};
    benchmark.recompute = {recompute};
    benchmark.ranks = 2;
    benchmark.schedule = "ring";
    benchmark.warmup = 0;
    benchmark.steps = 1;
    benchmark.memory_limit_bytes = int64_t{1} << 30;
    return benchmark;
  }
};

TEST_F(BenchmarksGpuStep, ExchangesOverEveryTransport) {
  ExchangeBenchmark benchmark;
  benchmark.backend = cuda_choice(DType::bfloat16);
  benchmark.bytes = {int64_t{1} << 20};
  benchmark.transports = possible_transports(benchmark.backend, 2);
  benchmark.seconds_per_measurement = 0.01;
  ASSERT_FALSE(benchmark.transports.empty());
  const auto rows = run_exchange_benchmark(benchmark, [](const ExchangeBenchmarkRow&) {});
  ASSERT_EQ(rows.size(), benchmark.transports.size() * exchange_names().size());
  for (const ExchangeBenchmarkRow& row : rows) {
    EXPECT_EQ(row.failure, "") << row.exchange;
    EXPECT_EQ(row.bytes_sent, row.bytes) << row.exchange;
    EXPECT_GT(row.bytes_per_second, 0.0) << row.exchange;
  }
}

TEST_F(BenchmarksGpuStep, AttentionIsMeasuredAndPredicted) {
  AttentionBenchmark benchmark;
  benchmark.backend = cuda_choice(DType::bfloat16);
  benchmark.heads = {8, 2, 128, 128, 0.088f};
  benchmark.tokens = {2048};
  benchmark.documents = {{}, {DocumentMix::Kind::long_tailed, 256}};
  benchmark.schedules = {"ulysses", "ring:striped", "all_gather", "hybrid:2x2"};
  benchmark.predicted_ranks = {4};
  benchmark.seconds_per_measurement = 0.002;
  const auto rows = run_attention_benchmark(benchmark, [](const AttentionBenchmarkRow&) {});
  const bool has_several_devices = benchmark.backend.devices > 1;
  ASSERT_EQ(rows.size(), has_several_devices ? 2U * 10 : 2U * 9);
  EXPECT_EQ(rows[1].schedule == kEachAlone, has_several_devices);
  for (const AttentionBenchmarkRow& row : rows) {
    EXPECT_EQ(row.failure, "") << row.schedule;
    EXPECT_EQ(row.efficiency > 0.0, row.unfit.empty()) << row.schedule << row.unfit;
    EXPECT_EQ(row.unfit.empty(), row.schedule != "hybrid:2x2" || row.predicted) << row.unfit;
  }
}

TEST_F(BenchmarksGpuStep, AttentionThatIsLeftOutLeavesMemoryAsItIs) {
  for (const RecomputePolicy recompute : {RecomputePolicy::attention, RecomputePolicy::full}) {
    StepBenchmark benchmark = small_step(recompute);
    const auto row = [&] { return run_step_benchmark(benchmark, [](const StepBenchmarkRow&) {}).rows.at(0); };
    const StepBenchmarkRow whole = row();
    benchmark.attention_layers = 1;
    const StepBenchmarkRow part = row();
    ASSERT_EQ(whole.failure + part.failure, "");
    EXPECT_EQ(part.memory.peak, whole.memory.peak);
    EXPECT_EQ(part.memory.peak_by_class, whole.memory.peak_by_class);
    EXPECT_GT(part.planned_seconds, 0.0);
  }
}

TEST_F(BenchmarksGpuStep, MemoryThatIsOutLeavesTheNextTryAlone) {
  StepBenchmark benchmark = small_step(RecomputePolicy::full);
  benchmark.tokens = {int64_t{1} << 20, 8192};
  benchmark.attention_layers = 1;
  const auto rows = run_step_benchmark(benchmark, [](const StepBenchmarkRow&) {}).rows;
  EXPECT_NE(rows.at(0).failure, "");
  EXPECT_EQ(rows.at(1).failure, "");
  EXPECT_GT(rows.at(1).seconds, 0.0);
}

}  // namespace
}  // namespace ithaca::testing
