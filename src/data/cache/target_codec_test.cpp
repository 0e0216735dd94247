#include "data/cache/target_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/random.h"

namespace ithaca {
namespace {

// Encodes, reads back, and holds everything to the vectors themselves. Returns the bytes that were needed.
size_t check(const std::vector<float>& weights, const std::vector<int64_t>& labels, const std::vector<int64_t>& ids) {
  const auto tokens = static_cast<int64_t>(ids.size());
  std::vector<std::byte> bytes(16, std::byte{7});  // of a document before
  encode_targets(tokens, weights, labels, ids, bytes);
  EXPECT_EQ(bytes.size() % 8, 0u);
  const auto own = std::span<const std::byte>(bytes).subspan(16);
  const TargetView view(own, tokens);
  const auto expected = [&](int64_t i) {
    return i == 0 ? 0.0f : weights.empty() ? 1.0f : weights[static_cast<size_t>(i)];
  };
  bool weighted = false;
  TargetView::Cursor cursor(view);
  for (int64_t i = 0; i < tokens; ++i) {
    EXPECT_EQ(cursor.weight(i), expected(i)) << i;
    weighted = weighted || (expected(i) != 0.0f && expected(i) != 1.0f);
    if (i == 0) continue;
    const auto at = static_cast<size_t>(i);
    const int64_t label = view.labels().empty() ? ids[at] : static_cast<int64_t>(view.labels()[at]);
    EXPECT_EQ(label, labels.empty() ? ids[at] : labels[at]) << i;
  }
  EXPECT_EQ(view.weighted(), weighted);
  for (int64_t i = tokens - 1; i >= 0; i -= 3) EXPECT_EQ(cursor.weight(i), expected(i)) << i;  // in any order
  const RandomStream random(9, "ranges");
  for (uint64_t round = 0; round < 20; ++round) {
    const auto begin = static_cast<int64_t>(random.bits(2 * round) % static_cast<uint64_t>(tokens + 1));
    const auto end = static_cast<int64_t>(random.bits(2 * round + 1) % static_cast<uint64_t>(tokens + 1));
    TargetTotals totals;
    for (int64_t i = begin; i < end; ++i) {
      totals.count += expected(i) > 0.0f ? 1 : 0;
      totals.weight_sum += static_cast<double>(expected(i));
    }
    EXPECT_EQ(view.totals(begin, end).count, totals.count);
    EXPECT_DOUBLE_EQ(view.totals(begin, end).weight_sum, totals.weight_sum);
  }
  return own.size();
}

std::vector<int64_t> counting(int64_t count) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(i);
  return ids;
}

TEST(TargetCodec, TheUsualCasesAreSmall) {
  const std::vector<int64_t> ids = counting(1000);
  EXPECT_EQ(check({}, {}, ids), 0u);
  EXPECT_EQ(check(std::vector<float>(1000, 1.0f), {}, ids), 0u);
  EXPECT_EQ(check({}, ids, ids), 0u);
  // The answer of a conversation: a run of zeros and one of ones.
  std::vector<float> mask(1000, 0.0f);
  std::fill(mask.begin() + 600, mask.end(), 1.0f);
  EXPECT_EQ(check(mask, {}, ids), 8u + 8 + 2 * 16);
  std::vector<float> first_counts_for_nothing(1000, 1.0f);
  first_counts_for_nothing[0] = 0.25f;
  EXPECT_EQ(check(first_counts_for_nothing, {}, ids), 0u);
}

TEST(TargetCodec, WeightsOfEveryToken) {
  std::vector<float> weights;
  for (int i = 0; i < 101; ++i) weights.push_back(0.125f * static_cast<float>(i % 7));
  EXPECT_EQ(check(weights, {}, counting(101)), 8u + 408);
}

TEST(TargetCodec, LabelsOfTheirOwn) {
  const std::vector<int64_t> ids = counting(9);
  std::vector<int64_t> labels = ids;
  labels[4] = 4'000'000'000;
  EXPECT_EQ(check({}, labels, ids), 8u + 40);
  std::vector<float> mask(9, 1.0f);
  mask[2] = 0.0f;
  check(mask, labels, ids);
  labels = ids;
  labels[0] = 77;  // never a target
  EXPECT_EQ(check({}, labels, ids), 0u);
}

TEST(TargetCodec, AnyWeightsComeBack) {
  const RandomStream random(4, "weights");
  for (uint64_t round = 0; round < 300; ++round) {
    const uint64_t tokens = random.bits(round) % 40;
    const uint64_t kinds = 1 + random.bits(round + 1000) % 3;
    std::vector<float> weights;
    std::vector<int64_t> labels;
    for (uint64_t i = 0; i < tokens; ++i) {
      const uint64_t bits = random.bits(100 * round + 5000 + i);
      weights.push_back(bits % 8 < 5 && i > 0 ? weights.back() : 0.5f * static_cast<float>(bits / 8 % kinds));
      labels.push_back(static_cast<int64_t>(bits / 64 % 5));
    }
    check(weights, round % 3 == 0 ? labels : std::vector<int64_t>(), counting(static_cast<int64_t>(tokens)));
  }
}

TEST(TargetCodec, Requirements) {
  std::vector<std::byte> bytes;
  const std::vector<float> weights = {1.0f, 0.5f};
  EXPECT_THROW(encode_targets(3, weights, {}, {}, bytes), ContractError);
  EXPECT_THROW(encode_targets(3, {}, counting(2), counting(3), bytes), ContractError);
  encode_targets(2, weights, {}, counting(2), bytes);
  EXPECT_THROW(TargetView(std::span<const std::byte>(bytes).first(8), 2), ContractError);
}

}  // namespace
}  // namespace ithaca
