// CUDA attention against the float64 reference. Skipped, aloud, where there is no GPU.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/attention_gpu_fixture.h"

namespace ithaca::cuda {
namespace {

// A list with every kind of band, rows that see nothing, and several tasks for one row.
std::vector<AttentionTask> irregular_tasks() {
  return {{0, 70, 0, 70, kNoLower, 0},       {70, 71, 3, 4, kNoLower, kNoUpper},   {71, 150, 64, 120, -5, 40},
          {71, 150, 120, 200, 10, kNoUpper}, {90, 110, 0, 33, kNoLower, kNoUpper}, {160, 190, 100, 200, -3, 3},
          {160, 170, 0, 60, kNoLower, 11}};
}

TEST_F(CudaAttentionTest, TaskKernelsInFloat32) {
  const auto attention = make_attention();
  const std::pair<int64_t, int64_t> sizes[] = {{64, 64}, {128, 128}, {96, 96}, {256, 256},
                                               {40, 24}, {7, 130},   {1, 1},   {192, 128}};
  for (const auto& [key_size, value_size] : sizes) {
    Problem problem = problem_of(200, 200, irregular_tasks());
    problem.dtype = DType::float32;
    problem.key_size = key_size;
    problem.value_size = value_size;
    check(*attention, problem, fmt::format("irregular, sizes {} and {}", key_size, value_size));
  }
  for (const int64_t group : {1, 3, 8}) {
    Problem problem = documents({1, 7, 127, 129, 64, 72});
    problem.dtype = DType::float32;
    problem.query_heads = 2 * group;
    check(*attention, problem, fmt::format("documents, {} query heads for a key head", group));
  }
  Problem problem = causal_in_shards(300, 4);
  problem.dtype = DType::float32;
  check(*attention, problem, "shards");
}

TEST_F(CudaAttentionTest, TaskKernelsInBFloat16) {
  const auto attention = make_attention(own_only());
  for (const int64_t size : {64, 128, 8, 80, 256, 160, 33}) {
    for (const int64_t group : {1, 2, 3}) {
      Problem problem = problem_of(200, 200, irregular_tasks());
      problem.key_size = problem.value_size = size;
      problem.query_heads = 2 * group;
      check(*attention, problem, fmt::format("irregular, size {}, group {}", size, group));
    }
    Problem problem = documents({200, 7, 1, 300}, 100);
    problem.key_size = problem.value_size = size;
    check(*attention, problem, fmt::format("documents and window, size {}", size));
  }
  Problem problem = causal_in_shards(500, 3);
  problem.key_size = 128;
  problem.value_size = 64;
  check(*attention, problem, "different sizes of keys and values, shards");
  problem.key_size = 192;
  check(*attention, problem, "keys of 192, values of 64, shards");
  problem = documents(std::vector<int64_t>(5, 256));
  problem.key_size = problem.value_size = 128;
  problem.query_heads = 8;
  check(*attention, problem, "documents of 256");
  EXPECT_EQ(attention->plans_built(), 0);
}

// As little as shows every part of the document kernel to the race checker, which takes minutes over more.
TEST_F(CudaAttentionTest, FewShortDocuments) {
  const auto attention = make_attention(own_only());
  for (const int64_t window : {0, 40}) {
    Problem problem = documents({1, 70, 150}, window);
    problem.key_size = problem.value_size = window == 0 ? 128 : 64;
    problem.query_heads = 8;
    problem.overwrites = window == 0;
    problem.gradient_dtype = window == 0 ? DType::bfloat16 : DType::float32;
    check(*attention, problem, fmt::format("window {}", window), kFewKeysBound);
  }
}

// More documents and key heads than blocks, so that blocks take several.
TEST_F(CudaAttentionTest, ManyShortDocuments) {
  const auto attention = make_attention(own_only());
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 24; ++i) lengths.push_back(1 + i * 37 % 150);
  for (const int64_t size : {64, 128}) {
    for (const int64_t window : {0, 40}) {
      Problem problem = documents(lengths, window);
      problem.key_size = problem.value_size = size;
      problem.query_heads = 8;
      for (const bool overwrites : {false, true}) {
        problem.overwrites = overwrites;
        problem.gradient_dtype = overwrites ? DType::bfloat16 : DType::float32;
        check(*attention, problem, fmt::format("size {}, window {}, overwrites {}", size, window, overwrites),
              kFewKeysBound);
      }
      problem.float32_key_gradients = true;
      check(*attention, problem, fmt::format("size {}, window {}, bfloat16 dQ alone", size, window), kFewKeysBound);
    }
  }
  // Up to the longest document that the kernel takes, and one beyond.
  for (const int64_t longest : {640, 1024, 1025}) {
    Problem problem = documents({longest, 65, 129, 64});
    problem.key_size = problem.value_size = 128;
    const auto own = make_attention(own_only());
    check(*own, problem, fmt::format("longest {}", longest));
  }
}

// Many short documents: cuDNN makes the plan of forward, and backward goes to the document kernel.
TEST_F(CudaAttentionTest, ManyShortDocumentsTakeNoPlanInBackward) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 70; ++i) lengths.push_back(33 + i % 4);
  Problem problem = documents(lengths);
  problem.query_heads = 16;
  problem.key_heads = 8;
  problem.key_size = problem.value_size = 64;
  int compute_capability = 0;
  ITHACA_CUDA_CHECK(cudaDeviceGetAttribute(&compute_capability, cudaDevAttrComputeCapabilityMajor, 0));
  for (const bool overwrites : {false, true}) {
    const auto attention = make_attention(fused_always());
    problem.overwrites = overwrites;
    problem.gradient_dtype = overwrites ? DType::bfloat16 : DType::float32;
    check(*attention, problem, fmt::format("overwrites {}", overwrites), kFewKeysBound);
    EXPECT_EQ(attention->plans_built(), compute_capability == 9 ? 1 : 2);
  }
}

