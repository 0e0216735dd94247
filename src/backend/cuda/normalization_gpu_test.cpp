// RMSNorm, RoPE and SwiGLU on the device against the float64 reference.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backend/cuda/cuda_testing.h"
#include "backend/reference.h"

namespace ithaca {
namespace {

using testing_support::CudaTensors;
using testing_support::CudaTest;
using testing_support::Placement;

struct RowCase {
  int64_t tokens;
  int64_t size;
  Placement placement;
};

// One of each way through the kernels: vectors kept in 1, 2, 4 registers; rows too long to keep; rows that are not
// vectors; more rows than blocks; single rows and elements.
std::vector<RowCase> row_cases() {
  return {{1, 8, {}},      {5, 64, {}},    {3, 7, {}},     {9, 1024, {}},       {17, 2560, {}},
          {4, 4096, {}},   {3, 12288, {}}, {3, 16392, {}}, {5, 64, {8, 8}},     {6, 64, {3, 0}},
          {4, 64, {8, 1}}, {1300, 96, {}}, {1, 1, {}},     {700, 4096, {8, 0}}, {5, 4100, {}}};
}

std::string describe(const RowCase& row_case) {
  return std::to_string(row_case.tokens) + " x " + std::to_string(row_case.size) + ", gap " +
         std::to_string(row_case.placement.gap) + ", offset " + std::to_string(row_case.placement.offset);
}

class CudaNormalization : public CudaTest {};
INSTANTIATE_TEST_SUITE_P(Gpu, CudaNormalization, testing::Values(DType::float32, DType::bfloat16),
                         testing_support::dtype_test_name);

TEST_P(CudaNormalization, RmsNormForward) {
  for (const RowCase& row_case : row_cases()) {
    const Extents extents = {row_case.tokens, row_case.size};
    for (const bool float_weight : {false, true}) {
      SCOPED_TRACE(describe(row_case));
      const auto input = normal(extents, row_case.placement, 2.0, 0.5);
      const auto weight = tensors().normal(float_weight ? DType::float32 : compute(), {row_case.size});
      const auto output = undefined(extents, row_case.placement);
      const auto inverse = tensors().undefined(DType::float32, {row_case.tokens});
      backend().rms_norm_forward(stream(), {input.device, {}, {}, weight.device, output.device, inverse.device, 1e-5f});
      reference::rms_norm_forward({input.exact, {}, {}, weight.exact, output.exact, inverse.exact, 1e-5f});
      EXPECT_LE(tensors().error(output), bound(output));
      EXPECT_LE(tensors().error(inverse), 2e-6);
    }
  }
}

TEST_P(CudaNormalization, RmsNormForwardAddsTheResidual) {
  for (const RowCase& row_case : row_cases()) {
    const Extents extents = {row_case.tokens, row_case.size};
    for (const int alias : {0, 1, 2}) {  // of sum: none, input, residual
      SCOPED_TRACE(describe(row_case) + ", alias " + std::to_string(alias));
      const auto input = normal(extents, row_case.placement);
      const auto residual = normal(extents, row_case.placement);
      const auto fresh = undefined(extents, row_case.placement);
      const auto& sum = alias == 0 ? fresh : alias == 1 ? input : residual;
      const auto weight = normal({row_case.size});
      const auto output = undefined(extents);
      backend().rms_norm_forward(stream(),
                                 {input.device, residual.device, sum.device, weight.device, output.device, {}, 1e-6f});
      reference::rms_norm_forward({input.exact, residual.exact, sum.exact, weight.exact, output.exact, {}, 1e-6f});
      // The sum is rounded before it is normalised, and the result again.
      EXPECT_LE(tensors().error(output), bound(output, 2e-6, 2));
      EXPECT_LE(tensors().error(sum), bound(sum, 1e-7));
    }
  }
}

TEST_P(CudaNormalization, RmsNormBackward) {
  for (const RowCase& row_case : row_cases()) {
    const Extents extents = {row_case.tokens, row_case.size};
    for (const int variant : {0, 1, 2}) {  // dresidual: none, given, dinput itself; the middle one without dweight
      SCOPED_TRACE(describe(row_case) + ", variant " + std::to_string(variant));
      const auto doutput = normal(extents, row_case.placement);
      const auto input = normal(extents, row_case.placement, 2.0);
      const auto weight = normal({row_case.size});
      const auto inverse = tensors().normal(DType::float32, {row_case.tokens}, {}, 0.1, 0.5);
      const auto fresh = undefined(extents, row_case.placement);
      const auto residual = normal(extents, row_case.placement);
      const auto& dinput = variant == 2 ? residual : fresh;
      const auto dweight = tensors().normal(DType::float32, {row_case.size});
      RmsNormBackward device{doutput.device, input.device, weight.device, inverse.device, {}, dinput.device, {}};
      RmsNormBackward exact{doutput.exact, input.exact, weight.exact, inverse.exact, {}, dinput.exact, {}};
      if (variant != 0) {
        device.dresidual = residual.device;
        exact.dresidual = residual.exact;
      }
      if (variant != 1) {
        device.dweight = dweight.device;
        exact.dweight = dweight.exact;
      }
      backend().rms_norm_backward(stream(), device);
      reference::rms_norm_backward(exact);
      EXPECT_LE(tensors().error(dinput), bound(dinput, 5e-6));
      EXPECT_LE(tensors().error(dweight), 5e-6);
    }
  }
}

TEST_P(CudaNormalization, RopeTableIsRightAtLargePositions) {
  const std::vector<int64_t> positions = {0,      1,       2,       1000,     131071,    105615,
                                          999999, 1000000, 1048575, 16777217, 2147483648};
  const auto ids = tensors().integers(positions);
  const auto tokens = static_cast<int64_t>(positions.size());
  const auto inverse = tensors().normal(DType::float32, {64}, {}, 0.3, 0.5);
  for (const int64_t gap : {0, 5}) {
    const auto cosine = tensors().undefined(DType::float32, {tokens, 64}, {gap, 0});
    const auto sine = tensors().undefined(DType::float32, {tokens, 64}, {gap, 0});
    backend().rope_table(stream(), {ids.device, inverse.device, 1.25f, cosine.device, sine.device});
    reference::rope_table({ids.exact, inverse.exact, 1.25f, cosine.exact, sine.exact});
    EXPECT_LE(tensors().error(cosine), 2e-7);
    EXPECT_LE(tensors().error(sine), 2e-7);
  }
}

struct HeadCase {
  int64_t tokens;
  int64_t heads;
  int64_t size;
  Placement placement;
};

std::vector<HeadCase> head_cases() {
  return {{5, 4, 128, {}},     {3, 2, 64, {}},   {7, 3, 80, {}},     {2, 3, 256, {}},
          {3, 2, 512, {}},     {2, 2, 1024, {}}, {4, 2, 30, {}},     {3, 1, 96, {8, 8}},
          {3, 5, 128, {3, 1}}, {1, 1, 16, {}},   {1500, 3, 128, {}}, {2500, 1, 30, {}}};
}

std::string describe(const HeadCase& head_case) {
  return std::to_string(head_case.tokens) + " x " + std::to_string(head_case.heads) + " x " +
         std::to_string(head_case.size) + ", gap " + std::to_string(head_case.placement.gap);
}

TEST_P(CudaNormalization, HeadRopeForward) {
  for (const HeadCase& head_case : head_cases()) {
    const Extents extents = {head_case.tokens, head_case.heads, head_case.size};
    for (const int variant : {0, 1, 2, 3, 4}) {  // bit 0: norm, bit 1: rotation; 4: both, in place, float32 weight
      SCOPED_TRACE(describe(head_case) + ", variant " + std::to_string(variant));
      const bool has_norm = variant % 2 == 1 || variant == 4;
      const bool rotates = variant >= 2;
      const auto input = normal(extents, head_case.placement, 1.5);
      const auto weight = tensors().normal(variant == 4 ? DType::float32 : compute(), {head_case.size});
      const auto inverse = tensors().undefined(DType::float32, {head_case.tokens, head_case.heads});
      const auto cosine = tensors().normal(DType::float32, {head_case.tokens, head_case.size / 2});
      const auto sine = tensors().normal(DType::float32, {head_case.tokens, head_case.size / 2});
      const auto fresh = undefined(extents, head_case.placement);
      const auto& output = variant == 4 ? input : fresh;
      HeadRopeForward device{input.device, {}, 1e-6f, {}, {}, {}, output.device};
      HeadRopeForward exact{input.exact, {}, 1e-6f, {}, {}, {}, output.exact};
      if (has_norm) {
        device.norm_weight = weight.device;
        exact.norm_weight = weight.exact;
        device.inverse_rms = inverse.device;
        exact.inverse_rms = inverse.exact;
      }
      if (rotates) {
        device.cosine = cosine.device;
        device.sine = sine.device;
        exact.cosine = cosine.exact;
        exact.sine = sine.exact;
      }
      backend().head_rope_forward(stream(), device);
      reference::head_rope_forward(exact);
      EXPECT_LE(tensors().error(output), bound(output));
      if (has_norm) {
        EXPECT_LE(tensors().error(inverse), 2e-6);
      }
    }
  }
}

TEST_P(CudaNormalization, HeadRopeNormalisesOddHeads) {
  const auto input = normal({3, 2, 7});
  const auto weight = normal({7});
  const auto output = undefined({3, 2, 7});
  backend().head_rope_forward(stream(), {input.device, weight.device, 1e-6f, {}, {}, {}, output.device});
  reference::head_rope_forward({input.exact, weight.exact, 1e-6f, {}, {}, {}, output.exact});
  EXPECT_LE(tensors().error(output), bound(output));
}

TEST_P(CudaNormalization, HeadRopeBackward) {
  for (const HeadCase& head_case : head_cases()) {
    const Extents extents = {head_case.tokens, head_case.heads, head_case.size};
    for (const int variant : {0, 1, 2, 3, 4, 5}) {  // bit 0: norm, bit 1: rotation; 4: in place; 5: no weight gradient
      for (const bool float_gradient : {false, true}) {
        if (variant == 4 && float_gradient) continue;
        SCOPED_TRACE(describe(head_case) + ", variant " + std::to_string(variant));
        const bool has_norm = variant % 2 == 1 || variant == 4;
        const bool rotates = variant >= 2;
        const auto doutput =
            tensors().normal(float_gradient ? DType::float32 : compute(), extents, head_case.placement);
        const auto input = normal(extents, head_case.placement, 1.5);
        const auto weight = normal({head_case.size});
        const auto inverse = tensors().normal(DType::float32, {head_case.tokens, head_case.heads}, {}, 0.1, 0.6);
        const auto cosine = tensors().normal(DType::float32, {head_case.tokens, head_case.size / 2});
        const auto sine = tensors().normal(DType::float32, {head_case.tokens, head_case.size / 2});
        const auto fresh = undefined(extents, head_case.placement);
        const auto& dinput = variant == 4 ? doutput : fresh;
        const auto dweight = tensors().normal(DType::float32, {head_case.size});
        HeadRopeBackward device{doutput.device, {}, {}, {}, {}, {}, dinput.device, {}};
        HeadRopeBackward exact{doutput.exact, {}, {}, {}, {}, {}, dinput.exact, {}};
        if (has_norm) {
          device.input = input.device;
          device.norm_weight = weight.device;
          device.inverse_rms = inverse.device;
          exact.input = input.exact;
          exact.norm_weight = weight.exact;
          exact.inverse_rms = inverse.exact;
          if (variant != 5) {
            device.dnorm_weight = dweight.device;
            exact.dnorm_weight = dweight.exact;
          }
        }
        if (rotates) {
          device.cosine = cosine.device;
          device.sine = sine.device;
          exact.cosine = cosine.exact;
          exact.sine = sine.exact;
        }
        backend().head_rope_backward(stream(), device);
        reference::head_rope_backward(exact);
        EXPECT_LE(tensors().error(dinput), bound(dinput, 5e-6));
        EXPECT_LE(tensors().error(dweight), 5e-6);
      }
    }
  }
}

TEST_P(CudaNormalization, HeadsOfOneFusedProjection) {
  // Queries, keys and values of a token lie behind each other, as the projection wrote them.
  constexpr int64_t kTokens = 6;
  constexpr int64_t kSize = 64;
  const auto fused = normal({kTokens, 6, kSize});
  const auto cosine = tensors().normal(DType::float32, {kTokens, kSize / 2});
  const auto sine = tensors().normal(DType::float32, {kTokens, kSize / 2});
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 4}, {4, 5}}) {
    const Tensor device = fused.device.slice(1, begin, end);
    const Tensor exact = fused.exact.slice(1, begin, end);
    backend().head_rope_forward(stream(), {device, {}, 1e-6f, {}, cosine.device, sine.device, device});
    reference::head_rope_forward({exact, {}, 1e-6f, {}, cosine.exact, sine.exact, exact});
  }
  EXPECT_LE(tensors().error(fused), bound(fused));
}

