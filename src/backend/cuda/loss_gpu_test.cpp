// Embedding, loss, reductions and the optimizer on the device against the float64 reference.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "backend/cuda/cuda_testing.h"
#include "backend/reference.h"

namespace ithaca {
namespace {

using testing_support::bfloat_bound;
using testing_support::CudaTensors;
using testing_support::CudaTest;
using testing_support::Placement;

struct LossCase {
  int64_t tokens;
  int64_t vocabulary;
  Placement placement;
};

class CudaLoss : public CudaTest {
 protected:
  static std::vector<int64_t> random_ids(int64_t count, int64_t vocabulary, uint64_t seed = 5) {
    const RandomStream random(seed, "ids");
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < count; ++i) {
      // Squared, so that small ids come up often.
      const double place = random.uniform(static_cast<uint64_t>(i));
      ids.push_back(static_cast<int64_t>(place * place * static_cast<double>(vocabulary)));
    }
    return ids;
  }

  void compare_cross_entropy(const LossCase& loss_case, DType dtype, bool with_gradient) {
    SCOPED_TRACE(std::to_string(loss_case.tokens) + " x " + std::to_string(loss_case.vocabulary) + " " +
                 std::string(dtype_name(dtype)) + (with_gradient ? " with gradient" : ""));
    const Extents extents = {loss_case.tokens, loss_case.vocabulary};
    const auto logits = tensors().normal(dtype, extents, loss_case.placement, 3.0);
    std::vector<int64_t> ids = random_ids(loss_case.tokens, loss_case.vocabulary);
    for (size_t i = 1; i + 1 < ids.size(); i += 7) ids[i] = -100;
    const auto labels = tensors().integers(ids);
    const auto weights = tensors().normal(DType::float32, {loss_case.tokens}, {}, 0.3, 1.0);
    const auto loss = tensors().filled(DType::float64, {1}, 2.0);
    CrossEntropy device{logits.device, labels.device, weights.device, with_gradient, 0.125, loss.device};
    CrossEntropy exact{logits.exact, labels.exact, weights.exact, with_gradient, 0.125, loss.exact};
    if (loss_case.tokens == 7) {  // a row without weight does not count
      weights.exact.as<double>()[3] = 0.0;
      backend().fill(stream(), {weights.device.slice(0, 3, 4), 0.0});
    }
    if (loss_case.tokens == 5) {
      device.weights = {};
      exact.weights = {};
    }
    backend().cross_entropy(stream(), device);
    reference::cross_entropy(exact);
    EXPECT_LE(tensors().error(loss), 2e-6);
    // The label's element is most of a row's gradient: few elements, however long the row.
    EXPECT_LE(tensors().error(logits), !with_gradient ? 0.0 : dtype == DType::bfloat16 ? bfloat_bound(1) : 5e-6);
  }
};
INSTANTIATE_TEST_SUITE_P(Gpu, CudaLoss, testing::Values(DType::float32, DType::bfloat16),
                         testing_support::dtype_test_name);

struct TableCase {
  int64_t tokens;
  int64_t vocabulary;
  int64_t size;
  Placement placement;
};

std::vector<TableCase> table_cases() {
  return {{1, 1, 8, {}},     {40, 17, 64, {}},   {333, 1000, 24, {8, 0}}, {64, 50, 33, {}},
          {70, 9, 4096, {}}, {9, 5, 16, {3, 1}}, {5000, 151936, 8, {}}};
}

TEST_P(CudaLoss, EmbeddingForward) {
  for (const TableCase& table_case : table_cases()) {
    for (const bool float_table : {false, true}) {
      const auto ids = tensors().integers(random_ids(table_case.tokens, table_case.vocabulary));
      const auto table = tensors().normal(float_table ? DType::float32 : compute(),
                                          {table_case.vocabulary, table_case.size}, table_case.placement);
      const auto output = undefined({table_case.tokens, table_case.size}, table_case.placement);
      backend().embedding_forward(stream(), {table.device, ids.device, output.device});
      reference::embedding_forward({table.exact, ids.exact, output.exact});
      EXPECT_LE(tensors().error(output), float_table ? bound(output, 0.0) : 0.0) << table_case.size;
    }
  }
}

TEST_P(CudaLoss, EmbeddingOfAWrongIdIsNotANumber) {
  const auto ids = tensors().integers({1, -1, 4, 3});
  const auto table = normal({4, 16});
  const auto output = undefined({4, 16});
  backend().embedding_forward(stream(), {table.device, ids.device, output.device});
  const std::vector<double> values = tensors().values(output);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::isnan(values[i]), i / 16 == 1 || i / 16 == 2) << i;
  }
}