// The tensor core kernels leave the rows around the tasks alone, and read views where they are.
TEST_F(CudaAttentionTest, TaskKernelsOnViews) {
  const auto attention = make_attention(own_only());
  Problem problem = problem_of(300, 260, {{10, 130, 3, 140, kNoLower, 20}, {131, 290, 150, 260, -40, kNoUpper}});
  problem.layouts.query = {0, 256, 64};
  problem.layouts.key = {64, 64, 128};
  problem.layouts.value = {0, 384, 0};
  problem.layouts.output = {8, 72, 8};
  problem.layouts.log_sum_exp = {0, 3, 5};
  problem.layouts.dquery = {0, 256, 2};
  problem.layouts.dkey = {4, 12, 4};
  for (const bool with_destination : {false, true}) {
    problem.with_destination = with_destination;
    check(*attention, problem, "aligned views");
  }
  problem.layouts.dvalue = {0, 7, 3};
  check(*attention, problem, "unaligned gradients");
  problem.layouts.key.offset = 1;
  check(*attention, problem, "unaligned keys");
}

TEST_F(CudaAttentionTest, HeadSizesThroughCudnn) {
  const auto attention = make_attention(fused_always());
  for (const int64_t size : {32, 64, 96, 128, 160, 256, 72, 8}) {
    const int64_t plans = attention->plans_built();
    Problem problem = documents({384});
    problem.key_size = problem.value_size = size;
    check(*attention, problem, fmt::format("dense, size {}", size));
    problem = documents({100, 28, 129});
    problem.key_size = problem.value_size = size;
    check(*attention, problem, fmt::format("ragged, size {}", size));
    EXPECT_EQ(attention->plans_built() > plans, size % 32 == 0 && size <= 128) << "size " << size;
  }
}

TEST_F(CudaAttentionTest, GroupedHeads) {
  const auto attention = make_attention(fused_always());
  for (const int64_t group : {1, 2, 4, 7}) {
    Problem problem = documents({256});
    problem.query_heads = 2 * group;
    problem.key_size = problem.value_size = 128;
    check(*attention, problem, fmt::format("dense, {} query heads for a key head", group));
    problem = documents({77, 133});
    problem.query_heads = 2 * group;
    problem.key_size = problem.value_size = 128;
    check(*attention, problem, fmt::format("ragged, {} query heads for a key head", group));
  }
}

