#include "backend/cuda/attention_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace ithaca::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Pairs = std::map<std::pair<int64_t, int64_t>, int>;

// How often each pair is visible, by the definition in operations.h.
void add_pairs(const AttentionTask& task, Pairs& pairs) {
  for (int64_t q = task.q_begin; q < task.q_end; ++q) {
    for (int64_t k = task.k_begin; k < task.k_end; ++k) {
      const int64_t diagonal = (k - task.k_begin) - (q - task.q_begin);
      if (task.lower < diagonal && diagonal <= task.upper) ++pairs[{q, k}];
    }
  }
}

// The same for a rectangle of a fused call, by the definition of its mask.
void add_pairs(const AttentionCall& call, const AttentionEntry& entry, Pairs& pairs) {
  for (int64_t i = 0; i < entry.q_length; ++i) {
    const int64_t last = call.mask == AttentionMask::full     ? entry.k_length - 1
                         : call.mask == AttentionMask::causal ? i
                                                              : i + entry.k_length - entry.q_length;
    for (int64_t j = 0; j < entry.k_length; ++j) {
      if (j <= last && (call.window == 0 || j > last - call.window)) ++pairs[{entry.q_begin + i, entry.k_begin + j}];
    }
  }
}

Pairs pairs_of(const std::vector<AttentionTask>& tasks) {
  Pairs pairs;
  for (const AttentionTask& task : tasks) add_pairs(task, pairs);
  return pairs;
}

Pairs pairs_of(const std::vector<AttentionCall>& calls) {
  Pairs pairs;
  for (const AttentionCall& call : calls) {
    for (const AttentionEntry& entry : call.entries) add_pairs(call, entry, pairs);
    for (const AttentionTask& task : call.tasks) add_pairs(task, pairs);
  }
  return pairs;
}

AttentionTask full(int64_t q_begin, int64_t q_end, int64_t k_begin, int64_t k_end) {
  return {q_begin, q_end, k_begin, k_end, kNoLower, kNoUpper};
}
AttentionTask causal(int64_t begin, int64_t end) {
  return {begin, end, begin, end, kNoLower, 0};
}

TEST(AttentionCalls, OneDocumentIsOneDenseCall) {
  const auto calls = attention_calls(std::vector{causal(0, 1024)}, {});
  ASSERT_THAT(calls, SizeIs(1));
  EXPECT_EQ(calls[0].form, AttentionForm::dense);
  EXPECT_EQ(calls[0].mask, AttentionMask::causal);
  EXPECT_EQ(calls[0].window, 0);
  EXPECT_THAT(calls[0].entries, ElementsAre(AttentionEntry{0, 1024, 0, 1024}));
}

TEST(AttentionCalls, LengthsThatDensePlansDoNotTakeAreRagged) {
  const auto calls = attention_calls(std::vector{causal(0, 1000)}, {});
  ASSERT_THAT(calls, SizeIs(1));
  EXPECT_EQ(calls[0].form, AttentionForm::ragged);
}

TEST(AttentionCalls, EqualDocumentsAreADenseBatchAndOthersARaggedOne) {
  std::vector<AttentionTask> equal;
  for (int64_t i = 0; i < 16; ++i) equal.push_back(causal(256 * i, 256 * (i + 1)));
  auto calls = attention_calls(equal, {});
  ASSERT_THAT(calls, SizeIs(1));
  EXPECT_EQ(calls[0].form, AttentionForm::dense);
  EXPECT_THAT(calls[0].entries, SizeIs(16));

  equal.push_back(causal(4096, 4103));
  calls = attention_calls(equal, {});
  ASSERT_THAT(calls, SizeIs(1));
  EXPECT_EQ(calls[0].form, AttentionForm::ragged);
  EXPECT_EQ(calls[0].mask, AttentionMask::causal);
  EXPECT_THAT(calls[0].entries, SizeIs(17));
}

