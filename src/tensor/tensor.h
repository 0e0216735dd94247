// Tensor: a strided view of memory that someone else owns.
//
// Extents and strides are int64 and count elements; a view is cheap to copy, never allocates and never frees. The
// memory may be on a device: only the backend that it belongs to may read or write it. Up to kMaxRank dimensions.
// Thread-safety: values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/error.h"
#include "tensor/dtype.h"

namespace ithaca {

// A short list of int64: the extents or the strides of a tensor.
class Extents {
 public:
  static constexpr int kMaxRank = 5;

  Extents() = default;
  Extents(std::initializer_list<int64_t> values);
  explicit Extents(std::span<const int64_t> values);

  int rank() const { return rank_; }
  int64_t operator[](int dimension) const { return values_[static_cast<size_t>(checked(dimension))]; }
  int64_t& operator[](int dimension) { return values_[static_cast<size_t>(checked(dimension))]; }
  const int64_t* begin() const { return values_.data(); }
  const int64_t* end() const { return values_.data() + rank_; }
  bool operator==(const Extents& other) const;

  // Product of all values; 1 for rank 0. Throws ContractError when it does not fit into int64.
  int64_t product() const;
  // "[8192, 32, 128]"
  std::string to_string() const;

 private:
  int checked(int dimension) const {
    if (dimension < 0 || dimension >= rank_) throw ContractError("dimension out of range in " + to_string());
    return dimension;
  }
  std::array<int64_t, kMaxRank> values_{};
  int rank_ = 0;
};

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::float32;
  Extents extents;
  Extents strides;

  // Row-major view of `extents.product()` elements at `data`.
  static Tensor contiguous(void* data, DType dtype, const Extents& extents);

  // An absent tensor, for optional arguments: no data and rank 0.
  bool is_absent() const { return data == nullptr && extents.rank() == 0; }

  int rank() const { return extents.rank(); }
  int64_t extent(int dimension) const { return extents[dimension]; }
  int64_t stride(int dimension) const { return strides[dimension]; }
  int64_t element_count() const { return extents.product(); }
  // Bytes of the elements, without gaps between them. Throws ContractError when they do not fit into int64.
  int64_t byte_count() const;
  bool is_contiguous() const;

  // Elements [begin, end) of one dimension.
  Tensor slice(int dimension, int64_t begin, int64_t end) const;
  // One index of one dimension; the dimension disappears.
  Tensor select(int dimension, int64_t index) const;
  // Two dimensions exchanged.
  Tensor transpose(int first, int second) const;
  // The same elements under other extents; requires a contiguous view.
  Tensor reshape(const Extents& new_extents) const;
  // Dimension `dimension` split into two of extents {outer, inner}; works for any strides.
  Tensor split(int dimension, int64_t outer, int64_t inner) const;
  // Dimensions `dimension` and the next one joined; requires that they are laid out as one.
  Tensor join(int dimension) const;

  // The data as T*. Throws ContractError when T is not the element type.
  template <typename T>
  T* as() const {
    if (DTypeOf<T>::value != dtype) throw_wrong_type(DTypeOf<T>::value);
    return static_cast<T*>(data);
  }

  // "float32 [8192, 32, 128]"
  std::string describe() const;

 private:
  [[noreturn]] void throw_wrong_type(DType wanted) const;
};

}  // namespace ithaca