TEST_P(CudaLoss, EmbeddingBackward) {
  for (const TableCase& table_case : table_cases()) {
    SCOPED_TRACE(std::to_string(table_case.tokens) + " tokens of " + std::to_string(table_case.size));
    const auto ids = tensors().integers(random_ids(table_case.tokens, table_case.vocabulary));
    const auto doutput = normal({table_case.tokens, table_case.size}, table_case.placement);
    const auto dtable =
        tensors().normal(DType::float32, {table_case.vocabulary, table_case.size}, table_case.placement);
    backend().embedding_backward(stream(), {doutput.device, ids.device, dtable.device});
    reference::embedding_backward({doutput.exact, ids.exact, dtable.exact});
    EXPECT_LE(tensors().error(dtable), 2e-6);
  }
}

TEST_P(CudaLoss, EmbeddingBackwardOfOneTokenManyTimesRepeats) {
  const auto ids = tensors().integers(std::vector<int64_t>(3001, 2));
  const auto doutput = normal({3001, 48});
  std::vector<std::vector<std::byte>> results;
  for (int run = 0; run < 2; ++run) {
    const auto dtable = tensors().filled(DType::float32, {3, 48}, 0.5);
    backend().embedding_backward(stream(), {doutput.device, ids.device, dtable.device});
    results.push_back(tensors().bytes(dtable));
    reference::embedding_backward({doutput.exact, ids.exact, dtable.exact});
    EXPECT_LE(tensors().error(dtable), 1e-5);
  }
  EXPECT_EQ(results[0], results[1]);
}

// Ids that are equal in their lower 16 bits, in every order and number.
TEST_P(CudaLoss, EmbeddingBackwardTellsIdsOfAlikeBitsApart) {
  constexpr int64_t kStep = int64_t{1} << 16;
  const RandomStream random(7, "ids");
  for (const int64_t tokens : {2, 3, 5, 64, 1000}) {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < tokens; ++i) {
      const auto place = static_cast<uint64_t>(i);
      // The id 7 four times out of seven, so that others are far from each other.
      const auto kind = static_cast<int64_t>(random.uniform(place) * 7.0);
      values.push_back(kind < 4 ? 7 : 7 + (kind - 4) * kStep + (i % 11 == 0 ? 1 : 0));
    }
    const auto ids = tensors().integers(values);
    const auto doutput = normal({tokens, 40});
    const auto dtable = tensors().filled(DType::float32, {3 * kStep, 40}, 0.0);
    backend().embedding_backward(stream(), {doutput.device, ids.device, dtable.device});
    reference::embedding_backward({doutput.exact, ids.exact, dtable.exact});
    EXPECT_LE(tensors().error(dtable), 2e-6) << tokens << " tokens";
  }
}

TEST_P(CudaLoss, EmbeddingBackwardLeavesOutWrongIds) {
  const auto wrong = tensors().integers({0, -5, 3, 99, 1});
  const auto doutput = normal({5, 8});
  const auto dtable = tensors().filled(DType::float32, {3, 8}, 0.0);
  backend().embedding_backward(stream(), {doutput.device, wrong.device, dtable.device});
  const std::vector<double> values = tensors().values(dtable);
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(values[static_cast<size_t>(i)], doutput.exact.as<double>()[i]);
    EXPECT_EQ(values[static_cast<size_t>(8 + i)], doutput.exact.as<double>()[4 * 8 + i]);
    EXPECT_EQ(values[static_cast<size_t>(16 + i)], 0.0);
  }
}

TEST_P(CudaLoss, CrossEntropy) {
  // Rows in one, two, four and eight blocks of a cluster; rows that are not vectors; rows too long for a cluster.
  const std::vector<LossCase> cases = {{1, 1, {}},          {7, 8, {}},     {5, 1000, {}},     {6, 1000, {8, 8}},
                                       {4, 32007, {}},      {3, 32000, {}}, {3, 70000, {}},    {4, 151936, {}},
                                       {2, 262144, {}},     {300, 512, {}}, {2, 1000, {3, 1}}, {2, 900000, {}},
                                       {2, 151936, {16, 0}}};
  for (const LossCase& loss_case : cases) {
    for (const DType dtype : {compute(), DType::float32}) {
      for (const bool with_gradient : {true, false}) compare_cross_entropy(loss_case, dtype, with_gradient);
    }
  }
}

