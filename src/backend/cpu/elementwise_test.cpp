// Copies, conversions, additions and fills of the CPU backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/reference.h"
#include "backend/test_tensors.h"

namespace ithaca {
namespace {

using testing::HasSubstr;
using testing_support::for_each_index;
using testing_support::relative_error;
using testing_support::TensorPair;
using testing_support::TestTensors;

class CpuElementwise : public testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(tensors_.guards_intact()); }
  Stream& compute() { return backend_->compute_stream(); }

  template <typename T>
  static Tensor vector_of(std::vector<T>& values) {
    return Tensor::contiguous(values.data(), DTypeOf<T>::value, {static_cast<int64_t>(values.size())});
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  TestTensors tensors_;
};

// Every order of three dimensions on either side, with gaps; and all ranks up to 5.
TEST_F(CpuElementwise, CopiesAnyStrides) {
  const auto copy_and_compare = [&](const Tensor& from, const Tensor& to) {
    backend_->copy(compute(), {from, to});
    EXPECT_EQ(relative_error(to, from), 0.0) << from.describe() << " " << to.describe();
  };
  const Tensor from = tensors_.normal({3, 4, 5}, 2).fast;
  for (const auto& [first, second] : {std::pair(0, 0), std::pair(0, 1), std::pair(0, 2), std::pair(1, 2)}) {
    for (const auto& [third, fourth] : {std::pair(0, 0), std::pair(0, 1), std::pair(0, 2), std::pair(1, 2)}) {
      const Tensor source = from.transpose(first, second);
      Extents target = source.extents;
      std::swap(target[third], target[fourth]);
      copy_and_compare(source, tensors_.undefined(target, 1).fast.transpose(third, fourth));
    }
  }
  copy_and_compare(tensors_.normal({2, 3, 2, 3, 2}, 1).fast.transpose(0, 3),
                   tensors_.undefined({3, 3, 2, 2, 2}, 3).fast);
  copy_and_compare(tensors_.normal({7}).fast, tensors_.undefined({7}).fast);
  copy_and_compare(tensors_.normal({1, 1, 1}).fast, tensors_.undefined({1, 1, 1}).fast);
  copy_and_compare(tensors_.normal({}).fast, tensors_.undefined({}).fast);
  copy_and_compare(tensors_.normal({3, 0, 2}).fast, tensors_.undefined({3, 0, 2}).fast);
  copy_and_compare(tensors_.normal({1000, 37}).fast, tensors_.undefined({1000, 37}).fast);
  // A row repeated: stride 0 on the side that is read.
  Tensor repeated = tensors_.normal({1, 6}).fast;
  repeated.extents[0] = 4;
  repeated.strides[0] = 0;
  copy_and_compare(repeated, tensors_.undefined({4, 6}).fast);
  // Backwards.
  Tensor reversed = tensors_.normal({6}).fast;
  reversed.data = reversed.as<float>() + 5;
  reversed.strides[0] = -1;
  copy_and_compare(reversed, tensors_.undefined({6}).fast);
}

TEST_F(CpuElementwise, HeadsOfOneRankAreGathered) {
  // [tokens, heads, size] -> heads 2..4 of every token, as an exchange of heads packs them.
  const Tensor from = tensors_.normal({9, 6, 8}).fast.slice(1, 2, 5);
  const Tensor to = tensors_.undefined({9, 3, 8}).fast;
  backend_->copy(compute(), {from, to});
  EXPECT_EQ(relative_error(to, from), 0.0);
}

TEST_F(CpuElementwise, ConvertsRoundingToNearestEven) {
  std::vector<float> values = {1.0f, 1.00390625f, 1.01171875f, -1.00390625f, 65520.0f, 1e-8f, 3.14159265f};
  std::vector<BFloat16> bfloats(values.size());
  std::vector<Float16> halves(values.size());
  std::vector<float> back(values.size());
  backend_->copy(compute(), {vector_of(values), vector_of(bfloats)});
  backend_->copy(compute(), {vector_of(values), vector_of(halves)});
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(bfloats[i].bits, to_bfloat16(values[i]).bits);
    EXPECT_EQ(halves[i].bits, to_float16(values[i]).bits);
  }
  // 1 + 2^-8 lies between 1 and 1 + 2^-7: a tie, to even.
  EXPECT_EQ(bfloats[1].bits, 0x3F80);
  EXPECT_EQ(bfloats[2].bits, 0x3F82);
  backend_->copy(compute(), {vector_of(bfloats), vector_of(back)});
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(back[i], to_float(bfloats[i]));
  backend_->copy(compute(), {vector_of(halves), vector_of(bfloats)});
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(bfloats[i].bits, to_bfloat16(to_float(halves[i])).bits);
}

