#include "data/packing/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/random.h"
#include "data/packing/best_fit.h"

namespace ithaca {
namespace {

using testing::ElementsAre;

// Samples of one document each, or as given: lengths of each sample's documents.
class MadeTable : public DocumentTable {
 public:
  explicit MadeTable(std::vector<int64_t> lengths) : lengths_(std::move(lengths)) {
    for (size_t i = 0; i <= lengths_.size(); ++i) firsts_.push_back(static_cast<int64_t>(i));
  }
  explicit MadeTable(const std::vector<std::vector<int64_t>>& samples) : firsts_{0} {
    for (const std::vector<int64_t>& sample : samples) {
      lengths_.insert(lengths_.end(), sample.begin(), sample.end());
      firsts_.push_back(static_cast<int64_t>(lengths_.size()));
    }
  }
  int64_t samples() const override { return static_cast<int64_t>(firsts_.size()) - 1; }
  int64_t documents() const override { return static_cast<int64_t>(lengths_.size()); }
  int64_t first_document(int64_t sample) const override { return firsts_.at(static_cast<size_t>(sample)); }
  int64_t length(int64_t document) const override { return lengths_.at(static_cast<size_t>(document)); }

 private:
  std::vector<int64_t> lengths_;
  std::vector<int64_t> firsts_;
};

std::vector<std::vector<Piece>> all_pieces(const Packing& packing) {
  std::vector<std::vector<Piece>> result;
  for (int64_t i = 0; i < packing.size(); ++i) result.push_back(packing.pieces(i));
  return result;
}

TEST(Packing, NoneByHand) {
  const MadeTable table(std::vector<int64_t>{3, 1, 5, 8, 0, 9});
  const auto packing = make_packing(table, {PackingKind::none, Overlong::split, 4});
  const std::vector<std::vector<Piece>> expected = {{{0, 0, 3, 3, 0}}, {{2, 0, 4, 5, 0}}, {{3, 0, 4, 8, 0}},
                                                    {{3, 4, 8, 8, 0}}, {{5, 0, 4, 9, 0}}, {{5, 4, 8, 9, 0}}};
  EXPECT_EQ(all_pieces(*packing), expected);  // the fifth token of document 2 and the ninth of 5 are labels only
  const PackingTotals& totals = packing->totals();
  EXPECT_EQ(totals.tokens, 3 + 4 + 8 + 8);
  EXPECT_EQ(totals.unfilled, 1);
  EXPECT_EQ(totals.skipped_documents, 2);
  EXPECT_EQ(totals.split_documents, 2);
  EXPECT_EQ(totals.longest_sequence, 4);
  EXPECT_EQ(totals.longest_document, 9);
}

TEST(Packing, NoneKeepsTheDocumentsOfASampleTogether) {
  const MadeTable table(std::vector<std::vector<int64_t>>{{2, 5, 1}, {1}, {4, 5}});
  const auto packing = make_packing(table, {PackingKind::none, Overlong::split, 4});
  const std::vector<std::vector<Piece>> expected = {
      {{0, 0, 2, 2, 0}, {1, 0, 2, 5, 0}}, {{1, 2, 5, 5, 0}, {2, 0, 1, 1, 0}}, {{4, 0, 4, 4, 0}}, {{5, 0, 4, 5, 0}}};
  EXPECT_EQ(all_pieces(*packing), expected);
  const auto truncated = make_packing(table, {PackingKind::none, Overlong::truncate, 4});
  EXPECT_EQ(all_pieces(*truncated),
            (std::vector<std::vector<Piece>>{{{0, 0, 2, 2, 0}, {1, 0, 2, 2, 0}}, {{4, 0, 4, 4, 0}}}));
  EXPECT_EQ(truncated->totals().truncated_documents, 2);
  EXPECT_EQ(truncated->totals().truncated_tokens, 4 + 5);
}

TEST(Packing, WrappedByHand) {
  const MadeTable table(std::vector<int64_t>{3, 1, 7, 0, 2, 3});
  const auto packing = make_packing(table, {PackingKind::wrapped, Overlong::split, 4});
  // 3 + 7 + 2 + 3 = 15 tokens.
  const std::vector<std::vector<Piece>> expected = {
      {{0, 0, 3, 3, 0}, {2, 0, 1, 7, 0}}, {{2, 1, 5, 7, 1}}, {{2, 5, 7, 7, 5}, {4, 0, 2, 2, 0}}, {{5, 0, 3, 3, 0}}};
  EXPECT_EQ(all_pieces(*packing), expected);
  EXPECT_EQ(packing->totals().split_documents, 1);
  EXPECT_EQ(packing->totals().unfilled, 1);
  // One token more would be alone in a window, without a label.
  const MadeTable lonely(std::vector<int64_t>{3, 2});
  const auto shorter = make_packing(lonely, {PackingKind::wrapped, Overlong::split, 4});
  EXPECT_EQ(all_pieces(*shorter), (std::vector<std::vector<Piece>>{{{0, 0, 3, 3, 0}, {1, 0, 1, 2, 0}}}));
  EXPECT_EQ(shorter->totals().tokens, 4);
}

TEST(Packing, BestFitByHand) {
  const MadeTable table(std::vector<int64_t>{4, 6, 3, 7, 25, 1, 2});
  const auto packing = make_packing(table, {PackingKind::best_fit, Overlong::split, 10});
  // Document 4 fills two windows and leaves 5. Then 7, 6, 5, 4, 3, 2: 7 | 6 | 5 | 4 to the 6 | 3 to the 7 | 2 to the 5.
  const std::vector<std::vector<Piece>> expected = {{{4, 0, 10, 25, 0}},
                                                    {{4, 10, 20, 25, 0}},
                                                    {{3, 0, 7, 7, 0}, {2, 0, 3, 3, 0}},
                                                    {{1, 0, 6, 6, 0}, {0, 0, 4, 4, 0}},
                                                    {{4, 20, 25, 25, 0}, {6, 0, 2, 2, 0}}};
  EXPECT_EQ(all_pieces(*packing), expected);
  EXPECT_EQ(packing->totals().unfilled, 3);
  EXPECT_EQ(packing->totals().tokens, 47);
  EXPECT_EQ(packing->totals().skipped_documents, 1);
  EXPECT_EQ(packing->totals().longest_sequence, 10);
}

// What a caller trains: (document, token) of every label, and every token that is in a sequence.
struct Trained {
  std::map<std::pair<int64_t, int64_t>, int64_t> labels, tokens;  // how often
};

Trained trained_by(const Packing& packing, const MadeTable& table, const PackingOptions& options) {
  Trained trained;
  int64_t total = 0;
  int64_t longest = 0;
  for (int64_t index = 0; index < packing.size(); ++index) {
    const std::vector<Piece> pieces = packing.pieces(index);
    EXPECT_FALSE(pieces.empty());
    int64_t length = 0;
    std::set<int64_t> documents;
    for (const Piece& piece : pieces) {
      EXPECT_TRUE(documents.insert(piece.document).second);
      EXPECT_LT(piece.begin, piece.end);
      EXPECT_LE(piece.end, piece.label_end);
      EXPECT_LE(piece.label_end, table.length(piece.document));
      EXPECT_EQ(piece.first_position, options.kind == PackingKind::wrapped ? piece.begin : 0);
      length += piece.length();
      for (int64_t token = piece.begin; token < piece.end; ++token) {
        ++trained.tokens[{piece.document, token}];
        if (token + 1 < piece.label_end) ++trained.labels[{piece.document, token + 1}];
      }
    }
    EXPECT_LE(length, options.max_length);
    total += length;
    longest = std::max(longest, length);
  }
  EXPECT_EQ(packing.totals().tokens, total);
  EXPECT_EQ(packing.totals().longest_sequence, longest);
  EXPECT_EQ(packing.totals().unfilled, packing.size() * options.max_length - total);
  return trained;
}

// For random lengths, every packing and every treatment of long documents: what is kept is a label exactly once.
TEST(Packing, EveryTokenIsALabelExactlyOnce) {
  const RandomStream random(5, "packing");
  for (uint64_t round = 0; round < 60; ++round) {
    std::vector<int64_t> lengths;
    const uint64_t count = 1 + random.bits(round) % 40;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t bits = random.bits(1000 * (round + 1) + i);
      lengths.push_back(static_cast<int64_t>(bits % 3 == 0 ? bits / 3 % 100 : bits / 3 % 12));
    }
    const MadeTable table(lengths);
    for (const int64_t max_length : {1, 2, 3, 8, 17, 99, 1000}) {
      for (const PackingKind kind : {PackingKind::none, PackingKind::wrapped, PackingKind::best_fit}) {
        for (const Overlong overlong : {Overlong::split, Overlong::truncate, Overlong::drop}) {
          SCOPED_TRACE(testing::Message() << packing_name(kind) << " " << overlong_name(overlong) << " " << max_length
                                          << " round " << round);
          const PackingOptions options = {kind, overlong, max_length};
          const auto packing = make_packing(table, options);
          const Trained trained = trained_by(*packing, table, options);
          std::map<std::pair<int64_t, int64_t>, int64_t> expected;
          std::map<int64_t, int64_t> kept;
          int64_t dropped = 0;
          int64_t skipped = 0;
          for (size_t document = 0; document < lengths.size(); ++document) {
            int64_t length = lengths[document];
            skipped += length < 2 ? 1 : 0;
            if (length > max_length && overlong == Overlong::truncate) length = max_length;
            if (length < 2) length = 0;
            if (length > max_length && overlong == Overlong::drop) {
              ++dropped;
              length = 0;
            }
            kept[static_cast<int64_t>(document)] = length;
            for (int64_t token = 1; token < length; ++token) expected[{static_cast<int64_t>(document), token}] = 1;
          }
          ASSERT_EQ(trained.labels, expected);
          for (const auto& [token, times] : trained.tokens) ASSERT_EQ(times, 1);
          EXPECT_EQ(packing->totals().dropped_documents, dropped);
          EXPECT_EQ(packing->totals().skipped_documents, skipped);
          std::map<int64_t, int64_t> visited;
          packing->visit_kept([&](int64_t document, int64_t tokens) { visited[document] = tokens; });
          EXPECT_EQ(visited, kept);
        }
      }
    }
  }
}

// Against the definition, item by item: of the bins with room the fullest.
TEST(BestFit, EqualsThePlainAlgorithm) {
  const RandomStream random(6, "best fit");
  for (uint64_t round = 0; round < 50; ++round) {
    const auto capacity = static_cast<int64_t>(5 + random.bits(round) % 60);
    std::vector<FitItem> items;
    for (uint32_t i = 0; i < 80; ++i) {
      items.push_back(
          {1 + static_cast<int64_t>(random.bits(100 * round + 7919 + i) % static_cast<uint64_t>(capacity)), i});
    }
    std::vector<FitItem> sorted = items;
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.length > b.length; });
    std::multiset<int64_t> rooms;
    for (const FitItem& item : sorted) {
      const auto fullest = rooms.lower_bound(item.length);
      const int64_t room = fullest == rooms.end() ? capacity : *fullest;
      if (fullest != rooms.end()) rooms.erase(fullest);
      rooms.insert(room - item.length);
    }
    const FitBins bins = best_fit_decreasing(items, capacity);
    std::multiset<int64_t> found;
    std::set<uint32_t> seen;
    for (int64_t bin = 0; bin < bins.size(); ++bin) {
      int64_t room = capacity;
      for (const uint32_t document : bins.documents_of(bin)) {
        EXPECT_TRUE(seen.insert(document).second);
        room -= items[document].length;
      }
      EXPECT_GE(room, 0);
      found.insert(room);
    }
    EXPECT_EQ(seen.size(), items.size());
    EXPECT_EQ(found, rooms);
    std::reverse(items.begin(), items.end());
    const FitBins again = best_fit_decreasing(items, capacity);
    ASSERT_EQ(again.size(), bins.size());
    for (int64_t bin = 0; bin < bins.size(); ++bin) {
      EXPECT_TRUE(std::equal(bins.documents_of(bin).begin(), bins.documents_of(bin).end(),
                             again.documents_of(bin).begin(), again.documents_of(bin).end()));
    }
  }
}

TEST(BestFit, NothingAndTooMuch) {
  EXPECT_EQ(best_fit_decreasing({}, 10).size(), 0);
  EXPECT_THROW(best_fit_decreasing({{11, 0}}, 10), ContractError);
}

// Long documents have nothing to do with the number of windows that is left over for others.
TEST(Packing, LengthsBeyond32Bits) {
  const int64_t huge = int64_t{5} << 32;
  const MadeTable table(std::vector<int64_t>{huge, 10});
  for (const PackingKind kind : {PackingKind::none, PackingKind::wrapped, PackingKind::best_fit}) {
    const auto packing = make_packing(table, {kind, Overlong::split, int64_t{1} << 40});
    EXPECT_EQ(packing->totals().tokens, huge + 10);
    EXPECT_EQ(packing->totals().longest_document, huge);
    const auto windows = make_packing(table, {kind, Overlong::split, int64_t{1} << 30});
    EXPECT_EQ(windows->pieces(2).front().begin, int64_t{2} << 30) << packing_name(kind);
  }
  const auto widest = make_packing(table, {PackingKind::none, Overlong::split, INT64_MAX / 2 + 1});
  EXPECT_EQ(widest->totals().unfilled, INT64_MAX);
}

}  // namespace
}  // namespace ithaca
