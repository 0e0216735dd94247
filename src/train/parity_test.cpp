// The acceptance test of everything: the same logits, loss, gradient norm, gradients and updated weights as Hugging
// Face, on every mesh, schedule, layout, tile size, accumulation and recompute policy. Bounds: docs/design.md,
// "Exactness".
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "train/parity_harness.h"

namespace ithaca::testing {
namespace {

constexpr double kBound = 5e-6;
constexpr double kUpdateBound = 3e-4;
// AdamW's first steps move every weight by about the learning rate, however small its gradient is. A gradient element
// this far below the tensor's root mean square is mostly the rounding of float32 sums (a key bias in a slow dimension
// of RoPE: softmax cancels all but 1e-4 of it), so its update is not decided by the formula: held to 1% of three full
// steps instead. About thirty of the 70,000 elements of all four models are that small.
constexpr double kUndecidedGradient = 2e-4;
constexpr double kUndecidedUpdate = 0.01;

const std::vector<std::string> kModels = {"llama-plain", "llama3-rope", "qwen2", "qwen3"};

MeshSizes mesh(int ring, int ulysses, int dp = 1) {
  MeshSizes sizes;
  sizes.ring = ring;
  sizes.ulysses = ulysses;
  sizes.dp_replicate = dp;
  return sizes;
}

RunSettings settings(ScheduleKind schedule, Layout layout, const MeshSizes& sizes,
                     RecomputePolicy policy = RecomputePolicy::attention, int64_t mlp_tile = 0, int64_t loss_tile = 0) {
  RunSettings result;
  result.mesh = sizes;
  result.schedule = schedule;
  result.layout = layout;
  result.model.recompute = policy;
  result.model.mlp_tile = mlp_tile;
  result.model.loss_tile = loss_tile;
  return result;
}

// One rank and every way of splitting over 2, 3 and 4, each with other tiles and another policy.
std::vector<RunSettings> split_settings() {
  using enum RecomputePolicy;
  return {
      settings(ScheduleKind::ring, Layout::contiguous, mesh(1, 1), none),
      settings(ScheduleKind::ring, Layout::contiguous, mesh(1, 1), attention, 17, 31),
      settings(ScheduleKind::ring, Layout::contiguous, mesh(1, 1), full, 96, 1),
      settings(ScheduleKind::ring, Layout::contiguous, mesh(2, 1), none, 7, 13),
      settings(ScheduleKind::ring, Layout::zigzag, mesh(2, 1), attention),
      settings(ScheduleKind::ring, Layout::contiguous, mesh(3, 1), full, 5, 3),
      settings(ScheduleKind::ring, Layout::zigzag, mesh(3, 1), none, 11, 64),
      settings(ScheduleKind::ring, Layout::contiguous, mesh(4, 1), attention, 1, 9),
      settings(ScheduleKind::ring, Layout::zigzag, mesh(4, 1), full),
      settings(ScheduleKind::ulysses, Layout::contiguous, mesh(1, 2), none),
      settings(ScheduleKind::ulysses, Layout::contiguous, mesh(1, 3), attention, 10, 10),
      settings(ScheduleKind::ulysses, Layout::contiguous, mesh(1, 4), full, 6, 5),
  };
}

// The settings of several ranks at both stages of ZeRO.
std::vector<RunSettings> at_both_stages(const std::vector<RunSettings>& given) {
  std::vector<RunSettings> all;
  for (RunSettings each : given) {
    each.zero = ZeroStage::optimizer_state;
    all.push_back(each);
    each.zero = ZeroStage::replicated;
    if (each.mesh.ranks() > 1) all.push_back(each);
  }
  return all;
}

// Data-parallel ranks that share optimizer state, that repeat it, and both; with one sequence most have no token.
std::vector<RunSettings> data_parallel_settings() {
  using enum RecomputePolicy;
  std::vector<RunSettings> all = {settings(ScheduleKind::ring, Layout::zigzag, mesh(2, 1), attention, 7, 0),
                                  settings(ScheduleKind::ring, Layout::contiguous, mesh(1, 1), none),
                                  settings(ScheduleKind::ulysses, Layout::contiguous, mesh(1, 2), full)};
  all[0].mesh.dp_shard = 2;
  all[1].mesh.dp_shard = all[1].mesh.dp_replicate = 2;
  all[2].mesh.dp_replicate = 2;
  return all;
}

class Parity : public ::testing::TestWithParam<std::string> {};

TEST_P(Parity, LogitsOfEveryMesh) {
  const ReferenceCase reference(GetParam());
  for (const RunSettings& run : split_settings()) {
    SCOPED_TRACE(run.describe());
    const std::vector<float> plain =
        run_logits(reference.directory.description(), &reference.directory, reference.plain, run);
    EXPECT_LT(relative_difference(plain, reference.expected.read_float32("logits")), kBound);
    const std::vector<float> packed =
        run_logits(reference.directory.description(), &reference.directory, reference.packed, run);
    EXPECT_LT(relative_difference(packed, reference.expected.read_float32("packed_logits")), kBound);
  }
}

TEST_P(Parity, LossGradientsAndThreeStepsOnEveryMesh) {
  const ReferenceCase reference(GetParam());
  std::vector<RunSettings> runs = split_settings();
  for (const RunSettings& run : data_parallel_settings()) runs.push_back(run);
  for (const RunSettings& run : at_both_stages(runs)) {
    SCOPED_TRACE(run.describe());
    const RunOutcome outcome = run_case(reference.directory.description(), &reference.directory, {reference.plain}, run,
                                        reference.adamw, reference.learning_rate, 3);
    EXPECT_LT(std::abs(outcome.loss / reference.loss - 1.0), kBound);
    EXPECT_LT(std::abs(outcome.evaluation_loss / reference.loss - 1.0), kBound);
    EXPECT_LT(std::abs(outcome.grad_norm / reference.grad_norm - 1.0), kBound);
    size_t compared = 0;
    for (const auto& [name, values] : outcome.gradients) {
      EXPECT_LT(relative_difference(values, reference.expected.read_float32("grad." + name)), kBound) << name;
      ++compared;
    }
    EXPECT_EQ(compared, reference.directory.tensor_names().size());
    ASSERT_EQ(outcome.steps.size(), reference.step_losses.size());
    for (size_t step = 0; step < outcome.steps.size(); ++step) {
      // Later steps start from weights that differ by the rounding of the earlier updates.
      const double bound = step == 0 ? kBound : 10 * kBound;
      EXPECT_LT(std::abs(outcome.steps[step].loss / reference.step_losses[step] - 1.0), bound) << step;
      EXPECT_LT(std::abs(outcome.steps[step].grad_norm / reference.step_grad_norms[step] - 1.0), bound) << step;
      EXPECT_EQ(outcome.steps[step].applied_steps, static_cast<int64_t>(step) + 1);
    }
    EXPECT_LT(std::abs(outcome.loss_after_steps / reference.loss_after_steps - 1.0), 10 * kBound);
    EXPECT_EQ(outcome.compute_weights, outcome.weights);
    for (const auto& [name, values] : outcome.weights) {
      std::vector<float> start(values.size());
      reference.directory.read_float32(name, start);
      const std::vector<float> after = reference.expected.read_float32("step3." + name);
      const std::vector<float> gradient = reference.expected.read_float32("grad." + name);
      double square_norm = 0.0;
      for (const float value : gradient) square_norm += static_cast<double>(value) * static_cast<double>(value);
      const double undecided = kUndecidedGradient * std::sqrt(square_norm / static_cast<double>(gradient.size()));
      std::vector<float> update;
      std::vector<float> expected_update;
      for (size_t index = 0; index < values.size(); ++index) {
        const float step = values[index] - start[index];
        const float expected_step = after[index] - start[index];
        const double magnitude = std::abs(static_cast<double>(gradient[index]));
        if (magnitude == 0.0 || magnitude >= undecided) {
          update.push_back(step);
          expected_update.push_back(expected_step);
        } else {
          EXPECT_NEAR(step, expected_step, kUndecidedUpdate * 3.0 * reference.learning_rate)
              << name << '[' << index << ']';
        }
      }
      EXPECT_LT(relative_difference(update, expected_update), kUpdateBound) << name;
    }
  }
}

TEST_P(Parity, PackedDocumentsEqualSeparateSequencesOnEveryMeshAndAccumulation) {
  const ReferenceCase reference(GetParam());
  const ModelDescription& model = reference.directory.description();
  const RunOutcome single =
      run_case(model, &reference.directory, {reference.packed},
               settings(ScheduleKind::ring, Layout::contiguous, mesh(1, 1)), reference.adamw, 0.0, 0);
  EXPECT_LT(std::abs(single.loss / reference.packed_loss - 1.0), kBound);
  EXPECT_LT(std::abs(single.grad_norm / reference.packed_grad_norm - 1.0), kBound);

  const auto compare = [&](const std::vector<Sequence>& sequences, const RunSettings& run) {
    SCOPED_TRACE(run.describe());
    const RunOutcome outcome = run_case(model, &reference.directory, sequences, run, reference.adamw, 0.0, 0);
    EXPECT_LT(std::abs(outcome.loss / reference.packed_loss - 1.0), kBound);
    EXPECT_LT(std::abs(outcome.evaluation_loss / reference.packed_loss - 1.0), kBound);
    EXPECT_LT(std::abs(outcome.grad_norm / reference.packed_grad_norm - 1.0), kBound);
    for (const auto& [name, values] : outcome.gradients) {
      EXPECT_LT(relative_difference(values, single.gradients.at(name)), kBound) << name;
    }
  };
  for (const RunSettings& run : split_settings()) compare({reference.packed}, run);

  // The three documents as three sequences: in one micro-batch, in three accumulated ones, over two data-parallel
  // ranks.
  for (const RunSettings& split :
       {settings(ScheduleKind::ring, Layout::zigzag, mesh(2, 1)),
        settings(ScheduleKind::ring, Layout::contiguous, mesh(1, 1)),
        settings(ScheduleKind::ulysses, Layout::contiguous, mesh(1, 2), RecomputePolicy::full, 9, 4)}) {
    RunSettings one = split;
    one.micro_batch_size = 3;
    compare(reference.separate, one);
    RunSettings three = split;
    three.accumulation = 3;
    compare(reference.separate, three);
    RunSettings replicated = split;
    replicated.mesh.dp_replicate = 2;
    replicated.micro_batch_size = 2;
    compare(reference.separate, replicated);
    replicated.micro_batch_size = 1;
    replicated.accumulation = 3;  // more places than sequences: some micro-batches are empty
    compare(reference.separate, replicated);
    RunSettings sharded = replicated;
    std::swap(sharded.mesh.dp_replicate, sharded.mesh.dp_shard);
    compare(reference.separate, sharded);
    sharded.zero = ZeroStage::replicated;
    compare(reference.separate, sharded);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Parity, ::testing::ValuesIn(kModels), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace ithaca::testing
