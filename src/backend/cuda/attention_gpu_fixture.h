// The fixture of the CUDA attention tests: problems, the float64 reference of their results, and how they run. Test
// code: includes CUDA headers.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/cpu/reference_attention.h"
#include "backend/cuda/attention.h"
#include "backend/cuda/attention_calls.h"
#include "backend/cuda/attention_testing.h"

namespace ithaca::cuda {

using Values = std::vector<double>;

inline size_t index(int64_t value) {
  return static_cast<size_t>(value);
}

inline double relative_error(const Values& values, const Values& expected) {
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += (values[i] - expected[i]) * (values[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / (norm > 0.0 ? norm : 1.0));
}

// The keys of one call of attention_forward: tokens [k_begin, k_end) of the whole, with tasks in local indices.
struct KeyShard {
  int64_t k_begin = 0;
  int64_t k_end = 0;
  std::vector<AttentionTask> tasks;
};

// Tensors as they lie in memory.
struct Layouts {
  TestLayout query, key, value, output, log_sum_exp, doutput, dquery, dkey, dvalue;
};

struct Problem {
  int64_t query_tokens = 0;
  int64_t key_tokens = 0;
  int64_t query_heads = 4;
  int64_t key_heads = 2;
  int64_t key_size = 64;
  int64_t value_size = 64;
  std::vector<KeyShard> shards;
  DType dtype = DType::bfloat16;
  Layouts layouts;
  bool with_destination = true;
  bool overwrites = false;                // the gradients; otherwise they are added to what is there
  DType gradient_dtype = DType::float32;  // bfloat16 only with `overwrites`, and dquery only with one shard
  bool float32_key_gradients = false;     // dkey and dvalue, whatever dquery is
  double key_shift = 0.0;                 // added to every key element
  double query_shift = 0.0;               // added to every query element
  double last_key_scale = 1;              // of the keys of the last shard
  uint32_t seed = 1;

  float scale() const { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(key_size))); }
  // All tasks in global indices.
  std::vector<AttentionTask> all_tasks() const {
    std::vector<AttentionTask> all;
    for (const KeyShard& shard : shards) {
      for (AttentionTask task : shard.tasks) {
        task.k_begin += shard.k_begin;
        task.k_end += shard.k_begin;
        all.push_back(task);
      }
    }
    return all;
  }
};

// One shard of all keys.
inline Problem problem_of(int64_t query_tokens, int64_t key_tokens, std::vector<AttentionTask> tasks) {
  Problem problem;
  problem.query_tokens = query_tokens;
  problem.key_tokens = key_tokens;
  problem.shards = {{0, key_tokens, std::move(tasks)}};
  return problem;
}

inline AttentionTask causal_task(int64_t begin, int64_t end, int64_t window = 0) {
  return {begin, end, begin, end, window > 0 ? -window : kNoLower, 0};
}

inline Problem documents(const std::vector<int64_t>& lengths, int64_t window = 0) {
  std::vector<AttentionTask> tasks;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    tasks.push_back(causal_task(begin, begin + length, window));
    begin += length;
  }
  return problem_of(begin, begin, std::move(tasks));
}

// One causal sequence, all queries, keys in `ranks` contiguous shards.
inline Problem causal_in_shards(int64_t tokens, int64_t ranks, int64_t window = 0) {
  Problem problem;
  problem.query_tokens = problem.key_tokens = tokens;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t begin = tokens * rank / ranks;
    const int64_t end = tokens * (rank + 1) / ranks;
    problem.shards.push_back(
        {begin, end, {{0, tokens, 0, end - begin, window > 0 ? -window - begin : kNoLower, -begin}}});
  }
  return problem;
}

// Values that the dtype can hold, so that the reference computes from the same numbers.
inline Values random_values(int64_t count, uint32_t seed, DType dtype, double shift = 0.0) {
  std::mt19937 random(seed);
  Values values(index(count));
  for (double& value : values) {
    double sum = -6.0;  // twelve uniforms: nearly normal, the same everywhere
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(random()) / 4294967296.0;
    const auto number = static_cast<float>(sum + shift);
    value = dtype == DType::bfloat16 ? to_float(to_bfloat16(number)) : number;
  }
  return values;
}

