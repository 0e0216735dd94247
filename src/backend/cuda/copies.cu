// Copies, additions and fills of tensors of any strides, and sums of several.
#include <algorithm>
#include <array>
#include <optional>

#include "backend/cuda/kernels.h"
#include "backend/cuda/strided_layout.cuh"
#include "backend/cuda/tiles.cuh"

namespace ithaca::cuda {
namespace {

constexpr int kThreads = 256;

// ---- one kernel for all pairs of views ----

// A kernel over `count` units: Operation has Loaded, load(from offset, to offset), finish(loaded, to offset), with
// offsets in units, and kUnroll: units that a thread loads before it finishes the first.
template <typename Operation, bool kSmall, bool kSameLayout>
__global__ void __launch_bounds__(kThreads)
    pair_kernel(const Operation operation, const StridedLayout from, const StridedLayout to, int64_t count) {
  constexpr int kUnroll = Operation::kUnroll;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kUnroll;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kUnroll + threadIdx.x; first < count;
       first += stride) {
    typename Operation::Loaded loaded[kUnroll];
    int64_t to_offset[kUnroll];
#pragma unroll
    for (int step = 0; step < kUnroll; ++step) {
      const int64_t index = first + step * kThreads;
      if (index >= count) continue;
      to_offset[step] = to.template offset<kSmall>(index);
      const int64_t from_offset = kSameLayout ? to_offset[step] : from.template offset<kSmall>(index);
      loaded[step] = operation.load(from_offset, to_offset[step]);
    }
#pragma unroll
    for (int step = 0; step < kUnroll; ++step) {
      if (first + step * kThreads < count) operation.finish(loaded[step], to_offset[step]);
    }
  }
}

bool are_same(const StridedLayout& first, const StridedLayout& second) {
  return first.rank == second.rank && std::equal(first.extents, first.extents + first.rank, second.extents) &&
         std::equal(first.strides, first.strides + first.rank, second.strides);
}

unsigned grid_for(int64_t count, int unroll) {
  return static_cast<unsigned>(std::min<int64_t>(divide_up(count, int64_t{kThreads} * unroll), int64_t{1} << 30));
}

// `count` units.
template <typename Operation>
void launch_pairs(const Operation& operation, StridedLayout from, StridedLayout to, int64_t count, cudaStream_t stream,
                  const char* name) {
  set_divisors(from);
  set_divisors(to);
  const unsigned blocks = grid_for(count, Operation::kUnroll);
  if (count >= kSmallCount) {
    pair_kernel<Operation, false, false><<<blocks, kThreads, 0, stream>>>(operation, from, to, count);
  } else if (are_same(from, to)) {
    pair_kernel<Operation, true, true><<<blocks, kThreads, 0, stream>>>(operation, from, to, count);
  } else {
    pair_kernel<Operation, true, false><<<blocks, kThreads, 0, stream>>>(operation, from, to, count);
  }
  check_cuda(cudaGetLastError(), name, __FILE__, __LINE__);
}

bool is_aligned(const Tensor& tensor, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(bytes) == 0;
}

// ---- copies without conversion: units of bytes ----

template <typename Unit>
struct MoveOperation {
  const Unit* from;
  Unit* to;