TEST_F(CudaAttentionTest, Documents) {
  const auto attention = make_attention(fused_always());
  std::vector<int64_t> tiny;
  for (int64_t i = 0; i < 300; ++i) tiny.push_back(1 + i * 7 % 5);
  const std::vector<std::pair<std::string, std::vector<int64_t>>> packings = {
      {"16 equal ones", std::vector<int64_t>(16, 128)},
      {"halves", {512, 256, 128, 64, 32, 32}},
      {"many tiny ones", tiny},
      {"1, 7, 127, 129", {1, 7, 127, 129}},
      {"one", {1000}}};
  for (const auto& [name, lengths] : packings) {
    Problem problem = documents(lengths);
    problem.key_size = problem.value_size = 128;
    check(*attention, problem, name, kFewKeysBound);
  }
}

TEST_F(CudaAttentionTest, Windows) {
  const auto attention = make_attention(fused_always());
  for (const int64_t window : {1, 2, 100, 128, 129, 1000}) {
    const double bound = window > 2 ? kGradientBound : kFewKeysBound;
    check(*attention, documents({512}, window), fmt::format("dense, window {}", window), bound);
    check(*attention, documents({300, 1, 77, 134}, window), fmt::format("ragged, window {}", window), bound);
  }
  // The last queries of a sequence.
  check(*attention, problem_of(256, 512, {{0, 256, 0, 512, kNoLower, 256}}), "bottom right");
  check(*attention, problem_of(256, 512, {{0, 256, 0, 512, 256 - 100, 256}}), "bottom right, window 100");
  check(*attention, problem_of(300, 500, {{0, 200, 0, 333, 133 - 100, 133}, {200, 300, 333, 500, 67 - 100, 67}}),
        "ragged bottom right, window 100");
  check(*attention, problem_of(200, 300, {{0, 150, 0, 200, kNoLower, 20}, {150, 200, 200, 300, kNoLower, 70}}),
        "bands between the corners");
}

TEST_F(CudaAttentionTest, ErrorDoesNotGrowWithTheNumberOfShards) {
  const auto attention = make_attention(fused_always());
  Problem whole = causal_in_shards(1024, 1);
  whole.key_size = whole.value_size = 128;
  const Inputs inputs = inputs_of(whole);
  const Results expected = reference(whole, inputs);
  const Errors one = errors_of(run(*attention, whole, inputs), expected);
  expect_bfloat16(one, "one shard");
  for (const int64_t ranks : {2, 3, 8}) {
    Problem problem = causal_in_shards(1024, ranks);
    problem.key_size = problem.value_size = 128;
    for (const bool with_destination : {false, true}) {
      problem.with_destination = with_destination;
      const Errors errors = errors_of(run(*attention, problem, inputs), expected);
      const std::string what = fmt::format("{} shards: {} against {}", ranks, errors.text(), one.text());
      EXPECT_LT(errors.output, 2.5 * one.output) << what;
      EXPECT_LT(errors.log_sum_exp, 1e-5) << what;
      EXPECT_LT(errors.dquery, 2.5 * one.dquery) << what;
      EXPECT_LT(errors.dkey, 2.5 * one.dkey) << what;
      EXPECT_LT(errors.dvalue, 2.5 * one.dvalue) << what;
    }
  }
  Problem windowed = causal_in_shards(640, 5, 200);
  check(*attention, windowed, "window over shards");
}

// Rank 1 of 4 in the zigzag layout holds chunks 1 and 6 of 8.
TEST_F(CudaAttentionTest, ZigzagHops) {
  const auto attention = make_attention(fused_always());
  const int64_t c = 128;
  Problem problem;
  problem.query_tokens = 2 * c;
  problem.key_tokens = 8 * c;
  const auto full = [&](int64_t q, int64_t k) {
    return AttentionTask{q * c, (q + 1) * c, k * c, (k + 1) * c, kNoLower, kNoUpper};
  };
  problem.shards = {{0, 2 * c, {causal_task(0, c), full(1, 0), causal_task(c, 2 * c)}},
                    {2 * c, 4 * c, {full(0, 0), full(1, 0)}},
                    {4 * c, 6 * c, {full(1, 0), full(1, 1)}},
                    {6 * c, 8 * c, {full(1, 0), full(1, 1)}}};
  problem.key_size = problem.value_size = 128;
  check(*attention, problem, "zigzag");
}

