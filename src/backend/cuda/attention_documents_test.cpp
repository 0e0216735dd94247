// The work of a block of the document kernel, on emulated warpgroups, against a float64 reference.
#define ITHACA_EMULATED_WARPGROUPS

#include "backend/cuda/attention_documents.cuh"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "backend/cuda/attention_calls.h"
#include "backend/cuda/warpgroup_emulation.h"

namespace ithaca::cuda {
namespace {

constexpr float kPoison = -123456.0f;  // of memory that nobody may write

uint16_t to_bits(float value) {
  return static_cast<uint16_t>(pack_pair(value, 0.0f) & 0xFFFF);
}
float from_bits(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

struct Shape {
  std::vector<AttentionTask> tasks;
  int64_t query_tokens = 0;
  int64_t key_tokens = 0;
  int64_t key_heads = 1;
  int64_t group = 2;
  int64_t key_size = 128;
  int64_t value_size = 128;
  int64_t gap = 0;  // elements between heads
  bool adds = false;
  float spread = 1.0f;  // of queries and keys
  int64_t blind = 0;    // every so many-th query has a log-sum-exp of -inf and no output
};

// Documents one behind the other; window 0: all keys to the left, -1: all keys.
Shape documents(const std::vector<int64_t>& lengths, int64_t window = 0, int64_t size = 128) {
  Shape shape;
  shape.key_size = shape.value_size = size;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    AttentionTask task{begin, begin + length, begin, begin + length, kNoLower, window < 0 ? kNoUpper : 0};
    if (window > 0) task.lower = -window;
    shape.tasks.push_back(task);
    begin += length;
  }
  shape.query_tokens = shape.key_tokens = begin;
  return shape;
}

// [tokens, heads, size] with `gap` elements behind every head, in bfloat16 or float32.
template <typename T>
struct Array {
  static constexpr int64_t kBehind = 8;  // elements behind the last row
  std::vector<T> elements;
  int64_t heads = 0;
  int64_t size = 0;
  int64_t stride = 0;

  Array(int64_t tokens, int64_t heads_, int64_t size_, int64_t gap, T value)
      : elements(static_cast<size_t>(tokens * heads_ * (size_ + gap) + kBehind), value),
        heads(heads_),
        size(size_),
        stride(size_ + gap) {}
  int64_t rows() const { return (static_cast<int64_t>(elements.size()) - kBehind) / stride; }
  T& at(int64_t token, int64_t head, int64_t i) {
    return elements[static_cast<size_t>((token * heads + head) * stride + i)];
  }
  const T& at(int64_t token, int64_t head, int64_t i) const {
    return elements[static_cast<size_t>((token * heads + head) * stride + i)];
  }
  template <typename V>
  HeadsView<V> view() {
    return {reinterpret_cast<V*>(elements.data()), heads * stride, stride, static_cast<int>(size)};
  }
};

struct Problem {
  Shape shape;
  std::vector<AttentionTask> tasks;  // as the kernel takes them
  Array<uint16_t> query, key, value, output, doutput;
  std::vector<float> log_sum_exp;
  Array<double> dquery, dkey, dvalue;  // expected, without what is added to
  std::vector<bool> covered_queries, covered_keys;
  float scale = 0.0f;

  Problem(const Shape& from, uint32_t seed)
      : shape(from),
        tasks(normalised_tasks(from.tasks)),
        query(from.query_tokens, heads(), from.key_size, from.gap, 0x7FFF),
        key(from.key_tokens, from.key_heads, from.key_size, from.gap, 0x7FFF),
        value(from.key_tokens, from.key_heads, from.value_size, from.gap, 0x7FFF),
        output(from.query_tokens, heads(), from.value_size, from.gap, 0x7FFF),
        doutput(from.query_tokens, heads(), from.value_size, from.gap, 0x7FFF),
        log_sum_exp(static_cast<size_t>(from.query_tokens * heads()), -INFINITY),
        dquery(from.query_tokens, heads(), from.key_size, 0, 0.0),
        dkey(from.key_tokens, from.key_heads, from.key_size, 0, 0.0),
        dvalue(from.key_tokens, from.key_heads, from.value_size, 0, 0.0),
        covered_queries(static_cast<size_t>(from.query_tokens)),
        covered_keys(static_cast<size_t>(from.key_tokens)),
        scale(1.0f / std::sqrt(static_cast<float>(from.key_size))) {
    std::mt19937 random(seed);
    fill(query, random, shape.spread);
    fill(key, random, shape.spread);
    fill(value, random, 1.0f);
    fill(doutput, random, 1.0f);
    for (const AttentionTask& task : tasks) {
      std::fill(covered_queries.begin() + task.q_begin, covered_queries.begin() + task.q_end, true);
      std::fill(covered_keys.begin() + task.k_begin, covered_keys.begin() + task.k_end, true);
      for (int64_t head = 0; head < heads(); ++head) add_task(task, head);
    }
  }