  static constexpr int kUnroll = 4;
  using Loaded = Unit;
  __device__ Unit load(int64_t from_offset, int64_t /*to_offset*/) const { return from[from_offset]; }
  __device__ void finish(const Unit& unit, int64_t to_offset) const { to[to_offset] = unit; }
};

template <typename Unit>
void move(const Tensor& from, const Tensor& to, const StridedLayout& from_layout, const StridedLayout& to_layout,
          int64_t units, cudaStream_t stream) {
  launch_pairs(MoveOperation<Unit>{data_of<const Unit>(from), data_of<Unit>(to)}, from_layout, to_layout, units, stream,
               "launch of the kernel copy");
}

// Layouts in elements of the same size; in the largest unit that both sides allow.
void move_elements(const Tensor& from, const Tensor& to, StridedLayout from_layout, StridedLayout to_layout,
                   cudaStream_t stream) {
  const int64_t element = element_size(from.dtype);
  const int64_t count = from.element_count();
  if (from.is_contiguous() && to.is_contiguous()) {
    ITHACA_CUDA_CHECK(
        cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(from.byte_count()), cudaMemcpyDefault, stream));
    return;
  }
  int64_t unit = 16;
  for (; unit > element; unit /= 2) {
    if (!is_aligned(from, unit) || !is_aligned(to, unit)) continue;
    StridedLayout from_units = from_layout;
    StridedLayout to_units_layout = to_layout;
    if (!to_units(from_units, unit / element) || !to_units(to_units_layout, unit / element)) continue;
    from_layout = from_units;
    to_layout = to_units_layout;
    break;
  }
  const int64_t units = count / (unit / element);
  switch (unit) {
    case 16:
      return move<uint4>(from, to, from_layout, to_layout, units, stream);
    case 8:
      return move<uint2>(from, to, from_layout, to_layout, units, stream);
    case 4:
      return move<uint32_t>(from, to, from_layout, to_layout, units, stream);
    case 2:
      return move<uint16_t>(from, to, from_layout, to_layout, units, stream);
    default:
      return move<uint8_t>(from, to, from_layout, to_layout, units, stream);
  }
}

// ---- conversions and additions between float32 and bfloat16 ----

template <typename F, typename T, int kWidth>
struct ConvertOperation {
  const F* from;
  T* to;

  static constexpr int kUnroll = 4;
  using Loaded = Pack<F, kWidth>;
  __device__ Loaded load(int64_t from_offset, int64_t /*to_offset*/) const {
    return Loaded::load(from + from_offset * kWidth);
  }
  __device__ void finish(const Loaded& loaded, int64_t to_offset) const {
    Pack<T, kWidth> result;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) result.set(i, loaded[i]);
    result.store(to + to_offset * kWidth);
  }
};

template <typename F, typename T, int kWidth>
struct AddOperation {
  const F* from;
  T* to;
  float scale;

  // Vectors of eight take so many registers in float32 that more blocks are better than more vectors.
  static constexpr int kUnroll = kWidth > 4 ? 2 : 4;
  struct Loaded {
    Pack<F, kWidth> from;
    Pack<T, kWidth> to;
  };
  __device__ Loaded load(int64_t from_offset, int64_t to_offset) const {
    return {Pack<F, kWidth>::load(from + from_offset * kWidth), Pack<T, kWidth>::load(to + to_offset * kWidth)};
  }
  __device__ void finish(const Loaded& loaded, int64_t to_offset) const {
    Pack<T, kWidth> result;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) result.set(i, loaded.to[i] + scale * loaded.from[i]);
    result.store(to + to_offset * kWidth);
  }
};

// Calls launch(width, from layout, to layout, units) with the widest vectors that the two views allow.
template <int kVector, typename Launch>
void with_widest(const Tensor& from, const Tensor& to, const Launch& launch) {
  StridedLayout from_layout;
  StridedLayout to_layout;
  joint_layouts(from, to, from_layout, to_layout);
  StridedLayout from_units = from_layout;
  StridedLayout to_units_layout = to_layout;
  if (is_aligned(from, std::min<int64_t>(16, kVector * element_size(from.dtype))) &&
      is_aligned(to, std::min<int64_t>(16, kVector * element_size(to.dtype))) && to_units(from_units, kVector) &&
      to_units(to_units_layout, kVector)) {
    launch(std::integral_constant<int, kVector>{}, from_units, to_units_layout, from.element_count() / kVector);
  } else {
    launch(std::integral_constant<int, 1>{}, from_layout, to_layout, from.element_count());
  }
}

bool is_float_or_bfloat(const Tensor& tensor) {
  return tensor.dtype == DType::float32 || tensor.dtype == DType::bfloat16;
}

// ---- everything else: element by element, the type decided in the kernel ----

