#include "attention/schedule.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "attention/communication_cost.h"
#include "attention/schedule_testing.h"
#include "base/error.h"

namespace ithaca::testing {
namespace {

constexpr double kBound = 2e-6;  // single precision, relative to float64

HeadShape shape(int64_t query_heads, int64_t key_heads, int64_t key_size = 8, int64_t value_size = 8) {
  return {.query_heads = query_heads,
          .key_heads = key_heads,
          .key_size = key_size,
          .value_size = value_size,
          .scale = 0.31f};
}

// A schedule on a mesh.
struct Form {
  ScheduleKind kind;
  int ulysses;
  int ring;
};

// Every form of `ranks` ranks that the heads allow.
std::vector<Form> forms_of(int ranks, int64_t query_heads) {
  std::vector<Form> forms{{ScheduleKind::ring, 1, ranks}, {ScheduleKind::all_gather, 1, ranks}};
  for (int ulysses = 1; ulysses <= ranks; ++ulysses) {
    if (ranks % ulysses != 0 || ulysses > query_heads) continue;
    forms.push_back({ScheduleKind::hybrid, ulysses, ranks / ulysses});
    if (ulysses == ranks) forms.push_back({ScheduleKind::ulysses, ranks, 1});
  }
  return forms;
}

void expect_exact(const ScheduleCase& test_case, const SequenceInputs& inputs, const SequenceTruth& truth) {
  const CaseRun run = run_case(test_case, inputs);
  EXPECT_LE(largest_error(run.results, truth), kBound) << test_case.describe();
  int64_t visible = 0;
  for (const RankReport& rank : run.ranks) {
    EXPECT_EQ(rank.memory_left, 0) << test_case.describe();
    visible += rank.visible_pairs_times_heads;
    if (test_case.ranks() == 1) {
      EXPECT_EQ(rank.forward_bytes() + rank.backward_bytes(), 0) << test_case.describe();
    }
  }
  const Shard all = ring_shard(Layout::contiguous, test_case.documents.total_tokens(), 0, 1);
  EXPECT_EQ(visible,
            visible_pairs(attention_tasks(all, all, test_case.documents, test_case.mask)) * test_case.heads.query_heads)
      << test_case.describe();
}

TEST(Schedule, EveryFormAndLayoutIsExact) {
  const HeadShape heads = shape(6, 3, 8, 12);
  for (const int64_t tokens : {1, 7, 97}) {
    const SequenceInputs inputs = random_inputs(heads, tokens, 1);
    const Documents documents = random_documents(tokens, 20.0, 2);
    const SequenceTruth truth = true_results(heads, documents, {}, inputs);
    for (const int ranks : {1, 2, 3, 4, 5}) {
      for (const Form& form : forms_of(ranks, heads.query_heads)) {
        for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
          expect_exact({form.kind, layout, form.ulysses, form.ring, heads, documents, {}}, inputs, truth);
        }
      }
    }
  }
}

TEST(Schedule, EveryMaskIsExact) {
  const HeadShape heads = shape(4, 2);
  const int64_t tokens = 97;
  const SequenceInputs inputs = random_inputs(heads, tokens, 3);
  for (const MaskRule& mask : {MaskRule{.causal = false, .window = 0}, MaskRule{.causal = true, .window = 1},
                               MaskRule{.causal = true, .window = 5}, MaskRule{.causal = true, .window = 40},
                               MaskRule{.causal = true, .window = 1000}}) {
    for (const Documents& documents : {Documents::single(tokens), random_documents(tokens, 15.0, 4)}) {
      const SequenceTruth truth = true_results(heads, documents, mask, inputs);
      for (const Form& form : forms_of(4, heads.query_heads)) {
        for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
          expect_exact({form.kind, layout, form.ulysses, form.ring, heads, documents, mask}, inputs, truth);
        }
      }
    }
  }
}

