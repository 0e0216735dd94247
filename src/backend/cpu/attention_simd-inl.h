// The SIMD parts that the forward and backward attention kernels share: register-blocked products, 2^x, packing.
// Compiled once per instruction set; include it only after hwy/foreach_target.h, as Highway's *-inl.h files are.
//
// Everything laid out by tile has row stride kMaxTileRows, also where a tile has fewer rows.
#if defined(ITHACA_ATTENTION_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ITHACA_ATTENTION_SIMD_INL_H_
#undef ITHACA_ATTENTION_SIMD_INL_H_
#else
#define ITHACA_ATTENTION_SIMD_INL_H_
#endif

#include <hwy/highway.h>

// Loops over registers must be unrolled for their arrays to become registers.
#if defined(__clang__)
#define ITHACA_UNROLL _Pragma("unroll")
#else
#define ITHACA_UNROLL _Pragma("GCC unroll 16")
#endif

HWY_BEFORE_NAMESPACE();
namespace ithaca::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The block of accumulators of one product: kPanel scalars of the left operand times kVectors registers of the right
// one. With 32 registers (AVX-512) 8 x 2, else 4 x 3 of 16 registers: both keep the multipliers busy (at least 8
// independent sums) and load less often than they multiply.
#if HWY_TARGET <= HWY_AVX3
inline constexpr int64_t kPanel = 8;
inline constexpr int64_t kVectors = 2;
#elif HWY_TARGET == HWY_SCALAR
inline constexpr int64_t kPanel = 4;
inline constexpr int64_t kVectors = 4;
#else
inline constexpr int64_t kPanel = 4;
inline constexpr int64_t kVectors = 3;
#endif
using FloatTag = hn::CappedTag<float, 16>;
using IntTag = hn::RebindToSigned<FloatTag>;
using Float = hn::Vec<FloatTag>;
inline constexpr int64_t kLanes = static_cast<int64_t>(HWY_MIN(HWY_LANES(float), 16));
inline constexpr int64_t kTileRows = kVectors * kLanes;
static_assert(kTileRows <= kMaxTileRows);
using Vectors = Float[kVectors];

// 2^x to about 1e-7 relative, for x <= 127; 2^-126 below that, NaN for NaN. 2^x = 2^n * 2^r with n = round(x) and a
// degree-6 minimax polynomial of 2^r on [-1/2, 1/2] (relative error 2e-9, found with Remez' algorithm).
HWY_INLINE Float exp2(Float x) {
  const FloatTag d;
  const IntTag di;
  const Float lowest = hn::Set(d, -126.0f);
#if HWY_TARGET <= HWY_SSSE3 && HWY_TARGET >= HWY_AVX3_DL
  x = hn::Max(lowest, x);  // x86 returns the second operand when either is NaN
#else
  x = hn::IfThenElse(hn::Lt(x, lowest), lowest, x);
#endif
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits, here with the exponent bias already added.
  const Float rounder = hn::Set(d, 12582912.0f + 127.0f);
  const Float rounded = hn::Add(x, rounder);
  const Float r = hn::Sub(x, hn::Sub(rounded, rounder));
  Float p = hn::Set(d, 0.000153458121613f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.00133999311772f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.00961848895633f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.0555032877711f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.240226468906f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.693147205737f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.00000000055f));
  const Float power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, rounded)));
  return hn::Mul(p, power);  // a product, so that no NaN is lost
}

// The product of a panel of scalars and a strip of vectors, added to accumulators:
//   sums[i][v] += sum over k < depth of left[i * kLeftRow + k * kLeftDepth] * right[k * right_stride + v * kLanes ...].
template <int64_t kRows, int64_t kColumns, int64_t kLeftRow, int64_t kLeftDepth>
HWY_INLINE void multiply_panel(const float* HWY_RESTRICT left, const float* HWY_RESTRICT right, int64_t right_stride,
                               int64_t depth, Float (&sums)[kRows][kColumns]) {
  const FloatTag d;
  for (int64_t k = 0; k < depth; ++k) {
    Float strip[kColumns];
    ITHACA_UNROLL
    for (int64_t v = 0; v < kColumns; ++v) strip[v] = hn::LoadU(d, right + v * kLanes);
    ITHACA_UNROLL
    for (int64_t i = 0; i < kRows; ++i) {
      const Float scalar = hn::Set(d, left[i * kLeftRow]);
      ITHACA_UNROLL
      for (int64_t v = 0; v < kColumns; ++v) sums[i][v] = hn::MulAdd(scalar, strip[v], sums[i][v]);
    }
    left += kLeftDepth;
    right += right_stride;
  }
}