  int64_t heads() const { return shape.key_heads * shape.group; }

 private:
  static void fill(Array<uint16_t>& array, std::mt19937& random, float spread) {
    std::normal_distribution<float> normal(0.0f, spread);
    const int64_t rows = array.rows();
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < array.size; ++i) {
        array.elements[static_cast<size_t>(row * array.stride + i)] = to_bits(normal(random));
      }
    }
  }

  // Forward and backward in float64; the outputs are rounded before their gradient is taken, as they are in a step.
  void add_task(const AttentionTask& task, int64_t head) {
    const int64_t key_head = head / shape.group;
    const int64_t columns = task.k_end - task.k_begin;
    std::vector<double> p(static_cast<size_t>(columns));
    for (int64_t row = 0; row < task.q_end - task.q_begin; ++row) {
      const int64_t token = task.q_begin + row;
      const int64_t first = std::max<int64_t>(0, row + task.lower + 1);
      const int64_t end = std::min(columns, row + task.upper + 1);
      if (first >= end) continue;
      if (shape.blind > 0 && token % shape.blind == 0) {
        for (int64_t i = 0; i < shape.value_size; ++i) output.at(token, head, i) = 0;
        continue;
      }
      double largest = -INFINITY;
      for (int64_t c = first; c < end; ++c) {
        double score = 0.0;
        for (int64_t i = 0; i < shape.key_size; ++i) {
          score += double{from_bits(query.at(token, head, i))} * from_bits(key.at(task.k_begin + c, key_head, i));
        }
        p[static_cast<size_t>(c)] = score * double{scale};
        largest = std::max(largest, p[static_cast<size_t>(c)]);
      }
      double sum = 0.0;
      for (int64_t c = first; c < end; ++c) sum += std::exp(p[static_cast<size_t>(c)] - largest);
      const double log_sum = largest + std::log(sum);
      log_sum_exp[static_cast<size_t>(token * heads() + head)] = static_cast<float>(log_sum);
      for (int64_t c = first; c < end; ++c) p[static_cast<size_t>(c)] = std::exp(p[static_cast<size_t>(c)] - log_sum);
      double delta = 0.0;
      for (int64_t i = 0; i < shape.value_size; ++i) {
        double out = 0.0;
        for (int64_t c = first; c < end; ++c) {
          out += p[static_cast<size_t>(c)] * from_bits(value.at(task.k_begin + c, key_head, i));
        }
        output.at(token, head, i) = to_bits(static_cast<float>(out));
        delta += double{from_bits(output.at(token, head, i))} * from_bits(doutput.at(token, head, i));
      }
      for (int64_t c = first; c < end; ++c) {
        const int64_t key_token = task.k_begin + c;
        double product = 0.0;
        for (int64_t i = 0; i < shape.value_size; ++i) {
          const double gradient = from_bits(doutput.at(token, head, i));
          product += gradient * from_bits(value.at(key_token, key_head, i));
          dvalue.at(key_token, key_head, i) += p[static_cast<size_t>(c)] * gradient;
        }
        const double dscore = p[static_cast<size_t>(c)] * (product - delta) * double{scale};
        for (int64_t i = 0; i < shape.key_size; ++i) {
          dquery.at(token, head, i) += dscore * from_bits(key.at(key_token, key_head, i));
          dkey.at(key_token, key_head, i) += dscore * from_bits(query.at(token, head, i));
        }
      }
    }
  }
};

float to_number(float value) {
  return value;
}
float to_number(uint16_t bits) {
  return from_bits(bits);
}
template <typename T>
T make_number(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    return to_bits(value);
  }
}

template <typename T>
struct Results {
  Array<T> dquery, dkey, dvalue;
};