TEST(Schedule, AnyHeadCounts) {
  struct Heads {
    int64_t query_heads, key_heads;
    int ranks;
  };
  for (const Heads& sizes : {Heads{6, 3, 4}, Heads{6, 3, 5}, Heads{5, 1, 4}, Heads{5, 1, 5}, Heads{28, 4, 8},
                             Heads{40, 8, 8}, Heads{7, 7, 3}, Heads{12, 2, 8}, Heads{8, 1, 8}}) {
    const HeadShape heads = shape(sizes.query_heads, sizes.key_heads);
    const int64_t tokens = 41;
    const SequenceInputs inputs = random_inputs(heads, tokens, 5);
    const Documents documents = Documents::single(tokens);
    const SequenceTruth truth = true_results(heads, documents, {}, inputs);
    for (const Form& form : forms_of(sizes.ranks, heads.query_heads)) {
      expect_exact({form.kind, Layout::zigzag, form.ulysses, form.ring, heads, documents, {}}, inputs, truth);
    }
  }
}

TEST(Schedule, MoreThanOneTileOfTokens) {
  const HeadShape heads = shape(4, 2, 16, 16);
  const int64_t tokens = 698;
  const SequenceInputs inputs = random_inputs(heads, tokens, 6);
  const Documents documents = random_documents(tokens, 150.0, 7);
  const MaskRule mask{.causal = true, .window = 100};
  const SequenceTruth truth = true_results(heads, documents, mask, inputs);
  for (const Form& form : forms_of(4, heads.query_heads)) {
    expect_exact({form.kind, Layout::zigzag, form.ulysses, form.ring, heads, documents, mask}, inputs, truth);
  }
}

TEST(Schedule, NoTokensAtAll) {
  const HeadShape heads = shape(4, 2);
  for (const Form& form : forms_of(3, heads.query_heads)) {
    const CaseRun run = run_case({form.kind, Layout::zigzag, form.ulysses, form.ring, heads, Documents(), {}},
                                 random_inputs(heads, 0, 8));
    EXPECT_TRUE(run.results.output.empty());
  }
}

TEST(Schedule, ErrorDoesNotGrowWithRanks) {
  const HeadShape heads = shape(8, 8, 16, 16);
  const int64_t tokens = 384;
  const SequenceInputs inputs = random_inputs(heads, tokens, 9);
  const Documents documents = Documents::single(tokens);
  const SequenceTruth truth = true_results(heads, documents, {}, inputs);
  const double alone = largest_error(
      run_case({ScheduleKind::ring, Layout::contiguous, 1, 1, heads, documents, {}}, inputs).results, truth);
  for (const int ranks : {2, 4, 8}) {
    for (const Form& form : forms_of(ranks, heads.query_heads)) {
      const double split = largest_error(
          run_case({form.kind, Layout::zigzag, form.ulysses, form.ring, heads, documents, {}}, inputs).results, truth);
      EXPECT_LE(split, 1.5 * alone) << schedule_name(form.kind) << " " << form.ulysses << "x" << form.ring;
    }
  }
}

TEST(Schedule, RepeatsHaveTheSameBits) {
  const HeadShape heads = shape(5, 1);
  const SequenceInputs inputs = random_inputs(heads, 97, 10);
  const Documents documents = random_documents(97, 30.0, 11);
  for (const Form& form : forms_of(4, heads.query_heads)) {
    const ScheduleCase test_case{form.kind, Layout::striped, form.ulysses, form.ring, heads, documents, {}};
    const CaseRun first = run_case(test_case, inputs);
    for (int repeat = 0; repeat < 3; ++repeat) {
      EXPECT_TRUE(same_bits(first.results, run_case(test_case, inputs).results)) << test_case.describe();
    }
  }
}

