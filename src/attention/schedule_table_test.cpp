// The tables of docs/schedules.md: what each schedule sends and holds, measured on one shape and held to the formulas.
// Print it with
//   attention_schedule_test --gtest_filter='ScheduleTable.*'
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "attention/communication_cost.h"
#include "attention/schedule_testing.h"
#include "base/text.h"

namespace ithaca::testing {
namespace {

constexpr int64_t kTokens = 512;
constexpr int64_t kElementBytes = 4;

HeadShape table_heads() {
  return {.query_heads = 16, .key_heads = 4, .key_size = 32, .value_size = 32, .scale = 0.18f};
}

struct Row {
  std::string name;
  int64_t forward = 0;
  int64_t backward = 0;
  int64_t exchanges = 0;  // communicator calls, forward and backward; 0 where only a formula is known
  int64_t memory = 0;     // highest use of communication memory; 0: not measured
};

void print(const std::vector<Row>& rows) {
  std::string text =
      "| schedule | bytes sent forward | bytes sent backward | exchanges | communication memory "
      "|\n|---|---|---|---|---|\n";
  for (const Row& row : rows) {
    text += fmt::format("| {} | {} | {} | {} | {} |\n", row.name, format_count(row.forward), format_count(row.backward),
                        row.exchanges == 0 && row.forward > 0 ? "-" : format_count(row.exchanges),
                        row.memory == 0 ? "-" : format_bytes(row.memory));
  }
  std::fputs(text.c_str(), stdout);
}

// Published methods that Ithaca does not have, by their formulas (docs/schedules.md).
std::vector<Row> published_methods(const HeadShape& heads, int64_t ranks) {
  const int64_t tokens_per_rank = kTokens / ranks;
  const int64_t hidden = heads.query_heads * heads.key_size;
  const int64_t rings = (ranks - 1) * tokens_per_rank * heads.query_heads * (heads.key_size + heads.value_size);
  const int64_t gather = (ranks - 1) * tokens_per_rank * hidden;
  return {{"ColAI ring self-attention (formula)", rings * kElementBytes, 3 * rings * kElementBytes, 0,
           tokens_per_rank * kTokens * heads.query_heads * kElementBytes},
          {fmt::format("Megatron sequence parallelism (formula, h = {})", hidden), 2 * gather * kElementBytes,
           3 * gather * kElementBytes, 0, 2 * kTokens * hidden * kElementBytes}};
}

// The rank that sends most, of one schedule run for real.
Row measured(const std::string& name, const ScheduleCase& test_case, const SequenceInputs& inputs) {
  Row row;
  row.name = name;
  for (const RankReport& rank : run_case(test_case, inputs).ranks) {
    const bool may_skip_hops = test_case.ring > 1 && test_case.layout == Layout::contiguous;
    EXPECT_LE(rank.forward_bytes(), rank.cost.forward_bytes) << name;
    EXPECT_LE(rank.backward_bytes(), rank.cost.backward_bytes) << name;
    if (!may_skip_hops) {
      EXPECT_EQ(rank.forward_bytes(), rank.cost.forward_bytes) << name;
      EXPECT_EQ(rank.backward_bytes(), rank.cost.backward_bytes) << name;
    }
    row.forward = std::max(row.forward, rank.forward_bytes());
    row.backward = std::max(row.backward, rank.backward_bytes());
    int64_t calls = 0;
    for (const Traffic* traffic :
         {&rank.forward_ring, &rank.forward_ulysses, &rank.backward_ring, &rank.backward_ulysses}) {
      for (const int64_t count : traffic->calls) calls += count;
    }
    row.exchanges = std::max(row.exchanges, calls);
    row.memory = std::max(row.memory, rank.peak_communication);
  }
  return row;
}

TEST(ScheduleTable, MeasuredOnFourAndEightRanks) {
  const HeadShape heads = table_heads();
  const SequenceInputs inputs = random_inputs(heads, kTokens, 1);
  const Documents one = Documents::single(kTokens);
  const Documents packed(std::vector<int64_t>(16, kTokens / 16));
  for (const int ranks : {4, 8}) {
    const auto ring = [&](ScheduleKind kind, Layout layout, const Documents& documents, int64_t window) {
      return ScheduleCase{kind, layout, 1, ranks, heads, documents, {.causal = true, .window = window}};
    };
    std::vector<Row> rows = published_methods(heads, ranks);
    rows.push_back(measured("ulysses", {ScheduleKind::ulysses, Layout::contiguous, ranks, 1, heads, one, {}}, inputs));
    rows.push_back(measured("ring, zigzag", ring(ScheduleKind::ring, Layout::zigzag, one, 0), inputs));
    rows.push_back(measured("ring, striped", ring(ScheduleKind::ring, Layout::striped, one, 0), inputs));
    rows.push_back(measured("all_gather, zigzag", ring(ScheduleKind::all_gather, Layout::zigzag, one, 0), inputs));
    for (int ulysses = 2; ulysses < ranks; ulysses *= 2) {
      rows.push_back(measured(fmt::format("hybrid, ulysses {} x ring {}, zigzag", ulysses, ranks / ulysses),
                              {ScheduleKind::hybrid, Layout::zigzag, ulysses, ranks / ulysses, heads, one, {}},
                              inputs));
    }
    for (const Row& row : rows) EXPECT_GT(row.forward, 0) << row.name;
    // What masks leave of a ring.
    const Row causal = measured("ring, contiguous", ring(ScheduleKind::ring, Layout::contiguous, one, 0), inputs);
    const Row window =
        measured("ring, contiguous, window 64", ring(ScheduleKind::ring, Layout::contiguous, one, 64), inputs);
    const Row documents =
        measured("ring, contiguous, 16 documents", ring(ScheduleKind::ring, Layout::contiguous, packed, 0), inputs);
    EXPECT_EQ(window.forward * (ranks - 1), causal.forward);
    EXPECT_EQ(documents.forward + documents.backward, 0);
    rows.insert(rows.end(), {causal, window, documents});
    std::printf("\n%d ranks, %lld tokens, 16/4 heads of 32, float32, causal; the rank that sends most\n\n", ranks,
                static_cast<long long>(kTokens));
    print(rows);
  }
}

// The memory that a schedule needs besides its arguments does not grow with the ring: a few shards at a time.
TEST(ScheduleTable, RingMemoryIsAFewShards) {
  const HeadShape heads = table_heads();
  for (const int ranks : {2, 4, 8}) {
    const int64_t shard = 64 * heads.key_heads * (heads.key_size + heads.value_size) * kElementBytes;
    const int64_t tokens = 64 * ranks;
    const CaseRun run = run_case({ScheduleKind::ring, Layout::zigzag, 1, ranks, heads, Documents::single(tokens), {}},
                                 random_inputs(heads, tokens, 2));
    for (const RankReport& rank : run.ranks) {
      // Two shards of keys and values; gradients here, just sent, arriving and home.
      EXPECT_LE(rank.peak_communication, 6 * shard) << ranks;
      EXPECT_GE(rank.peak_communication, shard) << ranks;
    }
  }
}

}  // namespace
}  // namespace ithaca::testing
