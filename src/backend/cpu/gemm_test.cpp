#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "backend/cpu/cpu_backend.h"
#include "backend/reference.h"
#include "backend/test_tensors.h"

namespace ithaca {
namespace {

using testing::HasSubstr;
using testing_support::relative_error;
using testing_support::TensorPair;
using testing_support::TestTensors;

class CpuGemm : public testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(tensors_.guards_intact()); }

  // Runs both sides on the same numbers and returns the relative error of c.
  double error_of(int64_t m, int64_t n, int64_t k, bool transpose_a, bool transpose_b, float alpha, float beta,
                  bool with_bias, int64_t gap) {
    const TensorPair a = tensors_.normal(transpose_a ? Extents{k, m} : Extents{m, k}, gap);
    const TensorPair b = tensors_.normal(transpose_b ? Extents{n, k} : Extents{k, n}, 2 * gap);
    // With beta 0 the old content must not be read: it is NaN then.
    const TensorPair c = beta == 0.0f ? tensors_.undefined({m, n}, gap) : tensors_.normal({m, n}, gap);
    const TensorPair bias = tensors_.normal({n});
    backend_->gemm(backend_->compute_stream(),
                   {a.fast, b.fast, c.fast, transpose_a, transpose_b, alpha, beta, with_bias ? bias.fast : Tensor{}});
    reference::gemm(
        {a.exact, b.exact, c.exact, transpose_a, transpose_b, alpha, beta, with_bias ? bias.exact : Tensor{}});
    return relative_error(c.fast, c.exact);
  }

  std::string error_text(const Gemm& arguments) {
    try {
      backend_->gemm(backend_->compute_stream(), arguments);
    } catch (const ContractError& error) {
      return error.what();
    }
    return "no error";
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  TestTensors tensors_;
};

TEST_F(CpuGemm, MatchesTheReferenceInEveryVariant) {
  for (const auto& [m, n, k] : {std::tuple(1, 1, 1), std::tuple(1, 9, 5), std::tuple(9, 1, 5), std::tuple(7, 5, 1),
                                std::tuple(17, 33, 65), std::tuple(64, 64, 64), std::tuple(70, 129, 31)}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        for (const int64_t gap : {0, 3}) {
          EXPECT_LT(error_of(m, n, k, transpose_a, transpose_b, 1.0f, 0.0f, false, gap), 1e-6);
          EXPECT_LT(error_of(m, n, k, transpose_a, transpose_b, 1.0f, 1.0f, false, gap), 1e-6);
          EXPECT_LT(error_of(m, n, k, transpose_a, transpose_b, -0.5f, 0.25f, true, gap), 1e-6);
          EXPECT_LT(error_of(m, n, k, transpose_a, transpose_b, 2.0f, 0.0f, true, gap), 1e-6);
        }
      }
    }
  }
}

TEST_F(CpuGemm, EmptyExtents) {
  EXPECT_EQ(error_of(0, 5, 3, false, false, 1.0f, 1.0f, true, 0), 0.0);
  EXPECT_EQ(error_of(5, 0, 3, false, false, 1.0f, 1.0f, true, 0), 0.0);
  // No inner extent: the product is 0, and what remains is beta * c + bias.
  for (const int64_t gap : {0, 2}) {
    EXPECT_EQ(error_of(4, 5, 0, false, false, 1.0f, 0.0f, false, gap), 0.0);
    EXPECT_EQ(error_of(4, 5, 0, true, true, 1.0f, 1.0f, false, gap), 0.0);
    EXPECT_LT(error_of(4, 5, 0, false, true, 1.0f, 0.3f, false, gap), 1e-7);
    EXPECT_LT(error_of(4, 5, 0, false, true, 1.0f, 0.3f, true, gap), 1e-7);
    EXPECT_EQ(error_of(4, 5, 0, true, false, 1.0f, 0.0f, true, gap), 0.0);
  }
}

