#include "attention/tasks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/random.h"

namespace ithaca {
namespace {

bool is_visible(int64_t query, int64_t key, const std::vector<int64_t>& document_of, const MaskRule& mask) {
  if (document_of[static_cast<size_t>(query)] != document_of[static_cast<size_t>(key)]) return false;
  if (mask.causal && key > query) return false;
  return mask.window == 0 || query - key < mask.window;
}

// Holds a list to every promise of attention_tasks by looking at all pairs; returns an empty text or what is wrong.
std::string check(const Shard& queries, const Shard& keys, const Documents& documents, const MaskRule& mask) {
  const std::vector<AttentionTask> tasks = attention_tasks(queries, keys, documents, mask);
  const auto rows = static_cast<size_t>(queries.size());
  const auto columns = static_cast<size_t>(keys.size());
  std::vector<int> covered(rows * columns, 0);
  int64_t pairs = 0;
  for (const AttentionTask& task : tasks) {
    if (task.q_begin < 0 || task.q_begin >= task.q_end || task.q_end > queries.size() || task.k_begin < 0 ||
        task.k_begin >= task.k_end || task.k_end > keys.size()) {
      return "rectangle outside of the shards or empty";
    }
    std::vector<bool> row_seen(static_cast<size_t>(task.q_end - task.q_begin), false);
    std::vector<bool> column_seen(static_cast<size_t>(task.k_end - task.k_begin), false);
    bool cut_below = false;
    bool cut_above = false;
    for (int64_t q = task.q_begin; q < task.q_end; ++q) {
      for (int64_t k = task.k_begin; k < task.k_end; ++k) {
        const int64_t diagonal = (k - task.k_begin) - (q - task.q_begin);
        cut_below |= diagonal <= task.lower;
        cut_above |= diagonal > task.upper;
        if (diagonal <= task.lower || diagonal > task.upper) continue;
        row_seen[static_cast<size_t>(q - task.q_begin)] = true;
        column_seen[static_cast<size_t>(k - task.k_begin)] = true;
        ++covered[static_cast<size_t>(q) * columns + static_cast<size_t>(k)];
        ++pairs;
      }
    }
    if (std::count(row_seen.begin(), row_seen.end(), false) != 0) return "a row without a visible key";
    if (std::count(column_seen.begin(), column_seen.end(), false) != 0) return "a column that nobody sees";
    if (cut_below == (task.lower == kNoLower)) return "lower bound not normalised";
    if (cut_above == (task.upper == kNoUpper)) return "upper bound not normalised";
  }
  const std::vector<int64_t> query_positions = queries.positions();
  const std::vector<int64_t> key_positions = keys.positions();
  std::vector<int64_t> document_of;
  for (int64_t token = 0; token < documents.total_tokens(); ++token) {
    document_of.push_back(documents.document_of(token));
  }
  for (size_t q = 0; q < rows; ++q) {
    for (size_t k = 0; k < columns; ++k) {
      const int wanted = is_visible(query_positions[q], key_positions[k], document_of, mask) ? 1 : 0;
      if (covered[q * columns + k] != wanted) {
        return fmt::format("query {} key {}: covered {} times instead of {}", query_positions[q], key_positions[k],
                           covered[q * columns + k], wanted);
      }
    }
  }
  if (visible_pairs(tasks) != pairs) return fmt::format("visible_pairs {} instead of {}", visible_pairs(tasks), pairs);
  if (any_attention(queries, keys, documents, mask) == tasks.empty()) return "any_attention disagrees";
  const auto order = [](const AttentionTask& task) { return std::tuple(task.q_begin, task.k_begin); };
  for (size_t index = 1; index < tasks.size(); ++index) {
    if (order(tasks[index - 1]) > order(tasks[index])) return "not sorted";
  }
  return "";
}

std::vector<MaskRule> all_masks() {
  return {{.causal = true, .window = 0}, {.causal = false, .window = 0}, {.causal = true, .window = 1},
          {.causal = true, .window = 2}, {.causal = true, .window = 5},  {.causal = true, .window = 1000}};
}

std::vector<Documents> documents_of(int64_t tokens, const RandomStream& random, uint64_t& counter) {
  std::vector<Documents> result{Documents::single(tokens)};
  for (const double mean : {2.0, 9.0, 40.0}) {
    std::vector<int64_t> lengths;
    for (int64_t left = tokens; left > 0;) {
      const int64_t length = std::min(left, 1 + static_cast<int64_t>(random.uniform(counter++) * 2 * mean));
      lengths.push_back(length);
      left -= length;
    }
    result.emplace_back(lengths);
  }
  return result;
}

TEST(Tasks, EveryVisiblePairOnceInEveryLayout) {
  const RandomStream random(1, "tasks");
  uint64_t counter = 0;
  for (const int64_t tokens : {0, 1, 2, 7, 8, 13, 64, 97}) {
    for (const Documents& documents : documents_of(tokens, random, counter)) {
      for (const MaskRule& mask : all_masks()) {
        for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
          for (int ring = 1; ring <= 5; ++ring) {
            for (int query_rank = 0; query_rank < ring; ++query_rank) {
              for (int key_rank = 0; key_rank < ring; ++key_rank) {
                const std::string wrong = check(ring_shard(layout, tokens, query_rank, ring),
                                                ring_shard(layout, tokens, key_rank, ring), documents, mask);
                ASSERT_EQ(wrong, "") << tokens << " tokens, " << documents.count() << " documents, window "
                                     << mask.window << (mask.causal ? " causal, " : ", ") << layout_name(layout)
                                     << ", ring " << ring << ", query rank " << query_rank << ", key rank " << key_rank;
              }
            }
          }
        }
      }
    }
  }
}

TEST(Tasks, ShardsOfUlyssesRanks) {
  const RandomStream random(2, "tasks");
  uint64_t counter = 0;
  for (const int64_t tokens : {7, 13, 97}) {
    for (const Documents& documents : documents_of(tokens, random, counter)) {
      for (const MaskRule& mask : all_masks()) {
        for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
          for (int ring = 1; ring <= 3; ++ring) {
            for (int ulysses = 1; ulysses <= 3; ++ulysses) {
              std::vector<Shard> shards;
              for (int rank = 0; rank < ring * ulysses; ++rank) {
                shards.push_back(sequence_shard(layout, tokens, rank / ulysses, ring, rank % ulysses, ulysses));
              }
              for (const Shard& queries : shards) {
                for (const Shard& keys : shards) ASSERT_EQ(check(queries, keys, documents, mask), "");
              }
            }
          }
        }
      }
    }
  }
}