// float64 -> 16 bits must round once. Rounding to float32 in between would turn these into ties and lose them.
TEST_F(CpuElementwise, DoesNotRoundTwiceFromDouble) {
  std::vector<double> values = {1.0 + 0x1p-8 + 0x1p-40,
                                1.0 + 0x1p-8 - 0x1p-40,
                                -(1.0 + 0x1p-8 + 0x1p-40),
                                1.0 + 0x1p-11 + 0x1p-40,
                                1e300,
                                -1e300,
                                1e-300,
                                0.0,
                                1.5};
  std::vector<BFloat16> bfloats(values.size());
  std::vector<Float16> halves(values.size());
  backend_->copy(compute(), {vector_of(values), vector_of(bfloats)});
  backend_->copy(compute(), {vector_of(values), vector_of(halves)});
  EXPECT_EQ(bfloats[0].bits, 0x3F81);  // just above the tie
  EXPECT_EQ(bfloats[1].bits, 0x3F80);  // just below
  EXPECT_EQ(bfloats[2].bits, 0xBF81);
  EXPECT_EQ(halves[3].bits, 0x3C01);
  EXPECT_EQ(bfloats[4].bits, 0x7F80);
  EXPECT_EQ(halves[5].bits, 0xFC00);
  EXPECT_EQ(halves[6].bits, 0);
  EXPECT_EQ(bfloats[7].bits, 0);
  EXPECT_EQ(halves[8].bits, 0x3E00);
}

TEST_F(CpuElementwise, ConvertsIntegersExactlyOrNotAtAll) {
  std::vector<int64_t> values = {0, -5, 2147483647, -2147483648LL, 200};
  std::vector<int32_t> narrow(values.size());
  std::vector<int64_t> wide(values.size());
  std::vector<double> doubles(values.size());
  backend_->copy(compute(), {vector_of(values), vector_of(narrow)});
  backend_->copy(compute(), {vector_of(narrow), vector_of(wide)});
  EXPECT_EQ(wide, values);
  backend_->copy(compute(), {vector_of(values), vector_of(doubles)});
  EXPECT_EQ(doubles[3], -2147483648.0);
  std::vector<int64_t> large = {INT64_MAX};
  std::vector<int64_t> copied(1);
  backend_->copy(compute(), {vector_of(large), vector_of(copied)});
  EXPECT_EQ(copied, large);
  std::vector<int32_t> too_small(1);
  EXPECT_THROW(backend_->copy(compute(), {vector_of(large), vector_of(too_small)}), ContractError);
}

TEST_F(CpuElementwise, RefusesToTurnFloatsIntoIntegers) {
  std::vector<float> values(3);
  std::vector<int64_t> integers(3);
  EXPECT_THROW(backend_->copy(compute(), {vector_of(values), vector_of(integers)}), ContractError);
}

TEST_F(CpuElementwise, AddsAnyStrides) {
  for (const float scale : {1.0f, -0.75f}) {
    const TensorPair from = tensors_.normal({5, 7, 3}, 1);
    const TensorPair to = tensors_.normal({3, 7, 5}, 2);
    backend_->add(compute(), {from.fast, to.fast.transpose(0, 2), scale});
    reference::add({from.exact, to.exact.transpose(0, 2), scale});
    EXPECT_LT(relative_error(to.fast, to.exact), 2e-7);
    const TensorPair flat = tensors_.normal({5003});
    const TensorPair other = tensors_.normal({5003});
    backend_->add(compute(), {flat.fast, other.fast, scale});
    reference::add({flat.exact, other.exact, scale});
    EXPECT_LT(relative_error(other.fast, other.exact), 2e-7);
    // float64, and the two mixed
    const TensorPair mixed = tensors_.normal({33});
    const TensorPair sum = tensors_.normal({33});
    const TensorPair expected = sum;
    backend_->add(compute(), {mixed.fast, sum.exact, scale});
    reference::add({mixed.exact, expected.exact, 0.0f});
    for (int64_t i = 0; i < 33; ++i) {
      EXPECT_DOUBLE_EQ(sum.exact.as<double>()[i], static_cast<double>(sum.fast.as<float>()[i]) +
                                                      static_cast<double>(scale) * mixed.exact.as<double>()[i]);
    }
  }
  const TensorPair nothing = tensors_.normal({4, 0});
  backend_->add(compute(), {nothing.fast, nothing.fast, 1.0f});
}

