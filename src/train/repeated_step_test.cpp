// Whole steps give the same bits at any pace: ranks on CPUs, as repeated_step_testing.h makes them on GPUs.
#include <gtest/gtest.h>

#include "train/exactness_testing.h"
#include "train/repeated_step_testing.h"

namespace ithaca::testing {
namespace {

TEST(RepeatedStep, LeavesTheSameBitsAHundredTimesUnderLoad) {
  const ModelDescription model = random_model(8, 2, 31);
  const Sequence sequence = random_sequence(96, model.vocabulary, {50, 46}, 5);
  for (const MatrixMesh& mesh : {MatrixMesh{ScheduleKind::ring, Layout::zigzag, 2, 1},
                                 MatrixMesh{ScheduleKind::ulysses, Layout::contiguous, 1, 2},
                                 MatrixMesh{ScheduleKind::all_gather, Layout::striped, 3, 1},
                                 MatrixMesh{ScheduleKind::hybrid, Layout::zigzag, 2, 2}}) {
    const RunSettings run = settings_of(mesh, RecomputePolicy::attention, 0, 0);
    SCOPED_TRACE(run.describe());
    const std::vector<StepBits> first = repeat_step(model, sequence, run, 50, 1);
    // Ranks made anew leave the same.
    EXPECT_TRUE(repeat_step(model, sequence, run, 50, 2) == first);
    const StepBits other = repeat_step(model, random_sequence(96, model.vocabulary, {50, 46}, 6), run, 1, 1).front();
    EXPECT_NE(other.at("loss"), first.front().at("loss"));
    EXPECT_NE(other.at("own masters of unit 0"), first.front().at("own masters of unit 0"));
  }
}

}  // namespace
}  // namespace ithaca::testing