TEST_P(CudaLoss, CrossEntropyOverManyRows) {
  // Several for each cluster, so that every ring goes around.
  compare_cross_entropy({400, 41000, {}}, compute(), true);
}

TEST_P(CudaLoss, CrossEntropyOfExtremeLogits) {
  const auto logits = normal({4, 64}, {}, 200.0);
  const auto labels = tensors().integers({3, 60, 11, 0});
  const auto loss = tensors().filled(DType::float64, {1}, 0.0);
  backend().cross_entropy(stream(), {logits.device, labels.device, {}, true, 1.0, loss.device});
  reference::cross_entropy({logits.exact, labels.exact, {}, true, 1.0, loss.exact});
  EXPECT_LE(tensors().error(loss), 2e-6);
  EXPECT_LE(tensors().error(logits), bound(logits, 5e-6));
}

TEST_P(CudaLoss, CrossEntropyMakesFaultsVisible) {
  for (const int64_t label : {int64_t{64}, int64_t{-1}}) {
    const auto logits = normal({1, 64});
    const auto labels = tensors().integers({label});
    const auto loss = tensors().filled(DType::float64, {1}, 0.0);
    backend().cross_entropy(stream(), {logits.device, labels.device, {}, true, 1.0, loss.device});
    EXPECT_TRUE(std::isnan(tensors().values(loss)[0])) << label;
  }
  for (const int64_t size : {int64_t{64}, int64_t{61}}) {  // both kernels
    const auto logits = tensors().filled(compute(), {1, size}, std::numeric_limits<double>::quiet_NaN());
    const auto labels = tensors().integers({1});
    const auto loss = tensors().filled(DType::float64, {1}, 0.0);
    backend().cross_entropy(stream(), {logits.device, labels.device, {}, true, 1.0, loss.device});
    EXPECT_TRUE(std::isnan(tensors().values(loss)[0])) << size;
  }
}

