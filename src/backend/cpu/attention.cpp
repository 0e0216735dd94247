#include "backend/cpu/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "backend/cpu/attention_blocks.h"
#include "backend/cpu/attention_kernels.h"

namespace ithaca::cpu {

namespace {

constexpr int64_t kAlignment = 64;

void check_heads(const Tensor& tensor, const char* name, int64_t tokens, int64_t heads, int64_t size) {
  require(tensor.dtype == DType::float32,
          fmt::format("attention on CPU: {} is {}, must be float32", name, tensor.describe()));
  require(tensor.rank() == 3 && tensor.extent(0) == tokens && tensor.extent(1) == heads && tensor.extent(2) == size,
          fmt::format("attention: {} is {}, must be [{}, {}, {}]", name, tensor.describe(), tokens, heads, size));
  require(size <= 1 || tensor.stride(2) == 1,
          fmt::format("attention: {} {} has stride {} in its last dimension, must be 1", name, tensor.describe(),
                      size <= 1 ? 1 : tensor.stride(2)));
}

void check_statistics(const Tensor& tensor, const char* name, int64_t tokens, int64_t heads) {
  require(
      tensor.dtype == DType::float32 && tensor.rank() == 2 && tensor.extent(0) == tokens && tensor.extent(1) == heads,
      fmt::format("attention: {} is {}, must be float32 [{}, {}]", name, tensor.describe(), tokens, heads));
}

void check_inputs(const Tensor& query, const Tensor& key, const Tensor& value, std::span<const AttentionTask> tasks) {
  require(query.rank() == 3 && key.rank() == 3 && value.rank() == 3,
          fmt::format("attention: query {}, key {} and value {} must have dimensions [tokens, heads, size]",
                      query.describe(), key.describe(), value.describe()));
  const int64_t query_heads = query.extent(1);
  const int64_t key_heads = key.extent(1);
  require(key_heads > 0 ? query_heads % key_heads == 0 : query_heads == 0,
          fmt::format("attention: {} query heads cannot share {} key heads evenly", query_heads, key_heads));
  check_heads(query, "query", query.extent(0), query_heads, query.extent(2));
  check_heads(key, "key", key.extent(0), key_heads, query.extent(2));
  check_heads(value, "value", key.extent(0), key_heads, value.extent(2));
  for (const AttentionTask& task : tasks) {
    require(0 <= task.q_begin && task.q_begin <= task.q_end && task.q_end <= query.extent(0) && 0 <= task.k_begin &&
                task.k_begin <= task.k_end && task.k_end <= key.extent(0),
            fmt::format("attention: task of queries [{}, {}) and keys [{}, {}) is outside of {} queries and {} keys",
                        task.q_begin, task.q_end, task.k_begin, task.k_end, query.extent(0), key.extent(0)));
  }
}

float* aligned_workspace(std::span<std::byte> workspace, int64_t bytes) {
  require(static_cast<int64_t>(workspace.size()) >= bytes,
          fmt::format("attention: workspace of {} bytes, needs {}", workspace.size(), bytes));
  const auto address = reinterpret_cast<uintptr_t>(workspace.data());
  const uintptr_t skipped = (kAlignment - address % kAlignment) % kAlignment;
  return reinterpret_cast<float*>(workspace.data() + skipped);
}

}  // namespace

int64_t attention_accumulator_elements(const AttentionShape& shape) {
  return Extents{shape.query_tokens, shape.query_heads, shape.value_size + 2}.product();
}

AttentionAccumulator begin_attention(const AttentionShape& shape, const Tensor& memory) {
  require(memory.is_contiguous() && memory.element_count() >= attention_accumulator_elements(shape),
          fmt::format("attention: accumulator memory is {}, must be contiguous with {} elements", memory.describe(),
                      attention_accumulator_elements(shape)));
  const int64_t rows = Extents{shape.query_tokens, shape.query_heads}.product();
  auto* maximum = memory.as<float>();
  float* sum = maximum + rows;
  std::fill_n(maximum, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(sum, rows, 0.0f);
  return {Tensor::contiguous(sum + rows, DType::float32, {shape.query_tokens, shape.query_heads, shape.value_size}),
          Tensor::contiguous(maximum, DType::float32, {shape.query_tokens, shape.query_heads}),
          Tensor::contiguous(sum, DType::float32, {shape.query_tokens, shape.query_heads})};
}

int64_t attention_forward_workspace_bytes(int64_t key_size, int64_t value_size) {
  return ForwardBlocks(key_size, value_size).floats * static_cast<int64_t>(sizeof(float)) + kAlignment;
}

int64_t attention_backward_workspace_bytes(int64_t key_size, int64_t value_size) {
  return BackwardBlocks(key_size, value_size).floats * static_cast<int64_t>(sizeof(float)) + kAlignment;
}

void check_attention_forward(const AttentionForward& arguments, const AttentionShape& shape) {
  check_inputs(arguments.query, arguments.key, arguments.value, arguments.tasks);
  require(arguments.query.extent(0) == shape.query_tokens && arguments.query.extent(1) == shape.query_heads &&
              arguments.value.extent(2) == shape.value_size,
          fmt::format("attention: query {} and value {} do not fit an accumulator of {} query tokens, {} query heads "
                      "and value size {}",
                      arguments.query.describe(), arguments.value.describe(), shape.query_tokens, shape.query_heads,
                      shape.value_size));
}

void check_attention_backward(const AttentionBackward& arguments) {
  check_inputs(arguments.query, arguments.key, arguments.value, arguments.tasks);
  const int64_t query_tokens = arguments.query.extent(0);
  const int64_t query_heads = arguments.query.extent(1);
  const int64_t key_tokens = arguments.key.extent(0);
  const int64_t key_heads = arguments.key.extent(1);
  const int64_t key_size = arguments.key.extent(2);
  const int64_t value_size = arguments.value.extent(2);
  check_heads(arguments.output, "output", query_tokens, query_heads, value_size);
  check_heads(arguments.doutput, "doutput", query_tokens, query_heads, value_size);
  check_statistics(arguments.log_sum_exp, "log_sum_exp", query_tokens, query_heads);
  check_heads(arguments.dquery, "dquery", query_tokens, query_heads, key_size);
  check_heads(arguments.dkey, "dkey", key_tokens, key_heads, key_size);
  check_heads(arguments.dvalue, "dvalue", key_tokens, key_heads, value_size);
}

void attention_forward(const AttentionForward& arguments, const AttentionAccumulator& accumulator,
                       std::span<std::byte> workspace) {
  const Tensor& output = accumulator.output;
  check_attention_forward(arguments, {output.extent(0), output.extent(1), output.extent(2)});
  float* floats = aligned_workspace(
      workspace, attention_forward_workspace_bytes(arguments.query.extent(2), arguments.value.extent(2)));
  run_attention_forward(arguments, accumulator, floats);
}

void finish_attention(const AttentionAccumulator& accumulator, const Tensor& output, const Tensor& log_sum_exp) {
  const int64_t tokens = accumulator.output.extent(0);
  const int64_t heads = accumulator.output.extent(1);
  const int64_t size = accumulator.output.extent(2);
  check_heads(output, "output", tokens, heads, size);
  check_statistics(log_sum_exp, "log_sum_exp", tokens, heads);
  const HeadRows<const float> from(accumulator.output);
  const HeadRows<float> to(output);
  const HeadRows<float> statistics(log_sum_exp);
  const auto* maximum = accumulator.maximum.as<float>();
  const auto* sum = accumulator.sum.as<float>();
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t head = 0; head < heads; ++head) {
      const double row_sum = sum[token * heads + head];
      const float* from_row = from.row(token, head);
      float* to_row = to.row(token, head);
      if (row_sum == 0.0) {
        std::fill_n(to_row, size, 0.0f);
        *statistics.row(token, head) = -std::numeric_limits<float>::infinity();
        continue;
      }
      const auto inverse = static_cast<float>(1.0 / row_sum);
      for (int64_t i = 0; i < size; ++i) to_row[i] = from_row[i] * inverse;
      const double base_two = static_cast<double>(maximum[token * heads + head]) + std::log2(row_sum);
      *statistics.row(token, head) = static_cast<float>(base_two * 0.69314718055994531);
    }
  }
}

void attention_backward(const AttentionBackward& arguments, std::span<std::byte> workspace) {
  check_attention_backward(arguments);
  float* floats = aligned_workspace(
      workspace, attention_backward_workspace_bytes(arguments.query.extent(2), arguments.value.extent(2)));
  run_attention_backward(arguments, floats);
}

}  // namespace ithaca::cpu
