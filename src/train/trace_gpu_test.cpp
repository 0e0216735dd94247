// Traces of training steps on a GPU: every kernel belongs to a phase, and the phases add up to the step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "backend/cuda/cuda_backend.h"
#include "train/trace_testing.h"

namespace ithaca {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

class GpuTrace : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no NVIDIA GPU here: " << cuda_absence_reason();
    if (const std::string reason = cuda_trace_absence_reason(); !reason.empty()) GTEST_SKIP() << reason;
    folder_ = fs::path(::testing::TempDir()) /
              (std::string("ithaca_gpu_trace_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "model");
    const nlohmann::json config = {{"architectures", {"Qwen3ForCausalLM"}},
                                   {"model_type", "qwen3"},
                                   {"hidden_size", 256},
                                   {"intermediate_size", 512},
                                   {"num_hidden_layers", 2},
                                   {"num_attention_heads", 8},
                                   {"num_key_value_heads", 2},
                                   {"head_dim", 128},
                                   {"vocab_size", 256},
                                   {"max_position_embeddings", 40960},
                                   {"rms_norm_eps", 1e-6},
                                   {"rope_theta", 1000000},
                                   {"hidden_act", "silu"},
                                   {"attention_bias", false},
                                   {"tie_word_embeddings", true},
                                   {"torch_dtype", "bfloat16"}};
    std::ofstream(folder_ / "model" / "config.json") << config.dump(1);
    std::ofstream text(folder_ / "text.txt");
    for (int line = 0; line < 400; ++line) text << "the quick brown fox jumps over the lazy dog " << line % 10 << '\n';
    text.close();
    recipe_.model.path = (folder_ / "model").string();
    recipe_.model.init = "random";
    recipe_.data.train = {(folder_ / "text.txt").string()};
    recipe_.data.max_length = {"4096"};
    recipe_.memory.limit_gib = 1;  // not the whole GPU, which other tests use too
    recipe_.train.max_steps = 3;
    recipe_.train.tensorboard = false;
    recipe_.train.backend = "cuda";
    recipe_.train.output_dir = (folder_ / "run").string();
    request_.path = (folder_ / "trace.json").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  void run_and_check(int ranks) {
    recipe_.parallel.sp_size = ranks;
    static_cast<void>(run_training(recipe_, recorder_, stop_, request_));
    ASSERT_TRUE(recorder_.trace.has_value());
    const PhaseTable& table = recorder_.trace->phases;
    EXPECT_EQ(table.dropped, 0);
    EXPECT_EQ(table.sum().total(), table.nanoseconds);
    for (const PhaseTimes& row : table.rows) {
      if (row.phase == kOtherPhase) {
        EXPECT_EQ(row.operations, 0) << "all kernels belong to a phase";
      } else if (row.phase != phase::kGradientReduction) {
        EXPECT_GT(row.compute, 0) << row.phase;
      }
    }
    const auto threads = slices_by_thread(trace_events(request_.path));
    EXPECT_GE(table.nanoseconds, step_duration(threads, 0, 3));
    for (const auto& [thread, slices] : threads) expect_nested(slices);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<TraceSlice>& compute = threads.at({rank, 1});
      EXPECT_EQ(count(compute, std::string(phase::kAttention)), 2);
      EXPECT_EQ(count(compute, std::string(phase::kAttentionBackward)), 2);
      EXPECT_TRUE(std::any_of(compute.begin(), compute.end(), [](const TraceSlice& slice) {
        return slice.category == "operation" && slice.name.find("adamw") != std::string::npos;
      }));
    }
  }

  fs::path folder_;
  Recipe recipe_;
  TraceRequest request_;
  TracedRun recorder_;
  std::atomic<bool> stop_ = false;
};

TEST_F(GpuTrace, OfOneRankAddsUp) {
  run_and_check(1);
}

TEST_F(GpuTrace, OfSeveralRanksShowsTheirExchanges) {
  run_and_check(2);
  EXPECT_GT(recorder_.trace->phases.sum().communication, 0);
  const auto threads = slices_by_thread(trace_events(request_.path));
  EXPECT_EQ(count(threads.at({0, 2}), std::string(phase::kGradientReduction)), 2 + 2) << "one for each unit";
  for (const int rank : {0, 1}) {
    const std::vector<TraceSlice>& exchanges = threads.at({rank, 2});
    EXPECT_TRUE(std::any_of(exchanges.begin(), exchanges.end(),
                            [](const TraceSlice& slice) { return slice.name.find("memcpy device to") == 0; }))
        << "copies of rank " << rank;
  }
}

}  // namespace
}  // namespace ithaca