// One block does everything. T: float, or uint16_t for bfloat16.
template <int kSize, typename T>
Results<T> run(Problem& problem, EmulatedBlock::Timing timing, uint32_t seed) {
  using D = std::conditional_t<std::is_same_v<T, float>, float, BFloat>;
  const Shape& shape = problem.shape;
  const T before = make_number<T>(shape.adds ? 1.0f : kPoison);
  Results<T> results = {{shape.query_tokens, problem.heads(), shape.key_size, shape.gap, before},
                        {shape.key_tokens, shape.key_heads, shape.key_size, shape.gap, before},
                        {shape.key_tokens, shape.key_heads, shape.value_size, shape.gap, before}};
  int64_t longest = 0;
  for (const AttentionTask& task : problem.tasks) longest = std::max(longest, task.q_end - task.q_begin);
  constexpr int kBlock = 1;  // as the second of two blocks
  const int64_t tiles = (longest + kDocumentTile - 1) / kDocumentTile;
  std::vector<float4> waiting(static_cast<size_t>(2 * shape.group * tiles * (kDocumentTile * kSize / 4)),
                              float4{NAN, NAN, NAN, NAN});
  std::vector<float> sums(problem.log_sum_exp.size(), NAN);
  int next = 0;
  const DocumentArguments arguments = {problem.query.view<const BFloat>(),
                                       problem.key.view<const BFloat>(),
                                       problem.value.view<const BFloat>(),
                                       problem.output.view<const BFloat>(),
                                       problem.doutput.view<const BFloat>(),
                                       {problem.log_sum_exp.data(), problem.heads(), 1},
                                       {sums.data(), problem.heads(), 1},
                                       problem.tasks.data(),
                                       static_cast<int64_t>(problem.tasks.size()),
                                       shape.key_heads,
                                       static_cast<int>(shape.group),
                                       problem.scale,
                                       &next,
                                       waiting.data(),
                                       tiles};
  const GradientView<D> dquery = {results.dquery.template view<D>(), shape.adds};
  const GradientView<D> dkey = {results.dkey.template view<D>(), shape.adds};
  const GradientView<D> dvalue = {results.dvalue.template view<D>(), shape.adds};
  EmulatedBlock block(kBlock, kDocumentThreads, DocumentMemory<kSize>::kAllocatedBytes, timing, seed);
  block.run([&] { document_gradients<kSize, D>(arguments, dquery, dkey, dvalue, block.shared_memory()); });
  return results;
}

// The largest difference, relative to the largest number expected. Gaps, and tokens that no task has, must be as
// before.
template <typename T>
double error_of(const Array<T>& result, const Array<double>& expected, const std::vector<bool>& covered,
                const Shape& shape) {
  double largest = 0.0;
  double difference = 0.0;
  const int64_t rows = expected.rows();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < result.stride; ++i) {
      const float number = to_number(result.elements[static_cast<size_t>(row * result.stride + i)]);
      const float before = to_number(make_number<T>(shape.adds ? 1.0f : kPoison));
      if (i >= result.size || !covered[static_cast<size_t>(row / result.heads)]) {
        EXPECT_EQ(number, before) << "memory of others was written";
        continue;
      }
      const double wanted = expected.elements[static_cast<size_t>(row * expected.size + i)];
      largest = std::max(largest, std::abs(wanted));
      const double found = double{number} - (shape.adds ? 1.0 : 0.0);
      if (!(std::abs(found - wanted) <= difference)) difference = std::abs(found - wanted);
      if (std::isnan(found)) return NAN;
    }
  }
  return difference / std::max(largest, 0.5);  // a single key has no gradient
}

template <int kSize, typename T>
void check(const Shape& shape, const std::string& what, EmulatedBlock::Timing timing = EmulatedBlock::Timing::random,
           uint32_t seed = 1) {
  Problem problem(shape, seed);
  const Results<T> results = run<kSize, T>(problem, timing, seed);
  const double dquery = error_of(results.dquery, problem.dquery, problem.covered_queries, shape);
  const double dkey = error_of(results.dkey, problem.dkey, problem.covered_keys, shape);
  const double dvalue = error_of(results.dvalue, problem.dvalue, problem.covered_keys, shape);
  const std::string text = fmt::format("{}: dquery {:.2e}, dkey {:.2e}, dvalue {:.2e}", what, dquery, dkey, dvalue);
  // Roundings of P, dS and the results to 8 bits.
  EXPECT_LT(dquery, 9e-3) << text;
  EXPECT_LT(dkey, 9e-3) << text;
  EXPECT_LT(dvalue, 9e-3) << text;
}

TEST(DocumentKernel, Lengths) {
  for (const int64_t length : {1, 7, 63, 64, 65, 127, 128, 129, 200, 300}) {
    check<128, uint16_t>(documents({length}), fmt::format("causal, {}", length));
  }
}

TEST(DocumentKernel, ManyDocumentsInOneBlock) {
  Shape shape = documents({1, 70, 64, 5, 130, 128, 33, 2, 200});
  shape.key_heads = 2;
  check<128, float>(shape, "mixed");
}