TEST_F(CudaAttentionTest, RowsWithoutKeys) {
  for (const bool fused : {true, false}) {
    const auto attention = make_attention(fused ? fused_always() : own_only());
    // Queries [100, 180) and [500, 512) see nothing; neither do keys [64, 128) see anybody.
    Problem problem = problem_of(
        512, 300, {{0, 100, 0, 64, kNoLower, kNoUpper}, {180, 400, 128, 300, kNoLower, 0}, {400, 500, 128, 300}});
    for (const bool with_destination : {false, true}) {
      problem.with_destination = with_destination;
      const Inputs inputs = inputs_of(problem);
      const Results results = run(*attention, problem, inputs);
      expect_bfloat16(errors_of(results, reference(problem, inputs)), "rows without keys");
      for (int64_t row = 100 * problem.query_heads; row < 180 * problem.query_heads; ++row) {
        ASSERT_EQ(results.log_sum_exp[index(row)], -std::numeric_limits<double>::infinity());
        ASSERT_EQ(results.output[index(row * problem.value_size)], 0.0);
      }
    }
  }
  // Nobody sees anything.
  const auto attention = make_attention();
  Problem problem = problem_of(10, 10, {});
  check(*attention, problem, "no task");
}

// The second shard's scores are far from the first one's; only one of them counts, whatever the order.
TEST_F(CudaAttentionTest, LogSumExpsFarApart) {
  for (const bool fused : {true, false}) {
    const auto attention = make_attention(fused ? fused_always() : own_only());
    for (const double factor : {8.0, -8.0}) {
      Problem problem;
      problem.query_tokens = 128;
      problem.key_tokens = 256;
      problem.shards = {{0, 128, {{0, 128, 0, 128}}}, {128, 256, {{0, 128, 0, 128}}}};
      problem.query_shift = 2.0;
      problem.key_shift = 1.5;
      problem.last_key_scale = factor;
      const Inputs inputs = inputs_of(problem);
      const Results expected = reference(problem, inputs);
      const Errors errors = errors_of(run(*attention, problem, inputs), expected);
      EXPECT_LT(errors.output, 6e-3) << errors.text();
      EXPECT_LT(errors.log_sum_exp, 1e-3) << errors.text();
      EXPECT_LT(errors.dvalue, 1e-2) << errors.text();
      EXPECT_TRUE(std::isfinite(errors.dquery) && std::isfinite(errors.dkey)) << errors.text();
    }
  }
}

TEST_F(CudaAttentionTest, StridedViews) {
  const auto attention = make_attention(fused_always());
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{256}, std::vector<int64_t>{100, 60, 33}}) {
    Problem problem = documents(lengths);
    problem.key_size = problem.value_size = 64;
    // As slices of packed queries, keys and values, of a wider output and of more heads.
    problem.layouts.query = {0, 256, 64};
    problem.layouts.key = {0, 384, 128};
    problem.layouts.value = {64, 64, 0};
    problem.layouts.output = {8, 72, 8};
    problem.layouts.doutput = {0, 128, 0};
    problem.layouts.log_sum_exp = {0, 3, 5};
    problem.layouts.dquery = {0, 256, 1};
    problem.layouts.dkey = {4, 12, 4};
    problem.layouts.dvalue = {0, 7, 3};
    for (const bool with_destination : {false, true}) {
      problem.with_destination = with_destination;
      check(*attention, problem, fmt::format("{} documents", lengths.size()));
    }
    EXPECT_GT(attention->plans_built(), 0);
    // Views that cuDNN cannot read.
    const int64_t plans = attention->plans_built();
    problem.layouts.query.offset = 1;
    check(*attention, problem, "unaligned");
    EXPECT_EQ(attention->plans_built(), plans);
  }
}