TEST(Schedule, AnotherDocumentsTokensChangeNothing) {
  const HeadShape heads = shape(4, 2);
  const std::vector<int64_t> lengths{19, 30, 48};
  const Documents documents(lengths);
  const SequenceInputs before = random_inputs(heads, 97, 12);
  SequenceInputs after = before;
  const SequenceInputs other = random_inputs(heads, 97, 13);
  // The middle document gets other tokens.
  const auto replace = [&](std::vector<float>& to, const std::vector<float>& from, int64_t row) {
    std::copy(from.begin() + 19 * row, from.begin() + 49 * row, to.begin() + 19 * row);
  };
  replace(after.query, other.query, 32);
  replace(after.key, other.key, 16);
  replace(after.value, other.value, 16);
  replace(after.doutput, other.doutput, 32);
  const auto is_same_outside = [](const std::vector<float>& a, const std::vector<float>& b, int64_t row) {
    return std::equal(a.begin(), a.begin() + 19 * row, b.begin()) &&
           std::equal(a.begin() + 49 * row, a.end(), b.begin() + 49 * row);
  };
  for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
    for (const Form& form : forms_of(4, heads.query_heads)) {
      const ScheduleCase test_case{form.kind, layout, form.ulysses, form.ring, heads, documents, {}};
      const SequenceResults a = run_case(test_case, before).results;
      const SequenceResults b = run_case(test_case, after).results;
      EXPECT_TRUE(is_same_outside(a.output, b.output, 32)) << test_case.describe();
      EXPECT_TRUE(is_same_outside(a.log_sum_exp, b.log_sum_exp, 4)) << test_case.describe();
      EXPECT_TRUE(is_same_outside(a.dquery, b.dquery, 32)) << test_case.describe();
      EXPECT_TRUE(is_same_outside(a.dkey, b.dkey, 16)) << test_case.describe();
      EXPECT_TRUE(is_same_outside(a.dvalue, b.dvalue, 16)) << test_case.describe();
      EXPECT_FALSE(same_bits(a, b));
    }
  }
}

TEST(Schedule, TwoShapesInOneProcess) {
  const ScheduleCase first{
      ScheduleKind::hybrid, Layout::zigzag, 2, 2, shape(6, 3, 8, 12), random_documents(61, 20.0, 14), {}};
  const ScheduleCase second{
      ScheduleKind::hybrid,         Layout::zigzag, 2, 2, shape(5, 1, 16, 4), Documents::single(35),
      {.causal = true, .window = 9}};
  const SequenceInputs first_inputs = random_inputs(first.heads, 61, 15);
  const SequenceInputs second_inputs = random_inputs(second.heads, 35, 16);
  SequenceResults first_results = empty_results(first.heads, 61);
  SequenceResults second_results = empty_results(second.heads, 35);
  run_on_mesh(2, 2, [&](MeshRank& here) {
    const auto one = make_schedule(first.kind, first.layout, first.heads, here.backend, here.mesh);
    const auto two = make_schedule(second.kind, second.layout, second.heads, here.backend, here.mesh);
    const auto plan_one = one->plan(first.documents, first.mask);
    const auto plan_two = two->plan(second.documents, second.mask);
    RankTensors a(first, *plan_one, first_inputs);
    RankTensors b(second, *plan_two, second_inputs);
    one->forward(*plan_one, a.qkv(), a.output(), a.log_sum_exp());
    two->forward(*plan_two, b.qkv(), b.output(), b.log_sum_exp());
    one->backward(*plan_one, a.qkv(), a.output(), a.log_sum_exp(), a.doutput(), a.gradient());
    two->backward(*plan_two, b.qkv(), b.output(), b.log_sum_exp(), b.doutput(), b.gradient());
    here.finish();
    a.gather(here.mesh.coordinates(), first_results);
    b.gather(here.mesh.coordinates(), second_results);
  });
  EXPECT_LE(largest_error(first_results, true_results(first.heads, first.documents, first.mask, first_inputs)), kBound);
  EXPECT_LE(largest_error(second_results, true_results(second.heads, second.documents, second.mask, second_inputs)),
            kBound);
}