// Passes of a single step, one after the other.
TEST(DocumentKernel, TinyDocuments) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 24; ++i) lengths.push_back(1 + i % 3);
  for (const auto timing : {EmulatedBlock::Timing::early, EmulatedBlock::Timing::late, EmulatedBlock::Timing::random}) {
    Shape shape = documents(lengths);
    shape.group = 1;
    check<128, uint16_t>(shape, "tiny", timing);
    shape = documents(lengths, 0, 64);
    shape.group = 1;
    check<64, uint16_t>(shape, "tiny, 64 elements", timing);
  }
}

template <int kSize>
void check_bands() {
  check<kSize, uint16_t>(documents({200, 150}, -1, kSize), "full");
  check<kSize, uint16_t>(documents({256, 128}, -1, kSize), "full, whole passes");
  for (const int64_t window : {1, 64, 66, 100, 127}) {
    check<kSize, uint16_t>(documents({330, 70}, window, kSize), fmt::format("window {}", window));
  }
  // Rectangles, keys that begin before or behind the queries, rows and columns that see nothing.
  Shape shape;
  shape.key_size = shape.value_size = kSize;
  shape.query_tokens = 420;
  shape.key_tokens = 500;
  shape.tasks = {{0, 130, 3, 140, kNoLower, 20},
                 {131, 230, 150, 400, -40, kNoUpper},
                 {230, 231, 400, 470, -5, 40},
                 {231, 400, 470, 480, 3, kNoUpper},
                 {400, 420, 480, 500, kNoLower, 0}};
  check<kSize, float>(shape, "rectangles");
  shape.tasks = {{0, 300, 0, 500, 100, 260}};
  shape.query_tokens = 300;
  check<kSize, float>(shape, "far from the diagonal");
  shape.tasks = {{0, 300, 0, 300, -290, -150}};
  shape.key_tokens = 300;
  check<kSize, float>(shape, "keys far back");
}

TEST(DocumentKernel, Bands) {
  check_bands<128>();
}

TEST(DocumentKernel, BandsOfShortHeads) {
  check_bands<64>();
}

TEST(DocumentKernel, HeadsAndSizes) {
  for (const int64_t group : {1, 3, 4}) {
    Shape shape = documents({150, 64});
    shape.group = group;
    shape.key_heads = 2;
    check<128, uint16_t>(shape, fmt::format("group {}", group));
    shape.key_size = shape.value_size = 64;
    check<64, uint16_t>(shape, fmt::format("64 elements, group {}", group));
  }
  Shape shape = documents({129, 70});
  shape.key_size = 96;
  shape.value_size = 40;
  shape.gap = 8;
  check<128, float>(shape, "96 and 40 elements, views");
  shape.adds = true;
  check<128, float>(shape, "96 and 40 elements, views, added to");
  shape.adds = false;
  check<128, uint16_t>(shape, "96 and 40 elements, views, bfloat16");
  shape.key_size = 8;
  shape.adds = true;
  check<64, float>(shape, "8 and 40 elements, views, added to");
}

// Scores so far apart that exponentials of what is masked, or of keys that are not there, would overflow.
TEST(DocumentKernel, FarScores) {
  Shape shape = documents({100, 70});
  shape.spread = 8.0f;
  check<128, float>(shape, "far scores");
  shape.tasks = {{0, 130, 0, 2, kNoLower, kNoUpper}};
  shape.spread = 12.0f;
  check<128, float>(shape, "far scores of two keys");
}

// They have no part in any gradient.
TEST(DocumentKernel, RowsThatHaveSeenNoKey) {
  Shape shape = documents({150, 30});
  shape.blind = 7;
  check<128, float>(shape, "rows that have seen no key");
}

TEST(DocumentKernel, LongDocument) {
  check<128, uint16_t>(documents({1024}), "1024");
}

// The same bits, whatever the hardware leaves open.
template <int kSize>
void check_bits() {
  Problem problem(documents({150, 300, 20}, 0, kSize), 3);
  const Results<uint16_t> first = run<kSize, uint16_t>(problem, EmulatedBlock::Timing::early, 1);
  uint32_t seed = 2;
  for (const auto timing :
       {EmulatedBlock::Timing::late, EmulatedBlock::Timing::random, EmulatedBlock::Timing::random}) {
    const Results<uint16_t> again = run<kSize, uint16_t>(problem, timing, seed++);
    EXPECT_EQ(again.dquery.elements, first.dquery.elements);
    EXPECT_EQ(again.dkey.elements, first.dkey.elements);
    EXPECT_EQ(again.dvalue.elements, first.dvalue.elements);
  }
}

TEST(DocumentKernel, SameBits) {
  check_bits<128>();
  check_bits<64>();
}

}  // namespace
}  // namespace ithaca::cuda
