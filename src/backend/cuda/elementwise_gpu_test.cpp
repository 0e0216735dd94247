// Copies, additions, fills, sums of tensors and matrix products on the device against the float64 reference.
#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/cuda_testing.h"
#include "backend/device_movement.h"
#include "backend/reference.h"

namespace ithaca {
namespace {

using testing_support::bfloat_bound;
using testing_support::CudaTensors;
using testing_support::CudaTest;
using testing_support::for_each_index;
using testing_support::Placement;

constexpr DType kAllTypes[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16,
                               DType::int32,   DType::int64,   DType::uint8};

bool is_floating(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float64 || dtype == DType::bfloat16 || dtype == DType::float16;
}

class CudaElementwise : public CudaTest {
 protected:
  void copy_elements(const Tensor& from, const Tensor& to) {
    dynamic_cast<DeviceMovement&>(backend()).issue(stream(),
                                                   [&](DeviceIssuer& issuer) { issuer.copy_elements(from, to); });
  }
  void sum_elements(std::span<const Tensor> parts, const Tensor& to) {
    dynamic_cast<DeviceMovement&>(backend()).issue(stream(),
                                                   [&](DeviceIssuer& issuer) { issuer.sum_elements(parts, to); });
  }

  // Small whole numbers, which every type can hold.
  CudaTensors::Pair whole_numbers(DType dtype, const Extents& extents, const Placement& placement = {}) {
    const auto pair = tensors().normal(DType::float32, extents, placement, 20.0, 100.0);
    const auto rounded = tensors().filled(dtype, extents, 0.0, placement);
    std::vector<int64_t> values;
    for_each_index(pair.exact, pair.exact, [&](int64_t offset, int64_t) {
      values.push_back(static_cast<int64_t>(pair.exact.as<double>()[offset]) & 127);
    });
    const auto ids = tensors().integers(values);
    backend().copy(stream(), {ids.device.reshape(extents), rounded.device});
    for (int64_t i = 0; i < rounded.exact.element_count(); ++i) {
      rounded.exact.as<double>()[i] = static_cast<double>(values[static_cast<size_t>(i)]);
    }
    return rounded;
  }
};
INSTANTIATE_TEST_SUITE_P(Gpu, CudaElementwise, testing::Values(DType::bfloat16), testing_support::dtype_test_name);

TEST_P(CudaElementwise, CopyConvertsBetweenAllTypes) {
  for (const DType from_dtype : kAllTypes) {
    for (const DType to_dtype : kAllTypes) {
      if (is_floating(from_dtype) && !is_floating(to_dtype)) continue;
      SCOPED_TRACE(std::string(dtype_name(from_dtype)) + " to " + std::string(dtype_name(to_dtype)));
      const auto whole = whole_numbers(from_dtype, {5, 48});
      const auto to = tensors().filled(to_dtype, {5, 48}, 0.0, {16, 0});
      backend().copy(stream(), {whole.device, to.device});
      EXPECT_EQ(tensors().error(to, whole.exact), 0.0);
    }
  }
}

TEST_P(CudaElementwise, CopyRoundsToNearestEven) {
  for (const DType to_dtype : {DType::bfloat16, DType::float16}) {
    for (const Placement& placement : {Placement{}, Placement{8, 8}, Placement{1, 1}}) {
      const auto from = tensors().normal(DType::float32, {7, 64});
      const auto to = tensors().undefined(to_dtype, {7, 64}, placement);
      backend().copy(stream(), {from.device, to.device});
      std::vector<uint16_t> expected(7 * 64);
      const Tensor rounded = Tensor::contiguous(expected.data(), to_dtype, {7, 64});
      reference::copy({from.exact, rounded});
      EXPECT_EQ(tensors().error(to, rounded), 0.0);
      // And back, which is exact.
      const auto back = tensors().undefined(DType::float32, {7, 64}, placement);
      backend().copy(stream(), {to.device, back.device});
      EXPECT_EQ(tensors().error(back, rounded), 0.0);
    }
  }
}

TEST_P(CudaElementwise, CopyOfAnyStrides) {
  for (const DType dtype : {DType::bfloat16, DType::float32, DType::float64, DType::uint8}) {
    SCOPED_TRACE(dtype_name(dtype));
    // [tokens, heads, size] to [heads, tokens, size] and back; a transposed matrix; five dimensions; single elements.
    const auto from = whole_numbers(dtype, {6, 4, 16}, {16, 0});
    const auto to = tensors().filled(dtype, {4, 6, 16}, 0.0);
    backend().copy(stream(), {from.device.transpose(0, 1), to.device});
    EXPECT_EQ(tensors().error(to, from.exact.transpose(0, 1)), 0.0);

    const auto matrix = whole_numbers(dtype, {33, 65});
    const auto transposed = tensors().filled(dtype, {65, 33}, 0.0, {3, 1});
    backend().copy(stream(), {matrix.device.transpose(0, 1), transposed.device});
    EXPECT_EQ(tensors().error(transposed, matrix.exact.transpose(0, 1)), 0.0);

    const auto many = whole_numbers(dtype, {2, 3, 4, 5, 8}, {1, 0});
    const auto many_to = tensors().filled(dtype, {4, 3, 2, 5, 8}, 0.0, {8, 0});
    backend().copy(stream(), {many.device.transpose(0, 2), many_to.device});
    EXPECT_EQ(tensors().error(many_to, many.exact.transpose(0, 2)), 0.0);

    const auto part = tensors().filled(dtype, {33, 1}, 0.0);
    backend().copy(stream(), {matrix.device.slice(1, 7, 8), part.device});
    EXPECT_EQ(tensors().error(part, matrix.exact.slice(1, 7, 8)), 0.0);
  }
}

// Copies of integers never go through floating point numbers.
TEST_P(CudaElementwise, LargeInteger64SurviveACopy) {
  const auto from = tensors().integers({(int64_t{1} << 62) + 1, -3, (int64_t{1} << 53) + 1});
  const auto to = tensors().filled(DType::int64, {3, 2}, 0.0);
  backend().copy(stream(), {from.device.reshape({3, 1}), to.device.slice(1, 0, 1)});
  std::vector<std::byte> bytes(24);
  const Buffer packed =
      backend().arena(Tier::device).allocate("packed", MemoryClass::workspace, DType::int64, {3, 1}, stream());
  backend().copy(stream(), {to.device.slice(1, 0, 1), packed.tensor()});
  backend().copy_to_host(stream(), packed.tensor(), bytes);
  backend().finish(backend().record(stream()));
  EXPECT_EQ(0, std::memcmp(bytes.data(), from.exact.data, 24));
}

TEST_P(CudaElementwise, Add) {
  const std::vector<DType> types = {DType::float32, DType::bfloat16, DType::float64};
  for (const DType from_dtype : types) {
    for (const DType to_dtype : types) {
      for (const Placement& placement : {Placement{}, Placement{8, 8}, Placement{3, 1}}) {
        SCOPED_TRACE(std::string(dtype_name(from_dtype)) + " to " + std::string(dtype_name(to_dtype)));
        const auto from = tensors().normal(from_dtype, {9, 3, 64});
        const int64_t count = from.exact.element_count();
        const auto to = tensors().normal(to_dtype, {9, 3, 64}, placement);
        backend().add(stream(), {from.device, to.device, -0.75f});
        reference::add({from.exact, to.exact, -0.75f});
        EXPECT_LE(tensors().error(to), to_dtype == DType::bfloat16 ? bfloat_bound(count) : 1e-7);
        const auto turned = tensors().normal(from_dtype, {3, 9, 64});
        backend().add(stream(), {turned.device.transpose(0, 1), to.device, 1.0f});
        reference::add({turned.exact.transpose(0, 1), to.exact, 1.0f});
        EXPECT_LE(tensors().error(to), to_dtype == DType::bfloat16 ? bfloat_bound(count, 2) : 2e-7);
      }
    }
  }
}

TEST_P(CudaElementwise, Fill) {
  for (const DType dtype : kAllTypes) {
    for (const Placement& placement : {Placement{}, Placement{16, 16}, Placement{1, 1}}) {
      const auto to = tensors().filled(dtype, {5, 32}, 1.0, placement);
      backend().fill(stream(), {to.device, 3.0});
      reference::fill({to.exact, 3.0});
      EXPECT_EQ(tensors().error(to), 0.0) << dtype_name(dtype);
    }
  }
  const auto column = tensors().filled(DType::float32, {4, 4}, 1.0);
  backend().fill(stream(), {column.device.slice(1, 2, 3), -2.0});
  reference::fill({column.exact.slice(1, 2, 3), -2.0});
  EXPECT_EQ(tensors().error(column), 0.0);
}

TEST_P(CudaElementwise, ElementsMoveBetweenShapes) {
  for (const DType dtype : {DType::bfloat16, DType::float32, DType::int64, DType::uint8}) {
    SCOPED_TRACE(dtype_name(dtype));
    const auto from = whole_numbers(dtype, {12, 40});
    const Tensor flat = from.exact.reshape({480});
    const auto rows = tensors().filled(dtype, {6, 80}, 0.0, {16, 16});
    copy_elements(from.device, rows.device);
    EXPECT_EQ(tensors().error(rows, flat.reshape({6, 80})), 0.0);
    const auto odd = tensors().filled(dtype, {32, 3, 5}, 0.0, {3, 1});
    copy_elements(rows.device, odd.device);
    EXPECT_EQ(tensors().error(odd, flat.reshape({32, 3, 5})), 0.0);
    copy_elements(odd.device, odd.device);
    EXPECT_EQ(tensors().error(odd, flat.reshape({32, 3, 5})), 0.0);
  }
}

// Rows that a copy engine moves: from no gaps to a pitch, to another pitch, back to no gaps, and to shorter rows.
TEST_P(CudaElementwise, ManyRowsMoveBetweenPitches) {
  const auto from = whole_numbers(DType::float32, {4500, 256});
  const auto wide = tensors().filled(DType::float32, {4500, 256}, 0.0, {16, 16});
  copy_elements(from.device, wide.device);
  EXPECT_EQ(tensors().error(wide, from.exact), 0.0);
  const auto wider = tensors().filled(DType::float32, {4500, 256}, 0.0, {48, 3});
  copy_elements(wide.device, wider.device);
  EXPECT_EQ(tensors().error(wider, from.exact), 0.0);
  const auto back = tensors().filled(DType::float32, {4500, 256}, 0.0);
  copy_elements(wider.device, back.device);
  EXPECT_EQ(tensors().error(back, from.exact), 0.0);
  const auto halves = tensors().filled(DType::float32, {4500, 2, 128}, 0.0, {4, 3});
  copy_elements(back.device, halves.device);
  EXPECT_EQ(tensors().error(halves, from.exact.reshape({4500, 2, 128})), 0.0);
}

TEST_P(CudaElementwise, SumsAreMadeInOrder) {
  for (const DType dtype : {DType::float32, DType::float64}) {
    for (const int variant : {0, 1, 2}) {  // contiguous, odd counts, strides
      const int64_t width = variant == 0 ? 64 : 65;
      const Placement placement{variant == 2 ? 3 : 0, 0};
      std::vector<CudaTensors::Pair> parts;
      std::vector<Tensor> views;
      for (int part = 0; part < 5; ++part) {
        parts.push_back(tensors().normal(dtype, {7, width}, part == 2 ? placement : Placement{}, 1e3));
        views.push_back(parts.back().device);
      }
      // In the type's own arithmetic, one after the other; into one of the parts.
      std::vector<double> expected(static_cast<size_t>(7 * width));
      for (size_t i = 0; i < expected.size(); ++i) {
        double sum = parts[0].exact.as<double>()[i];
        for (int part = 1; part < 5; ++part) {
          sum += parts[static_cast<size_t>(part)].exact.as<double>()[i];
          if (dtype == DType::float32) sum = static_cast<double>(static_cast<float>(sum));
        }
        expected[i] = sum;
      }
      const Tensor exact = Tensor::contiguous(expected.data(), DType::float64, {7, width});
      const auto fresh = tensors().undefined(dtype, {7, width}, placement);
      sum_elements(views, fresh.device);
      EXPECT_EQ(tensors().error(fresh, exact), 0.0) << variant;
      sum_elements(views, parts[2].device);
      EXPECT_EQ(tensors().error(parts[2], exact), 0.0) << variant;
    }
  }
  const auto left = tensors().integers({1, int64_t{1} << 60, -5});
  const auto right = tensors().integers({2, int64_t{1} << 60, 5});
  const std::vector<Tensor> views = {left.device, right.device};
  sum_elements(views, left.device);
  EXPECT_EQ(tensors().values(left), (std::vector<double>{3.0, 0x1.0p61, 0.0}));
}

// ---- matrix products ----

class CudaGemm : public CudaTest {
 protected:
  // Of `result` from inputs in `inputs`. The tensor cores that multiply bfloat16 cut off what does not fit
  // when they add, rather than round it, so their float32 sums of n terms are off by up to n / 16 * 2^-23.
  static double product_bound(DType inputs, const CudaTensors::Pair& result, int roundings = 1) {
    if (result.device.dtype == DType::bfloat16) return bfloat_bound(result.exact.element_count(), roundings);
    return inputs == DType::bfloat16 ? 1.5e-5 : 2e-6;
  }
};
INSTANTIATE_TEST_SUITE_P(Gpu, CudaGemm, testing::Values(DType::float32, DType::bfloat16),
                         testing_support::dtype_test_name);

struct GemmCase {
  int64_t m, n, k;
};

TEST_P(CudaGemm, ShapesTransposesAndTypes) {
  const std::vector<GemmCase> cases = {{1, 1, 1},    {64, 128, 32},  {17, 33, 9},   {1, 256, 64},
                                       {100, 1, 50}, {128, 96, 200}, {130, 257, 75}};
  for (const GemmCase& shape : cases) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        for (const DType inputs : {compute(), DType::float32}) {
          for (const DType result : {inputs, DType::float32}) {
            for (const Placement& placement : {Placement{}, Placement{8, 0}, Placement{3, 1}}) {
              SCOPED_TRACE(std::to_string(shape.m) + " x " + std::to_string(shape.n) + " x " + std::to_string(shape.k) +
                           (transpose_a ? " a^T" : "") + (transpose_b ? " b^T " : " ") +
                           std::string(dtype_name(inputs)) + " -> " + std::string(dtype_name(result)) + " gap " +
                           std::to_string(placement.gap));
              const auto a = tensors().normal(
                  inputs, transpose_a ? Extents{shape.k, shape.m} : Extents{shape.m, shape.k}, placement);
              const auto b = tensors().normal(
                  inputs, transpose_b ? Extents{shape.n, shape.k} : Extents{shape.k, shape.n}, placement);
              const auto c = tensors().normal(result, {shape.m, shape.n}, placement);
              const float beta = placement.gap == 3 ? 0.0f : 0.5f;
              backend().gemm(stream(), {a.device, b.device, c.device, transpose_a, transpose_b, 1.25f, beta, {}});
              reference::gemm({a.exact, b.exact, c.exact, transpose_a, transpose_b, 1.25f, beta, {}});
              EXPECT_LE(tensors().error(c), product_bound(inputs, c));
            }
          }
        }
      }
    }
  }
}