TEST_P(CudaNormalization, Swiglu) {
  for (const RowCase& row_case : row_cases()) {
    const Extents extents = {row_case.tokens, row_case.size};
    for (const int alias : {0, 1, 2}) {
      SCOPED_TRACE(describe(row_case) + ", alias " + std::to_string(alias));
      const auto gate = normal(extents, row_case.placement, 3.0);
      const auto up = normal(extents, row_case.placement);
      const auto fresh = undefined(extents);
      const auto& output = alias == 0 ? fresh : alias == 1 ? gate : up;
      backend().swiglu_forward(stream(), {gate.device, up.device, output.device});
      reference::swiglu_forward({gate.exact, up.exact, output.exact});
      EXPECT_LE(tensors().error(output), bound(output));
    }
    for (const bool in_place : {false, true}) {
      SCOPED_TRACE(describe(row_case));
      const auto doutput = normal(extents);
      const auto gate = normal(extents, row_case.placement, 3.0);
      const auto up = normal(extents, row_case.placement);
      const auto fresh_gate = undefined(extents, row_case.placement);
      const auto fresh_up = undefined(extents);
      const auto& dgate = in_place ? gate : fresh_gate;
      const auto& dup = in_place ? up : fresh_up;
      // The reference reads what it has overwritten only after it has read all of one element, as the device does.
      backend().swiglu_backward(stream(), {doutput.device, gate.device, up.device, dgate.device, dup.device});
      reference::swiglu_backward({doutput.exact, gate.exact, up.exact, dgate.exact, dup.exact});
      EXPECT_LE(tensors().error(dgate), bound(dgate));
      EXPECT_LE(tensors().error(dup), bound(dup));
    }
  }
}