template <int64_t kRows, int64_t kColumns>
HWY_INLINE void clear(Float (&sums)[kRows][kColumns]) {
  ITHACA_UNROLL
  for (int64_t i = 0; i < kRows; ++i) {
    ITHACA_UNROLL
    for (int64_t v = 0; v < kColumns; ++v) sums[i][v] = hn::Zero(FloatTag());
  }
}

// to[i * stride + v * kLanes ...] += sums[i][v]. Products are summed on their own and only then added to what is there:
// long sums are so made of short ones, and their rounding errors stay those of short ones.
template <int64_t kRows, int64_t kColumns>
HWY_INLINE void add_to(const Float (&sums)[kRows][kColumns], int64_t stride, float* HWY_RESTRICT to) {
  const FloatTag d;
  ITHACA_UNROLL
  for (int64_t i = 0; i < kRows; ++i) {
    ITHACA_UNROLL
    for (int64_t v = 0; v < kColumns; ++v) {
      float* at = to + i * stride + v * kLanes;
      hn::StoreU(hn::Add(hn::LoadU(d, at), sums[i][v]), d, at);
    }
  }
}

// sums = a panel [depth][kPanel] times a tile [depth][tile rows]: kPanel rows of scores of one tile.
HWY_INLINE void multiply_scores(const float* HWY_RESTRICT panel, const float* HWY_RESTRICT tile, int64_t depth,
                                Float (&sums)[kPanel][kVectors]) {
  clear(sums);
  multiply_panel<kPanel, kVectors, 1, kPanel>(panel, tile, kMaxTileRows, depth, sums);
}

// to[kPanel][tile rows] += panel [depth][kPanel] transposed, times tile [depth][tile rows].
HWY_INLINE void add_product_to_tile(const float* HWY_RESTRICT panel, const float* HWY_RESTRICT tile, int64_t depth,
                                    float* HWY_RESTRICT to) {
  Float sums[kPanel][kVectors];
  multiply_scores(panel, tile, depth, sums);
  add_to(sums, kMaxTileRows, to);
}

#if HWY_TARGET != HWY_SCALAR
// Transposes four rows of four floats in registers.
struct Quad {
  using Tag = hn::FixedTag<float, 4>;
  hn::Vec<Tag> row[4];

  HWY_INLINE void transpose() {
    const Tag d;
    const auto even_low = hn::InterleaveLower(d, row[0], row[2]);
    const auto odd_low = hn::InterleaveLower(d, row[1], row[3]);
    const auto even_high = hn::InterleaveUpper(d, row[0], row[2]);
    const auto odd_high = hn::InterleaveUpper(d, row[1], row[3]);
    row[0] = hn::InterleaveLower(d, even_low, odd_low);
    row[1] = hn::InterleaveUpper(d, even_low, odd_low);
    row[2] = hn::InterleaveLower(d, even_high, odd_high);
    row[3] = hn::InterleaveUpper(d, even_high, odd_high);
  }
};
#endif