TEST_P(CudaGemm, BetaZeroDoesNotReadTheResult) {
  const auto a = normal({40, 24});
  const auto b = normal({24, 56});
  const auto c = undefined({40, 56});
  backend().gemm(stream(), {a.device, b.device, c.device, false, false, 1.0f, 0.0f, {}});
  reference::gemm({a.exact, b.exact, c.exact, false, false, 1.0f, 0.0f, {}});
  EXPECT_LE(tensors().error(c), bound(c));
}

TEST_P(CudaGemm, Bias) {
  for (const int64_t n : {1, 56, 57, 256}) {
    for (const DType bias_dtype : {compute(), DType::float32}) {
      for (const DType result : {compute(), DType::float32}) {
        for (const int64_t offset : {0, 1}) {
          SCOPED_TRACE(std::to_string(n) + " " + std::string(dtype_name(bias_dtype)) + " -> " +
                       std::string(dtype_name(result)));
          const auto a = normal({40, 24});
          const auto b = normal({n, 24});
          const auto c = tensors().normal(result, {40, n});
          const auto bias = tensors().normal(bias_dtype, {n}, {0, offset}, 5.0);
          backend().gemm(stream(), {a.device, b.device, c.device, false, true, 1.0f, 1.0f, bias.device});
          reference::gemm({a.exact, b.exact, c.exact, false, true, 1.0f, 1.0f, bias.exact});
          // Where cuBLASLt does not add the bias, it is added to rounded products.
          EXPECT_LE(tensors().error(c), product_bound(compute(), c, 2));
        }
      }
    }
  }
}

