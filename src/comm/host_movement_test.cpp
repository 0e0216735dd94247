#include "comm/host_movement.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "comm/comm_testing.h"

namespace ithaca {
namespace {

using testing::Block;
using testing::expect_block;
using testing::kBlockStyles;

template <typename T>
class CopyElements : public ::testing::Test {};
using CopiedTypes = ::testing::Types<uint8_t, int32_t, float, int64_t, double>;
TYPED_TEST_SUITE(CopyElements, CopiedTypes);

TYPED_TEST(CopyElements, BetweenAnyStridesAndShapes) {
  for (const int64_t count : {0, 1, 2, 7, 24, 90}) {
    for (int from_style = 0; from_style < kBlockStyles; ++from_style) {
      for (int to_style = 0; to_style < kBlockStyles; ++to_style) {
        Block<TypeParam> from(count, from_style);
        Block<TypeParam> to(count, to_style);
        const auto value = [](int64_t index) { return static_cast<TypeParam>(index + 1); };
        from.fill(value);
        copy_elements(from.tensor(), to.tensor());
        expect_block(to, value, "copy");
        expect_block(from, value, "source");
      }
    }
  }
}

TEST(CopyElements, FollowsRowMajorOrderOfFiveDimensions) {
  std::vector<int32_t> storage(size_t{2} * 3 * 4 * 5 * 2);
  std::iota(storage.begin(), storage.end(), 0);
  Tensor from = Tensor::contiguous(storage.data(), DType::int32, {2, 3, 4, 5, 2}).transpose(0, 3).transpose(1, 4);
  from = from.slice(0, 1, 4);
  std::vector<int32_t> copied(static_cast<size_t>(from.element_count()), -1);
  copy_elements(from, Tensor::contiguous(copied.data(), DType::int32, {from.element_count()}));
  size_t next = 0;
  for (int64_t a = 0; a < from.extent(0); ++a) {
    for (int64_t b = 0; b < from.extent(1); ++b) {
      for (int64_t c = 0; c < from.extent(2); ++c) {
        for (int64_t d = 0; d < from.extent(3); ++d) {
          for (int64_t e = 0; e < from.extent(4); ++e) {
            const Tensor element = from.select(0, a).select(0, b).select(0, c).select(0, d).select(0, e);
            ASSERT_EQ(copied[next++], *element.as<int32_t>());
          }
        }
      }
    }
  }
}

TEST(CopyElements, RefusesWhatDoesNotMatch) {
  Block<float> four(4);
  Block<float> five(5);
  Block<int32_t> integers(4);
  EXPECT_THROW(copy_elements(four.tensor(), five.tensor()), ContractError);
  EXPECT_THROW(copy_elements(four.tensor(), integers.tensor()), ContractError);
}

TEST(SumElements, AddsInRankOrder) {
  // In float, (1e8 + -1e8) + 1 and 1e8 + (-1e8 + 1) differ: the order is visible in the bits.
  for (int style = 0; style < kBlockStyles; ++style) {
    const int64_t count = 5000;
    std::vector<Block<float>> parts;
    const RandomStream random(7, "terms");
    for (int rank = 0; rank < 5; ++rank) {
      parts.emplace_back(count, (style + rank) % kBlockStyles);
      parts.back().fill([&](int64_t index) {
        const double scale = rank % 2 == 0 ? 1e6 : 1e-3;
        return static_cast<float>(scale * random.normal(static_cast<uint64_t>(rank * count + index)));
      });
    }
    Block<float> sum(count, style);
    sum_elements(testing::tensors_of(parts), sum.tensor());
    expect_block(
        sum,
        [&](int64_t index) {
          float expected = parts[0].get(index);
          for (size_t rank = 1; rank < parts.size(); ++rank) expected += parts[rank].get(index);
          return expected;
        },
        "sum");
  }
}

TEST(SumElements, MayOverwriteOneOfItsParts) {
  for (size_t target = 0; target < 3; ++target) {
    std::vector<Block<double>> parts;
    for (int rank = 0; rank < 3; ++rank) {
      parts.emplace_back(6000, 2);
      parts.back().fill([&](int64_t index) { return static_cast<double>(index * (rank + 1)); });
    }
    sum_elements(testing::tensors_of(parts), parts[target].tensor());
    expect_block(
        parts[target], [](int64_t index) { return static_cast<double>(6 * index); }, "sum");
  }
}

TEST(SumElements, IntegersWrapAround) {
  std::vector<int64_t> left = {std::numeric_limits<int64_t>::max(), 5};
  std::vector<int64_t> right = {1, -7};
  const std::array<Tensor, 2> parts = {Tensor::contiguous(left.data(), DType::int64, {2}),
                                       Tensor::contiguous(right.data(), DType::int64, {2})};
  sum_elements(parts, parts[0]);
  EXPECT_EQ(left[0], std::numeric_limits<int64_t>::min());
  EXPECT_EQ(left[1], -2);
}

TEST(SumElements, RefusesOtherTypes) {
  Block<int32_t> integers(3);
  const Tensor part = integers.tensor();
  EXPECT_THROW(sum_elements(std::array<Tensor, 2>{part, part}, part), ContractError);
}

}  // namespace
}  // namespace ithaca