// to[i * to_stride + r] = factor * rows[r][i] for i < size and r < kRows (a multiple of 4).
template <int64_t kRows>
HWY_INLINE void pack_transposed(const float* const* rows, int64_t size, float factor, float* HWY_RESTRICT to,
                                int64_t to_stride) {
  static_assert(kRows % 4 == 0);
  for (int64_t r = 0; r < kRows; r += 4) {
    int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
    const Quad::Tag d;
    const auto scale = hn::Set(d, factor);
    for (; i + 4 <= size; i += 4) {
      Quad quad;
      ITHACA_UNROLL
      for (int64_t j = 0; j < 4; ++j) quad.row[j] = hn::Mul(scale, hn::LoadU(d, rows[r + j] + i));
      quad.transpose();
      ITHACA_UNROLL
      for (int64_t j = 0; j < 4; ++j) hn::StoreU(quad.row[j], d, to + (i + j) * to_stride + r);
    }
#endif
    for (; i < size; ++i) {
      for (int64_t j = 0; j < 4; ++j) to[i * to_stride + r + j] = factor * rows[r + j][i];
    }
  }
}

// rows[r][i] = tile[i * kMaxTileRows + r], or += factor * that, for r < rows and i < size.
template <bool kAdd>
HWY_INLINE void unpack_transposed(const float* HWY_RESTRICT tile, int64_t row_count, int64_t size, float factor,
                                  float* const* rows) {
  for (int64_t r = 0; r < row_count; r += 4) {
    const int64_t live = std::min<int64_t>(4, row_count - r);
    int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
    const Quad::Tag d;
    const auto scale = hn::Set(d, factor);
    for (; i + 4 <= size; i += 4) {
      Quad quad;
      ITHACA_UNROLL
      for (int64_t j = 0; j < 4; ++j) quad.row[j] = hn::LoadU(d, tile + (i + j) * kMaxTileRows + r);
      quad.transpose();
      ITHACA_UNROLL
      for (int64_t j = 0; j < 4; ++j) {
        if (j < live) {
          float* to = rows[r + j] + i;
          hn::StoreU(kAdd ? hn::MulAdd(scale, quad.row[j], hn::LoadU(d, to)) : quad.row[j], d, to);
        }
      }
    }
#endif
    for (; i < size; ++i) {
      for (int64_t j = 0; j < live; ++j) {
        const float value = tile[i * kMaxTileRows + r + j];
        if (kAdd) {
          rows[r + j][i] += factor * value;
        } else {
          rows[r + j][i] = value;
        }
      }
    }
  }
}

// Packs keys for multiply_scores: panel p holds keys [p * kPanel, (p + 1) * kPanel) as [size][kPanel]. Keys from
// `count` up to the end of the last panel are zeros. `zeros`: at least `size` of them.
HWY_INLINE void pack_key_panels(const float* keys, int64_t stride, int64_t count, int64_t size, const float* zeros,
                                float* HWY_RESTRICT to) {
  for (int64_t first = 0; first < count; first += kPanel) {
    const float* rows[kPanel];
    for (int64_t r = 0; r < kPanel; ++r) rows[r] = first + r < count ? keys + (first + r) * stride : zeros;
    pack_transposed<kPanel>(rows, size, 1.0f, to, kPanel);
    to += size * kPanel;
  }
}

// Packs rows for add_product_to_tile: panel p holds columns [p * kPanel, (p + 1) * kPanel) as [row][kPanel], panels
// `capacity` rows apart. Columns past `size` and rows from `count` up to a multiple of kPanel are zeros.
HWY_INLINE void pack_row_panels(const float* rows, int64_t stride, int64_t count, int64_t size, int64_t capacity,
                                float* HWY_RESTRICT to) {
  const hn::CappedTag<float, kPanel> d;
  constexpr int64_t kStep = std::min(kLanes, kPanel);
  const int64_t padded = round_up(count, kPanel);
  for (int64_t row = 0; row < padded; ++row) {
    const float* from = rows + row * stride;
    float* panel = to + row * kPanel;
    int64_t i = 0;
    if (row < count) {
      for (; i + kPanel <= size; i += kPanel) {
        for (int64_t j = 0; j < kPanel; j += kStep) hn::StoreU(hn::LoadU(d, from + i + j), d, panel + j);
        panel += capacity * kPanel;
      }
    }
    for (; i < size; i += kPanel) {
      for (int64_t j = 0; j < kPanel; ++j) panel[j] = row < count && i + j < size ? from[i + j] : 0.0f;
      panel += capacity * kPanel;
    }
  }
}

}  // namespace ithaca::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard that flips with the instruction set