// ---- what is sent ----

TEST(ScheduleTraffic, EqualsTheFormulas) {
  for (const auto& [query_heads, key_heads] :
       std::vector<std::pair<int64_t, int64_t>>{{8, 8}, {8, 2}, {28, 4}, {10, 5}, {9, 1}}) {
    const HeadShape heads = shape(query_heads, key_heads, 8, 12);
    for (const int ranks : {1, 2, 4, 8}) {
      const int64_t tokens = 16 * ranks;  // equal shards in every layout
      const SequenceInputs inputs = random_inputs(heads, tokens, 17);
      for (const Form& form : forms_of(ranks, query_heads)) {
        for (const Layout layout : {Layout::contiguous, Layout::zigzag}) {
          // Every hop is needed: not causal where causality would skip hops.
          const MaskRule mask{.causal = layout != Layout::contiguous, .window = 0};
          const ScheduleCase test_case{form.kind, layout, form.ulysses, form.ring, heads, Documents::single(tokens),
                                       mask};
          for (const RankReport& rank : run_case(test_case, inputs).ranks) {
            const std::string where = test_case.describe();
            EXPECT_EQ(rank.tokens, 16) << where;
            EXPECT_EQ(rank.forward_bytes(), rank.cost.forward_bytes) << where;
            EXPECT_EQ(rank.backward_bytes(), rank.cost.backward_bytes) << where;
            const auto calls = [](const Traffic& ring, const Traffic& ulysses) {
              int64_t sum = 0;
              for (const int64_t count : ring.calls) sum += count;
              for (const int64_t count : ulysses.calls) sum += count;
              return sum;
            };
            EXPECT_EQ(calls(rank.forward_ring, rank.forward_ulysses), rank.cost.forward_exchanges) << where;
            EXPECT_EQ(calls(rank.backward_ring, rank.backward_ulysses), rank.cost.backward_exchanges) << where;
          }
        }
      }
    }
  }
}

// The formulas themselves, by numbers worked out by hand.
TEST(ScheduleTraffic, FormulasByHand) {
  const HeadShape heads{.query_heads = 28, .key_heads = 4, .key_size = 128, .value_size = 64};
  // 28/4 on 8 ranks: 4 3 4 3 4 3 4 3, every rank with one key head, so C = 8. s = 1000, e = 2.
  const CommunicationCost first = communication_cost({ScheduleKind::ulysses, 8, 1}, heads, 0, 1000, 2);
  EXPECT_EQ(first.forward_bytes, 1000 * 2 * ((28 - 4) * 128 + (8 - 1) * (128 + 64) + 7 * 4 * 64));
  EXPECT_EQ(first.backward_bytes, 1000 * 2 * ((28 - 4) * (128 + 2 * 64) + (8 - 1) * (128 + 64) + 7 * 4 * 128) +
                                      1000 * 4 * 7 * 1 * (128 + 64));
  const CommunicationCost second = communication_cost({ScheduleKind::ulysses, 8, 1}, heads, 1, 1000, 2);
  EXPECT_EQ(second.forward_bytes, 1000 * 2 * ((28 - 3) * 128 + (8 - 1) * (128 + 64) + 7 * 3 * 64));
  const CommunicationCost ring = communication_cost({ScheduleKind::ring, 1, 8}, heads, 0, 1000, 2);
  EXPECT_EQ(ring.forward_bytes, 7 * 1000 * 4 * (128 + 64) * 2);
  EXPECT_EQ(ring.backward_bytes, 7 * 1000 * 4 * (128 + 64) * (2 + 4));
  EXPECT_EQ(communication_cost({ScheduleKind::all_gather, 1, 8}, heads, 0, 1000, 2).forward_bytes, ring.forward_bytes);
  // 4 x 2: rank 0 has 7 query heads and 1 key head, C = 4.
  const CommunicationCost hybrid = communication_cost({ScheduleKind::hybrid, 4, 2}, heads, 0, 1000, 2);
  EXPECT_EQ(hybrid.forward_bytes,
            1000 * 2 * (21 * 128 + 3 * (128 + 64) + 3 * 7 * 64) + 1 * 4 * 1000 * 1 * (128 + 64) * 2);
}

