// Loops over rows of float32 for the SIMD kernels: element by element, and sums.
// Compiled once per instruction set; include it only after hwy/foreach_target.h, as Highway's *-inl.h files are.
#if defined(ITHACA_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ITHACA_ROWS_INL_H_
#undef ITHACA_ROWS_INL_H_
#else
#define ITHACA_ROWS_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace ithaca::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using FullTag = hn::ScalableTag<float>;
using SingleTag = hn::CappedTag<float, 1>;

// Calls body(tag, i) for i = 0 ... size - 1 in steps of the tag's lanes: whole vectors first, then what is left one by
// one. `body` is a lambda marked HWY_ATTR.
template <class Body>
HWY_INLINE void for_each(int64_t size, const Body& body) {
  const FullTag full;
  const auto lanes = static_cast<int64_t>(hn::Lanes(full));
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) body(full, i);
  const SingleTag single;
  for (; i < size; ++i) body(single, i);
}

// The sum of term(tag, i) over i as for_each() counts it. Pieces of 4096 elements are summed in float32 by 4 vectors of
// partial sums, and the pieces in float64, so that the relative error stays near 1e-7 at any size. Always in the same
// order.
template <class Term>
HWY_INLINE double sum_of(int64_t size, const Term& term) {
  const FullTag full;
  const auto lanes = static_cast<int64_t>(hn::Lanes(full));
  constexpr int64_t piece = 4096;
  double total = 0.0;
  int64_t i = 0;
  while (i + lanes <= size) {
    const int64_t end = std::min(size, i + piece);
    auto sum0 = hn::Zero(full);
    auto sum1 = hn::Zero(full);
    auto sum2 = hn::Zero(full);
    auto sum3 = hn::Zero(full);
    for (; i + 4 * lanes <= end; i += 4 * lanes) {
      sum0 = hn::Add(sum0, term(full, i));
      sum1 = hn::Add(sum1, term(full, i + lanes));
      sum2 = hn::Add(sum2, term(full, i + 2 * lanes));
      sum3 = hn::Add(sum3, term(full, i + 3 * lanes));
    }
    for (; i + lanes <= end; i += lanes) sum0 = hn::Add(sum0, term(full, i));
    sum0 = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(full, sum0)));
  }
  const SingleTag single;
  for (; i < size; ++i) total += static_cast<double>(hn::GetLane(term(single, i)));
  return total;
}

// e^x for x <= 88; NaN stays NaN (Highway's own turns it into 0, which would hide it).
template <class D, class V>
HWY_INLINE V exponential(D d, V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

}  // namespace
}  // namespace ithaca::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
