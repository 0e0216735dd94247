// The acceptance test on GPUs: in float32 the same numbers as Hugging Face on every mesh; in bfloat16 no further from
// float32 than 2.5 times one rank's own bfloat16; with `deterministic` the same bits every time. Ranks share the GPUs
// that there are. Bounds: docs/design.md, "Exactness".
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "backend/cuda/cuda_backend.h"
#include "train/gpu_testing.h"
#include "train/parity_harness.h"
#include "train/repeated_step_testing.h"

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
  // One step over sequences of these documents with each model.
  static std::vector<FirstStepCase> cases(const std::vector<ModelDescription>& models) {
    std::vector<FirstStepCase> result;
    for (const ModelDescription& model : models) {
      for (const std::vector<int64_t>& lengths :
           std::vector<std::vector<int64_t>>{{1100}, {700, 1, 7, 392}, {300, 300, 300, 200}}) {
        result.push_back({model, {random_sequence(1100, model.vocabulary, lengths, 3)}});
      }
    }
    return result;
  }
};

TEST_F(GpuRealShapes, Float32OnEveryMeshEqualsOneRank) {
  const std::vector<FirstStepCase> all = cases({model_});
  const std::vector<RunOutcome> on_cpu = run_first_steps(all, settings_of({}, RecomputePolicy::attention, 0, 0), 1e-4);
  const std::vector<RunOutcome> expected =
      run_first_steps(all, on_cuda({}, RecomputePolicy::attention, DType::float32), 1e-4);
  for (size_t index = 0; index < all.size(); ++index) {
    // Two implementations share no order of summation.
    EXPECT_LT(gradient_error(expected[index].gradients, on_cpu[index].gradients), 4 * kBound);
    EXPECT_LT(std::abs(expected[index].loss / on_cpu[index].loss - 1.0), kBound);
  }
  for (const GpuRun& each : runs()) {
    const RunSettings run = on_cuda(each, DType::float32);
    const std::vector<RunOutcome> outcomes = run_first_steps(all, run, 1e-4);
    for (size_t index = 0; index < all.size(); ++index) check_outcome(outcomes[index], expected[index], run);
  }
}

TEST_F(GpuRealShapes, Bfloat16StaysWithinTheErrorOfOneRank) {
  ModelDescription windowed = model_;
  windowed.layers[0].window = 129;
  const std::vector<FirstStepCase> all = cases({model_, windowed});
  const std::vector<RunOutcome> expected =
      run_first_steps(all, settings_of({}, RecomputePolicy::attention, 0, 0), 1e-4);
  std::vector<double> own_errors;
  for (const GpuRun& each : runs()) {
    const RunSettings run = on_cuda(each, DType::bfloat16);
    const std::vector<RunOutcome> outcomes = run_first_steps(all, run, 1e-4);
    for (size_t index = 0; index < all.size(); ++index) {
      SCOPED_TRACE(fmt::format("case {}: {}", index, run.describe()));
      const double error = gradient_error(outcomes[index].gradients, expected[index].gradients);
      if (own_errors.size() == index) own_errors.push_back(error);
      EXPECT_LT(error, kBf16Bound);
      EXPECT_LE(error, kBf16Factor * own_errors[index]);
      EXPECT_NEAR(outcomes[index].loss, expected[index].loss, 2e-3 * expected[index].loss);
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
    EXPECT_EQ(std::bit_cast<uint64_t>(peers.loss), std::bit_cast<uint64_t>(nccl.loss));
    EXPECT_EQ(std::bit_cast<uint64_t>(peers.grad_norm), std::bit_cast<uint64_t>(nccl.grad_norm));
    EXPECT_TRUE(peers.gradients == nccl.gradients);
    EXPECT_TRUE(peers.weights == nccl.weights);
  }
}

// With `deterministic` whole steps leave the same bits every time, at any pace, also those of ranks made anew.
class GpuRepeatedStep : public GpuModelTest, public ::testing::WithParamInterface<GpuRun> {};

TEST_P(GpuRepeatedStep, LeavesTheSameBitsAHundredTimesUnderLoad) {
  model_.hidden_size = 128;  // all bits travel to the host after each step
  model_.intermediate_size = 256;
  const Sequence sequence = random_sequence(1100, model_.vocabulary, {700, 400}, 5);
  const RunSettings run = on_cuda(GetParam(), DType::bfloat16, true);
  const std::vector<StepBits> first = repeat_step(model_, sequence, run, 50, 1);
  EXPECT_TRUE(repeat_step(model_, sequence, run, 50, 2) == first);
}

INSTANTIATE_TEST_SUITE_P(Meshes, GpuRepeatedStep, ::testing::ValuesIn(runs()), [](const auto& info) {
  const MatrixMesh& mesh = info.param.mesh;
  return fmt::format("{}_{}_{}", schedule_name(mesh.schedule), mesh.ring * mesh.ulysses,
                     recompute_policy_name(info.param.policy));
});

}  // namespace
}  // namespace ithaca::testing
