// The full matrix of exactness_testing.h, label `slow`: some minutes on two cores.
#include <gtest/gtest.h>

#include "train/exactness_testing.h"

namespace ithaca::testing {
namespace {

class ExactnessMatrix : public ::testing::TestWithParam<size_t> {};

constexpr size_t kParts = 64;

TEST_P(ExactnessMatrix, EveryCell) {
  const std::vector<MatrixCell> cells = exactness_matrix();
  for (size_t index = GetParam(); index < cells.size(); index += kParts) check_cell(cells[index]);
}

INSTANTIATE_TEST_SUITE_P(Parts, ExactnessMatrix, ::testing::Range(size_t{0}, kParts));

}  // namespace
}  // namespace ithaca::testing