TEST(Tasks, ShardsOfDifferentStrides) {
  const RandomStream random(3, "tasks");
  uint64_t counter = 0;
  for (const Documents& documents : documents_of(60, random, counter)) {
    for (const MaskRule& mask : all_masks()) {
      const std::vector<Shard> shards{Shard({{1, 20, 2}}), Shard({{0, 19, 3}}), Shard({{5, 30, 1}, {40, 4, 5}}),
                                      Shard({{59, 1, 7}})};
      for (const Shard& queries : shards) {
        for (const Shard& keys : shards) ASSERT_EQ(check(queries, keys, documents, mask), "");
      }
    }
  }
}

TEST(Tasks, ListsByHand) {
  const Documents one = Documents::single(8);
  const Shard first = ring_shard(Layout::contiguous, 8, 0, 2);
  const Shard second = ring_shard(Layout::contiguous, 8, 1, 2);
  using List = std::vector<AttentionTask>;
  EXPECT_EQ(attention_tasks(first, first, one, {}), (List{{0, 4, 0, 4, kNoLower, 0}}));
  EXPECT_EQ(attention_tasks(second, first, one, {}), (List{{0, 4, 0, 4, kNoLower, kNoUpper}}));
  EXPECT_EQ(attention_tasks(first, second, one, {}), List{});
  // Window of 2 keys: only the first query of the second half reaches back, by one key.
  EXPECT_EQ(attention_tasks(second, first, one, {.causal = true, .window = 2}),
            (List{{0, 1, 3, 4, kNoLower, kNoUpper}}));
  EXPECT_EQ(attention_tasks(first, first, one, {.causal = true, .window = 2}), (List{{0, 4, 0, 4, -2, 0}}));
  // Striped: rank 0 holds 0 2 4 6, rank 1 holds 1 3 5 7.
  const Shard even = ring_shard(Layout::striped, 8, 0, 2);
  const Shard odd = ring_shard(Layout::striped, 8, 1, 2);
  EXPECT_EQ(attention_tasks(odd, even, one, {}), (List{{0, 4, 0, 4, kNoLower, 0}}));
  EXPECT_EQ(attention_tasks(even, odd, one, {}), (List{{1, 4, 0, 3, kNoLower, 0}}));
  // Zigzag: rank 0 holds 0 1 | 6 7; its late chunk sees its early one completely.
  const Shard outer = ring_shard(Layout::zigzag, 8, 0, 2);
  EXPECT_EQ(attention_tasks(outer, outer, one, {}),
            (List{{0, 2, 0, 2, kNoLower, 0}, {2, 4, 0, 2, kNoLower, kNoUpper}, {2, 4, 2, 4, kNoLower, 0}}));
}

