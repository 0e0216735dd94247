// The acceptance test on GPUs: in float32 the same numbers as Hugging Face on every mesh; in bfloat16 no further from
// float32 than 2.5 times one rank's own bfloat16; with `deterministic` the same bits every time. Ranks share the GPUs
// that there are. Bounds: docs/design.md, "Exactness".
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cuda/cuda_backend.h"
#include "train/gpu_testing.h"
#include "train/parity_harness.h"

namespace ithaca::testing {
namespace {

constexpr double kBound = 5e-6;
constexpr double kBf16Factor = 2.5;
// bfloat16 keeps 8 bits: the relative error of the gradients of these small models, which are the worst kind.
constexpr double kBf16Bound = 0.15;

RunSettings on_cuda(const MatrixMesh& mesh, RecomputePolicy policy, DType compute_dtype, int64_t tile = 0,
                    bool deterministic = false) {
  RunSettings settings = settings_of(mesh, policy, tile, tile);
  settings.backend = cuda_choice(compute_dtype, deterministic);
  return settings;
}

// One rank and every schedule over 2, 3 and 4, with another policy and tile each, at both stages of ZeRO.
struct GpuRun {
  MatrixMesh mesh;
  RecomputePolicy policy = RecomputePolicy::attention;
  int64_t tile = 0;
  ZeroStage zero = ZeroStage::optimizer_state;
};
RunSettings on_cuda(const GpuRun& run, DType compute_dtype, bool deterministic = false) {
  RunSettings settings = on_cuda(run.mesh, run.policy, compute_dtype, run.tile, deterministic);
  settings.zero = run.zero;
  return settings;
}
std::vector<GpuRun> runs() {
  using enum RecomputePolicy;
  return {
      {{ScheduleKind::ring, Layout::contiguous, 1, 1}, none, 0},
      {{ScheduleKind::ring, Layout::contiguous, 1, 1}, full, 31},
      {{ScheduleKind::ring, Layout::zigzag, 2, 1}, attention, 17},
      {{ScheduleKind::ring, Layout::striped, 4, 1}, full, 0, ZeroStage::replicated},
      {{ScheduleKind::all_gather, Layout::zigzag, 3, 1}, attention, 0},
      {{ScheduleKind::ulysses, Layout::contiguous, 1, 2}, none, 0, ZeroStage::replicated},
      {{ScheduleKind::ulysses, Layout::contiguous, 1, 4}, attention, 13},
      {{ScheduleKind::hybrid, Layout::zigzag, 2, 2}, full, 0},
  };
}

// ||a - b|| / ||b|| over all gradients together.
double gradient_error(const NamedValues& a, const NamedValues& b) {
  double difference = 0.0;
  double norm = 0.0;
  for (const auto& [name, expected] : b) {
    const std::vector<float>& values = a.at(name);
    for (size_t index = 0; index < expected.size(); ++index) {
      const auto reference = static_cast<double>(expected[index]);
      const double delta = static_cast<double>(values[index]) - reference;
      difference += delta * delta;
      norm += reference * reference;
    }
  }
  return std::sqrt(difference / norm);
}

class GpuParity : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_absence_reason();
  }
};

TEST_P(GpuParity, Float32AgreesWithHuggingFaceOnEveryMesh) {
  const ReferenceCase reference(GetParam());
  const ModelDescription& model = reference.directory.description();
  for (const GpuRun& each : runs()) {
    const RunSettings run = on_cuda(each, DType::float32);
    SCOPED_TRACE(run.describe());
    const RunOutcome outcome =
        run_case(model, &reference.directory, {reference.plain}, run, reference.adamw, reference.learning_rate, 3);
    EXPECT_LT(std::abs(outcome.loss / reference.loss - 1.0), kBound);
    EXPECT_LT(std::abs(outcome.evaluation_loss / reference.loss - 1.0), kBound);
    EXPECT_LT(std::abs(outcome.grad_norm / reference.grad_norm - 1.0), kBound);
    for (const auto& [name, values] : outcome.gradients) {
      EXPECT_LT(relative_difference(values, reference.expected.read_float32("grad." + name)), kBound) << name;
    }
    for (size_t step = 0; step < outcome.steps.size(); ++step) {
      const double bound = step == 0 ? kBound : 10 * kBound;
      EXPECT_LT(std::abs(outcome.steps[step].loss / reference.step_losses[step] - 1.0), bound) << step;
      EXPECT_LT(std::abs(outcome.steps[step].grad_norm / reference.step_grad_norms[step] - 1.0), bound) << step;
    }
    EXPECT_LT(std::abs(outcome.loss_after_steps / reference.loss_after_steps - 1.0), 10 * kBound);
    const RunOutcome packed = run_case(model, &reference.directory, {reference.packed}, run, reference.adamw, 0.0, 0);
    EXPECT_LT(std::abs(packed.loss / reference.packed_loss - 1.0), kBound);
    EXPECT_LT(std::abs(packed.grad_norm / reference.packed_grad_norm - 1.0), kBound);
  }
}

