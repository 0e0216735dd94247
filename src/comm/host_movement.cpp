#include "comm/host_movement.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "comm/collective_call.h"

namespace ithaca {

namespace {

// Walks a view in row-major order, in runs of equally spaced elements. Dimensions that are laid out as one are joined
// first, so a contiguous view is one run.
class RunCursor {
 public:
  explicit RunCursor(const Tensor& view)
      : data_(static_cast<std::byte*>(view.data)), element_size_(element_size(view.dtype)) {
    for (int dimension = 0; dimension < view.rank(); ++dimension) {
      const int64_t extent = view.extent(dimension);
      if (extent == 1) continue;
      if (dimensions_ > 0 && strides_[dimensions_ - 1] == view.stride(dimension) * extent) {
        extents_[dimensions_ - 1] *= extent;
        strides_[dimensions_ - 1] = view.stride(dimension);
      } else {
        extents_[dimensions_] = extent;
        strides_[dimensions_] = view.stride(dimension);
        ++dimensions_;
      }
    }
    if (dimensions_ == 0) {  // one element
      extents_[0] = 1;
      strides_[0] = 1;
      dimensions_ = 1;
    }
  }

  std::byte* position() const { return data_ + offset_ * element_size_; }
  // Elements to the end of this run, at least 1 until the view is at its end.
  int64_t run_left() const { return extents_[dimensions_ - 1] - index_[dimensions_ - 1]; }
  // Distance of neighbours in a run, in elements.
  int64_t run_stride() const { return strides_[dimensions_ - 1]; }

  // Steps over `elements` <= run_left() elements.
  void advance(int64_t elements) {
    size_t dimension = dimensions_ - 1;
    index_[dimension] += elements;
    offset_ += elements * strides_[dimension];
    while (dimension > 0 && index_[dimension] == extents_[dimension]) {
      offset_ -= extents_[dimension] * strides_[dimension];
      index_[dimension] = 0;
      --dimension;
      ++index_[dimension];
      offset_ += strides_[dimension];
    }
  }

 private:
  std::byte* data_;
  int64_t element_size_;
  int64_t offset_ = 0;
  size_t dimensions_ = 0;
  std::array<int64_t, Extents::kMaxRank> extents_{};
  std::array<int64_t, Extents::kMaxRank> strides_{};
  std::array<int64_t, Extents::kMaxRank> index_{};
};

// One run of elements of kBytes each; strides in elements.
template <size_t kBytes>
void copy_strided_run(const std::byte* from, int64_t from_stride, std::byte* to, int64_t to_stride, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_stride * static_cast<int64_t>(kBytes),
                from + i * from_stride * static_cast<int64_t>(kBytes), kBytes);
  }
}

void copy_run(const std::byte* from, int64_t from_stride, std::byte* to, int64_t to_stride, int64_t count,
              int64_t element_bytes) {
  if (count == 1 || (from_stride == 1 && to_stride == 1)) {
    std::memcpy(to, from, static_cast<size_t>(count * element_bytes));
    return;
  }
  switch (element_bytes) {
    case 1:
      return copy_strided_run<1>(from, from_stride, to, to_stride, count);
    case 2:
      return copy_strided_run<2>(from, from_stride, to, to_stride, count);
    case 4:
      return copy_strided_run<4>(from, from_stride, to, to_stride, count);
    default:
      return copy_strided_run<8>(from, from_stride, to, to_stride, count);
  }
}

bool is_same_view(const Tensor& left, const Tensor& right) {
  if (left.data != right.data) return false;
  return (left.extents == right.extents && left.strides == right.strides) ||
         (left.is_contiguous() && right.is_contiguous());
}

// Reads a view piece by piece as contiguous elements: in place where it is contiguous, gathered into a buffer where it
// is not.
template <typename T>
class PieceReader {
 public:
  explicit PieceReader(const Tensor& view) : cursor_(view) {}