// Counted tile by tile and pair by pair.
TEST(Tasks, TilesThatHoldAVisiblePair) {
  const int64_t bounds[] = {kNoLower, -40, -9, -3, -1, 0, 2, 5, 17, 40};
  for (const int64_t tile : {1, 3, 8}) {
    for (const int64_t lower : bounds) {
      for (const int64_t upper : {int64_t{-30}, int64_t{-4}, int64_t{0}, int64_t{3}, int64_t{11}, kNoUpper}) {
        for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{16, 24}, {13, 7}, {1, 9}, {20, 1}}) {
          if (lower >= upper) continue;
          const AttentionTask task{4, 4 + rows, 2, 2 + columns, lower, upper};
          int64_t tiles = 0;
          for (int64_t row = 0; row < rows; row += tile) {
            for (int64_t column = 0; column < columns; column += tile) {
              bool is_visible = false;
              for (int64_t i = row; i < row + tile; ++i) {
                for (int64_t j = column; j < column + tile; ++j) is_visible |= j - i > lower && j - i <= upper;
              }
              tiles += is_visible ? 1 : 0;
            }
          }
          EXPECT_EQ(visible_tiles({{task}}, tile), tiles)
              << rows << " x " << columns << ", " << lower << " to " << upper << ", tiles of " << tile;
        }
      }
    }
  }
}

TEST(Tasks, ThousandsOfDocumentsAreQuick) {
  const int64_t count = 50000;
  const std::vector<int64_t> lengths(static_cast<size_t>(count), 20);
  const Documents documents(lengths);
  const auto start = std::chrono::steady_clock::now();
  for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
    int64_t pairs = 0;
    for (int query_rank = 0; query_rank < 4; ++query_rank) {
      for (int key_rank = 0; key_rank < 4; ++key_rank) {
        pairs += visible_pairs(attention_tasks(ring_shard(layout, count * 20, query_rank, 4),
                                               ring_shard(layout, count * 20, key_rank, 4), documents, {}));
      }
    }
    EXPECT_EQ(pairs, count * 20 * 21 / 2) << layout_name(layout);
  }
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 5.0);
}

TEST(Tasks, BeyondThirtyTwoBits) {
  const int64_t tokens = int64_t{1} << 32;
  const Documents documents = Documents::single(tokens);
  int64_t pairs = 0;
  for (int query_rank = 0; query_rank < 2; ++query_rank) {
    for (int key_rank = 0; key_rank < 2; ++key_rank) {
      pairs += visible_pairs(attention_tasks(ring_shard(Layout::striped, tokens, query_rank, 2),
                                             ring_shard(Layout::striped, tokens, key_rank, 2), documents,
                                             {.causal = true, .window = int64_t{1} << 20}));
    }
  }
  const int64_t window = int64_t{1} << 20;
  EXPECT_EQ(pairs, tokens * window - window * (window - 1) / 2);
  const Shard whole = ring_shard(Layout::contiguous, tokens / 2, 0, 1);
  EXPECT_EQ(visible_pairs(attention_tasks(whole, whole, documents, {.causal = true, .window = INT64_MAX})),
            (tokens / 2) * (tokens / 2 + 1) / 2);
}

TEST(Tasks, RefusesWhatHasNoMeaning) {
  const Shard shard = ring_shard(Layout::contiguous, 8, 0, 1);
  const Documents documents = Documents::single(8);
  EXPECT_THROW(attention_tasks(shard, shard, documents, {.causal = false, .window = 4}), ContractError);
  EXPECT_THROW(attention_tasks(shard, shard, documents, {.causal = true, .window = -1}), ContractError);
  EXPECT_THROW(attention_tasks(shard, shard, Documents::single(7), {}), ContractError);
}

}  // namespace
}  // namespace ithaca