TEST_P(GpuParity, Bfloat16StaysWithinTheErrorOfOneRank) {
  const ReferenceCase reference(GetParam());
  const ModelDescription& model = reference.directory.description();
  NamedValues expected;
  for (const std::string& name : reference.directory.tensor_names()) {
    expected[name] = reference.expected.read_float32("grad." + name);
  }
  double own_gradient_error = 0.0;
  double own_loss_error = 0.0;
  for (const GpuRun& each : runs()) {
    const RunSettings run = on_cuda(each, DType::bfloat16);
    SCOPED_TRACE(run.describe());
    const RunOutcome outcome =
        run_case(model, &reference.directory, {reference.plain}, run, reference.adamw, reference.learning_rate, 3);
    const double error = gradient_error(outcome.gradients, expected);
    const double loss_error = std::abs(outcome.loss / reference.loss - 1.0);
    if (own_gradient_error == 0.0) {
      own_gradient_error = error;
      own_loss_error = std::max(loss_error, 1e-4);
    }
    EXPECT_LT(error, kBf16Bound);
    EXPECT_LE(error, kBf16Factor * own_gradient_error);
    EXPECT_LE(loss_error, kBf16Factor * own_loss_error);
    // Three steps go down as far as in float32.
    EXPECT_NEAR(outcome.loss_after_steps, reference.loss_after_steps, 0.01 * reference.loss_after_steps);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GpuParity, ::testing::Values("llama-plain", "llama3-rope", "qwen2", "qwen3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Lengths of real use: documents, a window.
class GpuRealShapes : public GpuModelTest {
 protected:
  void SetUp() override {
    GpuModelTest::SetUp();
    model_.initializer_range = 0.05;
  }
  static std::vector<std::vector<int64_t>> documents() { return {{1100}, {700, 1, 7, 392}, {300, 300, 300, 200}}; }
};

TEST_F(GpuRealShapes, Float32OnEveryMeshEqualsOneRank) {
  for (const std::vector<int64_t>& lengths : documents()) {
    const Sequence sequence = random_sequence(1100, model_.vocabulary, lengths, 3);
    const RunOutcome on_cpu =
        run_case(model_, nullptr, {sequence}, settings_of({}, RecomputePolicy::attention, 0, 0), {}, 1e-4, 1);
    const RunOutcome expected =
        run_case(model_, nullptr, {sequence}, on_cuda({}, RecomputePolicy::attention, DType::float32), {}, 1e-4, 1);
    // Two implementations share no order of summation.
    EXPECT_LT(gradient_error(expected.gradients, on_cpu.gradients), 4 * kBound);
    EXPECT_LT(std::abs(expected.loss / on_cpu.loss - 1.0), kBound);
    for (const GpuRun& each : runs()) {
      check_against(expected, model_, {sequence}, on_cuda(each, DType::float32));
    }
  }
}

TEST_F(GpuRealShapes, Bfloat16StaysWithinTheErrorOfOneRank) {
  for (const bool windowed : {false, true}) {
    ModelDescription model = model_;
    if (windowed) {
      for (size_t layer = 0; layer < model.layers.size(); layer += 2) model.layers[layer].window = 129;
    }
    for (const std::vector<int64_t>& lengths : documents()) {
      const Sequence sequence = random_sequence(1100, model.vocabulary, lengths, 3);
      const RunOutcome expected =
          run_case(model, nullptr, {sequence}, settings_of({}, RecomputePolicy::attention, 0, 0), {}, 1e-4, 1);
      double own_error = 0.0;
      for (const GpuRun& each : runs()) {
        const RunSettings run = on_cuda(each, DType::bfloat16);
        SCOPED_TRACE(run.describe());
        const RunOutcome outcome = run_case(model, nullptr, {sequence}, run, {}, 1e-4, 1);
        const double error = gradient_error(outcome.gradients, expected.gradients);
        if (own_error == 0.0) own_error = error;
        EXPECT_LT(error, kBf16Bound);
        EXPECT_LE(error, kBf16Factor * own_error);
        EXPECT_NEAR(outcome.loss, expected.loss, 2e-3 * expected.loss);
      }
    }
  }
}

TEST_F(GpuRealShapes, DeterministicRunsGiveTheSameBits) {
  const Sequence sequence = random_sequence(1100, model_.vocabulary, {700, 400}, 5);
  for (const GpuRun& each : runs()) {
    const RunSettings run = on_cuda(each, DType::bfloat16, true);
    SCOPED_TRACE(run.describe());
    const RunOutcome first = run_case(model_, nullptr, {sequence}, run, {}, 1e-4, 2);
    for (int again = 0; again < 3; ++again) {
      const RunOutcome second = run_case(model_, nullptr, {sequence}, run, {}, 1e-4, 2);
      EXPECT_EQ(std::memcmp(&first.loss, &second.loss, sizeof(double)), 0);
      EXPECT_EQ(std::memcmp(&first.grad_norm, &second.grad_norm, sizeof(double)), 0);
      EXPECT_TRUE(first.gradients == second.gradients);
      EXPECT_TRUE(first.weights == second.weights);
      EXPECT_TRUE(first.compute_weights == second.compute_weights);
    }
  }
}

// Gradients are summed in the order of the ranks and the update is by element, so that the stages give the same bits:
// masters, and what the next forward reads, on ranks that share a sequence and on ranks that do not.
TEST_F(GpuRealShapes, BothStagesOfZeroTrainTheSameWeights) {
  const std::vector<Sequence> sequences = {random_sequence(1100, model_.vocabulary, {700, 400}, 5),
                                           random_sequence(900, model_.vocabulary, {900}, 6)};
  AdamWOptions adamw;
  adamw.weight_decay = 0.1;
  adamw.max_grad_norm = 0.0;  // the norm is a sum in another order
  for (const int dp_shard : {1, 2}) {
    RunSettings run = on_cuda({ScheduleKind::ring, Layout::zigzag, 3 - dp_shard, 1}, RecomputePolicy::attention,
                              DType::bfloat16, 0, true);
    run.mesh.dp_shard = dp_shard;
    run.accumulation = 3 - dp_shard;
    run.zero = ZeroStage::replicated;
    const RunOutcome zero = run_case(model_, nullptr, sequences, run, adamw, 1e-3, 3);
    run.zero = ZeroStage::optimizer_state;
    SCOPED_TRACE(run.describe());
    const RunOutcome one = run_case(model_, nullptr, sequences, run, adamw, 1e-3, 3);
    EXPECT_NEAR(one.grad_norm / zero.grad_norm, 1.0, 1e-12);
    EXPECT_TRUE(one.gradients == zero.gradients);
    EXPECT_TRUE(one.weights == zero.weights);
    EXPECT_TRUE(one.compute_weights == zero.compute_weights);
    EXPECT_LT(one.loss_after_steps, one.loss);
  }
}

// Sums are made in rank order whatever carries their terms.
TEST_F(GpuRealShapes, BothTransportsGiveTheSameBits) {
  if (cuda_device_count() < 2) GTEST_SKIP() << "NCCL wants a GPU for each rank; here is one";
  if (!cuda_nccl_absence_reason().empty()) GTEST_SKIP() << cuda_nccl_absence_reason();
  const Sequence sequence = random_sequence(1100, model_.vocabulary, {700, 400}, 5);
  for (const GpuRun& each : runs()) {
    const int ranks = each.mesh.ring * each.mesh.ulysses;
    if (ranks == 1 || ranks > cuda_device_count()) continue;
    RunSettings run = on_cuda(each, DType::bfloat16, true);
    SCOPED_TRACE(run.describe());
    const RunOutcome peers = run_case(model_, nullptr, {sequence}, run, {}, 1e-4, 2);
    run.backend.transport = Transport::nccl;
    const RunOutcome nccl = run_case(model_, nullptr, {sequence}, run, {}, 1e-4, 2);
    EXPECT_EQ(std::memcmp(&peers.loss, &nccl.loss, sizeof(double)), 0);
    EXPECT_EQ(std::memcmp(&peers.grad_norm, &nccl.grad_norm, sizeof(double)), 0);
    EXPECT_TRUE(peers.gradients == nccl.gradients);
    EXPECT_TRUE(peers.weights == nccl.weights);
  }
}

}  // namespace
}  // namespace ithaca::testing
