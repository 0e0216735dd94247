// Layouts of strided views, on the host: what copies on the device are made of.
#include "backend/cuda/strided_layout.cuh"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"

namespace ithaca::cuda {
namespace {

TEST(FastDivisor, DividesExactly) {
  const RandomStream random(1, "divisors");
  std::vector<uint32_t> divisors = {1, 2, 3, 5, 7, 641, 65535, 65536, 65537, 0x40000000u, 0x40000001u, 0x7FFFFFFFu};
  for (uint64_t i = 0; i < 200; ++i) divisors.push_back(static_cast<uint32_t>(random.bits(i) % 0x7FFFFFFFu) + 1);
  for (const uint32_t divisor : divisors) {
    const FastDivisor fast(divisor);
    std::vector<uint32_t> values = {0, 1, divisor - 1, divisor, 0x7FFFFFFEu, 0x7FFFFFFFu};
    for (uint64_t i = 0; i < 200; ++i) values.push_back(static_cast<uint32_t>(random.bits(1000 + i)) & 0x7FFFFFFFu);
    for (const uint32_t value : values) EXPECT_EQ(fast.divide(value), value / divisor) << value << " / " << divisor;
  }
}

std::vector<int64_t> extents_of(const StridedLayout& layout) {
  return {layout.extents, layout.extents + layout.rank};
}
std::vector<int64_t> strides_of(const StridedLayout& layout) {
  return {layout.strides, layout.strides + layout.rank};
}

TEST(StridedLayout, JoinsWhatLiesAsOne) {
  const Tensor whole = Tensor::contiguous(nullptr, DType::float32, {4, 1, 6, 8});
  EXPECT_EQ(extents_of(layout_of(whole)), (std::vector<int64_t>{192}));
  const Tensor rows = whole.slice(3, 0, 5);
  EXPECT_EQ(extents_of(layout_of(rows)), (std::vector<int64_t>{5, 24}));
  EXPECT_EQ(strides_of(layout_of(rows)), (std::vector<int64_t>{1, 8}));
  const Tensor one = Tensor::contiguous(nullptr, DType::float32, {1, 1});
  EXPECT_EQ(extents_of(layout_of(one)), (std::vector<int64_t>{1}));
}

TEST(StridedLayout, JoinsOnlyWhereBothViewsAllowIt) {
  const Tensor first = Tensor::contiguous(nullptr, DType::float32, {4, 6, 8});
  const Tensor second = Tensor::contiguous(nullptr, DType::float32, {6, 4, 8}).transpose(0, 1);
  StridedLayout first_layout;
  StridedLayout second_layout;
  joint_layouts(first, second, first_layout, second_layout);
  EXPECT_EQ(extents_of(first_layout), (std::vector<int64_t>{8, 6, 4}));
  EXPECT_EQ(strides_of(first_layout), (std::vector<int64_t>{1, 8, 48}));
  EXPECT_EQ(strides_of(second_layout), (std::vector<int64_t>{1, 32, 8}));
  joint_layouts(first, first, first_layout, second_layout);
  EXPECT_EQ(extents_of(second_layout), (std::vector<int64_t>{192}));
}

TEST(StridedLayout, UnitsNeedWholeRows) {
  const Tensor rows = Tensor::contiguous(nullptr, DType::bfloat16, {3, 24}).slice(1, 0, 16);
  StridedLayout layout = layout_of(rows);
  ASSERT_TRUE(to_units(layout, 8));
  EXPECT_EQ(extents_of(layout), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(strides_of(layout), (std::vector<int64_t>{1, 3}));
  layout = layout_of(rows.slice(1, 0, 12));
  EXPECT_FALSE(to_units(layout, 8)) << "rows that are no whole units";
  layout = layout_of(Tensor::contiguous(nullptr, DType::bfloat16, {3, 20}).slice(1, 0, 16));
  EXPECT_FALSE(to_units(layout, 8)) << "rows that do not begin at units";
  layout = layout_of(rows.transpose(0, 1));
  EXPECT_FALSE(to_units(layout, 8)) << "elements that are not neighbours";
  EXPECT_TRUE(to_units(layout, 1));
}

}  // namespace
}  // namespace ithaca::cuda