TEST_P(CudaGemm, EmptyProducts) {
  const auto a = normal({4, 0});
  const auto b = normal({0, 6});
  const auto bias = normal({6});
  for (const float beta : {0.0f, 1.0f, 2.0f}) {
    const auto c = beta == 0.0f ? undefined({4, 6}) : normal({4, 6});
    backend().gemm(stream(), {a.device, b.device, c.device, false, false, 1.0f, beta, bias.device});
    reference::gemm({a.exact, b.exact, c.exact, false, false, 1.0f, beta, bias.exact});
    EXPECT_LE(tensors().error(c), bound(c));
  }
  const auto no_rows = normal({0, 8});
  const auto weights = normal({8, 6});
  const auto nothing = normal({0, 6});
  backend().gemm(stream(), {no_rows.device, weights.device, nothing.device, false, false, 1.0f, 0.0f, {}});
}

TEST_P(CudaGemm, SumsOverManyTokensKeepFloat32) {
  // A weight gradient over two tiles of tokens: the sum in float32, whatever the inputs are.
  const auto c = tensors().filled(DType::float32, {48, 40}, 0.0);
  for (int tile = 0; tile < 2; ++tile) {
    const auto doutput = normal({1000, 48});
    const auto input = normal({1000, 40});
    backend().gemm(stream(), {doutput.device, input.device, c.device, true, false, 1.0f, 1.0f, {}});
    reference::gemm({doutput.exact, input.exact, c.exact, true, false, 1.0f, 1.0f, {}});
  }
  EXPECT_LE(tensors().error(c), product_bound(compute(), c));
}

TEST_P(CudaGemm, Repeats) {
  const auto a = normal({384, 1000});
  const auto b = normal({512, 1000});
  std::vector<std::vector<std::byte>> results;
  for (int run = 0; run < 3; ++run) {
    const auto c = tensors().filled(DType::float32, {384, 512}, 0.0);
    backend().gemm(stream(), {a.device, b.device, c.device, false, true, 1.0f, 0.0f, {}});
    results.push_back(tensors().bytes(c));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

}  // namespace
}  // namespace ithaca
