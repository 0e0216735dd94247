// Test support: pairs of the same random tensor, float32 for the backend and float64 for the reference.
//
// The float32 side may be strided; the gaps between its rows hold a mark that guards_intact() looks for afterwards.
// Thread-safety: one thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <string_view>
#include <vector>

#include "backend/reference.h"
#include "base/random.h"
#include "tensor/tensor.h"

namespace ithaca::testing_support {

struct TensorPair {
  Tensor fast;   // float32, perhaps with gaps between rows
  Tensor exact;  // float64, contiguous
};

// Calls visit(offset in a, offset in b) for every index of two tensors of the same extents.
template <typename Visit>
void for_each_index(const Tensor& a, const Tensor& b, const Visit& visit) {
  const int64_t count = a.element_count();
  for (int64_t index = 0; index < count; ++index) {
    int64_t rest = index;
    int64_t a_offset = 0;
    int64_t b_offset = 0;
    for (int dimension = a.rank() - 1; dimension >= 0; --dimension) {
      a_offset += rest % a.extent(dimension) * a.stride(dimension);
      b_offset += rest % a.extent(dimension) * b.stride(dimension);
      rest /= a.extent(dimension);
    }
    visit(a_offset, b_offset);
  }
}

// ||a - b|| / ||b|| over all elements; 0 when both are zero, NaN when a NaN is in only one of them.
inline double relative_error(const Tensor& a, const Tensor& b) {
  require(a.extents == b.extents, "relative_error: extents differ");
  double difference = 0.0;
  double magnitude = 0.0;
  for_each_index(a, b, [&](int64_t a_offset, int64_t b_offset) {
    const double x = reference::load(a, a_offset);
    const double y = reference::load(b, b_offset);
    difference += (x - y) * (x - y);
    magnitude += y * y;
  });
  if (difference == 0.0) return 0.0;
  return std::sqrt(difference / magnitude);
}

class TestTensors {
 public:
  explicit TestTensors(uint64_t seed = 1) : seed_(seed) {}

  // Normal numbers of this standard deviation around `mean`. `gap`: float32 elements between rows.
  TensorPair normal(const Extents& extents, int64_t gap = 0, double deviation = 1.0, double mean = 0.0) {
    const RandomStream random(seed_++, "test tensor");
    TensorPair pair = undefined(extents, gap);
    uint64_t index = 0;
    for_each_index(pair.fast, pair.exact, [&](int64_t fast, int64_t exact) {
      const auto value = static_cast<float>(mean + deviation * random.normal(index++));
      pair.fast.as<float>()[fast] = value;
      pair.exact.as<double>()[exact] = static_cast<double>(value);
    });
    return pair;
  }

  // For outputs: NaN, so that whatever is not written shows.
  TensorPair undefined(const Extents& extents, int64_t gap = 0) {
    const int rank = extents.rank();
    Tensor fast = Tensor::contiguous(nullptr, DType::float32, extents);
    int64_t rows = 1;
    for (int dimension = 0; dimension + 1 < rank; ++dimension) rows *= extents[dimension];
    const int64_t width = rank > 0 ? extents[rank - 1] : 1;
    int64_t stride = width + gap;
    for (int dimension = rank - 2; dimension >= 0; --dimension) {
      fast.strides[dimension] = stride;
      stride *= extents[dimension];
    }
    std::vector<float>& floats = floats_.emplace_back(static_cast<size_t>(rows * (width + gap) + 1), kMark);
    fast.data = floats.data();
    guards_.push_back({fast, rows, width, gap});
    std::vector<double>& doubles =
        doubles_.emplace_back(static_cast<size_t>(extents.product() + 1), std::numeric_limits<double>::quiet_NaN());
    const Tensor exact = Tensor::contiguous(doubles.data(), DType::float64, extents);
    for_each_index(fast, exact, [&](int64_t offset, int64_t /*exact*/) {
      fast.as<float>()[offset] = std::numeric_limits<float>::quiet_NaN();
    });
    return {fast, exact};
  }

  Tensor integers(const std::vector<int64_t>& values) {
    std::vector<int64_t>& kept = integers_.emplace_back(values);
    kept.push_back(0);  // so that an empty tensor has an address
    return Tensor::contiguous(kept.data(), DType::int64, {static_cast<int64_t>(values.size())});
  }

  // A float64 scalar, for loss and square sums.
  Tensor number(double value) {
    return Tensor::contiguous(doubles_.emplace_back(1, value).data(), DType::float64, {1});
  }

  Tensor float_number(float value) {
    return Tensor::contiguous(floats_.emplace_back(1, value).data(), DType::float32, {1});
  }

  // Nothing between or behind the rows was written.
  bool guards_intact() const {
    for (const Guard& guard : guards_) {
      const float* const data = guard.tensor.as<float>();
      for (int64_t row = 0; row < guard.rows; ++row) {
        for (int64_t i = guard.width; i < guard.width + guard.gap; ++i) {
          if (data[row * (guard.width + guard.gap) + i] != kMark) return false;
        }
      }
      if (data[guard.rows * (guard.width + guard.gap)] != kMark) return false;
    }
    return true;
  }

 private:
  static constexpr float kMark = -12345.0f;
  struct Guard {
    Tensor tensor;
    int64_t rows;
    int64_t width;
    int64_t gap;
  };

  uint64_t seed_;
  std::deque<std::vector<float>> floats_;
  std::deque<std::vector<double>> doubles_;
  std::deque<std::vector<int64_t>> integers_;
  std::vector<Guard> guards_;
};

}  // namespace ithaca::testing_support