// [tokens, heads, size] values into the memory of a test tensor; the rest stays NaN.
inline void upload(const Values& values, const TestTensor& to) {
  const Tensor& tensor = to.tensor;
  const int64_t size = tensor.rank() == 3 ? tensor.extent(2) : 1;
  const int64_t element = element_size(tensor.dtype);
  std::vector<std::byte> image(index(to.elements * element), std::byte{0xFF});
  const int64_t offset = static_cast<std::byte*>(tensor.data) - static_cast<std::byte*>(to.memory.get());
  size_t next = 0;
  for (int64_t token = 0; token < tensor.extent(0); ++token) {
    for (int64_t head = 0; head < tensor.extent(1); ++head) {
      for (int64_t i = 0; i < size; ++i) {
        std::byte* at = image.data() + offset + (token * tensor.stride(0) + head * tensor.stride(1) + i) * element;
        const auto value = static_cast<float>(values[next++]);
        if (tensor.dtype == DType::bfloat16) {
          const BFloat16 rounded = to_bfloat16(value);
          std::memcpy(at, &rounded, sizeof(rounded));
        } else {
          std::memcpy(at, &value, sizeof(value));
        }
      }
    }
  }
  ITHACA_CUDA_CHECK(cudaMemcpy(to.memory.get(), image.data(), image.size(), cudaMemcpyHostToDevice));
}

// The values of a test tensor; fails the test when anything around them has been written.
inline Values download(const TestTensor& from, const char* name) {
  const Tensor& tensor = from.tensor;
  const int64_t size = tensor.rank() == 3 ? tensor.extent(2) : 1;
  const int64_t element = element_size(tensor.dtype);
  std::vector<std::byte> image(index(from.elements * element));
  ITHACA_CUDA_CHECK(cudaMemcpy(image.data(), from.memory.get(), image.size(), cudaMemcpyDeviceToHost));
  const int64_t offset = static_cast<std::byte*>(tensor.data) - static_cast<std::byte*>(from.memory.get());
  Values values;
  for (int64_t token = 0; token < tensor.extent(0); ++token) {
    for (int64_t head = 0; head < tensor.extent(1); ++head) {
      for (int64_t i = 0; i < size; ++i) {
        std::byte* at = image.data() + offset + (token * tensor.stride(0) + head * tensor.stride(1) + i) * element;
        if (tensor.dtype == DType::bfloat16) {
          BFloat16 value{};
          std::memcpy(&value, at, sizeof(value));
          values.push_back(to_float(value));
        } else {
          float value = 0.0f;
          std::memcpy(&value, at, sizeof(value));
          values.push_back(value);
        }
        std::fill_n(at, element, std::byte{0xFF});
      }
    }
  }
  EXPECT_TRUE(std::all_of(image.begin(), image.end(), [](std::byte byte) { return byte == std::byte{0xFF}; }))
      << name << ": something outside of the tensor was written";
  return values;
}

struct Inputs {
  Values query, key, value, doutput;
};

inline Inputs inputs_of(const Problem& problem) {
  Inputs inputs;
  const int64_t query_rows = problem.query_tokens * problem.query_heads;
  const int64_t key_rows = problem.key_tokens * problem.key_heads;
  inputs.query = random_values(query_rows * problem.key_size, problem.seed, problem.dtype, problem.query_shift);
  inputs.key = random_values(key_rows * problem.key_size, problem.seed + 1, problem.dtype, problem.key_shift);
  inputs.value = random_values(key_rows * problem.value_size, problem.seed + 2, problem.dtype);
  inputs.doutput = random_values(query_rows * problem.value_size, problem.seed + 3, problem.dtype);
  if (problem.last_key_scale != 1.0) {
    const int64_t first = problem.shards.back().k_begin * problem.key_heads * problem.key_size;
    for (size_t i = index(first); i < inputs.key.size(); ++i) {
      inputs.key[i] = to_float(to_bfloat16(static_cast<float>(inputs.key[i] * problem.last_key_scale)));
    }
  }
  return inputs;
}

struct Results {
  Values output, log_sum_exp, dquery, dkey, dvalue;
};