TEST(ScheduleTraffic, UnequalShardsSendWhatTheirSizesSay) {
  const HeadShape heads = shape(6, 3, 8, 12);
  const int64_t tokens = 11;
  const int64_t sizes[] = {2, 3, 3, 3};  // floor(11 (r+1) / 4) - floor(11 r / 4)
  const SequenceInputs inputs = random_inputs(heads, tokens, 18);
  const CaseRun run =
      run_case({ScheduleKind::ulysses, Layout::contiguous, 4, 1, heads, Documents::single(tokens), {}}, inputs);
  // Query heads 2 2 1 1, key heads 1 1 1 1: rank 2 and 3 share the last key head.
  const int64_t queries[] = {2, 2, 1, 1};
  for (size_t rank = 0; rank < 4; ++rank) {
    const int64_t own = sizes[rank];
    EXPECT_EQ(run.ranks[rank].tokens, own);
    EXPECT_EQ(run.ranks[rank].forward_bytes(),
              4 * (own * ((6 - queries[rank]) * 8 + 3 * 20) + (tokens - own) * queries[rank] * 12));
    EXPECT_EQ(run.ranks[rank].backward_bytes(),
              4 * (own * ((6 - queries[rank]) * (8 + 24) + 3 * 20) + (tokens - own) * (queries[rank] * 8 + 20)));
  }
}

// Shards of 16 tokens, 4 ring ranks: bytes of one shard's keys and values.
constexpr int64_t kShardBytes = 16 * 2 * (8 + 8) * 4;

std::vector<int64_t> ring_bytes(const CaseRun& run, bool backward) {
  std::vector<int64_t> bytes;
  for (const RankReport& rank : run.ranks) bytes.push_back(backward ? rank.backward_bytes() : rank.forward_bytes());
  return bytes;
}

TEST(ScheduleTraffic, CausalityWindowsAndDocumentsSkipHops) {
  const HeadShape heads = shape(4, 2);
  const int64_t one = kShardBytes;
  const SequenceInputs inputs = random_inputs(heads, 64, 19);
  const auto run = [&](const std::vector<int64_t>& lengths, const MaskRule& mask) {
    return run_case({ScheduleKind::ring, Layout::contiguous, 1, 4, heads, Documents(lengths), mask}, inputs);
  };
  using Bytes = std::vector<int64_t>;
  // Causal: shard s goes from s to 3. Rank r sends its own and what passes through it, except from the last rank.
  const CaseRun causal = run({64}, {});
  EXPECT_EQ(ring_bytes(causal, false), (Bytes{one, 2 * one, 3 * one, 0}));
  // Backward: the same, and dK/dV of shard s (float32 as well, so the same size) from s+1 to 3 and home from there.
  EXPECT_EQ(ring_bytes(causal, true), (Bytes{one, 2 * one + one, 3 * one + 2 * one, 0 + 3 * one}));
  // A window of 16 reaches one shard back: everybody sends one shard on, and one gradient home.
  const CaseRun window = run({64}, {.causal = true, .window = 16});
  EXPECT_EQ(ring_bytes(window, false), (Bytes{one, one, one, 0}));
  EXPECT_EQ(ring_bytes(window, true), (Bytes{one, 2 * one, 2 * one, one}));
  // Documents that end with the shards: nothing travels at all, causal or not.
  for (const bool is_causal : {true, false}) {
    const CaseRun packed = run({16, 16, 16, 16}, {.causal = is_causal, .window = 0});
    EXPECT_EQ(ring_bytes(packed, false), (Bytes{0, 0, 0, 0}));
    EXPECT_EQ(ring_bytes(packed, true), (Bytes{0, 0, 0, 0}));
    for (const RankReport& rank : packed.ranks) {
      EXPECT_EQ(rank.forward_ring.calls[static_cast<size_t>(Collective::send_receive)], 0);
      EXPECT_EQ(rank.backward_ring.calls[static_cast<size_t>(Collective::send_receive)], 0);
    }
  }
  // Not causal, one document over ranks 0 and 1: rank 0 needs shard 1 three hops ahead, and gets it from its owner
  // without bothering ranks 2 and 3.
  const CaseRun two = run({32, 16, 16}, {.causal = false, .window = 0});
  EXPECT_EQ(ring_bytes(two, false), (Bytes{one, one, 0, 0}));
  EXPECT_EQ(ring_bytes(two, true), (Bytes{2 * one, 2 * one, 0, 0}));
}

