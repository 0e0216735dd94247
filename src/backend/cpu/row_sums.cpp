// Sums of rows of the CPU backend.
#include <cstdint>

#include "backend/cpu/kernels.h"
#include "backend/cpu/weight_sum.h"

// Instruction sets between AVX2 and the portable code, and variants of AVX-512 that add nothing here, would only cost
// compile time.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/row_sums.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backend/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ithaca::cpu::HWY_NAMESPACE {
namespace {

void add_row(const float* from, float scale, int64_t size, float* to) {
  for_each(size, [=](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, from + i), hn::Set(d, scale), hn::LoadU(d, to + i)), d, to + i);
  });
}

}  // namespace
}  // namespace ithaca::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ithaca::cpu {

HWY_EXPORT(add_row);

void add_row(const float* from, float scale, int64_t size, float* to) {
  HWY_DYNAMIC_DISPATCH(add_row)(from, scale, size, to);
}

void column_sum(const ColumnSum& arguments, WeightSumSpace space) {
  WeightSum sum(space);
  if (!sum.is_wanted()) return;
  for (int64_t row = 0; row < arguments.input.extent(0); ++row) {
    add_row(arguments.input.as<float>() + row * arguments.input.stride(0), 1.0f, arguments.input.extent(1),
            sum.piece());
    sum.row_added();
  }
  sum.finish(arguments.sum.as<float>());
}

}  // namespace ithaca::cpu
#endif