TEST_F(CpuElementwise, FillsAnyStridesAndTypes) {
  const TensorPair strided = tensors_.undefined({4, 5, 3}, 2);
  backend_->fill(compute(), {strided.fast.transpose(0, 1), 2.5});
  for_each_index(strided.fast, strided.exact,
                 [&](int64_t offset, int64_t /*exact*/) { EXPECT_EQ(strided.fast.as<float>()[offset], 2.5f); });
  std::vector<int64_t> integers(5, 1);
  backend_->fill(compute(), {vector_of(integers).slice(0, 1, 4), -100.0});
  EXPECT_THAT(integers, testing::ElementsAre(1, -100, -100, -100, 1));
  std::vector<BFloat16> bfloats(2);
  backend_->fill(compute(), {vector_of(bfloats), 1.0});
  EXPECT_EQ(bfloats[1].bits, 0x3F80);
  std::vector<double> doubles(2);
  backend_->fill(compute(), {vector_of(doubles), 0.1});
  EXPECT_EQ(doubles[1], 0.1);
}

TEST_F(CpuElementwise, FillRefusesAFractionInIntegers) {
  std::vector<int64_t> integers(2);
  EXPECT_THROW(backend_->fill(compute(), {vector_of(integers), 0.5}), ContractError);
}

TEST_F(CpuElementwise, NamesExtentsThatDiffer) {
  const Tensor from = tensors_.normal({2, 3}).fast;
  const Tensor to = tensors_.normal({3, 2}).fast;
  try {
    backend_->copy(compute(), {from, to});
    FAIL();
  } catch (const ContractError& error) {
    EXPECT_THAT(error.what(), HasSubstr("copy: from is float32 [2, 3], but to is float32 [3, 2]"));
  }
  EXPECT_THROW(backend_->add(compute(), {from, to, 1.0f}), ContractError);
}

// ---- host and device ----

TEST_F(CpuElementwise, BytesGoToTheDeviceAndBackOnEveryStream) {
  for (Stream* const stream :
       {&backend_->compute_stream(), &backend_->communication_stream(), &backend_->copy_stream()}) {
    std::vector<float> values = {1, 2, 3, 4, 5, 6};
    const Tensor to = tensors_.undefined({2, 3}, 2).fast;
    backend_->copy_from_host(*stream, std::as_bytes(std::span(values)), to);
    values.assign(6, -1.0f);  // the bytes were taken
    std::vector<float> back(6);
    const Tensor contiguous = tensors_.undefined({2, 3}).fast;
    backend_->copy(*stream, {to, contiguous});
    backend_->copy_to_host(*stream, contiguous, std::as_writable_bytes(std::span(back)));
    backend_->finish(backend_->record(*stream));
    EXPECT_THAT(back, testing::ElementsAre(1, 2, 3, 4, 5, 6));
  }
}

TEST_F(CpuElementwise, HostCopiesCheckTheirSizes) {
  std::vector<float> values(5);
  const Tensor tensor = tensors_.normal({2, 3}, 1).fast;
  EXPECT_THROW(backend_->copy_from_host(compute(), std::as_bytes(std::span(values)), tensor), ContractError);
  EXPECT_THROW(backend_->copy_to_host(compute(), tensor, std::as_writable_bytes(std::span(values))), ContractError);
  values.resize(6);
  EXPECT_THROW(backend_->copy_to_host(compute(), tensor, std::as_writable_bytes(std::span(values))), ContractError);
}

}  // namespace
}  // namespace ithaca