// Whatever the mask: every shard travels exactly once to every other rank that needs it, and its gradient once away.
TEST(ScheduleTraffic, EveryShardTravelsOnceToWhoNeedsIt) {
  const HeadShape heads = shape(4, 2);
  const int64_t tokens = 16 * 5;
  const SequenceInputs inputs = random_inputs(heads, tokens, 23);
  for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
    for (const MaskRule& mask : {MaskRule{.causal = true, .window = 0}, MaskRule{.causal = false, .window = 0},
                                 MaskRule{.causal = true, .window = 9}}) {
      for (uint64_t seed = 0; seed < 4; ++seed) {
        const Documents documents = random_documents(tokens, 12.0, seed);
        const ScheduleCase test_case{ScheduleKind::ring, layout, 1, 5, heads, documents, mask};
        int64_t pairs = 0;
        for (int query_rank = 0; query_rank < 5; ++query_rank) {
          for (int key_rank = 0; key_rank < 5; ++key_rank) {
            if (query_rank == key_rank) continue;
            pairs += attention_tasks(ring_shard(layout, tokens, query_rank, 5), ring_shard(layout, tokens, key_rank, 5),
                                     documents, mask)
                             .empty()
                         ? 0
                         : 1;
          }
        }
        const CaseRun run = run_case(test_case, inputs);
        int64_t forward = 0;
        int64_t backward = 0;
        for (const RankReport& rank : run.ranks) {
          forward += rank.forward_bytes();
          backward += rank.backward_bytes();
        }
        EXPECT_EQ(forward, pairs * kShardBytes) << test_case.describe();
        EXPECT_EQ(backward, 2 * pairs * kShardBytes) << test_case.describe();
        EXPECT_LE(largest_error(run.results, true_results(heads, documents, mask, inputs)), kBound)
            << test_case.describe();
      }
    }
  }
}

TEST(ScheduleTraffic, AllGatherIsSkippedWhenNobodyNeedsIt) {
  const HeadShape heads = shape(4, 2);
  const SequenceInputs inputs = random_inputs(heads, 64, 20);
  const std::vector<int64_t> lengths{16, 16, 16, 16};
  for (const RankReport& rank :
       run_case({ScheduleKind::all_gather, Layout::contiguous, 1, 4, heads, Documents(lengths), {}}, inputs).ranks) {
    EXPECT_EQ(rank.forward_bytes() + rank.backward_bytes(), 0);
    EXPECT_EQ(rank.peak_communication, 0);
  }
}

// ---- what goes wrong ----

void make_on(ScheduleKind kind, int ulysses, int ring, const HeadShape& heads) {
  run_on_mesh(ulysses, ring,
              [&](MeshRank& here) { make_schedule(kind, Layout::contiguous, heads, here.backend, here.mesh); });
}

std::string configuration_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const ConfigurationError& error) {
    return error.what();
  }
  return "no ConfigurationError";
}