// The float64 reference, one thread for each key head.
inline Results reference(const Problem& problem, const Inputs& inputs) {
  const int64_t group = problem.query_heads / problem.key_heads;
  const auto heads_of = [](const Values& from, int64_t tokens, int64_t heads, int64_t size, int64_t first,
                           int64_t count) {
    Values part;
    part.reserve(index(tokens * count * size));
    for (int64_t token = 0; token < tokens; ++token) {
      const auto begin = from.begin() + (token * heads + first) * size;
      part.insert(part.end(), begin, begin + count * size);
    }
    return part;
  };
  const auto place = [](const Values& part, int64_t tokens, int64_t heads, int64_t size, int64_t first, int64_t count,
                        Values& to) {
    for (int64_t token = 0; token < tokens; ++token) {
      std::copy_n(part.begin() + token * count * size, count * size, to.begin() + (token * heads + first) * size);
    }
  };
  Results results;
  results.output.resize(inputs.doutput.size());
  results.log_sum_exp.resize(index(problem.query_tokens * problem.query_heads));
  results.dquery.resize(inputs.query.size());
  results.dkey.resize(inputs.key.size());
  results.dvalue.resize(inputs.value.size());
  std::vector<std::thread> threads;
  for (int64_t head = 0; head < problem.key_heads; ++head) {
    threads.emplace_back([&, head] {
      ReferenceAttention attention;
      attention.query_tokens = problem.query_tokens;
      attention.key_tokens = problem.key_tokens;
      attention.query_heads = group;
      attention.key_heads = 1;
      attention.key_size = problem.key_size;
      attention.value_size = problem.value_size;
      attention.scale = problem.scale();
      const int64_t query_tokens = problem.query_tokens;
      const int64_t key_tokens = problem.key_tokens;
      const int64_t first = head * group;
      attention.query = heads_of(inputs.query, query_tokens, problem.query_heads, problem.key_size, first, group);
      attention.key = heads_of(inputs.key, key_tokens, problem.key_heads, problem.key_size, head, 1);
      attention.value = heads_of(inputs.value, key_tokens, problem.key_heads, problem.value_size, head, 1);
      const Values doutput =
          heads_of(inputs.doutput, query_tokens, problem.query_heads, problem.value_size, first, group);
      const AttentionVisibility visible = visible_in_tasks(problem.all_tasks());
      const ReferenceAttentionOutput forward = reference_attention_forward(attention, visible);
      const ReferenceAttentionGradient backward = reference_attention_backward(attention, doutput, visible);
      place(forward.output, query_tokens, problem.query_heads, problem.value_size, first, group, results.output);
      place(forward.log_sum_exp, query_tokens, problem.query_heads, 1, first, group, results.log_sum_exp);
      place(backward.dquery, query_tokens, problem.query_heads, problem.key_size, first, group, results.dquery);
      place(backward.dkey, key_tokens, problem.key_heads, problem.key_size, head, 1, results.dkey);
      place(backward.dvalue, key_tokens, problem.key_heads, problem.value_size, head, 1, results.dvalue);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// What gradients hold before anything is added.
inline constexpr double kGradientBefore = 0.125;

class CudaAttentionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
      GTEST_SKIP() << "no NVIDIA GPU here: " << cudaGetErrorString(error);
    }
    memory_ = std::make_unique<TestMemory>(int64_t{3} << 30);
    ITHACA_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  void TearDown() override {
    if (memory_ == nullptr) return;
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    cudaStreamDestroy(stream_);
  }

  std::unique_ptr<CudaAttention> make_attention(const CudaAttention::Options& options = {}) {
    return std::make_unique<CudaAttention>(memory_->provider(true), options);
  }

  // Device tensors of a problem.
  struct Tensors {
    TestTensor query, key, value, output, log_sum_exp, doutput, dquery, dkey, dvalue;
  };

  Tensors tensors_of(const Problem& problem, const Inputs& inputs) {
    const Layouts& layouts = problem.layouts;
    const auto make = [&](DType dtype, int64_t tokens, int64_t heads, int64_t size, const TestLayout& layout) {
      return make_test_tensor(*memory_, dtype, {tokens, heads, size}, layout);
    };
    Tensors tensors;
    const int64_t queries = problem.query_tokens;
    const int64_t keys = problem.key_tokens;
    tensors.query = make(problem.dtype, queries, problem.query_heads, problem.key_size, layouts.query);
    tensors.key = make(problem.dtype, keys, problem.key_heads, problem.key_size, layouts.key);
    tensors.value = make(problem.dtype, keys, problem.key_heads, problem.value_size, layouts.value);
    tensors.output = make(problem.dtype, queries, problem.query_heads, problem.value_size, layouts.output);
    tensors.doutput = make(problem.dtype, queries, problem.query_heads, problem.value_size, layouts.doutput);
    tensors.log_sum_exp =
        make_test_tensor(*memory_, DType::float32, {queries, problem.query_heads}, layouts.log_sum_exp);
    tensors.dquery = make(problem.gradient_dtype, queries, problem.query_heads, problem.key_size, layouts.dquery);
    const DType key_gradients = problem.float32_key_gradients ? DType::float32 : problem.gradient_dtype;
    tensors.dkey = make(key_gradients, keys, problem.key_heads, problem.key_size, layouts.dkey);
    tensors.dvalue = make(key_gradients, keys, problem.key_heads, problem.value_size, layouts.dvalue);
    upload(inputs.query, tensors.query);
    upload(inputs.key, tensors.key);
    upload(inputs.value, tensors.value);
    upload(inputs.doutput, tensors.doutput);
    upload(Values(inputs.query.size(), kGradientBefore), tensors.dquery);
    upload(Values(inputs.key.size(), kGradientBefore), tensors.dkey);
    upload(Values(inputs.value.size(), kGradientBefore), tensors.dvalue);
    ITHACA_CUDA_CHECK(cudaDeviceSynchronize());  // stream_ does not wait for the default stream
    return tensors;
  }

  void forward(CudaAttention& attention, const Problem& problem, const Tensors& tensors) {
    const Tensor& output = tensors.output.tensor;
    const Tensor& log_sum_exp = tensors.log_sum_exp.tensor;
    const auto state =
        attention.begin(stream_, {problem.query_tokens, problem.query_heads, problem.value_size},
                        problem.with_destination ? AttentionDestination{output, log_sum_exp} : AttentionDestination{});
    for (const KeyShard& shard : problem.shards) {
      AttentionForward arguments;
      arguments.query = tensors.query.tensor;
      arguments.key = tensors.key.tensor.slice(0, shard.k_begin, shard.k_end);
      arguments.value = tensors.value.tensor.slice(0, shard.k_begin, shard.k_end);
      arguments.tasks = shard.tasks;
      arguments.scale = problem.scale();
      arguments.state = state.get();
      attention.forward(stream_, arguments);
    }
    attention.finish(stream_, *state, output, log_sum_exp);
  }

  void backward(CudaAttention& attention, const Problem& problem, const Tensors& tensors) {
    for (const KeyShard& shard : problem.shards) {
      AttentionBackward arguments;
      arguments.query = tensors.query.tensor;
      arguments.key = tensors.key.tensor.slice(0, shard.k_begin, shard.k_end);
      arguments.value = tensors.value.tensor.slice(0, shard.k_begin, shard.k_end);
      arguments.output = tensors.output.tensor;
      arguments.log_sum_exp = tensors.log_sum_exp.tensor;
      arguments.doutput = tensors.doutput.tensor;
      arguments.tasks = shard.tasks;
      arguments.scale = problem.scale();
      arguments.dquery = tensors.dquery.tensor;
      arguments.dkey = tensors.dkey.tensor.slice(0, shard.k_begin, shard.k_end);
      arguments.dvalue = tensors.dvalue.tensor.slice(0, shard.k_begin, shard.k_end);
      arguments.overwrites_dquery = problem.overwrites && &shard == &problem.shards.front();
      arguments.overwrites_dkey_dvalue = problem.overwrites;
      attention.backward(stream_, arguments);
    }
  }

  Results results_of(const Tensors& tensors, bool overwrites = false) {
    ITHACA_CUDA_CHECK(cudaStreamSynchronize(stream_));
    const auto added = [&](Values values) {
      for (double& value : values) value -= overwrites ? 0.0 : kGradientBefore;
      return values;
    };
    return {download(tensors.output, "output"), download(tensors.log_sum_exp, "log_sum_exp"),
            added(download(tensors.dquery, "dquery")), added(download(tensors.dkey, "dkey")),
            added(download(tensors.dvalue, "dvalue"))};
  }

  Results run(CudaAttention& attention, const Problem& problem, const Inputs& inputs) {
    const Tensors tensors = tensors_of(problem, inputs);
    forward(attention, problem, tensors);
    backward(attention, problem, tensors);
    return results_of(tensors, problem.overwrites);
  }

  struct Errors {
    double output = 0.0;
    double log_sum_exp = 0.0;  // largest difference
    double dquery = 0.0;
    double dkey = 0.0;
    double dvalue = 0.0;
    std::string text() const {
      return fmt::format("O {:.2e} LSE {:.2e} dQ {:.2e} dK {:.2e} dV {:.2e}", output, log_sum_exp, dquery, dkey,
                         dvalue);
    }
  };

  static Errors errors_of(const Results& results, const Results& expected) {
    Errors errors;
    errors.output = relative_error(results.output, expected.output);
    errors.dquery = relative_error(results.dquery, expected.dquery);
    errors.dkey = relative_error(results.dkey, expected.dkey);
    errors.dvalue = relative_error(results.dvalue, expected.dvalue);
    for (size_t i = 0; i < expected.log_sum_exp.size(); ++i) {
      const double value = results.log_sum_exp[i];
      const double wanted = expected.log_sum_exp[i];
      const double difference = value == wanted ? 0.0 : std::abs(value - wanted);
      if (!(difference <= errors.log_sum_exp)) errors.log_sum_exp = difference;  // NaN stays
    }
    return errors;
  }

  // bfloat16 of one call has errors of 2e-3 to 3e-3 (the rounding of its results and probabilities).
  // Rows that see few keys average less out.
  static constexpr double kGradientBound = 6e-3;
  static constexpr double kFewKeysBound = 1.2e-2;
  static void expect_bfloat16(const Errors& errors, const std::string& what, double gradient_bound = kGradientBound) {
    EXPECT_LT(errors.output, 4e-3) << what << ": " << errors.text();
    EXPECT_LT(errors.log_sum_exp, 1e-4) << what << ": " << errors.text();
    EXPECT_LT(errors.dquery, gradient_bound) << what << ": " << errors.text();
    EXPECT_LT(errors.dkey, gradient_bound) << what << ": " << errors.text();
    EXPECT_LT(errors.dvalue, gradient_bound) << what << ": " << errors.text();
  }
  static void expect_float32(const Errors& errors, const std::string& what) {
    EXPECT_LT(errors.output, 2e-6) << what << ": " << errors.text();
    EXPECT_LT(errors.log_sum_exp, 1e-5) << what << ": " << errors.text();
    EXPECT_LT(errors.dquery, 5e-6) << what << ": " << errors.text();
    EXPECT_LT(errors.dkey, 5e-6) << what << ": " << errors.text();
    EXPECT_LT(errors.dvalue, 5e-6) << what << ": " << errors.text();
  }

  // Runs a problem and holds it to the reference.
  Errors check(CudaAttention& attention, const Problem& problem, const std::string& what,
               double gradient_bound = kGradientBound) {
    const Inputs inputs = inputs_of(problem);
    const Errors errors = errors_of(run(attention, problem, inputs), reference(problem, inputs));
    if (problem.dtype == DType::float32) {
      expect_float32(errors, what);
    } else {
      expect_bfloat16(errors, what, gradient_bound);
    }
    return errors;
  }

  static CudaAttention::Options fused_always() {
    CudaAttention::Options options;
    options.smallest_cudnn_work = 0;
    return options;
  }
  static CudaAttention::Options own_only() {
    CudaAttention::Options options;
    options.use_cudnn = false;
    return options;
  }

  std::unique_ptr<TestMemory> memory_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace ithaca::cuda