__device__ inline double load_as_double(const void* data, DType dtype, int64_t offset) {
  switch (dtype) {
    case DType::float32:
      return static_cast<double>(static_cast<const float*>(data)[offset]);
    case DType::float64:
      return static_cast<const double*>(data)[offset];
    case DType::bfloat16:
      return static_cast<double>(__bfloat162float(static_cast<const BFloat*>(data)[offset]));
    case DType::float16:
      return static_cast<double>(__half2float(static_cast<const __half*>(data)[offset]));
    case DType::int32:
      return static_cast<double>(static_cast<const int32_t*>(data)[offset]);
    case DType::int64:
      return static_cast<double>(static_cast<const int64_t*>(data)[offset]);
    case DType::uint8:
      return static_cast<double>(static_cast<const uint8_t*>(data)[offset]);
  }
  return 0.0;
}

__device__ inline void store_double(void* data, DType dtype, int64_t offset, double value) {
  switch (dtype) {
    case DType::float32:
      static_cast<float*>(data)[offset] = static_cast<float>(value);
      return;
    case DType::float64:
      static_cast<double*>(data)[offset] = value;
      return;
    case DType::bfloat16:
      static_cast<BFloat*>(data)[offset] = __double2bfloat16(value);  // rounds once
      return;
    case DType::float16:
      static_cast<__half*>(data)[offset] = __double2half(value);
      return;
    case DType::int32:
      static_cast<int32_t*>(data)[offset] = static_cast<int32_t>(value);
      return;
    case DType::int64:
      static_cast<int64_t*>(data)[offset] = static_cast<int64_t>(value);
      return;
    case DType::uint8:
      static_cast<uint8_t*>(data)[offset] = static_cast<uint8_t>(value);
      return;
  }
}

struct AnyConvertOperation {
  const void* from;
  void* to;
  DType from_dtype, to_dtype;

  static constexpr int kUnroll = 4;
  using Loaded = double;
  __device__ double load(int64_t from_offset, int64_t /*to_offset*/) const {
    return load_as_double(from, from_dtype, from_offset);
  }
  __device__ void finish(double value, int64_t to_offset) const { store_double(to, to_dtype, to_offset, value); }
};

struct AnyAddOperation {
  const void* from;
  void* to;
  DType from_dtype, to_dtype;
  double scale;

  static constexpr int kUnroll = 4;
  using Loaded = double;
  __device__ double load(int64_t from_offset, int64_t to_offset) const {
    return load_as_double(to, to_dtype, to_offset) + scale * load_as_double(from, from_dtype, from_offset);
  }
  __device__ void finish(double value, int64_t to_offset) const { store_double(to, to_dtype, to_offset, value); }
};

// ---- fill ----

template <typename Unit>
struct FillOperation {
  Unit* to;
  Unit value;

  static constexpr int kUnroll = 4;
  struct Loaded {};
  __device__ Loaded load(int64_t /*from_offset*/, int64_t /*to_offset*/) const { return {}; }
  __device__ void finish(const Loaded& /*nothing*/, int64_t to_offset) const { to[to_offset] = value; }
};

template <typename Unit>
void fill_units(const Tensor& to, const StridedLayout& layout, int64_t units, const void* pattern,
                cudaStream_t stream) {
  FillOperation<Unit> operation{data_of<Unit>(to), {}};
  std::copy_n(static_cast<const std::byte*>(pattern), sizeof(Unit), reinterpret_cast<std::byte*>(&operation.value));
  launch_pairs(operation, layout, layout, units, stream, "launch of the kernel fill");
}

// The bytes of `value` as an element of `dtype`, repeated to 16 bytes.
std::array<std::byte, 16> pattern_of(DType dtype, double value) {
  std::array<std::byte, 16> element{};
  const auto set = [&](auto typed) {
    std::copy_n(reinterpret_cast<const std::byte*>(&typed), sizeof(typed), element.begin());
  };
  switch (dtype) {
    case DType::float32:
      set(static_cast<float>(value));
      break;
    case DType::float64:
      set(value);
      break;
    case DType::bfloat16:
      set(to_bfloat16(static_cast<float>(value)));
      break;
    case DType::float16:
      set(to_float16(static_cast<float>(value)));
      break;
    case DType::int32:
      set(static_cast<int32_t>(value));
      break;
    case DType::int64:
      set(static_cast<int64_t>(value));
      break;
    case DType::uint8:
      set(static_cast<uint8_t>(value));
      break;
  }
  const auto size = static_cast<size_t>(element_size(dtype));
  for (size_t i = size; i < element.size(); ++i) element[i] = element[i % size];
  return element;
}