TEST(ScheduleErrors, NameWhatWouldWork) {
  EXPECT_THAT(configuration_error([] { make_on(ScheduleKind::ulysses, 8, 1, shape(5, 1)); }),
              ::testing::AllOf(::testing::HasSubstr("5 query heads"),
                               ::testing::HasSubstr("schedule hybrid with ulysses_size 4 and ring_size 2")));
  EXPECT_THAT(configuration_error([] { make_on(ScheduleKind::ulysses, 3, 1, shape(2, 1)); }),
              ::testing::HasSubstr("schedule ring with ring_size 3"));
  EXPECT_THAT(configuration_error([] { make_on(ScheduleKind::ulysses, 2, 2, shape(4, 2)); }),
              ::testing::HasSubstr("hybrid"));
  EXPECT_THAT(configuration_error([] { make_on(ScheduleKind::ring, 2, 1, shape(4, 2)); }),
              ::testing::AllOf(::testing::HasSubstr("hybrid"), ::testing::HasSubstr("ring_size 2")));
  EXPECT_THAT(configuration_error([] { make_on(ScheduleKind::all_gather, 2, 1, shape(4, 2)); }),
              ::testing::HasSubstr("hybrid"));
}

TEST(ScheduleErrors, WrongTensorsAndPlansAreNamed) {
  const ScheduleCase test_case{ScheduleKind::ring, Layout::contiguous, 1, 1, shape(4, 2), Documents::single(6), {}};
  run_on_mesh(1, 1, [&](MeshRank& here) {
    const auto schedule = make_schedule(test_case.kind, test_case.layout, test_case.heads, here.backend, here.mesh);
    const auto other = make_schedule(test_case.kind, test_case.layout, test_case.heads, here.backend, here.mesh);
    const auto plan = schedule->plan(test_case.documents, {});
    RankTensors tensors(test_case, *plan, random_inputs(test_case.heads, 6, 21));
    const ShardedQkv qkv = tensors.qkv();
    EXPECT_THROW(other->forward(*plan, qkv, tensors.output(), tensors.log_sum_exp()), ContractError);
    EXPECT_THROW(schedule->forward(*plan, {qkv.key, qkv.key, qkv.value}, tensors.output(), tensors.log_sum_exp()),
                 ContractError);
    EXPECT_THROW(schedule->forward(*plan, qkv, tensors.output().slice(0, 0, 5), tensors.log_sum_exp()), ContractError);
    EXPECT_THROW(schedule->forward(*plan, qkv, tensors.output(), tensors.output()), ContractError);
  });
}

TEST(ScheduleErrors, ARankThatFailsEndsAllWithOneCause) {
  const SequenceInputs inputs = random_inputs(shape(4, 2), 97, 22);
  for (const Form& form : forms_of(4, 4)) {
    const ScheduleCase test_case{form.kind, Layout::zigzag, form.ulysses, form.ring, shape(4, 2), Documents::single(97),
                                 {}};
    std::string text;
    try {
      run_on_mesh(form.ulysses, form.ring, [&](MeshRank& here) {
        const auto schedule = make_schedule(test_case.kind, test_case.layout, test_case.heads, here.backend, here.mesh);
        const auto plan = schedule->plan(test_case.documents, {});
        RankTensors tensors(test_case, *plan, inputs);
        schedule->forward(*plan, tensors.qkv(), tensors.output(), tensors.log_sum_exp());
        const bool fails = here.mesh.cp_rank() == 2;
        const Tensor doutput = fails ? tensors.doutput().slice(0, 0, 1) : tensors.doutput();
        schedule->backward(*plan, tensors.qkv(), tensors.output(), tensors.log_sum_exp(), doutput, tensors.gradient());
        here.finish();
      });
    } catch (const ContractError& error) {
      text = error.what();
    }
    EXPECT_THAT(text, ::testing::AllOf(::testing::HasSubstr("rank 2"), ::testing::HasSubstr("doutput")))
        << test_case.describe();
  }
}

}  // namespace
}  // namespace ithaca::testing