// A weight gradient is a sum over tiles of tokens: the same as one product over all of them.
TEST_F(CpuGemm, TilesOfTokensAddUp) {
  const TensorPair x = tensors_.normal({100, 23});
  const TensorPair dy = tensors_.normal({100, 31});
  const TensorPair dweight = tensors_.normal({31, 23});
  for (const auto& [begin, end] : {std::pair(0, 64), std::pair(64, 99), std::pair(99, 100), std::pair(100, 100)}) {
    backend_->gemm(backend_->compute_stream(), {.a = dy.fast.slice(0, begin, end),
                                                .b = x.fast.slice(0, begin, end),
                                                .c = dweight.fast,
                                                .transpose_a = true,
                                                .beta = 1.0f,
                                                .bias = {}});
  }
  reference::gemm({.a = dy.exact, .b = x.exact, .c = dweight.exact, .transpose_a = true, .beta = 1.0f, .bias = {}});
  EXPECT_LT(relative_error(dweight.fast, dweight.exact), 1e-6);
}

// Columns of a wider matrix: row strides far above the widths, as in a joined query/key/value projection.
TEST_F(CpuGemm, WorksOnSlicesOfColumns) {
  const TensorPair a = tensors_.normal({11, 40});
  const TensorPair b = tensors_.normal({13, 50});
  const TensorPair c = tensors_.normal({11, 60});
  const auto arguments = [](const Tensor& a, const Tensor& b, const Tensor& c) {
    return Gemm{.a = a.slice(1, 7, 24),
                .b = b.slice(1, 30, 47),
                .c = c.slice(1, 5, 18),
                .transpose_b = true,
                .beta = 1.0f,
                .bias = {}};
  };
  backend_->gemm(backend_->compute_stream(), arguments(a.fast, b.fast, c.fast));
  reference::gemm(arguments(a.exact, b.exact, c.exact));
  EXPECT_LT(relative_error(c.fast, c.exact), 1e-6);
}

TEST_F(CpuGemm, NamesWhatDoesNotFit) {
  const Tensor a = tensors_.normal({4, 3}).fast;
  const Tensor b = tensors_.normal({3, 5}).fast;
  const Tensor c = tensors_.normal({4, 5}).fast;
  EXPECT_THAT(error_text({.a = a, .b = b, .c = c, .transpose_b = true, .bias = {}}),
              HasSubstr("gemm: b is float32 [3, 5], expected the extents [5, 3]"));
  EXPECT_THAT(error_text({.a = b, .b = b, .c = c, .bias = {}}),
              HasSubstr("gemm: a is float32 [3, 5], expected the extents [4, 5]"));
  EXPECT_THAT(error_text({.a = a, .b = b, .c = c, .bias = tensors_.normal({4}).fast}),
              HasSubstr("gemm: bias is float32 [4], expected the extents [5]"));
  EXPECT_THAT(error_text({.a = a, .b = b.transpose(0, 1), .c = c, .transpose_b = true, .bias = {}}),
              HasSubstr("its last dimension must have stride 1"));
  EXPECT_THAT(error_text({.a = a, .b = b, .c = tensors_.normal({4, 5}).exact, .bias = {}}),
              HasSubstr("gemm: c is float64 [4, 5], expected float32"));
  Tensor overlapping = a;
  overlapping.strides[0] = 1;
  EXPECT_THAT(error_text({.a = overlapping, .b = b, .c = c, .bias = {}}), HasSubstr("its rows overlap"));
  EXPECT_THAT(error_text({.a = {}, .b = b, .c = c, .bias = {}}), HasSubstr("a is float32 [], expected 2 dimensions"));
}

// A dimension beyond BLAS's 32-bit integers must be refused, not cut off. Shapes only: nothing is read.
TEST_F(CpuGemm, RefusesDimensionsBeyondThirtyTwoBits) {
  const int64_t large = int64_t{1} << 31;
  float element = 0.0f;
  const auto matrix = [&](int64_t rows, int64_t columns) {
    return Tensor::contiguous(&element, DType::float32, {rows, columns});
  };
  EXPECT_THAT(error_text({.a = matrix(large, 1), .b = matrix(1, 1), .c = matrix(large, 1), .bias = {}}),
              HasSubstr("the number of rows of c is 2147483648"));
  EXPECT_THAT(error_text({.a = matrix(1, large), .b = matrix(large, 1), .c = matrix(1, 1), .bias = {}}),
              HasSubstr("the inner extent is 2147483648"));
  Tensor strided = matrix(2, 1);
  strided.strides[0] = large;
  EXPECT_THAT(error_text({.a = strided, .b = matrix(1, 1), .c = matrix(2, 1), .bias = {}}),
              HasSubstr("the row stride of a is 2147483648"));
}

}  // namespace
}  // namespace ithaca
