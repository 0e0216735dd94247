// The whole matrix: every schedule x layout x ranks x documents x windows x head shapes x lengths.
#include <gtest/gtest.h>

#include <vector>

#include "attention/schedule_testing.h"

namespace ithaca::testing {
namespace {

struct MatrixHeads {
  int64_t query_heads, key_heads, key_size, value_size;
};

class ScheduleMatrix : public ::testing::TestWithParam<int64_t> {};

TEST_P(ScheduleMatrix, IsExact) {
  const int64_t tokens = GetParam();
  for (const MatrixHeads& sizes : {MatrixHeads{4, 2, 8, 8}, MatrixHeads{6, 3, 8, 12}, MatrixHeads{5, 1, 16, 8},
                                   MatrixHeads{28, 4, 4, 4}, MatrixHeads{40, 8, 4, 4}}) {
    if (tokens > 100 && sizes.query_heads > 6) continue;  // the float64 truth would take minutes
    const HeadShape heads{.query_heads = sizes.query_heads,
                          .key_heads = sizes.key_heads,
                          .key_size = sizes.key_size,
                          .value_size = sizes.value_size,
                          .scale = 0.29f};
    const SequenceInputs inputs = random_inputs(heads, tokens, 31);
    for (const Documents& documents :
         {Documents::single(tokens), random_documents(tokens, 6.0, 32), random_documents(tokens, 60.0, 33)}) {
      for (const MaskRule& mask : {MaskRule{.causal = true, .window = 0}, MaskRule{.causal = false, .window = 0},
                                   MaskRule{.causal = true, .window = 1}, MaskRule{.causal = true, .window = 5},
                                   MaskRule{.causal = true, .window = 64}}) {
        const SequenceTruth truth = true_results(heads, documents, mask, inputs);
        for (const int ranks : {1, 2, 3, 4, 5, 8}) {
          for (int ulysses = 1; ulysses <= ranks; ++ulysses) {
            if (ranks % ulysses != 0 || ulysses > sizes.query_heads) continue;
            for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
              std::vector<ScheduleKind> kinds{ScheduleKind::hybrid};
              if (ulysses == ranks) kinds.push_back(ScheduleKind::ulysses);
              if (ulysses == 1) kinds.insert(kinds.end(), {ScheduleKind::ring, ScheduleKind::all_gather});
              for (const ScheduleKind kind : kinds) {
                const ScheduleCase test_case{kind, layout, ulysses, ranks / ulysses, heads, documents, mask};
                const CaseRun run = run_case(test_case, inputs);
                ASSERT_LE(largest_error(run.results, truth), 3e-6) << test_case.describe();
                for (const RankReport& rank : run.ranks) {
                  ASSERT_EQ(rank.memory_left, 0) << test_case.describe();
                }
              }
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Lengths, ScheduleMatrix, ::testing::Values(1, 7, 97, 698));

}  // namespace
}  // namespace ithaca::testing
