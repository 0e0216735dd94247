// Sums over tokens that end in weight gradients.
//
// A float32 sum over a million tokens would lose three digits. So rows are added up in float32 in pieces of kPieceRows,
// and the pieces in float64; the sum is added to the gradient once, at the end. Thread-safety: one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels.h"

namespace ithaca::cpu {

class WeightSum {
 public:
  static constexpr int64_t kPieceRows = 64;

  // Adds to the columns of `gradient` when finish() is called; an empty `space` makes everything here do nothing.
  explicit WeightSum(WeightSumSpace space) : space_(space) {
    std::fill(space_.piece.begin(), space_.piece.end(), 0.0f);
    std::fill(space_.total.begin(), space_.total.end(), 0.0);
  }

  bool is_wanted() const { return !space_.piece.empty(); }
  // Where the next row is to be added; null when nothing is wanted.
  float* piece() { return space_.piece.data(); }

  void row_added() {
    if (++rows_ == kPieceRows) flush();
  }

  // gradient[column] += the sum.
  void finish(float* gradient) {
    flush();
    for (size_t column = 0; column < space_.total.size(); ++column) {
      gradient[column] = static_cast<float>(static_cast<double>(gradient[column]) + space_.total[column]);
    }
  }

 private:
  void flush() {
    rows_ = 0;
    for (size_t column = 0; column < space_.total.size(); ++column) {
      space_.total[column] += static_cast<double>(space_.piece[column]);
      space_.piece[column] = 0.0f;
    }
  }

  WeightSumSpace space_;
  int64_t rows_ = 0;
};

}  // namespace ithaca::cpu