// ---- sums of several tensors ----

// Layouts are in units of one element, or of one vector where all views allow it. One for each part, or one that all
// have, as the ranks' slices of one tensor do: 32 of them are more than the 4 KiB that kernels' arguments have had
// until CUDA 12.1, and travel with every launch.
template <typename T, int kLayouts>
struct SumView {
  int parts = 0;
  const T* data[kMostSumParts] = {};
  StridedLayout layouts[kLayouts];
  T* to = nullptr;
  StridedLayout to_layout;
};

template <typename T>
__device__ inline T add_values(T left, T right) {
  if constexpr (std::is_same_v<T, int64_t>) {  // wraps around
    return static_cast<int64_t>(static_cast<uint64_t>(left) + static_cast<uint64_t>(right));
  } else {
    return left + right;
  }
}

template <typename T, int kWidth>
struct SumPack {
  alignas(kWidth * sizeof(T)) T values[kWidth];
};

// Units of every part that a thread has on their way: parts may lie on another device, whose memory is far away.
constexpr int kSumUnroll = 4;

// `count` units; kSmall as in StridedLayout::offset.
template <typename T, int kLayouts, int kWidth, bool kSmall>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const __grid_constant__ SumView<T, kLayouts> view, int64_t count) {
  using Unit = SumPack<T, kWidth>;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kSumUnroll;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kSumUnroll + threadIdx.x; first < count;
       first += stride) {
    const auto load = [&](int part, Unit* units) {
#pragma unroll
      for (int step = 0; step < kSumUnroll; ++step) {
        const int64_t index = first + step * kThreads;
        if (index >= count) continue;
        const int64_t offset = view.layouts[kLayouts == 1 ? 0 : part].template offset<kSmall>(index);
        units[step] = *reinterpret_cast<const Unit*>(view.data[part] + offset * kWidth);
      }
    };
    Unit sums[kSumUnroll] = {};
    load(0, sums);
    for (int part = 1; part < view.parts; ++part) {
      Unit others[kSumUnroll] = {};
      load(part, others);
#pragma unroll
      for (int step = 0; step < kSumUnroll; ++step) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          sums[step].values[i] = add_values(sums[step].values[i], others[step].values[i]);
        }
      }
    }
#pragma unroll
    for (int step = 0; step < kSumUnroll; ++step) {
      const int64_t index = first + step * kThreads;
      if (index >= count) continue;
      const int64_t offset = view.to_layout.template offset<kSmall>(index);
      *reinterpret_cast<Unit*>(view.to + offset * kWidth) = sums[step];
    }
  }
}

template <int kWidth, typename T, int kLayouts>
void launch_sum_view(const SumView<T, kLayouts>& view, int64_t count, cudaStream_t stream) {
  // Enough for the bandwidth of a link or of the memory; more would take the multiprocessors from the work that hides
  // the sum.
  constexpr int64_t kMostBlocks = 512;
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(divide_up(count, int64_t{kThreads} * kSumUnroll), int64_t{kMostBlocks}));
  if (count < kSmallCount) {
    sum_kernel<T, kLayouts, kWidth, true><<<blocks, kThreads, 0, stream>>>(view, count);
  } else {
    sum_kernel<T, kLayouts, kWidth, false><<<blocks, kThreads, 0, stream>>>(view, count);
  }
  ITHACA_CUDA_CHECK_LAUNCH("sum_elements");
}

template <int kWidth, typename T>
void launch_sum(SumView<T, kMostSumParts> view, int64_t count, cudaStream_t stream) {
  for (int part = 0; part < view.parts; ++part) set_divisors(view.layouts[part]);
  set_divisors(view.to_layout);
  const bool are_alike = std::all_of(view.layouts, view.layouts + view.parts,
                                     [&](const StridedLayout& layout) { return are_same(layout, view.layouts[0]); });
  if (!are_alike) return launch_sum_view<kWidth>(view, count, stream);
  SumView<T, 1> alike;
  alike.parts = view.parts;
  std::copy_n(view.data, view.parts, alike.data);
  alike.layouts[0] = view.layouts[0];
  alike.to = view.to;
  alike.to_layout = view.to_layout;
  launch_sum_view<kWidth>(alike, count, stream);
}

