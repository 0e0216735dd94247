// Values and gradients of the attention kernel against float64, over shapes, masks and ways to split the work.
#include "backend/cpu/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "backend/cpu/attention_test_case.h"

namespace ithaca::cpu {
namespace {

constexpr double kBound = 1e-6;

TEST(CpuAttention, SmallestShapes) {
  for_each_instruction_set([] {
    for (const int64_t queries : {1, 2, 7, 33}) {
      for (const int64_t keys : {1, 3, 8, 130}) {
        for (const int64_t size : {1, 2, 3, 5}) {
          SCOPED_TRACE(testing::Message() << queries << " queries, " << keys << " keys, size " << size);
          AttentionCase attention({queries, keys, 1, 1, size, size});
          attention.gradient_floor = 0.3;
          attention.check({everything(queries, keys)}, 2 * kBound);
        }
      }
    }
  });
}

TEST(CpuAttention, HeadSizes) {
  for_each_instruction_set([] {
    for (const int64_t size : {1, 7, 8, 16, 24, 33, 64, 80, 96, 128, 192, 256, 300}) {
      SCOPED_TRACE(size);
      AttentionCase attention({75, 75, 2, 1, size, size});
      attention.check({causal(75)}, kBound);
    }
  });
}

TEST(CpuAttention, KeySizeDiffersFromValueSize) {
  for_each_instruction_set([] {
    for (const auto& [key_size, value_size] :
         std::vector<std::pair<int64_t, int64_t>>{{192, 128}, {7, 256}, {1, 80}, {80, 1}, {24, 33}, {64, 40}}) {
      SCOPED_TRACE(testing::Message() << key_size << " and " << value_size);
      AttentionCase attention({60, 90, 3, 3, key_size, value_size});
      attention.check({everything(60, 90)}, kBound);
    }
  });
}

TEST(CpuAttention, GroupedHeads) {
  for_each_instruction_set([] {
    for (const auto& [query_heads, key_heads] :
         std::vector<std::pair<int64_t, int64_t>>{{28, 4}, {6, 3}, {5, 1}, {40, 1}, {3, 3}}) {
      SCOPED_TRACE(testing::Message() << query_heads << "/" << key_heads);
      AttentionCase attention({41, 41, query_heads, key_heads, 32, 24});
      attention.check({causal(41)}, kBound);
    }
  });
}

// As many tokens as heads as elements, so that swapped axes give numbers of the right shape and the wrong value.
TEST(CpuAttention, AllExtentsEqual) {
  AttentionCase attention({8, 8, 8, 8, 8, 8});
  attention.check({causal(8)}, kBound);
  AttentionCase strided({8, 8, 8, 8, 8, 8}, 0.0, Layout::head_major_with_gaps);
  strided.check({causal(8)}, kBound);
}

TEST(CpuAttention, StridedViews) {
  for_each_instruction_set([] {
    for (const int64_t size : {7, 64, 80}) {
      SCOPED_TRACE(size);
      AttentionCase attention({70, 90, 6, 3, size, size + 1}, 0.0, Layout::head_major_with_gaps);
      attention.check({everything(70, 90)}, kBound);
    }
  });
}

// Strides may be zero (one key head shown as several) and negative (tokens in reverse).
TEST(CpuAttention, RepeatedAndReversedViews) {
  AttentionCase attention({40, 50, 4, 1, 16, 16});
  Tensor key = attention.key.tensor();
  key.extents[1] = 4;
  key.strides[1] = 0;
  Tensor value = attention.value.tensor();
  value.data = &attention.value.at(49, 0, 0);
  value.strides[0] = -value.strides[0];
  value.extents[1] = 4;
  value.strides[1] = 0;
  const AttentionShape shape{40, 4, 16};
  std::vector<float> memory(static_cast<size_t>(attention_accumulator_elements(shape)));
  const AttentionAccumulator accumulator =
      begin_attention(shape, Tensor::contiguous(memory.data(), DType::float32, {static_cast<int64_t>(memory.size())}));
  std::vector<std::byte> workspace(static_cast<size_t>(attention_forward_workspace_bytes(16, 16)));
  const Tasks tasks = everything(40, 50);
  attention_forward({attention.query.tensor(), key, value, tasks, attention.scale(), nullptr}, accumulator, workspace);
  finish_attention(accumulator, attention.output.tensor(), attention.log_sum_exp_tensor());
  const ReferenceAttentionOutput expected = reference_attention_forward(
      make_reference_attention(attention.query.tensor(), key, value, static_cast<double>(attention.scale())),
      visible_everywhere());
  EXPECT_LT(relative_error(to_doubles(attention.output.tensor()), expected.output), kBound);
}

TEST(CpuAttention, Windows) {
  for_each_instruction_set([] {
    for (const int64_t window : {1, 2, 13, 64, 100, 299, 300, 1000}) {
      SCOPED_TRACE(window);
      AttentionCase attention({300, 300, 2, 1, 16, 16});
      if (window <= 2) attention.gradient_floor = 0.3;
      attention.check({{{0, 300, 0, 300, -window, 0}}}, kBound,
                      [&](int64_t q, int64_t k) { return k <= q && k > q - window; });
    }
  });
}

// A window that spans two calls, as at the edge of a shard: exactly W keys over both.
TEST(CpuAttention, WindowAcrossCalls) {
  AttentionCase attention({40, 100, 2, 2, 24, 24});
  // The queries are tokens 60..99; keys 0..59 come from the shard before.
  attention.check({{{0, 40, 60, 100, -25, 0}}, {{0, 40, 0, 60, 60 - 25, kNoUpper}}}, kBound,
                  [](int64_t q, int64_t k) { return k <= q + 60 && k > q + 60 - 25; });
}

// Bands of every kind on rectangles that are larger than one key block, also ones that hide everything.
TEST(CpuAttention, Bands) {
  for_each_instruction_set([] {
    struct Band {
      int64_t lower, upper;
    };
    for (const Band band :
         {Band{kNoLower, -1}, Band{kNoLower, 0}, Band{kNoLower, 1}, Band{0, kNoUpper}, Band{-1, kNoUpper}, Band{-1, 0},
          Band{-3, 5}, Band{40, 60}, Band{-60, -40}, Band{kNoLower, -1000}, Band{1000, kNoUpper}, Band{5, 5},
          Band{7, 3}, Band{kNoLower + 1, kNoUpper - 1}, Band{kNoLower, -70}}) {
      SCOPED_TRACE(testing::Message() << band.lower << " < diagonal <= " << band.upper);
      AttentionCase attention({90, 150, 3, 1, 12, 20});
      if (band.lower == -1 && band.upper == 0) attention.gradient_floor = 0.3;
      attention.check({{{3, 85, 10, 141, band.lower, band.upper}}}, kBound);
    }
  });
}

// More keys than one packed block holds (1024 at most forward, 1024 backward).
TEST(CpuAttention, ManyKeyBlocks) {
  for_each_instruction_set([] {
    AttentionCase attention({33, 2500, 2, 1, 8, 8});
    attention.check({{{0, 33, 0, 2500, kNoLower, 2467}}}, kBound);
    AttentionCase wide({20, 700, 1, 1, 256, 256});
    wide.check({everything(20, 700)}, kBound);
  });
}

TEST(CpuAttention, Documents) {
  for_each_instruction_set([] {
    for (const auto& lengths : std::vector<std::vector<int64_t>>{{1, 1, 1, 1, 1, 1, 1},
                                                                 {7, 1, 40, 2, 33, 64, 3},
                                                                 {100, 1, 200},
                                                                 {5, 300, 5},
                                                                 std::vector<int64_t>(100, 3),
                                                                 {31, 33, 32, 1, 95, 8, 8, 8, 8}}) {
      const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
      SCOPED_TRACE(testing::Message() << lengths.size() << " documents, " << tokens << " tokens");
      for (const int64_t query_heads : {1, 5}) {
        AttentionCase attention({tokens, tokens, query_heads, 1, 24, 24});
        if (tokens < 10) attention.gradient_floor = 0.3;
        attention.check({documents(lengths)}, kBound);
      }
    }
  });
}

// Small tasks that adjoin in queries and keys, but are full, banded or rectangles, and ones that only seem to adjoin.
TEST(CpuAttention, MixedTaskLists) {
  for_each_instruction_set([] {
    AttentionCase attention({50, 90, 4, 2, 16, 16});
    attention.check({{{0, 5, 0, 20, kNoLower, kNoUpper},
                      {5, 15, 20, 23, -2, 1},
                      {15, 15, 23, 23, kNoLower, 0},
                      {15, 20, 23, 23, kNoLower, 0},
                      {15, 16, 23, 60, 3, kNoUpper},
                      {16, 30, 60, 61, kNoLower, 0},
                      {30, 40, 61, 80, kNoLower, -5},
                      {40, 50, 0, 10, kNoLower, 0}}},
                    kBound);
  });
}

// The striped layout on two ranks: a rank's own stripe is causal, the other one's strictly so for one of them.
TEST(CpuAttention, StripedStyle) {
  AttentionCase attention({60, 120, 2, 1, 16, 16});
  // Keys: first 60 are tokens 0, 2, 4, ...; the others 1, 3, 5, ...; queries are tokens 0, 2, 4, ...
  attention.check({{{0, 60, 0, 60, kNoLower, 0}}, {{0, 60, 60, 120, kNoLower, -1}}}, kBound, [](int64_t q, int64_t k) {
    const int64_t token = k < 60 ? 2 * k : 2 * (k - 60) + 1;
    return token <= 2 * q;
  });
}

TEST(CpuAttention, ErrorDoesNotGrowWithTheNumberOfCalls) {
  for_each_instruction_set([] {
    const int64_t tokens = 448;
    AttentionCase::Errors one;
    for (const int64_t parts : {1, 2, 7, 64}) {
      SCOPED_TRACE(parts);
      AttentionCase attention({tokens, tokens, 2, 1, 32, 32});
      const AttentionCase::Errors found = attention.check(causal_in_parts(tokens, parts), kBound, visible_causally());
      if (parts == 1) one = found;
      EXPECT_LT(found.output, 1.5 * one.output + 2e-8);
      EXPECT_LT(found.log_sum_exp, 1.5 * one.log_sum_exp + 2e-8);
      EXPECT_LT(found.dquery, 1.5 * one.dquery + 5e-8);
      EXPECT_LT(found.dkey, 1.5 * one.dkey + 5e-8);
      EXPECT_LT(found.dvalue, 1.5 * one.dvalue + 5e-8);
    }
  });
}

// Thousands of terms are summed per output and gradient; their rounding must not pile up with the length.
TEST(CpuAttention, ErrorDoesNotGrowWithTheLength) {
  AttentionCase attention({2500, 2500, 1, 1, 16, 16});
  attention.dkey.fill(0.0f);
  attention.dvalue.fill(0.0f);
  attention.check({causal(2500)}, 6e-7, visible_causally());
}

TEST(CpuAttention, OrderOfTasksMovesOnlyRounding) {
  const std::vector<int64_t> lengths = {30, 7, 100, 1, 1, 61};
  Tasks tasks = documents(lengths);
  AttentionCase forwards({200, 200, 2, 1, 16, 16});
  forwards.check({tasks}, kBound);
  std::reverse(tasks.begin(), tasks.end());
  AttentionCase backwards({200, 200, 2, 1, 16, 16});
  backwards.check({tasks}, kBound);
  std::vector<Tasks> hops = causal_in_parts(200, 5);
  std::reverse(hops.begin(), hops.end());
  AttentionCase hops_reversed({200, 200, 2, 1, 16, 16});
  hops_reversed.check(hops, kBound);
}

// Packed with other documents or alone: the same bits for the same document, whatever the others hold.
TEST(CpuAttention, DocumentsDoNotTouchEachOther) {
  for_each_instruction_set([] {
    const Tasks tasks = documents({30, 50, 20});
    AttentionCase first({100, 100, 2, 1, 16, 16});
    AttentionCase second({100, 100, 2, 1, 16, 16});
    for (int64_t token = 30; token < 80; ++token) {
      for (int64_t i = 0; i < 16; ++i) {
        second.query.at(token, 1, i) += 3.0f;
        second.key.at(token, 0, i) *= -7.0f;
        second.value.at(token, 0, i) = 1e4f;
      }
    }
    for (AttentionCase* attention : {&first, &second}) {
      attention->forward({tasks});
      attention->backward({tasks});
    }
    const auto expect_same = [](TestTensor& a, TestTensor& b) {
      for (int64_t token = 0; token < 100; ++token) {
        if (token >= 30 && token < 80) continue;
        for (int64_t head = 0; head < a.tensor().extent(1); ++head) {
          for (int64_t i = 0; i < a.tensor().extent(2); ++i) EXPECT_EQ(a.at(token, head, i), b.at(token, head, i));
        }
      }
    };
    expect_same(first.output, second.output);
    expect_same(first.log_sum_exp, second.log_sum_exp);
    expect_same(first.dquery, second.dquery);
    expect_same(first.dkey, second.dkey);
    expect_same(first.dvalue, second.dvalue);
  });
}

TEST(CpuAttention, RepeatsBitForBit) {
  for_each_instruction_set([] {
    std::vector<std::vector<float>> runs[2];
    for (auto& run : runs) {
      AttentionCase attention({333, 333, 6, 2, 40, 40});
      const std::vector<Tasks> calls = causal_in_parts(333, 3);
      attention.forward(calls);
      attention.backward(calls);
      run = {attention.output.values(), attention.log_sum_exp.values(), attention.dquery.values(),
             attention.dkey.values(), attention.dvalue.values()};
    }
    EXPECT_EQ(runs[0], runs[1]);
  });
}

// Random shapes and random task lists.
TEST(CpuAttention, RandomCases) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const RandomStream random(seed, "shapes");
    const auto pick = [&](uint64_t index, int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random.uniform(index) * static_cast<double>(high - low + 1));
    };
    const int64_t key_heads = pick(0, 1, 3);
    const int64_t query_heads = key_heads * pick(1, 1, 7);
    const int64_t tokens = pick(2, 1, 220);
    const int64_t key_size = pick(3, 1, 70);
    const int64_t value_size = pick(4, 1, 70);
    // Query ranges follow each other and may overlap none of the others' keys: every task has its own keys.
    Tasks tasks;
    int64_t key = 0;
    uint64_t index = 10;
    while (key < tokens) {
      const int64_t end = std::min(tokens, key + pick(index++, 1, 90));
      const int64_t q_begin = pick(index++, 0, 3) == 0 ? pick(index++, 0, tokens - 1) : key;
      const int64_t q_end = std::min(tokens, q_begin + pick(index++, 1, 90));
      const int64_t kind = pick(index++, 0, 3);
      const int64_t lower = kind >= 2 ? -pick(index++, 1, 40) : kNoLower;
      const int64_t upper = kind % 2 == 1 ? pick(index++, -5, 5) : kNoUpper;
      tasks.push_back({q_begin, q_end, key, end, lower, upper});
      key = end;
    }
    AttentionCase attention({tokens, tokens, query_heads, key_heads, key_size, value_size}, 0.0,
                            seed % 2 == 0 ? Layout::contiguous : Layout::head_major_with_gaps);
    attention.check({tasks}, 2 * kBound);
  }
}

}  // namespace
}  // namespace ithaca::cpu