TEST_P(CudaLoss, CrossEntropyRepeats) {
  std::vector<std::vector<std::byte>> results;
  for (int run = 0; run < 3; ++run) {
    CudaTensors fresh(backend(), 77);
    const auto logits = fresh.normal(compute(), {900, 4096});
    const auto labels = fresh.integers(random_ids(900, 4096));
    const auto loss = fresh.filled(DType::float64, {1}, 0.0);
    backend().cross_entropy(stream(), {logits.device, labels.device, {}, true, 0.25, loss.device});
    results.push_back(fresh.bytes(loss));
    const std::vector<std::byte> gradient = fresh.bytes(logits);
    results.back().insert(results.back().end(), gradient.begin(), gradient.end());
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST_P(CudaLoss, ColumnSum) {
  const std::vector<TableCase> cases = {{1, 0, 1, {}},      {5, 0, 64, {}},         {9000, 0, 40, {}},
                                        {300, 0, 1001, {}}, {777, 0, 4096, {8, 8}}, {100, 0, 64, {3, 1}}};
  for (const TableCase& sum_case : cases) {
    for (const DType dtype : {compute(), DType::float32}) {
      const auto input = tensors().normal(dtype, {sum_case.tokens, sum_case.size}, sum_case.placement, 1.0, 0.3);
      const auto sum = tensors().normal(DType::float32, {sum_case.size});
      backend().column_sum(stream(), {input.device, sum.device});
      reference::column_sum({input.exact, sum.exact});
      EXPECT_LE(tensors().error(sum), 5e-6) << sum_case.tokens << " x " << sum_case.size;
    }
  }
}

TEST_P(CudaLoss, SquareSum) {
  for (const int64_t count : {0, 1, 3, 4, 5, 1000, 1000003}) {
    for (const int64_t offset : {0, 1, 2, 3}) {
      const auto input = tensors().normal(DType::float32, {count}, {0, offset});
      const auto sum = tensors().filled(DType::float64, {1}, 10.0);
      backend().square_sum(stream(), {input.device, sum.device});
      reference::square_sum({input.exact, sum.exact});
      EXPECT_LE(tensors().error(sum), 1e-12) << count << " at " << offset;
    }
  }
}

TEST_P(CudaLoss, StepNumbers) {
  const double infinity = std::numeric_limits<double>::infinity();
  struct NumbersCase {
    double square_sum, loss_sum, label_weight_sum, max_norm;
  };
  for (const NumbersCase& numbers : {NumbersCase{4.0, 1.0, 8.0, 0.0}, NumbersCase{4.0, 1.0, 8.0, 1.0},
                                     NumbersCase{0.25, 1.0, 8.0, 1.0}, NumbersCase{infinity, 1.0, 8.0, 1.0},
                                     NumbersCase{4.0, std::nan(""), 8.0, 1.0}, NumbersCase{0.0, 0.0, 0.0, 1.0}}) {
    const auto square_sum = tensors().filled(DType::float64, {1}, numbers.square_sum);
    const auto loss_sum = tensors().filled(DType::float64, {1}, numbers.loss_sum);
    const auto norm = tensors().undefined(DType::float64, {1});
    const auto clip = tensors().undefined(DType::float32, {1});
    const auto skipped = tensors().integers({55});
    const auto steps = tensors().integers({6});
    backend().step_numbers(stream(), {square_sum.device, loss_sum.device, numbers.label_weight_sum, numbers.max_norm,
                                      norm.device, clip.device, skipped.device, steps.device});
    reference::step_numbers({square_sum.exact, loss_sum.exact, numbers.label_weight_sum, numbers.max_norm, norm.exact,
                             clip.exact, skipped.exact, steps.exact});
    EXPECT_EQ(tensors().values(norm)[0], norm.exact.as<double>()[0]);
    EXPECT_FLOAT_EQ(static_cast<float>(tensors().values(clip)[0]), static_cast<float>(clip.exact.as<double>()[0]));
    EXPECT_EQ(tensors().values(skipped)[0], static_cast<double>(skipped.exact.as<int64_t>()[0]));
    EXPECT_EQ(tensors().values(steps)[0], static_cast<double>(steps.exact.as<int64_t>()[0]));
  }
}

TEST_P(CudaLoss, AdamW) {
  for (const int64_t count : {1, 3, 4, 1001, 65536}) {
    for (const int64_t offset : {0, 1}) {
      for (const bool skip : {false, true}) {
        SCOPED_TRACE(std::to_string(count) + " at " + std::to_string(offset));
        const Placement placement{0, offset};
        const auto weights = tensors().normal(DType::float32, {count}, placement);
        const auto gradients = tensors().normal(DType::float32, {count}, placement, 0.01);
        const auto first = tensors().normal(DType::float32, {count}, placement, 0.01);
        const auto second = tensors().normal(DType::float32, {count}, placement, 1e-5, 1e-4);
        const auto rounded = undefined({count}, placement);
        const auto clip = tensors().filled(DType::float32, {1}, 0.75);
        const auto skipped = tensors().integers({skip ? 1 : 0});
        const auto steps = tensors().integers({3});
        AdamW device{weights.device, gradients.device, first.device, second.device, {}, 1e-2, 0.9, 0.95, 1e-8, 0.1,
                     clip.device,    skipped.device,   steps.device};
        AdamW exact{weights.exact, gradients.exact, first.exact,   second.exact, {}, 1e-2, 0.9, 0.95, 1e-8,
                    0.1,           clip.exact,      skipped.exact, steps.exact};
        if (is_bfloat()) {
          device.compute_weights = rounded.device;
          exact.compute_weights = rounded.exact;
        }
        backend().adamw(stream(), device);
        reference::adamw(exact);
        EXPECT_LE(tensors().error(weights), skip ? 0.0 : 2e-7);
        EXPECT_LE(tensors().error(first), skip ? 0.0 : 2e-7);
        EXPECT_LE(tensors().error(second), skip ? 0.0 : 3e-7);
        if (skip || !is_bfloat()) {
          EXPECT_TRUE(std::isnan(tensors().values(rounded)[0]));
        } else {
          EXPECT_LE(tensors().error(rounded), bound(rounded));
        }
      }
    }
  }
}

}  // namespace
}  // namespace ithaca
