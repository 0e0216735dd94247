#include "tensor/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <string>
#include <vector>

namespace ithaca {
namespace {

using testing::HasSubstr;

// 0, 1, 2, ... as a float32 tensor, so that an element tells where it came from.
class TensorViews : public testing::Test {
 protected:
  TensorViews() : values_(24) { std::iota(values_.begin(), values_.end(), 0.0f); }
  Tensor whole() { return Tensor::contiguous(values_.data(), DType::float32, {2, 3, 4}); }

  std::vector<float> values_;
};

float element(const Tensor& tensor, std::initializer_list<int64_t> index) {
  int64_t offset = 0;
  int dimension = 0;
  for (const int64_t i : index) offset += i * tensor.stride(dimension++);
  return tensor.as<float>()[offset];
}

std::string error_text(const std::function<void()>& action) {
  try {
    action();
  } catch (const ContractError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ExtentsValues, AreAShortList) {
  const Extents extents = {8192, 32, 128};
  EXPECT_EQ(extents.rank(), 3);
  EXPECT_EQ(extents[1], 32);
  EXPECT_EQ(extents.product(), 8192 * 32 * 128);
  EXPECT_EQ(extents.to_string(), "[8192, 32, 128]");
  EXPECT_EQ(Extents{}.product(), 1);
  EXPECT_EQ(Extents{}.to_string(), "[]");
  EXPECT_TRUE((Extents{2, 3} == Extents{2, 3}));
  EXPECT_FALSE((Extents{2, 3} == Extents{2, 3, 1}));
  EXPECT_FALSE((Extents{2, 3} == Extents{3, 2}));
}

TEST(ExtentsValues, RefuseWhatDoesNotFit) {
  EXPECT_THROW((Extents{1, 2, 3, 4, 5, 6}), ContractError);
  EXPECT_THROW((Extents{1, 2}[2]), ContractError);
  EXPECT_THROW((Extents{1, 2}[-1]), ContractError);
  EXPECT_THROW((Extents{3, -1}.product()), ContractError);
  EXPECT_THROW((Extents{int64_t{1} << 32, int64_t{1} << 31}.product()), ContractError);
  EXPECT_EQ((Extents{int64_t{1} << 32, (int64_t{1} << 30)}.product()), int64_t{1} << 62);
  // An empty tensor has no elements, however large its other extents are.
  EXPECT_EQ((Extents{int64_t{1} << 62, 4, 0}.product()), 0);
}

TEST_F(TensorViews, ContiguousIsRowMajor) {
  const Tensor tensor = whole();
  EXPECT_TRUE((tensor.strides == Extents{12, 4, 1}));
  EXPECT_EQ(tensor.element_count(), 24);
  EXPECT_EQ(tensor.byte_count(), 96);
  EXPECT_TRUE(tensor.is_contiguous());
  EXPECT_FALSE(tensor.is_absent());
  EXPECT_TRUE(Tensor{}.is_absent());
  EXPECT_EQ(element(tensor, {1, 2, 3}), 23.0f);
}

TEST_F(TensorViews, SliceKeepsTheDimension) {
  const Tensor slice = whole().slice(1, 1, 3);
  EXPECT_TRUE((slice.extents == Extents{2, 2, 4}));
  EXPECT_FALSE(slice.is_contiguous());
  EXPECT_EQ(element(slice, {0, 0, 0}), 4.0f);
  EXPECT_EQ(element(slice, {1, 1, 3}), 23.0f);
  EXPECT_TRUE(whole().slice(0, 1, 2).is_contiguous());
  EXPECT_EQ(whole().slice(0, 2, 2).element_count(), 0);
  EXPECT_THROW(whole().slice(1, 2, 4), ContractError);
  EXPECT_THROW(whole().slice(1, 2, 1), ContractError);
  EXPECT_THROW(whole().slice(3, 0, 1), ContractError);
}

TEST_F(TensorViews, SelectDropsTheDimension) {
  const Tensor row = whole().select(1, 2);
  EXPECT_TRUE((row.extents == Extents{2, 4}));
  EXPECT_TRUE((row.strides == Extents{12, 1}));
  EXPECT_EQ(element(row, {1, 0}), 20.0f);
  EXPECT_THROW(whole().select(0, 2), ContractError);
  EXPECT_THROW(whole().select(0, -1), ContractError);
}

TEST_F(TensorViews, TransposeExchangesDimensions) {
  const Tensor transposed = whole().transpose(0, 2);
  EXPECT_TRUE((transposed.extents == Extents{4, 3, 2}));
  EXPECT_EQ(element(transposed, {3, 1, 1}), 19.0f);
  EXPECT_FALSE(transposed.is_contiguous());
  EXPECT_TRUE(transposed.transpose(0, 2).is_contiguous());
  EXPECT_THROW(whole().transpose(0, 3), ContractError);
}

TEST_F(TensorViews, ReshapeNeedsContiguousElements) {
  const Tensor flat = whole().reshape({24});
  EXPECT_EQ(element(flat, {17}), 17.0f);
  EXPECT_EQ(element(whole().reshape({4, 6}), {2, 5}), 17.0f);
  EXPECT_THROW(whole().reshape({25}), ContractError);
  EXPECT_THROW(whole().transpose(0, 1).reshape({24}), ContractError);
}

TEST_F(TensorViews, SplitWorksOnAnyStrides) {
  const Tensor split = whole().transpose(0, 2).split(0, 2, 2);
  EXPECT_TRUE((split.extents == Extents{2, 2, 3, 2}));
  // index 3 of the old dimension is (1, 1)
  EXPECT_EQ(element(split, {1, 1, 1, 1}), 19.0f);
  EXPECT_THROW(whole().split(0, 2, 2), ContractError);
  EXPECT_THROW(whole().split(2, 2, 2).split(2, 1, 2).split(0, 1, 2), ContractError);  // rank 6
  EXPECT_THROW(whole().split(3, 1, 1), ContractError);
  EXPECT_THROW(whole().split(0, -1, -2), ContractError);
}

TEST_F(TensorViews, JoinNeedsDimensionsLaidOutAsOne) {
  const Tensor joined = whole().join(1);
  EXPECT_TRUE((joined.extents == Extents{2, 12}));
  EXPECT_EQ(element(joined, {1, 7}), 19.0f);
  EXPECT_TRUE((whole().split(2, 2, 2).join(2).strides == whole().strides));
  EXPECT_THROW(whole().slice(2, 0, 3).join(1), ContractError);
  EXPECT_THROW(whole().join(2), ContractError);
  EXPECT_THROW(whole().join(-1), ContractError);
  // The outer of the two dimensions has one index: its stride does not matter, the inner one's does.
  const Tensor single = whole().slice(1, 1, 2).slice(2, 0, 3).join(1);
  EXPECT_TRUE((single.extents == Extents{2, 3}));
  EXPECT_EQ(element(single, {1, 2}), 18.0f);
  // The inner one has one index: the outer stride is what counts.
  const Tensor column = whole().slice(2, 3, 4).join(1);
  EXPECT_TRUE((column.extents == Extents{2, 3}));
  EXPECT_EQ(element(column, {1, 2}), 23.0f);
}

TEST_F(TensorViews, ExtentsOfOneDoNotSpoilContiguity) {
  Tensor tensor = whole().slice(0, 1, 2);
  tensor.strides[0] = 999;
  EXPECT_TRUE(tensor.is_contiguous());
  Tensor empty = whole().slice(1, 0, 0);
  EXPECT_TRUE(empty.is_contiguous());
}

TEST_F(TensorViews, KnowTheirElementType) {
  EXPECT_EQ(whole().as<float>(), values_.data());
  EXPECT_THAT(error_text([&] { whole().as<double>(); }), HasSubstr("float64, but the tensor is float32 [2, 3, 4]"));
}

TEST_F(TensorViews, DescribeThemselves) {
  EXPECT_EQ(whole().describe(), "float32 [2, 3, 4]");
  EXPECT_EQ(whole().transpose(0, 2).describe(), "float32 [4, 3, 2] with strides [1, 4, 12]");
  EXPECT_THAT(error_text([&] { whole().slice(0, 1, 3); }), HasSubstr("slice [1, 3) of dimension 0"));
}

// Shapes beyond 2^31 elements: arithmetic only, no memory behind them.
TEST(LargeTensors, OffsetsAreExact) {
  const int64_t tokens = 3'000'000;
  const Tensor tensor = Tensor::contiguous(nullptr, DType::float32, {tokens, 8, 256});
  EXPECT_EQ(tensor.element_count(), tokens * 2048);
  EXPECT_EQ(tensor.byte_count(), tokens * 8192);
  Tensor placed = tensor;
  std::byte origin{};
  placed.data = &origin;
  // Only the address is looked at.
  const Tensor last = placed.slice(0, tokens - 1, tokens);
  EXPECT_EQ(reinterpret_cast<intptr_t>(last.data) - reinterpret_cast<intptr_t>(&origin), (tokens - 1) * 8192);
  EXPECT_THROW(Tensor::contiguous(nullptr, DType::float32, {int64_t{1} << 40, int64_t{1} << 40}), ContractError);
}

TEST(LargeTensors, ByteCountsThatDoNotFitAreErrors) {
  const Tensor tensor = Tensor::contiguous(nullptr, DType::float64, {int64_t{1} << 61});
  EXPECT_THROW(tensor.byte_count(), ContractError);
}

}  // namespace
}  // namespace ithaca
