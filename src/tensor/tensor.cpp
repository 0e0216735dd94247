#include "tensor/tensor.h"

#include <fmt/format.h>

#include <algorithm>

namespace ithaca {

Extents::Extents(std::initializer_list<int64_t> values)
    : Extents(std::span<const int64_t>(values.begin(), values.size())) {}

Extents::Extents(std::span<const int64_t> values) {
  require(values.size() <= static_cast<size_t>(kMaxRank), "a tensor has at most 5 dimensions");
  rank_ = static_cast<int>(values.size());
  std::copy(values.begin(), values.end(), values_.begin());
}

bool Extents::operator==(const Extents& other) const {
  return std::equal(begin(), end(), other.begin(), other.end());
}

int64_t Extents::product() const {
  int64_t result = 1;
  bool fits = true;
  bool is_empty = false;
  for (const int64_t value : *this) {
    if (value < 0) throw ContractError("negative extent in " + to_string());
    is_empty = is_empty || value == 0;
    fits = !__builtin_mul_overflow(result, value, &result) && fits;
  }
  if (is_empty) return 0;  // whatever the other extents are
  if (!fits) throw ContractError("element count of " + to_string() + " exceeds int64");
  return result;
}

std::string Extents::to_string() const {
  return fmt::format("[{}]", fmt::join(begin(), end(), ", "));
}

Tensor Tensor::contiguous(void* data, DType dtype, const Extents& extents) {
  extents.product();  // throws when the count overflows
  Tensor view{data, dtype, extents, extents};
  int64_t stride = 1;
  for (int dimension = extents.rank() - 1; dimension >= 0; --dimension) {
    view.strides[dimension] = stride;
    // Can only overflow when another extent is 0; then no stride is ever used.
    static_cast<void>(__builtin_mul_overflow(stride, std::max<int64_t>(extents[dimension], 1), &stride));
  }
  return view;
}

bool Tensor::is_contiguous() const {
  int64_t expected = 1;
  for (int dimension = rank() - 1; dimension >= 0; --dimension) {
    if (extents[dimension] == 0) return true;
    if (extents[dimension] != 1 && strides[dimension] != expected) return false;
    expected *= extents[dimension];
  }
  return true;
}

Tensor Tensor::slice(int dimension, int64_t begin, int64_t end) const {
  if (begin < 0 || begin > end || end > extent(dimension)) {
    throw ContractError(
        fmt::format("slice [{}, {}) of dimension {} is outside of {}", begin, end, dimension, describe()));
  }
  Tensor view = *this;
  view.extents[dimension] = end - begin;
  if (data != nullptr) view.data = static_cast<std::byte*>(data) + begin * stride(dimension) * element_size(dtype);
  return view;
}

Tensor Tensor::select(int dimension, int64_t index) const {
  const Tensor view = slice(dimension, index, index + 1);
  Tensor result{view.data, dtype, {}, {}};
  std::array<int64_t, Extents::kMaxRank> extents_left{};
  std::array<int64_t, Extents::kMaxRank> strides_left{};
  size_t count = 0;
  for (int other = 0; other < rank(); ++other) {
    if (other == dimension) continue;
    extents_left[count] = extents[other];
    strides_left[count] = strides[other];
    ++count;
  }
  result.extents = Extents(std::span<const int64_t>(extents_left.data(), count));
  result.strides = Extents(std::span<const int64_t>(strides_left.data(), count));
  return result;
}

Tensor Tensor::transpose(int first, int second) const {
  Tensor view = *this;
  std::swap(view.extents[first], view.extents[second]);
  std::swap(view.strides[first], view.strides[second]);
  return view;
}

Tensor Tensor::reshape(const Extents& new_extents) const {
  if (!is_contiguous()) throw ContractError("reshape of a view that is not contiguous: " + describe());
  if (new_extents.product() != element_count()) {
    throw ContractError("reshape of " + describe() + " to " + new_extents.to_string());
  }
  return contiguous(data, dtype, new_extents);
}

Tensor Tensor::split(int dimension, int64_t outer, int64_t inner) const {
  int64_t product = 0;
  if (outer < 0 || inner < 0 || __builtin_mul_overflow(outer, inner, &product) || product != extent(dimension)) {
    throw ContractError(fmt::format("split of dimension {} of {} into {} x {}", dimension, describe(), outer, inner));
  }
  if (rank() >= Extents::kMaxRank) throw ContractError("split would exceed the largest rank: " + describe());
  std::array<int64_t, Extents::kMaxRank> new_extents{};
  std::array<int64_t, Extents::kMaxRank> new_strides{};
  size_t count = 0;
  for (int other = 0; other < rank(); ++other) {
    if (other == dimension) {
      new_extents[count] = outer;
      new_strides[count++] = strides[other] * inner;
      new_extents[count] = inner;
      new_strides[count++] = strides[other];
    } else {
      new_extents[count] = extents[other];
      new_strides[count++] = strides[other];
    }
  }
  Tensor view{data, dtype, {}, {}};
  view.extents = Extents(std::span<const int64_t>(new_extents.data(), count));
  view.strides = Extents(std::span<const int64_t>(new_strides.data(), count));
  return view;
}

Tensor Tensor::join(int dimension) const {
  if (dimension + 1 >= rank()) throw ContractError("join needs a following dimension: " + describe());
  if (extent(dimension) > 1 && extent(dimension + 1) > 1 &&
      stride(dimension) != stride(dimension + 1) * extent(dimension + 1)) {
    throw ContractError(
        fmt::format("dimensions {} and {} of {} are not laid out as one", dimension, dimension + 1, describe()));
  }
  // Steps of the joined dimension go along the inner one, unless that has a single index.
  const int64_t joined_stride = stride(extent(dimension + 1) == 1 ? dimension : dimension + 1);
  Tensor view{data, dtype, {}, {}};
  std::array<int64_t, Extents::kMaxRank> new_extents{};
  std::array<int64_t, Extents::kMaxRank> new_strides{};
  size_t count = 0;
  for (int other = 0; other < rank(); ++other) {
    if (other == dimension) continue;
    new_extents[count] = other == dimension + 1 ? extent(dimension) * extent(other) : extent(other);
    new_strides[count++] = other == dimension + 1 ? joined_stride : stride(other);
  }
  view.extents = Extents(std::span<const int64_t>(new_extents.data(), count));
  view.strides = Extents(std::span<const int64_t>(new_strides.data(), count));
  return view;
}

int64_t Tensor::byte_count() const {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(element_count(), element_size(dtype), &bytes)) {
    throw ContractError("the bytes of " + describe() + " exceed int64");
  }
  return bytes;
}

std::string Tensor::describe() const {
  return fmt::format("{} {}{}", dtype_name(dtype), extents.to_string(),
                     is_contiguous() ? "" : fmt::format(" with strides {}", strides.to_string()));
}

void Tensor::throw_wrong_type(DType wanted) const {
  throw ContractError(fmt::format("expected elements of {}, but the tensor is {}", dtype_name(wanted), describe()));
}

}  // namespace ithaca