TEST(AttentionCalls, WindowsCountFromTheDiagonal) {
  auto calls = attention_calls(std::vector<AttentionTask>{{0, 1024, 0, 1024, -256, 0}}, {});
  ASSERT_THAT(calls, SizeIs(1));
  EXPECT_EQ(calls[0].mask, AttentionMask::causal);
  EXPECT_EQ(calls[0].window, 256);
  // The last 512 queries of a sequence of 1024: aligned to the bottom right corner.
  calls = attention_calls(std::vector<AttentionTask>{{0, 512, 0, 1024, 512 - 700, 512}}, {});
  ASSERT_THAT(calls, SizeIs(1));
  EXPECT_EQ(calls[0].mask, AttentionMask::causal_bottom_right);
  EXPECT_EQ(calls[0].window, 700);
}

// Ring rank r of 4 in the zigzag layout holds chunks r and 7 - r.
TEST(AttentionCalls, ZigzagHopsAreSingleRectangles) {
  const int64_t c = 512;
  // Own keys: both chunks causal, the second one sees the first one too. In local indices that is one causal square.
  auto calls = attention_calls(std::vector{causal(0, c), full(c, 2 * c, 0, c), causal(c, 2 * c)}, {});
  ASSERT_THAT(calls, SizeIs(1));
  EXPECT_EQ(calls[0].form, AttentionForm::dense);
  EXPECT_EQ(calls[0].mask, AttentionMask::causal);
  EXPECT_THAT(calls[0].entries, ElementsAre(AttentionEntry{0, 2 * c, 0, 2 * c}));
  // Keys of a lower rank: both chunks see its first one.
  calls = attention_calls(std::vector{full(0, c, 0, c), full(c, 2 * c, 0, c)}, {});
  ASSERT_THAT(calls, SizeIs(1));
  EXPECT_THAT(calls[0].entries, ElementsAre(AttentionEntry{0, 2 * c, 0, c}));
  // Keys of a higher rank: the second chunk sees both.
  calls = attention_calls(std::vector{full(c, 2 * c, 0, c), full(c, 2 * c, c, 2 * c)}, {});
  ASSERT_THAT(calls, SizeIs(1));
  EXPECT_THAT(calls[0].entries, ElementsAre(AttentionEntry{c, c, 0, 2 * c}));
}

// Documents that a layout has cut into several pieces are whole again where their pieces lie together.
TEST(AttentionCalls, CutSquaresAreJoined) {
  // Three pieces, of queries as of keys.
  auto calls = attention_calls(
      std::vector{causal(0, 3), full(3, 7, 0, 3), causal(3, 7), full(7, 12, 0, 3), full(7, 12, 3, 7), causal(7, 12)},
      {});
  ASSERT_THAT(calls, SizeIs(1));
  EXPECT_EQ(calls[0].mask, AttentionMask::causal);
  EXPECT_THAT(calls[0].entries, ElementsAre(AttentionEntry{0, 12, 0, 12}));
  // The lower one sees more of the first keys than its diagonal allows: no mask holds both.
  calls = attention_calls(std::vector{causal(0, 8), full(8, 16, 0, 8)}, {});
  EXPECT_EQ(pairs_of(calls), pairs_of(std::vector{causal(0, 8), full(8, 16, 0, 8)}));
  calls = attention_calls(std::vector{causal(0, 8), full(8, 16, 0, 10)}, {});
  EXPECT_THAT(calls, SizeIs(2));
}

// Striped: the keys of a later rank are visible below the diagonal only.
TEST(AttentionCalls, StripedBandsAreCausal) {
  const auto calls = attention_calls(std::vector<AttentionTask>{{0, 512, 0, 512, kNoLower, -1}}, {});
  ASSERT_THAT(calls, SizeIs(1));
  EXPECT_EQ(calls[0].mask, AttentionMask::causal);
  EXPECT_EQ(calls[0].form, AttentionForm::ragged);
  EXPECT_THAT(calls[0].entries, ElementsAre(AttentionEntry{1, 511, 0, 511}));
}

TEST(AttentionCalls, PiecesOfDocumentsShareARaggedCallWhileDisjoint) {
  const std::vector<AttentionTask> tasks = {full(0, 100, 0, 70), full(100, 300, 70, 300), full(300, 310, 300, 900)};
  const auto calls = attention_calls(tasks, {});
  ASSERT_THAT(calls, SizeIs(1));
  EXPECT_EQ(calls[0].form, AttentionForm::ragged);
  EXPECT_EQ(calls[0].mask, AttentionMask::full);
  EXPECT_THAT(calls[0].entries, SizeIs(3));
  // A query that appears twice needs a second call.
  EXPECT_THAT(attention_calls(std::vector{full(0, 100, 0, 70), full(50, 300, 100, 200)}, {}), SizeIs(2));
}