  const T* next(int64_t count, T* buffer) {
    if (cursor_.run_stride() == 1 && cursor_.run_left() >= count) {
      const auto* piece = reinterpret_cast<const T*>(cursor_.position());
      cursor_.advance(count);
      return piece;
    }
    for (int64_t done = 0; done < count;) {
      const int64_t run = std::min(count - done, cursor_.run_left());
      copy_run(cursor_.position(), cursor_.run_stride(), reinterpret_cast<std::byte*>(buffer + done), 1, run,
               static_cast<int64_t>(sizeof(T)));
      cursor_.advance(run);
      done += run;
    }
    return buffer;
  }

 private:
  RunCursor cursor_;
};

template <typename T>
void add_piece(T* sum, const T* piece, int64_t count) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;  // wraps around instead of undefined overflow
    for (int64_t i = 0; i < count; ++i) {
      sum[i] = static_cast<T>(static_cast<Unsigned>(sum[i]) + static_cast<Unsigned>(piece[i]));
    }
  } else {
    for (int64_t i = 0; i < count; ++i) sum[i] += piece[i];
  }
}

template <typename T>
void sum_typed(std::span<const Tensor> parts, const Tensor& to) {
  constexpr int64_t kPiece = 2048;  // small enough to stay in the first cache
  std::array<T, kPiece> sum;
  std::array<T, kPiece> gathered;
  std::vector<PieceReader<T>> readers;
  readers.reserve(parts.size());
  for (const Tensor& part : parts) readers.emplace_back(part);
  RunCursor target(to);
  const int64_t count = to.element_count();
  for (int64_t done = 0; done < count;) {
    const int64_t piece = std::min(kPiece, count - done);
    const T* first = readers[0].next(piece, gathered.data());
    std::copy(first, first + piece, sum.data());
    for (size_t part = 1; part < readers.size(); ++part) {
      add_piece(sum.data(), readers[part].next(piece, gathered.data()), piece);
    }
    for (int64_t written = 0; written < piece;) {
      const int64_t run = std::min(piece - written, target.run_left());
      copy_run(reinterpret_cast<const std::byte*>(sum.data() + written), 1, target.position(), target.run_stride(), run,
               static_cast<int64_t>(sizeof(T)));
      target.advance(run);
      written += run;
    }
    done += piece;
  }
}

}  // namespace

void copy_elements(const Tensor& from, const Tensor& to) {
  const int64_t count = block_elements(from);
  require(count == block_elements(to) && (count == 0 || from.dtype == to.dtype),
          "copy of " + from.describe() + " to " + to.describe());
  if (count == 0 || is_same_view(from, to)) return;
  const int64_t element_bytes = element_size(from.dtype);
  RunCursor source(from);
  RunCursor target(to);
  for (int64_t done = 0; done < count;) {
    const int64_t run = std::min(source.run_left(), target.run_left());
    copy_run(source.position(), source.run_stride(), target.position(), target.run_stride(), run, element_bytes);
    source.advance(run);
    target.advance(run);
    done += run;
  }
}

void sum_elements(std::span<const Tensor> parts, const Tensor& to) {
  require(!parts.empty(), "a sum needs at least one part");
  const int64_t count = block_elements(to);
  for (const Tensor& part : parts) {
    require(block_elements(part) == count && (count == 0 || part.dtype == to.dtype),
            "sum of " + part.describe() + " into " + to.describe());
  }
  if (count == 0) return;
  if (parts.size() == 1) return copy_elements(parts[0], to);
  switch (to.dtype) {
    case DType::float32:
      return sum_typed<float>(parts, to);
    case DType::float64:
      return sum_typed<double>(parts, to);
    case DType::int64:
      return sum_typed<int64_t>(parts, to);
    default:
      throw ContractError("sums are made of float32, float64 or int64, not of " + to.describe());
  }
}

}  // namespace ithaca
