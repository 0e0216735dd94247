#include "backend/cpu/gemm.h"

#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "backend/cpu/address_space.h"
#include "base/error.h"
#include "base/random.h"

namespace ithaca::cpu {
namespace {

// The distance between rows as BLAS wants it: at least the width, whatever the stride of a single row says.
int64_t row_stride(const Tensor& matrix) {
  const int64_t width = std::max<int64_t>(1, matrix.extent(1));
  return matrix.extent(0) > 1 ? std::max(width, matrix.stride(0)) : width;
}

// c = beta * c + bias, row by row.
void scale_and_add_bias(const Tensor& c, float beta, const Tensor& bias) {
  const int64_t columns = c.extent(1);
  const float* const added = bias.as<float>();
  for (int64_t row = 0; row < c.extent(0); ++row) {
    float* const values = c.as<float>() + row * c.stride(0);
    if (beta == 0.0f) {
      std::copy_n(added, columns, values);
    } else {
      for (int64_t i = 0; i < columns; ++i) values[i] = beta * values[i] + added[i];
    }
  }
}

void scale(const Tensor& c, float beta) {
  if (beta == 1.0f) return;
  for (int64_t row = 0; row < c.extent(0); ++row) {
    float* const values = c.as<float>() + row * c.stride(0);
    if (beta == 0.0f) {
      std::fill_n(values, c.extent(1), 0.0f);
    } else {
      for (int64_t i = 0; i < c.extent(1); ++i) values[i] *= beta;
    }
  }
}

}  // namespace

void check_blas_sizes(const Gemm& arguments) {
  const auto fits = [](int64_t value, const char* what) {
    constexpr int64_t largest = std::numeric_limits<blasint>::max();
    if (value <= largest) return;
    throw ContractError(fmt::format("gemm: {} is {}, but BLAS counts to {}", what, value, largest));
  };
  fits(arguments.c.extent(0), "the number of rows of c");
  fits(arguments.c.extent(1), "the number of columns of c");
  fits(arguments.a.extent(arguments.transpose_a ? 0 : 1), "the inner extent");
  fits(row_stride(arguments.a), "the row stride of a");
  fits(row_stride(arguments.b), "the row stride of b");
  fits(row_stride(arguments.c), "the row stride of c");
}

void gemm(const Gemm& arguments) {
  const Tensor& c = arguments.c;
  const auto m = static_cast<blasint>(c.extent(0));
  const auto n = static_cast<blasint>(c.extent(1));
  const auto k = static_cast<blasint>(arguments.a.extent(arguments.transpose_a ? 0 : 1));
  const auto lda = static_cast<blasint>(row_stride(arguments.a));
  const auto ldb = static_cast<blasint>(row_stride(arguments.b));
  const auto ldc = static_cast<blasint>(row_stride(c));
  if (m == 0 || n == 0) return;
  float beta = arguments.beta;
  if (!arguments.bias.is_absent()) {
    scale_and_add_bias(c, beta, arguments.bias);
    beta = 1.0f;
  }
  if (k == 0) {
    scale(c, beta);
    return;
  }
  cblas_sgemm(CblasRowMajor, arguments.transpose_a ? CblasTrans : CblasNoTrans,
              arguments.transpose_b ? CblasTrans : CblasNoTrans, m, n, k, arguments.alpha, arguments.a.as<float>(), lda,
              arguments.b.as<float>(), ldb, beta, c.as<float>(), ldc);
}

namespace {

struct Shape {
  int64_t m, n, k;
};

std::vector<float> random_values(int64_t count, const RandomStream& random) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(random.uniform(i) - 0.5);
  return values;
}

// ||c - a b|| / ||a b||, the product made in plain loops.
double relative_error(const Shape& shape, bool transpose_a, bool transpose_b, const std::vector<float>& a,
                      const std::vector<float>& b, const std::vector<float>& c) {
  double difference = 0.0;
  double magnitude = 0.0;
  std::vector<float> row(static_cast<size_t>(shape.n));
  std::vector<float> b_rows = b;  // [k, n], so that the inner loop below walks along rows
  for (int64_t p = 0; transpose_b && p < shape.k; ++p) {
    for (int64_t j = 0; j < shape.n; ++j) {
      b_rows[static_cast<size_t>(p * shape.n + j)] = b[static_cast<size_t>(j * shape.k + p)];
    }
  }
  for (int64_t i = 0; i < shape.m; ++i) {
    std::fill(row.begin(), row.end(), 0.0f);
    for (int64_t p = 0; p < shape.k; ++p) {
      const float factor = a[static_cast<size_t>(transpose_a ? p * shape.m + i : i * shape.k + p)];
      const float* const values = b_rows.data() + p * shape.n;
      for (int64_t j = 0; j < shape.n; ++j) row[static_cast<size_t>(j)] += factor * values[j];
    }
    for (int64_t j = 0; j < shape.n; ++j) {
      const auto expected = static_cast<double>(row[static_cast<size_t>(j)]);
      const double error = static_cast<double>(c[static_cast<size_t>(i * shape.n + j)]) - expected;
      difference += error * error;
      magnitude += expected * expected;
    }
  }
  return std::sqrt(difference / magnitude);
}

// The first wrong product, in words; nothing when all are right.
std::optional<std::string> find_wrong_product() {
  openblas_set_num_threads(1);
  constexpr std::array<Shape, 5> shapes = {{{1, 1, 1}, {3, 5, 7}, {33, 65, 17}, {64, 128, 256}, {257, 193, 511}}};
  constexpr double bound = 1e-5;
  for (const Shape& shape : shapes) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        std::vector<float> a = random_values(shape.m * shape.k, RandomStream(1, "verify_blas a"));
        std::vector<float> b = random_values(shape.k * shape.n, RandomStream(1, "verify_blas b"));
        std::vector<float> c(static_cast<size_t>(shape.m * shape.n), std::numeric_limits<float>::quiet_NaN());
        const auto matrix = [](std::vector<float>& values, int64_t rows, int64_t columns) {
          return Tensor::contiguous(values.data(), DType::float32, {rows, columns});
        };
        gemm({.a = transpose_a ? matrix(a, shape.k, shape.m) : matrix(a, shape.m, shape.k),
              .b = transpose_b ? matrix(b, shape.n, shape.k) : matrix(b, shape.k, shape.n),
              .c = matrix(c, shape.m, shape.n),
              .transpose_a = transpose_a,
              .transpose_b = transpose_b,
              .bias = {}});
        const double error = relative_error(shape, transpose_a, transpose_b, a, b, c);
        if (error <= bound) continue;  // false for NaN
        return fmt::format("a {}x{}x{} product{}{} is off by {:.1e} (relative; {:.0e} is allowed)", shape.m, shape.n,
                           shape.k, transpose_a ? ", first factor transposed" : "",
                           transpose_b ? ", second factor transposed" : "", error, bound);
      }
    }
  }
  return std::nullopt;
}

}  // namespace

void verify_blas() {
  // The library waits for ever when it cannot have the address space of its buffers; a reservation says so instead.
  static_cast<void>(AddressSpace(int64_t{256} << 20, "the buffers of the BLAS library"));
  static const std::optional<std::string> wrong = find_wrong_product();
  if (!wrong) return;
  throw ConfigurationError(fmt::format(
      "the BLAS library computes wrong matrix products on this processor: {} with OpenBLAS core type {}. Set "
      "the environment variable OPENBLAS_CORETYPE to a simpler core (OPENBLAS_CORETYPE=Haswell needs AVX2, "
      "OPENBLAS_CORETYPE=Nehalem runs anywhere), or install a newer OpenBLAS.",
      *wrong, openblas_get_corename()));
}

}  // namespace ithaca::cpu