template <typename T>
void sum_typed(std::span<const Tensor> parts, const Tensor& to, cudaStream_t stream) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  SumView<T, kMostSumParts> view;
  view.parts = static_cast<int>(parts.size());
  view.to = to.as<T>();
  view.to_layout = layout_of(to);
  bool vectors = is_aligned(to, 16);
  for (size_t part = 0; part < parts.size(); ++part) {
    view.data[part] = parts[part].as<T>();
    view.layouts[part] = layout_of(parts[part]);
    vectors = vectors && is_aligned(parts[part], 16);
  }
  SumView<T, kMostSumParts> of_vectors = view;
  vectors = vectors && to_units(of_vectors.to_layout, kVector) &&
            std::all_of(of_vectors.layouts, of_vectors.layouts + view.parts,
                        [](StridedLayout& layout) { return to_units(layout, kVector); });
  if (vectors) {
    launch_sum<kVector>(of_vectors, to.element_count() / kVector, stream);
  } else {
    launch_sum<1>(view, to.element_count(), stream);
  }
}

}  // namespace

void copy(const Copy& arguments, cudaStream_t stream) {
  const auto& [from, to] = arguments;
  const int64_t count = from.element_count();
  if (count == 0) return;
  StridedLayout from_layout;
  StridedLayout to_layout;
  joint_layouts(from, to, from_layout, to_layout);
  if (from.dtype == to.dtype) {
    move_elements(from, to, from_layout, to_layout, stream);
  } else if (is_float_or_bfloat(from) && is_float_or_bfloat(to)) {
    with_float_type(from.dtype, [&](auto from_type) {
      using F = decltype(from_type);
      using T = std::conditional_t<std::is_same_v<F, float>, BFloat, float>;
      with_widest<4>(
          from, to,
          [&](auto width, const StridedLayout& from_units, const StridedLayout& to_units_layout, int64_t units) {
            const ConvertOperation<F, T, decltype(width)::value> operation{data_of<F>(from), data_of<T>(to)};
            launch_pairs(operation, from_units, to_units_layout, units, stream, "launch of the kernel copy");
          });
    });
  } else {
    launch_pairs(AnyConvertOperation{from.data, to.data, from.dtype, to.dtype}, from_layout, to_layout, count, stream,
                 "launch of the kernel copy");
  }
}

void add(const Add& arguments, cudaStream_t stream) {
  const auto& [from, to, scale] = arguments;
  if (to.element_count() == 0) return;
  if (!is_float_or_bfloat(from) || !is_float_or_bfloat(to)) {
    StridedLayout from_layout;
    StridedLayout to_layout;
    joint_layouts(from, to, from_layout, to_layout);
    launch_pairs(AnyAddOperation{from.data, to.data, from.dtype, to.dtype, static_cast<double>(scale)}, from_layout,
                 to_layout, to.element_count(), stream, "launch of the kernel add");
    return;
  }
  const float factor = scale;
  with_float_type(from.dtype, [&](auto from_type) {
    using F = decltype(from_type);
    with_float_type(to.dtype, [&](auto to_type) {
      using T = decltype(to_type);
      constexpr int kVector = std::is_same_v<F, BFloat> && std::is_same_v<T, BFloat> ? 8 : 4;
      with_widest<kVector>(
          from, to,
          [&](auto width, const StridedLayout& from_units, const StridedLayout& to_units_layout, int64_t units) {
            const AddOperation<F, T, decltype(width)::value> operation{data_of<F>(from), data_of<T>(to), factor};
            launch_pairs(operation, from_units, to_units_layout, units, stream, "launch of the kernel add");
          });
    });
  });
}