TEST_F(CudaAttentionTest, DestinationChangesNoBit) {
  const auto attention = make_attention(fused_always());
  for (Problem problem : {documents({256}), documents({100, 33}), causal_in_shards(256, 2)}) {
    const Inputs inputs = inputs_of(problem);
    problem.with_destination = true;
    const Results with = run(*attention, problem, inputs);
    problem.with_destination = false;
    const Results without = run(*attention, problem, inputs);
    EXPECT_EQ(with.output, without.output);
    EXPECT_EQ(with.log_sum_exp, without.log_sum_exp);
  }
}

TEST_F(CudaAttentionTest, DeterministicGivesTheSameBits) {
  CudaAttention::Options options = fused_always();
  options.deterministic = true;
  const auto attention = make_attention(options);
  Problem problem = documents({700, 300, 24});
  problem.key_size = problem.value_size = 128;
  const Inputs inputs = inputs_of(problem);
  const Results first = run(*attention, problem, inputs);
  expect_bfloat16(errors_of(first, reference(problem, inputs)), "deterministic");
  for (int repeat = 0; repeat < 3; ++repeat) {
    const Results again = run(*attention, problem, inputs);
    EXPECT_EQ(again.output, first.output);
    EXPECT_EQ(again.log_sum_exp, first.log_sum_exp);
    EXPECT_EQ(again.dquery, first.dquery);
    EXPECT_EQ(again.dkey, first.dkey);
    EXPECT_EQ(again.dvalue, first.dvalue);
  }
}

TEST_F(CudaAttentionTest, NoPlanIsBuiltAfterWarmUp) {
  const auto attention = make_attention(fused_always());
  const auto packing = [](uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int64_t> lengths;
    for (int64_t left = 1500; left > 0; left -= lengths.back()) {
      lengths.push_back(std::min<int64_t>(left, 1 + static_cast<int64_t>(random() % 400)));
    }
    return lengths;
  };
  const auto step = [&](const Problem& problem) {
    const Inputs inputs = inputs_of(problem);
    const Tensors tensors = tensors_of(problem, inputs);
    forward(*attention, problem, tensors);
    backward(*attention, problem, tensors);
    ITHACA_CUDA_CHECK(cudaStreamSynchronize(stream_));
  };
  step(documents(packing(1)));
  step(documents({512}));
  const int64_t plans = attention->plans_built();
  EXPECT_EQ(plans, 4);
  for (uint32_t seed = 2; seed < 12; ++seed) step(documents(packing(seed)));
  step(documents({512}));
  EXPECT_EQ(attention->plans_built(), plans);
  // Lists that come again are not uploaded again.
  const int64_t uploads = attention->index_uploads();
  for (uint32_t seed = 2; seed < 12; ++seed) step(documents(packing(seed)));
  EXPECT_EQ(attention->index_uploads(), uploads);
  // Dense shapes have plans of their own up to a bound.
  for (int64_t length = 1; length < 40; ++length) step(documents({128 * length / 2 / 128 * 128 + 128}));
  const int64_t bounded = attention->plans_built();
  EXPECT_LE(bounded, plans + 32);
  for (int64_t length = 21; length < 24; ++length) step(documents({128 * length}));
  EXPECT_LE(attention->plans_built(), bounded + 2);
}

