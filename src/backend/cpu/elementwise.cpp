// Copies, conversions, additions and fills of the CPU backend, for views of any strides.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>

#include "backend/cpu/kernels.h"
#include "base/error.h"

namespace ithaca::cpu {
namespace {

// The elements of two views as nested loops: as few as possible, the innermost last. Written order: `to` is walked from
// its largest stride to its smallest, and dimensions that both sides step through as one are joined.
struct Loops {
  int rank = 0;
  std::array<int64_t, Extents::kMaxRank> extents{};
  std::array<int64_t, Extents::kMaxRank> from{};  // strides in elements
  std::array<int64_t, Extents::kMaxRank> to{};
  bool is_empty = false;
};

Loops loops_over(const Tensor& from, const Tensor& to) {
  std::array<int, Extents::kMaxRank> order{};
  int count = 0;
  Loops loops;
  for (int dimension = 0; dimension < to.rank(); ++dimension) {
    if (to.extent(dimension) == 0) loops.is_empty = true;
    if (to.extent(dimension) != 1) order[static_cast<size_t>(count++)] = dimension;
  }
  std::stable_sort(order.begin(), order.begin() + count,
                   [&](int a, int b) { return std::abs(to.stride(a)) > std::abs(to.stride(b)); });
  for (int position = 0; position < count; ++position) {
    const int dimension = order[static_cast<size_t>(position)];
    const int64_t extent = to.extent(dimension);
    if (loops.rank > 0) {
      const auto outer = static_cast<size_t>(loops.rank - 1);
      if (loops.from[outer] == from.stride(dimension) * extent && loops.to[outer] == to.stride(dimension) * extent) {
        loops.extents[outer] *= extent;
        loops.from[outer] = from.stride(dimension);
        loops.to[outer] = to.stride(dimension);
        continue;
      }
    }
    const auto inner = static_cast<size_t>(loops.rank++);
    loops.extents[inner] = extent;
    loops.from[inner] = from.stride(dimension);
    loops.to[inner] = to.stride(dimension);
  }
  if (loops.rank == 0) {  // one element
    loops.rank = 1;
    loops.extents[0] = 1;
    loops.from[0] = 1;
    loops.to[0] = 1;
  }
  return loops;
}

// Calls row(from offset, to offset) for every innermost row.
template <typename Row>
void for_each_row(const Loops& loops, const Row& row) {
  if (loops.is_empty) return;
  std::array<int64_t, Extents::kMaxRank> index{};
  int64_t from = 0;
  int64_t to = 0;
  while (true) {
    row(from, to);
    int dimension = loops.rank - 2;
    for (; dimension >= 0; --dimension) {
      const auto d = static_cast<size_t>(dimension);
      from += loops.from[d];
      to += loops.to[d];
      if (++index[d] < loops.extents[d]) break;
      from -= loops.from[d] * loops.extents[d];
      to -= loops.to[d] * loops.extents[d];
      index[d] = 0;
    }
    if (dimension < 0) return;
  }
}

template <typename T>
inline constexpr bool kIsFloating =
    std::is_floating_point_v<T> || std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

// Rounds to float so that a second rounding, to 16 bits, gives what one rounding would: inexact results get an odd last
// bit ("round to odd"), which no 16-bit tie has.
float to_float_odd(double value) {
  const auto nearest = static_cast<float>(value);
  const auto back = static_cast<double>(nearest);
  if (back == value || std::isnan(value)) return nearest;
  const auto bits = std::bit_cast<uint32_t>(nearest);
  if ((bits & 1u) != 0) return nearest;
  // The odd neighbour on the other side of the value.
  return std::bit_cast<float>(std::abs(back) > std::abs(value) ? bits - 1u : bits + 1u);
}

template <typename To, typename From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<From, BFloat16> || std::is_same_v<From, Float16>) {
    return convert<To>(to_float(value));
  } else if constexpr (std::is_same_v<To, BFloat16> || std::is_same_v<To, Float16>) {
    float rounded = 0.0f;
    if constexpr (std::is_same_v<From, float>) {
      rounded = value;
    } else {
      rounded = to_float_odd(static_cast<double>(value));
    }
    if constexpr (std::is_same_v<To, BFloat16>) {
      return to_bfloat16(rounded);
    } else {
      return to_float16(rounded);
    }
  } else if constexpr (std::is_integral_v<To> && std::is_integral_v<From>) {
    const auto result = static_cast<To>(value);
    if (static_cast<int64_t>(result) != static_cast<int64_t>(value)) {
      throw ContractError(fmt::format("copy: {} does not fit into {}", value, dtype_name(DTypeOf<To>::value)));
    }
    return result;
  } else {
    return static_cast<To>(value);
  }
}