TEST_P(CudaNormalization, SwigluOfLargeGates) {
  const auto gate = normal({4, 64}, {}, 60.0);
  const auto up = normal({4, 64});
  const auto output = undefined({4, 64});
  backend().swiglu_forward(stream(), {gate.device, up.device, output.device});
  reference::swiglu_forward({gate.exact, up.exact, output.exact});
  EXPECT_LE(tensors().error(output), bound(output));
}

TEST_P(CudaNormalization, NothingIsDoneForNoTokens) {
  const auto input = normal({0, 64});
  const auto heads = normal({0, 2, 64});
  const auto weight = normal({64});
  const auto table = tensors().normal(DType::float32, {0, 32});
  const auto inverse = tensors().normal(DType::float32, {0});
  const auto dweight = tensors().normal(DType::float32, {64});
  backend().rms_norm_forward(stream(), {input.device, {}, {}, weight.device, input.device, inverse.device, 1e-6f});
  backend().rms_norm_backward(
      stream(), {input.device, input.device, weight.device, inverse.device, {}, input.device, dweight.device});
  backend().head_rope_forward(stream(), {heads.device, {}, 1e-6f, {}, table.device, table.device, heads.device});
  backend().swiglu_forward(stream(), {input.device, input.device, input.device});
  EXPECT_EQ(tensors().error(dweight), 0.0);
}

TEST_P(CudaNormalization, WeightGradientsRepeat) {
  const auto doutput = normal({3000, 256});
  const auto input = normal({3000, 256});
  const auto weight = normal({256});
  const auto inverse = tensors().normal(DType::float32, {3000}, {}, 0.1, 0.5);
  const auto dinput = undefined({3000, 256});
  std::vector<std::vector<std::byte>> results;
  for (int run = 0; run < 3; ++run) {
    const auto dweight = tensors().filled(DType::float32, {256}, 1.0);
    backend().rms_norm_backward(
        stream(), {doutput.device, input.device, weight.device, inverse.device, {}, dinput.device, dweight.device});
    results.push_back(tensors().bytes(dweight));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

}  // namespace
}  // namespace ithaca