TEST(AttentionCalls, BandsThatAreNoMaskGoToTheTaskKernels) {
  // A window without causality: the keys of an earlier shard.
  const auto calls = attention_calls(std::vector<AttentionTask>{{0, 512, 0, 512, 100, kNoUpper}}, {});
  ASSERT_THAT(calls, SizeIs(1));
  EXPECT_EQ(calls[0].form, AttentionForm::tasks);
  EXPECT_THAT(calls[0].tasks, ElementsAre(AttentionTask{0, 411, 101, 512, -1, 410}));
}

TEST(AttentionCalls, CausalBandsBetweenTheCornersAreCut) {
  // Rows from 48 on see all 64 columns.
  const std::vector<AttentionTask> tasks = {{0, 80, 0, 64, kNoLower, 16}};
  const auto calls = attention_calls(tasks, {});
  EXPECT_EQ(pairs_of(calls), pairs_of(tasks));
  for (const AttentionCall& call : calls) EXPECT_NE(call.form, AttentionForm::tasks);
}

TEST(AttentionCalls, SmallWorkGoesToTheTaskKernels) {
  AttentionCallRules rules;
  rules.query_heads = 4;
  rules.smallest_fused_work = 4 * 55 + 1;
  EXPECT_EQ(attention_calls(std::vector{causal(0, 10)}, rules).at(0).form, AttentionForm::tasks);
  rules.smallest_fused_work -= 1;
  EXPECT_EQ(attention_calls(std::vector{causal(0, 10)}, rules).at(0).form, AttentionForm::ragged);
  rules.fused = false;
  EXPECT_EQ(attention_calls(std::vector{causal(0, 1024)}, rules).at(0).form, AttentionForm::tasks);
}

TEST(AttentionCalls, LargeRectanglesHaveCallsOfTheirOwn) {
  AttentionCallRules rules;
  rules.query_heads = 32;
  const auto calls = attention_calls(std::vector{causal(0, 8192), causal(8192, 8192 + 4096)}, rules);
  ASSERT_THAT(calls, SizeIs(2));
  EXPECT_EQ(calls[0].form, AttentionForm::dense);
  EXPECT_EQ(calls[1].form, AttentionForm::dense);
}

TEST(AttentionCalls, LargeRectanglesLeaveARaggedCall) {
  AttentionCallRules rules;
  rules.query_heads = 32;
  std::vector<AttentionTask> tasks;
  int64_t begin = 0;
  for (const int64_t length : {32768, 16384, 8192, 4096, 2048, 2048}) {
    tasks.push_back(causal(begin, begin + length));
    begin += length;
  }
  const auto calls = attention_calls(tasks, rules);
  ASSERT_THAT(calls, SizeIs(4));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(calls[i].form, AttentionForm::dense);
    EXPECT_THAT(calls[i].entries, SizeIs(1));
  }
  EXPECT_EQ(calls[3].form, AttentionForm::ragged);
  EXPECT_THAT(calls[3].entries, SizeIs(3));
}

TEST(AttentionCalls, NothingVisibleIsNoCall) {
  EXPECT_THAT(attention_calls({}, {}), IsEmpty());
  EXPECT_THAT(attention_calls(std::vector<AttentionTask>{{0, 10, 0, 10, kNoLower, -10}, {5, 5, 0, 3}}, {}), IsEmpty());
}