template <typename From, typename To>
void copy_typed(const Loops& loops, const Tensor& from, const Tensor& to) {
  const auto last = static_cast<size_t>(loops.rank - 1);
  const int64_t count = loops.extents[last];
  const int64_t from_step = loops.from[last];
  const int64_t to_step = loops.to[last];
  const From* const source = from.as<From>();
  To* const target = to.as<To>();
  for_each_row(loops, [&](int64_t from_offset, int64_t to_offset) {
    const From* const in = source + from_offset;
    To* const out = target + to_offset;
    if (from_step == 1 && to_step == 1) {
      if constexpr (std::is_same_v<From, To>) {
        std::memmove(out, in, static_cast<size_t>(count) * sizeof(To));
      } else {
        for (int64_t i = 0; i < count; ++i) out[i] = convert<To>(in[i]);
      }
      return;
    }
    for (int64_t i = 0; i < count; ++i) out[i * to_step] = convert<To>(in[i * from_step]);
  });
}

// Calls visit(a value of the C++ type of `dtype`).
template <typename Visit>
void with_type(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::float32:
      return visit(float{});
    case DType::float64:
      return visit(double{});
    case DType::bfloat16:
      return visit(BFloat16{});
    case DType::float16:
      return visit(Float16{});
    case DType::int32:
      return visit(int32_t{});
    case DType::int64:
      return visit(int64_t{});
    case DType::uint8:
      return visit(uint8_t{});
  }
  throw ContractError("unknown dtype");
}

template <typename From, typename To>
void add_typed(const Loops& loops, const Tensor& from, const Tensor& to, float scale) {
  const auto last = static_cast<size_t>(loops.rank - 1);
  const int64_t count = loops.extents[last];
  const int64_t from_step = loops.from[last];
  const int64_t to_step = loops.to[last];
  const From* const source = from.as<From>();
  To* const target = to.as<To>();
  for_each_row(loops, [&](int64_t from_offset, int64_t to_offset) {
    const From* const in = source + from_offset;
    To* const out = target + to_offset;
    if constexpr (std::is_same_v<From, float> && std::is_same_v<To, float>) {
      if (from_step == 1 && to_step == 1) {
        add_row(in, scale, count, out);
        return;
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      out[i * to_step] = static_cast<To>(static_cast<double>(out[i * to_step]) +
                                         static_cast<double>(scale) * static_cast<double>(in[i * from_step]));
    }
  });
}

}  // namespace

void copy(const Copy& arguments) {
  const Loops loops = loops_over(arguments.from, arguments.to);
  with_type(arguments.from.dtype, [&](auto from) {
    with_type(arguments.to.dtype, [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      if constexpr (kIsFloating<From> && !kIsFloating<To>) {
        throw ContractError("copy: floating point numbers are not converted to integers");
      } else {
        copy_typed<From, To>(loops, arguments.from, arguments.to);
      }
    });
  });
}

void add(const Add& arguments) {
  const Loops loops = loops_over(arguments.from, arguments.to);
  const auto with_floating_type = [](DType dtype, const auto& visit) {
    if (dtype == DType::float64) {
      visit(double{});
    } else {
      visit(float{});
    }
  };
  with_floating_type(arguments.from.dtype, [&](auto from) {
    with_floating_type(arguments.to.dtype, [&](auto to) {
      add_typed<decltype(from), decltype(to)>(loops, arguments.from, arguments.to, arguments.scale);
    });
  });
}

void fill(const Fill& arguments) {
  const Tensor& to = arguments.to;
  const Loops loops = loops_over(to, to);
  const auto last = static_cast<size_t>(loops.rank - 1);
  const int64_t count = loops.extents[last];
  const int64_t step = loops.to[last];
  with_type(to.dtype, [&](auto type) {
    using To = decltype(type);
    To value{};
    if constexpr (kIsFloating<To>) {
      value = convert<To>(arguments.value);
    } else {
      value = static_cast<To>(arguments.value);
    }
    for_each_row(loops, [&](int64_t /*from*/, int64_t offset) {
      To* const out = to.as<To>() + offset;
      if (step == 1) {
        std::fill_n(out, count, value);
      } else {
        for (int64_t i = 0; i < count; ++i) out[i * step] = value;
      }
    });
  });
}

}  // namespace ithaca::cpu