void fill(const Fill& arguments, cudaStream_t stream) {
  const Tensor& to = arguments.to;
  const int64_t count = to.element_count();
  if (count == 0) return;
  const std::array<std::byte, 16> pattern = pattern_of(to.dtype, arguments.value);
  const int64_t element = element_size(to.dtype);
  StridedLayout layout = layout_of(to);
  if (is_aligned(to, 16) && to_units(layout, 16 / element)) {
    return fill_units<uint4>(to, layout, count / (16 / element), pattern.data(), stream);
  }
  switch (element) {
    case 8:
      return fill_units<uint2>(to, layout, count, pattern.data(), stream);
    case 4:
      return fill_units<uint32_t>(to, layout, count, pattern.data(), stream);
    case 2:
      return fill_units<uint16_t>(to, layout, count, pattern.data(), stream);
    default:
      return fill_units<uint8_t>(to, layout, count, pattern.data(), stream);
  }
}

namespace {

// A copy engine moves rows of neighbours. It runs beside kernels that fill the device, where a kernel would wait for
// them to end: exchanges hide behind attention only so. What is smaller than this is moved sooner by a kernel.
constexpr int64_t kShortestEngineRow = 512;  // bytes
constexpr int64_t kFewestEngineBytes = int64_t{4} << 20;
constexpr int64_t kLargestEnginePitch = (int64_t{1} << 31) - 1;

// The distance of rows of `width` neighbours, in elements; nothing where the layout has no such rows.
std::optional<int64_t> row_pitch(const StridedLayout& layout, int64_t width) {
  if (layout.strides[0] != 1 || layout.extents[0] % width != 0) return std::nullopt;
  if (layout.rank == 1) return width;
  return layout.rank == 2 && layout.extents[0] == width ? std::optional(layout.strides[1]) : std::nullopt;
}

// Whether both views are rows for a copy engine, which is then given them.
bool move_rows(const Tensor& from, const Tensor& to, const StridedLayout& from_layout, const StridedLayout& to_layout,
               cudaStream_t stream) {
  const int64_t element = element_size(from.dtype);
  const int64_t width = std::min(from_layout.extents[0], to_layout.extents[0]);
  const std::optional<int64_t> from_pitch = row_pitch(from_layout, width);
  const std::optional<int64_t> to_pitch = row_pitch(to_layout, width);
  if (from.byte_count() < kFewestEngineBytes || width * element < kShortestEngineRow) return false;
  if (!from_pitch || !to_pitch) return false;
  if (std::min(*from_pitch, *to_pitch) < width) return false;
  if (std::max(*from_pitch, *to_pitch) * element > kLargestEnginePitch) return false;
  const auto bytes = [&](int64_t elements) { return static_cast<size_t>(elements * element); };
  ITHACA_CUDA_CHECK(cudaMemcpy2DAsync(to.data, bytes(*to_pitch), from.data, bytes(*from_pitch), bytes(width),
                                      static_cast<size_t>(from.element_count() / width), cudaMemcpyDefault, stream));
  return true;
}

}  // namespace

void copy_elements(const Tensor& from, const Tensor& to, cudaStream_t stream) {
  require(from.dtype == to.dtype && from.element_count() == to.element_count(),
          "copy of " + from.describe() + " to " + to.describe());
  if (from.element_count() == 0) return;
  const StridedLayout from_layout = layout_of(from);
  const StridedLayout to_layout = layout_of(to);
  if (from.data == to.data && are_same(from_layout, to_layout)) return;
  if (!move_rows(from, to, from_layout, to_layout, stream)) {
    move_elements(from, to, from_layout, to_layout, stream);
  }
}

void sum_elements(std::span<const Tensor> parts, const Tensor& to, cudaStream_t stream) {
  require(!parts.empty() && parts.size() <= static_cast<size_t>(kMostSumParts), "a sum of none or too many parts");
  for (const Tensor& part : parts) {
    require(part.dtype == to.dtype && part.element_count() == to.element_count(),
            "sum of " + part.describe() + " into " + to.describe());
  }
  if (to.element_count() == 0) return;
  switch (to.dtype) {
    case DType::float32:
      return sum_typed<float>(parts, to, stream);
    case DType::float64:
      return sum_typed<double>(parts, to, stream);
    case DType::int64:
      return sum_typed<int64_t>(parts, to, stream);
    default:
      throw ContractError("sums are made of float32, float64 or int64, not of " + to.describe());
  }
}

}  // namespace ithaca::cuda