// A stream that is captured into a graph refuses everything that waits or allocates.
TEST_F(CudaAttentionTest, NothingWaitsForTheDevice) {
  const auto attention = make_attention(fused_always());
  Problem problem = documents({256, 100, 28});
  problem.shards.push_back(problem.shards[0]);
  problem.shards[0].tasks = {causal_task(0, 256)};
  problem.shards[1].tasks = {causal_task(256, 356), {356, 384, 356, 384, -5, 3}};
  const Inputs inputs = inputs_of(problem);
  const Results expected = run(*attention, problem, inputs);
  const Tensors tensors = tensors_of(problem, inputs);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ITHACA_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  forward(*attention, problem, tensors);
  backward(*attention, problem, tensors);
  ITHACA_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
  ITHACA_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  ITHACA_CUDA_CHECK(cudaGraphLaunch(executable, stream_));
  const Results results = results_of(tensors);
  EXPECT_EQ(results.output, expected.output);
  EXPECT_EQ(results.log_sum_exp, expected.log_sum_exp);
  EXPECT_LT(relative_error(results.dquery, expected.dquery), 1e-5);
  EXPECT_EQ(results.dkey, expected.dkey);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

// Gradients that are overwritten: by single calls over all tokens, by several calls, where tasks leave tokens out, in
// shards of keys, and without tasks.
TEST_F(CudaAttentionTest, GradientsAreOverwritten) {
  for (const CudaAttention::Options& options : {fused_always(), own_only()}) {
    const auto attention = make_attention(options);
    const std::string kernels = options.use_cudnn ? "fused, " : "own, ";
    Problem with_gaps = problem_of(300, 260, {{10, 130, 3, 140, kNoLower, 20}, {131, 290, 150, 260, -40, kNoUpper}});
    // As a hop of a zigzag ring has them.
    Problem half_of_queries = problem_of(256, 256, {{128, 256, 0, 256}});
    Problem half_of_keys = problem_of(256, 256, {{0, 256, 0, 128}});
    Problem mixed = problem_of(256, 384, {{0, 256, 0, 128}, {0, 256, 128, 384, kNoLower, 0}});
    for (auto& [problem, name] :
         std::vector<std::pair<Problem, std::string>>{{documents({384}), "dense"},
                                                      {documents({128, 128, 128}), "dense batch"},
                                                      {documents({100, 28, 129}), "ragged"},
                                                      {with_gaps, "with gaps"},
                                                      {half_of_queries, "half of the queries"},
                                                      {half_of_keys, "half of the keys"},
                                                      {mixed, "two calls"},
                                                      {causal_in_shards(500, 3), "shards"}}) {
      problem.overwrites = true;
      check(*attention, problem, kernels + name);
      if (problem.shards.size() > 1) continue;
      problem.gradient_dtype = DType::bfloat16;
      check(*attention, problem, kernels + name + ", bfloat16 gradients");
      // As slices of one tensor of all gradients.
      problem.layouts.dquery = {0, 256, 0};
      problem.layouts.dkey = {64, 384, 0};
      problem.layouts.dvalue = {0, 128, 64};
      check(*attention, problem, kernels + name + ", bfloat16 gradients in views");
      problem.float32_key_gradients = true;
      check(*attention, problem, kernels + name + ", bfloat16 dQ alone");
    }
    Problem nothing = problem_of(40, 24, {});
    nothing.overwrites = true;
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      nothing.gradient_dtype = dtype;
      const Results results = run(*attention, nothing, inputs_of(nothing));
      for (const Values* values : {&results.dquery, &results.dkey, &results.dvalue}) {
        for (const double value : *values) ASSERT_EQ(value, 0.0) << kernels;
      }
    }
  }
}

TEST_F(CudaAttentionTest, MisuseIsRefused) {
  const auto attention = make_attention();
  Problem problem = documents({16});
  const Inputs inputs = inputs_of(problem);
  const Tensors tensors = tensors_of(problem, inputs);
  const auto state = attention->begin(stream_, {16, problem.query_heads, problem.value_size});
  AttentionForward arguments;
  arguments.query = tensors.query.tensor;
  arguments.key = tensors.key.tensor;
  arguments.value = tensors.value.tensor;
  EXPECT_THROW(attention->forward(stream_, arguments), ContractError);  // no state
  arguments.state = state.get();
  const AttentionTask outside[] = {{0, 17, 0, 16}};
  arguments.tasks = outside;
  EXPECT_THROW(attention->forward(stream_, arguments), ContractError);
  EXPECT_THROW(attention->finish(stream_, *state, tensors.query.tensor.slice(0, 0, 3), tensors.log_sum_exp.tensor),
               ContractError);
  // bfloat16 gradients that are added to.
  problem.gradient_dtype = DType::bfloat16;
  const Tensors rounded = tensors_of(problem, inputs);
  EXPECT_THROW(backward(*attention, problem, rounded), ContractError);
}

}  // namespace
}  // namespace ithaca::cuda
