// Whole steps over schedule x layout x ranks x documents x windows x tiles x policies, against one rank, on the
// reference models and on random shapes; and the faults that training frameworks have shipped, each with its right
// value. The matrix is sampled here; exactness_matrix_test.cpp runs all of it.
#include <gtest/gtest.h>

#include <cmath>

#include "train/exactness_testing.h"

namespace ithaca::testing {
namespace {

TEST(Exactness, SampledMatrix) {
  // Every 37th cell: 37 is prime to the sizes of all dimensions, so that each value of each dimension is met.
  const std::vector<MatrixCell> cells = exactness_matrix();
  for (size_t index = 0; index < cells.size(); index += 37) check_cell(cells[index]);
}

TEST(Exactness, TheErrorDoesNotGrowWithTheRanks) {
  const ModelDescription model = random_model(6, 3, 0);
  const std::vector<Sequence> sequences = {random_sequence(173, model.vocabulary, {173}, 1)};
  const RunOutcome single = run_case(model, nullptr, sequences, {}, {}, 0.0, 0);
  double largest = 0.0;
  for (const int ranks : {2, 3, 4, 5, 8}) {
    RunSettings run;
    run.mesh.ring = ranks;
    run.layout = Layout::zigzag;
    largest =
        std::max(largest, largest_gradient_difference(run_case(model, nullptr, sequences, run, {}, 0.0, 0), single));
  }
  RunSettings two;
  two.mesh.ring = 2;
  two.layout = Layout::zigzag;
  const double of_two = largest_gradient_difference(run_case(model, nullptr, sequences, two, {}, 0.0, 0), single);
  EXPECT_LT(largest, std::max(2.0 * of_two, 1e-6));
}

TEST(Exactness, RepeatsHaveTheSameBits) {
  const ModelDescription model = random_model(6, 3, 9);
  const std::vector<Sequence> sequences = {random_sequence(98, model.vocabulary, {50, 1, 47}, 2)};
  for (const MatrixMesh& mesh : matrix_meshes()) {
    if (mesh.ulysses > model.query_heads) continue;
    const RunSettings run = settings_of(mesh, RecomputePolicy::attention, 13, 17);
    const RunOutcome first = run_case(model, nullptr, sequences, run, {}, 1e-3, 2);
    const RunOutcome second = run_case(model, nullptr, sequences, run, {}, 1e-3, 2);
    EXPECT_EQ(first.gradients, second.gradients) << run.describe();
    EXPECT_EQ(first.weights, second.weights) << run.describe();
  }
}

TEST(Exactness, RanksOfSeveralCasesGiveWhatRanksOfOneGive) {
  const ModelDescription plain = random_model(6, 3, 0);
  const ModelDescription windowed = random_model(6, 3, 9);
  const Sequence sequence = random_sequence(98, plain.vocabulary, {50, 1, 47}, 2);
  const RunSettings run = settings_of({ScheduleKind::ring, Layout::zigzag, 2, 1}, RecomputePolicy::attention, 13, 17);
  const std::vector<RunOutcome> both = run_first_steps({{plain, {sequence}}, {windowed, {sequence}}}, run, 1e-3);
  const RunOutcome first = run_case(plain, nullptr, {sequence}, run, {}, 1e-3, 1);
  const RunOutcome second = run_case(windowed, nullptr, {sequence}, run, {}, 1e-3, 1);
  EXPECT_EQ(both.at(0).gradients, first.gradients);
  EXPECT_EQ(both.at(0).loss, first.loss);
  EXPECT_EQ(both.at(1).gradients, second.gradients);
  EXPECT_EQ(both.at(1).evaluation_loss, second.evaluation_loss);
  EXPECT_EQ(both.at(1).grad_norm, second.grad_norm);
  EXPECT_NE(both.at(1).loss, both.at(0).loss);
  EXPECT_TRUE(both.at(0).weights.empty());
  EXPECT_FALSE(both.at(1).weights.empty());
}

TEST(Exactness, EveryPolicyAndTileOnOneRankHasTheSameLoss) {
  const ModelDescription model = random_model(4, 2, 0);
  const std::vector<Sequence> sequences = {random_sequence(61, model.vocabulary, {61}, 3)};
  const RunOutcome expected = run_case(model, nullptr, sequences, {}, {}, 0.0, 0);
  for (const RecomputePolicy policy : {RecomputePolicy::none, RecomputePolicy::attention, RecomputePolicy::full}) {
    for (const int64_t tile : {1, 7, 60, 61, 62, 1000}) {
      const RunSettings run = settings_of({ScheduleKind::ring, Layout::contiguous, 1, 1}, policy, tile, tile);
      const RunOutcome outcome = run_case(model, nullptr, sequences, run, {}, 0.0, 0);
      EXPECT_NEAR(outcome.loss / expected.loss, 1.0, 1e-6) << run.describe();
      EXPECT_LT(largest_gradient_difference(outcome, expected), kMatrixBound) << run.describe();
    }
  }
}

// ---- faults that others shipped ----

TEST(ShippedFaults, PositionsAroundAMillionInEveryLayout) {
  ModelDescription model = random_model(4, 2, 0);
  model.rope.theta = 1e6;
  Sequence sequence = random_sequence(90, model.vocabulary, {90}, 4);
  for (int64_t& position : sequence.position_ids)
    position += 999'950;  // a document that goes on from an earlier window
  const RunOutcome single = run_case(model, nullptr, {sequence}, {}, {}, 0.0, 0);
  for (const MatrixMesh& mesh : matrix_meshes()) {
    if (mesh.ulysses > model.query_heads) continue;
    check_against(single, model, {sequence}, settings_of(mesh, RecomputePolicy::attention, 0, 0));
  }
  // Rotary attention depends on differences of positions only. At a million float32 angles are coarse, as Hugging
  // Face's are, but nothing breaks.
  Sequence origin = sequence;
  for (int64_t& position : origin.position_ids) position -= 999'950;
  EXPECT_NEAR(run_case(model, nullptr, {origin}, {}, {}, 0.0, 0).loss / single.loss, 1.0, 0.02);
}

TEST(ShippedFaults, ARankWithoutAnyLabelContributesZeros) {
  const ModelDescription model = random_model(4, 2, 0);
  Sequence sequence = random_sequence(64, model.vocabulary, {64}, 5);
  for (size_t token = 0; token < 48; ++token)
    sequence.shifted_labels[token] = kNoLabel;  // a long prompt: three of four ranks have nothing
  const RunOutcome single = run_case(model, nullptr, {sequence}, {}, {}, 0.0, 0);
  EXPECT_TRUE(std::isfinite(single.loss));
  for (const int ranks : {2, 4, 8}) {
    check_against(single, model, {sequence},
                  settings_of({ScheduleKind::ring, Layout::contiguous, ranks, 1}, RecomputePolicy::full, 0, 0));
  }
}

TEST(ShippedFaults, LossNormAndEvaluationAreTheSameForSp1Sp2Sp8WithAccumulationAndPromptMasks) {
  const ModelDescription model = random_model(8, 2, 0);
  std::vector<Sequence> sequences;
  for (int64_t index = 0; index < 6; ++index) {
    Sequence sequence =
        random_sequence(40 + 17 * index, model.vocabulary, {40 + 17 * index}, 10 + static_cast<uint64_t>(index));
    for (int64_t token = 0; token < 5 + 11 * index; ++token)
      sequence.shifted_labels[static_cast<size_t>(token)] = kNoLabel;
    sequences.push_back(std::move(sequence));
  }
  RunSettings run;
  run.micro_batch_size = 2;
  run.accumulation = 3;
  const RunOutcome single = run_case(model, nullptr, sequences, run, {}, 1e-3, 3);
  for (const MatrixMesh& mesh : {MatrixMesh{ScheduleKind::ring, Layout::zigzag, 2, 1},
                                 MatrixMesh{ScheduleKind::ulysses, Layout::contiguous, 1, 2},
                                 MatrixMesh{ScheduleKind::ring, Layout::striped, 8, 1},
                                 MatrixMesh{ScheduleKind::ulysses, Layout::contiguous, 1, 8},
                                 MatrixMesh{ScheduleKind::hybrid, Layout::zigzag, 4, 2}}) {
    run.mesh.ring = mesh.ring;
    run.mesh.ulysses = mesh.ulysses;
    run.schedule = mesh.schedule;
    run.layout = mesh.layout;
    const RunOutcome outcome = run_case(model, nullptr, sequences, run, {}, 1e-3, 3);
    EXPECT_NEAR(outcome.loss / single.loss, 1.0, kMatrixBound) << run.describe();
    EXPECT_NEAR(outcome.evaluation_loss / single.evaluation_loss, 1.0, kMatrixBound) << run.describe();
    EXPECT_NEAR(outcome.evaluation_loss / outcome.loss, 1.0, kMatrixBound) << run.describe();
    EXPECT_NEAR(outcome.grad_norm / single.grad_norm, 1.0, kMatrixBound) << run.describe();
    ASSERT_EQ(outcome.steps.size(), single.steps.size());
    EXPECT_EQ(outcome.steps.back().applied_steps, single.steps.back().applied_steps);
    EXPECT_NEAR(outcome.loss_after_steps / single.loss_after_steps, 1.0, 1e-4) << run.describe();
  }
}

TEST(ShippedFaults, Lengths1000And5000InOneDataParallelGroup) {
  const ModelDescription model = random_model(4, 1, 0);
  const std::vector<Sequence> sequences = {random_sequence(1000, model.vocabulary, {1000}, 20),
                                           random_sequence(5000, model.vocabulary, {5000}, 21)};
  RunSettings one;
  one.accumulation = 2;
  const RunOutcome single = run_case(model, nullptr, sequences, one, {}, 0.0, 0);
  RunSettings two = settings_of({ScheduleKind::ring, Layout::zigzag, 2, 1}, RecomputePolicy::attention, 0, 0);
  two.mesh.dp_replicate = 2;
  check_against(single, model, sequences, two);
}

TEST(ShippedFaults, FewerTokensThanRanks) {
  const ModelDescription model = random_model(8, 8, 0);
  for (const int64_t tokens : {1, 2, 7}) {
    const Sequence sequence =
        random_sequence(tokens, model.vocabulary, {tokens}, 30 + static_cast<uint64_t>(tokens), false);
    const RunOutcome single = run_case(model, nullptr, {sequence}, {}, {}, 0.0, 0);
    for (const MatrixMesh& mesh : matrix_meshes())
      check_against(single, model, {sequence}, settings_of(mesh, RecomputePolicy::none, 3, 2));
  }
}

TEST(ShippedFaults, TwoModelsWithDifferentHeadCountsInOneProcess) {
  const ModelDescription first = random_model(6, 3, 0);
  const ModelDescription second = random_model(5, 1, 4);
  const std::vector<Sequence> sequences = {random_sequence(33, first.vocabulary, {33}, 40)};
  const RunOutcome expected_first = run_case(first, nullptr, sequences, {}, {}, 0.0, 0);
  const RunOutcome expected_second = run_case(second, nullptr, sequences, {}, {}, 0.0, 0);
  const RunSettings run =
      settings_of({ScheduleKind::ulysses, Layout::contiguous, 1, 4}, RecomputePolicy::attention, 0, 0);
  for (int round = 0; round < 2; ++round) {
    check_against(expected_first, first, sequences, run);
    check_against(expected_second, second, sequences, run);
  }
}

}  // namespace
}  // namespace ithaca::testing