// Random disjoint tasks: cells of a grid, some of them cut by random bands. Whatever the rules, the calls hold every
// visible pair once and keep what they promise.
TEST(AttentionCalls, HoldEveryPairOnce) {
  std::mt19937 random(7);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(random() % static_cast<uint64_t>(bound)); };
  for (int round = 0; round < 100; ++round) {
    std::vector<int64_t> rows = {0};
    std::vector<int64_t> columns = {0};
    while (rows.back() < 40) rows.push_back(rows.back() + 1 + below(12));
    while (columns.back() < 40) columns.push_back(columns.back() + 1 + below(12));
    std::vector<AttentionTask> tasks;
    for (size_t i = 0; i + 1 < rows.size(); ++i) {
      for (size_t j = 0; j + 1 < columns.size(); ++j) {
        AttentionTask task = full(rows[i], rows[i + 1], columns[j], columns[j + 1]);
        switch (below(6)) {
          case 0:
            continue;
          case 1:
            task.upper = below(24) - 12;
            break;
          case 2:
            task.lower = below(24) - 12;
            break;
          case 3:
            task.upper = below(24) - 12;
            task.lower = task.upper - below(10);
            break;
          case 4:
            // As one causal mask over everything gives it.
            task.upper = rows[i] - columns[j];
            break;
          default:
            break;
        }
        tasks.push_back(task);
      }
    }
    std::shuffle(tasks.begin(), tasks.end(), random);
    AttentionCallRules rules;
    rules.dense_multiple = 1 + below(4);
    rules.smallest_fused_work = below(60);
    rules.large_entry_rows = 1 + below(30);
    rules.most_entries = 1 + below(5);
    rules.most_large_entries = below(4);
    rules.most_fused_calls = 1 + below(20);
    const std::vector<AttentionCall> calls = attention_calls(tasks, rules);
    Pairs expected = pairs_of(tasks);
    ASSERT_EQ(pairs_of(calls), expected) << "round " << round;

    int64_t pairs = 0;
    for (const AttentionCall& call : calls) {
      pairs += visible_pairs(call);
      ASSERT_EQ(pairs_of(tasks_of(call)), pairs_of(std::vector{call}));
      for (size_t i = 0; i < call.entries.size(); ++i) {
        const AttentionEntry& entry = call.entries[i];
        ASSERT_GT(entry.q_length, 0);
        ASSERT_GT(entry.k_length, 0);
        if (call.form == AttentionForm::dense) {
          ASSERT_EQ(entry.q_length % rules.dense_multiple, 0);
          ASSERT_EQ(entry.q_length, call.entries[0].q_length);
          ASSERT_EQ(entry.k_length, call.entries[0].k_length);
        }
        if (i == 0) continue;
        ASSERT_LE(call.entries[i - 1].q_end(), entry.q_begin);
        ASSERT_LE(call.entries[i - 1].k_end(), entry.k_begin);
      }
      if (call.form == AttentionForm::ragged) {
        ASSERT_LE(static_cast<int64_t>(call.entries.size()), rules.most_entries);
      }
    }
    ASSERT_EQ(pairs, static_cast<int64_t>(expected.size()));
  }
}

TEST(AttentionCalls, TilesListTheTasksThatTouchThem) {
  const auto tasks = normalised_tasks(std::vector{full(200, 210, 0, 5), causal(0, 130), full(64, 70, 300, 310)});
  const TiledTasks by_query = tiled_by_queries(tasks, 64);
  EXPECT_THAT(by_query.tiles,
              ElementsAre(TaskTile{0, 0, 1}, TaskTile{64, 0, 2}, TaskTile{128, 0, 1}, TaskTile{192, 2, 1}));
  EXPECT_EQ(by_query.tasks[2].q_begin, 200);
  const TiledTasks by_key = tiled_by_keys(tasks, 64);
  EXPECT_THAT(by_key.tiles,
              ElementsAre(TaskTile{0, 0, 2}, TaskTile{64, 1, 1}, TaskTile{128, 1, 1}, TaskTile{256, 2, 1}));
}

TEST(AttentionCalls, RangesJoinAndCompare) {
  const std::vector<TokenRange> first = {{0, 10}, {20, 30}};
  const std::vector<TokenRange> second = {{10, 15}, {40, 50}};
  EXPECT_THAT(joined_ranges(first, second), ElementsAre(TokenRange{0, 15}, TokenRange{20, 30}, TokenRange{40, 50}));
  EXPECT_TRUE(are_disjoint(first, second));
  EXPECT_FALSE(are_disjoint(first, std::vector<TokenRange>{{29, 31}}));
  EXPECT_TRUE(are_disjoint(first, {}));
}

}  // namespace
}  // namespace ithaca::cuda
