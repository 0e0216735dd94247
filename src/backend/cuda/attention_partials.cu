// Index arrays, merging of partial results, and the small passes around the fused attention kernels.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "backend/cuda/attention_kernels.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/vectors.cuh"

namespace ithaca::cuda {
namespace {

constexpr int kThreads = 256;
// Lanes that share one row of a head: 8 elements each, so that 128 elements take one step.
constexpr int kRowLanes = 16;
constexpr int kRowsPerBlock = kThreads / kRowLanes;
constexpr int64_t kMostBlocks = 132 * 32;

unsigned blocks_for(int64_t items, int64_t per_block) {
  return static_cast<unsigned>(std::clamp<int64_t>(divide_up(items, per_block), 1, kMostBlocks));
}

// ---- index arrays ----

constexpr int64_t kUploadWords = 480;  // 8-byte words of one launch; kernel arguments end at 4 KiB
struct UploadWords {
  uint64_t words[kUploadWords];
};

__global__ void upload_kernel(const UploadWords from, uint64_t* to, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) to[i] = from.words[i];
}

constexpr int64_t kEntriesPerLaunch = 110;
struct EntryChunk {
  AttentionEntry entries[kEntriesPerLaunch];
};

// Entries [first, first + count) of a list of `total`; the launch of the last chunk also fills what is behind them.
__global__ void ragged_arrays_kernel(const EntryChunk chunk, int64_t first, int count, int64_t total, int64_t batch,
                                     int64_t first_query, int64_t first_key, RaggedTokenStrides strides,
                                     RaggedArrayAddresses arrays) {
  const auto write = [&](int64_t index, int64_t query, int64_t key) {
    arrays.query[index] = query * strides.query;
    arrays.key[index] = key * strides.key;
    arrays.value[index] = key * strides.value;
    arrays.output[index] = query * strides.output;
    arrays.log_sum_exp[index] = query * strides.log_sum_exp;
  };
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  for (int i = thread; i < count; i += threads) {
    const AttentionEntry& entry = chunk.entries[i];
    arrays.query_lengths[first + i] = static_cast<int32_t>(entry.q_length);
    arrays.key_lengths[first + i] = static_cast<int32_t>(entry.k_length);
    write(first + i, entry.q_begin - first_query, entry.k_begin - first_key);
  }
  if (first + count < total) return;
  const AttentionEntry& last = chunk.entries[count - 1];
  for (int64_t i = total + thread; i <= batch; i += threads) {
    if (i < batch) {
      arrays.query_lengths[i] = 0;
      arrays.key_lengths[i] = 0;
    }
    write(i, last.q_begin + last.q_length - first_query, last.k_begin + last.k_length - first_key);
  }
}

// ---- rows of heads ----

// A [tokens, heads, size] tensor, of which rows (token, head) are visited one by one.
template <typename T>
struct HeadRows {
  T* data;
  int64_t token_stride;
  int64_t head_stride;
  __device__ T* row(int64_t token, int64_t head) const { return data + token * token_stride + head * head_stride; }
};
struct RowValues {
  float* data;
  int64_t token_stride;
  int64_t head_stride;
  __device__ float* at(int64_t token, int64_t head) const { return data + token * token_stride + head * head_stride; }
};

template <typename T>
HeadRows<T> head_rows(const Tensor& tensor) {
  return {static_cast<T*>(tensor.data), tensor.stride(0), tensor.stride(1)};
}
RowValues row_values(const Tensor& tensor) {
  return {static_cast<float*>(tensor.data), tensor.stride(0), tensor.stride(1)};
}

struct RowIndex {
  int64_t token;
  int64_t head;
};

// Calls function(row, lane) for all rows (tokens x heads), kRowLanes lanes together; function must reach the same
// __syncwarp() in all lanes, so it is called for rows behind the end too (is_live false).
template <typename Function>
__device__ void for_each_row(int64_t tokens, int64_t heads, const Function& function) {
  const int lane = static_cast<int>(threadIdx.x) % kRowLanes;
  const int64_t rows = tokens * heads;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kRowsPerBlock;
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * kRowsPerBlock; base < rows; base += step) {
    const int64_t row = base + threadIdx.x / kRowLanes;
    const bool is_live = row < rows;
    const int64_t token = is_live ? row / heads : 0;
    function(RowIndex{token, is_live ? row - token * heads : 0}, lane, is_live);
  }
}

__device__ bool is_unseen(float log_sum_exp) {
  return log_sum_exp == -INFINITY;
}

template <typename First, typename Second, typename Result, int kWidth>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(int64_t tokens, int64_t heads, int size, HeadRows<const First> first, RowValues first_log_sum_exp,
                 HeadRows<const Second> second, RowValues second_log_sum_exp, HeadRows<Result> result,
                 RowValues result_log_sum_exp) {
  for_each_row(tokens, heads, [&](RowIndex index, int lane, bool is_live) {
    float a = -INFINITY;
    float b = -INFINITY;
    if (is_live) {
      a = *first_log_sum_exp.at(index.token, index.head);
      b = *second_log_sum_exp.at(index.token, index.head);
    }
    __syncwarp();  // a row's log-sum-exp may be overwritten in place
    if (!is_live) return;
    const bool in_place = static_cast<const void*>(first.data) == static_cast<const void*>(result.data);
    const bool has_first = !is_unseen(a);
    const bool has_second = !is_unseen(b);
    const float weight = has_first ? (has_second ? 1.0f / (1.0f + expf(a - b)) : 0.0f) : 1.0f;
    if (lane == 0) {
      float log_sum_exp = has_first ? a : b;
      if (has_first && has_second) log_sum_exp = fmaxf(a, b) + log1pf(expf(-fabsf(a - b)));
      *result_log_sum_exp.at(index.token, index.head) = log_sum_exp;
    }
    if (has_first && !has_second && in_place) return;
    const First* from_first = first.row(index.token, index.head);
    const Second* from_second = second.row(index.token, index.head);
    Result* to = result.row(index.token, index.head);
    for (int i = lane * kWidth; i < size; i += kRowLanes * kWidth) {
      Pack<Result, kWidth> merged;
      if (has_first && has_second) {
        const auto x = Pack<First, kWidth>::load(from_first + i);
        const auto y = Pack<Second, kWidth>::load(from_second + i);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) merged.set(j, x[j] + weight * (y[j] - x[j]));
      } else if (has_first) {
        const auto x = Pack<First, kWidth>::load(from_first + i);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) merged.set(j, x[j]);
      } else if (has_second) {
        const auto y = Pack<Second, kWidth>::load(from_second + i);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) merged.set(j, y[j]);
      } else {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) merged.set(j, 0.0f);
      }
      merged.store(to + i);
    }
  });
}

template <typename From, typename To, int kWidth>
__global__ void __launch_bounds__(kThreads)
    finish_kernel(int64_t tokens, int64_t heads, int size, HeadRows<const From> from, RowValues from_log_sum_exp,
                  HeadRows<To> output, RowValues log_sum_exp) {
  const bool in_place = static_cast<const void*>(from.data) == static_cast<const void*>(output.data);
  for_each_row(tokens, heads, [&](RowIndex index, int lane, bool is_live) {
    if (!is_live) return;
    const float value = *from_log_sum_exp.at(index.token, index.head);
    if (lane == 0 && from_log_sum_exp.data != log_sum_exp.data) *log_sum_exp.at(index.token, index.head) = value;
    if (in_place && !is_unseen(value)) return;
    const From* source = from.row(index.token, index.head);
    To* to = output.row(index.token, index.head);
    for (int i = lane * kWidth; i < size; i += kRowLanes * kWidth) {
      Pack<To, kWidth> result;
      if (is_unseen(value)) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) result.set(j, 0.0f);
      } else {
        const auto x = Pack<From, kWidth>::load(source + i);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) result.set(j, x[j]);
      }
      result.store(to + i);
    }
  });
}

__global__ void clear_kernel(RowValues values, int64_t tokens, int64_t heads) {
  const int64_t count = tokens * heads;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const int64_t token = i / heads;
    *values.at(token, i - token * heads) = -INFINITY;
  }
}

__global__ void copy_rows_kernel(RowValues from, RowValues to, int64_t tokens, int64_t heads) {
  const int64_t count = tokens * heads;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const int64_t token = i / heads;
    const int64_t head = i - token * heads;
    *to.at(token, head) = *from.at(token, head);
  }
}

// Tiles of 32 tokens x 32 heads go through shared memory, so that both sides are read and written along their rows.
constexpr int kTransposeTile = 32;
constexpr int kTransposeRows = 8;

template <bool kGather>
__global__ void rows_kernel(RowValues tokens, int64_t first_token, int64_t distance, int64_t length, int64_t heads,
                            float* dense) {
  __shared__ float tile[kTransposeTile][kTransposeTile + 1];
  const int64_t batch = blockIdx.z;
  const int64_t token_begin = static_cast<int64_t>(blockIdx.x) * kTransposeTile;
  const int64_t head_begin = static_cast<int64_t>(blockIdx.y) * kTransposeTile;
  const int64_t base = first_token + batch * distance;
  const int x = static_cast<int>(threadIdx.x);
  for (int y = static_cast<int>(threadIdx.y); y < kTransposeTile; y += kTransposeRows) {
    if constexpr (kGather) {
      const int64_t token = token_begin + y;
      const int64_t head = head_begin + x;
      if (token < length && head < heads) tile[y][x] = *tokens.at(base + token, head);
    } else {
      const int64_t token = token_begin + x;
      const int64_t head = head_begin + y;
      if (token < length && head < heads) tile[x][y] = dense[(batch * heads + head) * length + token];
    }
  }
  __syncthreads();
  for (int y = static_cast<int>(threadIdx.y); y < kTransposeTile; y += kTransposeRows) {
    if constexpr (kGather) {
      const int64_t token = token_begin + x;
      const int64_t head = head_begin + y;
      if (token < length && head < heads) dense[(batch * heads + head) * length + token] = tile[x][y];
    } else {
      const int64_t token = token_begin + y;
      const int64_t head = head_begin + x;
      if (token < length && head < heads) *tokens.at(base + token, head) = tile[y][x];
    }
  }
}

template <bool kGather>
void move_rows(const Tensor& tokens, int64_t first_token, int64_t distance, int64_t batch, int64_t length, float* dense,
               cudaStream_t stream) {
  constexpr int64_t kMostBatches = 65535;
  const int64_t heads = tokens.extent(1);
  for (int64_t begin = 0; begin < batch; begin += kMostBatches) {
    const dim3 grid(static_cast<unsigned>(divide_up(length, kTransposeTile)),
                    static_cast<unsigned>(divide_up(heads, kTransposeTile)),
                    static_cast<unsigned>(std::min(batch - begin, kMostBatches)));
    rows_kernel<kGather><<<grid, dim3(kTransposeTile, kTransposeRows), 0, stream>>>(
        row_values(tokens), first_token + begin * distance, distance, length, heads, dense + begin * heads * length);
    ITHACA_CUDA_CHECK_LAUNCH("rows_kernel");
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    copy_heads_kernel(int64_t tokens, int64_t heads, int size, HeadRows<const T> from, HeadRows<T> to) {
  for_each_row(tokens, heads, [&](RowIndex index, int lane, bool is_live) {
    if (!is_live) return;
    const T* source = from.row(index.token, index.head);
    T* target = to.row(index.token, index.head);
    for (int i = lane * kWidth; i < size; i += kRowLanes * kWidth) Pack<T, kWidth>::load(source + i).store(target + i);
  });
}

template <int kWidth, bool kOverwrites>
__global__ void __launch_bounds__(kThreads)
    add_gradient_kernel(int64_t tokens, int64_t heads, int size, HeadRows<const BFloat> from, HeadRows<float> to) {
  for_each_row(tokens, heads, [&](RowIndex index, int lane, bool is_live) {
    if (!is_live) return;
    const BFloat* source = from.row(index.token, index.head);
    float* target = to.row(index.token, index.head);
    for (int i = lane * kWidth; i < size; i += kRowLanes * kWidth) {
      const auto x = Pack<BFloat, kWidth>::load(source + i);
      Pack<float, kWidth> sum;
      if constexpr (!kOverwrites) sum = Pack<float, kWidth>::load(target + i);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum.set(j, kOverwrites ? x[j] : sum[j] + x[j]);
      sum.store(target + i);
    }
  });
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    round_gradient_kernel(int64_t tokens, int64_t heads, int size, HeadRows<const float> from, HeadRows<BFloat> to) {
  for_each_row(tokens, heads, [&](RowIndex index, int lane, bool is_live) {
    if (!is_live) return;
    const float* source = from.row(index.token, index.head);
    BFloat* target = to.row(index.token, index.head);
    for (int i = lane * kWidth; i < size; i += kRowLanes * kWidth) {
      const auto x = Pack<float, kWidth>::load(source + i);
      Pack<BFloat, kWidth> rounded;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) rounded.set(j, x[j]);
      rounded.store(target + i);
    }
  });
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    clear_gradient_kernel(int64_t tokens, int64_t heads, int size, HeadRows<T> to) {
  for_each_row(tokens, heads, [&](RowIndex index, int lane, bool is_live) {
    if (!is_live) return;
    T* target = to.row(index.token, index.head);
    Pack<T, kWidth> zeros;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) zeros.set(j, 0.0f);
    for (int i = lane * kWidth; i < size; i += kRowLanes * kWidth) zeros.store(target + i);
  });
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    output_gradient_sums_kernel(int64_t tokens, int64_t heads, int size, HeadRows<const T> output,
                                HeadRows<const T> doutput, float* sums) {
  for_each_row(tokens, heads, [&](RowIndex index, int lane, bool is_live) {
    float sum = 0.0f;
    if (is_live) {
      const T* first = output.row(index.token, index.head);
      const T* second = doutput.row(index.token, index.head);
      for (int i = lane * kWidth; i < size; i += kRowLanes * kWidth) {
        const auto x = Pack<T, kWidth>::load(first + i);
        const auto y = Pack<T, kWidth>::load(second + i);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sum += x[j] * y[j];
      }
    }
    __syncwarp();
#pragma unroll
    for (int offset = kRowLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
    if (is_live && lane == 0) sums[index.token * heads + index.head] = sum;
  });
}

// Calls function(integral constant): vectors of 8 elements where all tensors allow it, else one by one.
template <typename Function>
void with_width(std::initializer_list<const Tensor*> tensors, const Function& function) {
  const bool vectors =
      std::all_of(tensors.begin(), tensors.end(), [](const Tensor* tensor) { return rows_are_vectors(*tensor, 8); });
  if (vectors) {
    function(std::integral_constant<int, 8>{});
  } else {
    function(std::integral_constant<int, 1>{});
  }
}

}  // namespace

void upload_bytes(std::span<const std::byte> from, void* to, cudaStream_t stream) {
  constexpr size_t kChunk = kUploadWords * sizeof(uint64_t);
  for (size_t begin = 0; begin < from.size(); begin += kChunk) {
    const size_t bytes = std::min(kChunk, from.size() - begin);
    UploadWords words{};
    std::memcpy(words.words, from.data() + begin, bytes);
    const auto count = static_cast<int>((bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t));
    upload_kernel<<<1, 128, 0, stream>>>(words, reinterpret_cast<uint64_t*>(static_cast<std::byte*>(to) + begin),
                                         count);
    ITHACA_CUDA_CHECK_LAUNCH("upload_kernel");
  }
}

void write_ragged_arrays(std::span<const AttentionEntry> entries, int64_t batch, int64_t first_query, int64_t first_key,
                         const RaggedTokenStrides& strides, const RaggedArrayAddresses& arrays, cudaStream_t stream) {
  const auto total = static_cast<int64_t>(entries.size());
  for (int64_t first = 0; first < total; first += kEntriesPerLaunch) {
    const int64_t count = std::min(kEntriesPerLaunch, total - first);
    EntryChunk chunk{};
    std::copy_n(entries.begin() + first, count, chunk.entries);
    ragged_arrays_kernel<<<1, kThreads, 0, stream>>>(chunk, first, static_cast<int>(count), total, batch, first_query,
                                                     first_key, strides, arrays);
    ITHACA_CUDA_CHECK_LAUNCH("ragged_arrays_kernel");
  }
}

void merge_partials(const Tensor& first, const Tensor& first_log_sum_exp, const Tensor& second,
                    const Tensor& second_log_sum_exp, const Tensor& result, const Tensor& result_log_sum_exp,
                    cudaStream_t stream) {
  const int64_t tokens = result.extent(0);
  const int64_t heads = result.extent(1);
  if (tokens * heads == 0) return;
  with_float_type(first.dtype, [&](auto first_type) {
    with_float_type(second.dtype, [&](auto second_type) {
      with_float_type(result.dtype, [&](auto result_type) {
        with_width({&first, &second, &result}, [&](auto width) {
          using First = decltype(first_type);
          using Second = decltype(second_type);
          using Result = decltype(result_type);
          merge_kernel<First, Second, Result, decltype(width)::value>
              <<<blocks_for(tokens * heads, kRowsPerBlock), kThreads, 0, stream>>>(
                  tokens, heads, static_cast<int>(result.extent(2)), head_rows<const First>(first),
                  row_values(first_log_sum_exp), head_rows<const Second>(second), row_values(second_log_sum_exp),
                  head_rows<Result>(result), row_values(result_log_sum_exp));
          ITHACA_CUDA_CHECK_LAUNCH("merge_kernel");
        });
      });
    });
  });
}

void finish_partial(const Tensor& from, const Tensor& from_log_sum_exp, const Tensor& output, const Tensor& log_sum_exp,
                    cudaStream_t stream) {
  const int64_t tokens = output.extent(0);
  const int64_t heads = output.extent(1);
  if (tokens * heads == 0) return;
  with_float_type(from.dtype, [&](auto from_type) {
    with_float_type(output.dtype, [&](auto to_type) {
      with_width({&from, &output}, [&](auto width) {
        using From = decltype(from_type);
        using To = decltype(to_type);
        finish_kernel<From, To, decltype(width)::value>
            <<<blocks_for(tokens * heads, kRowsPerBlock), kThreads, 0, stream>>>(
                tokens, heads, static_cast<int>(output.extent(2)), head_rows<const From>(from),
                row_values(from_log_sum_exp), head_rows<To>(output), row_values(log_sum_exp));
        ITHACA_CUDA_CHECK_LAUNCH("finish_kernel");
      });
    });
  });
}

void clear_log_sum_exp(const Tensor& log_sum_exp, cudaStream_t stream) {
  const int64_t tokens = log_sum_exp.extent(0);
  const int64_t heads = log_sum_exp.extent(1);
  if (tokens * heads == 0) return;
  clear_kernel<<<blocks_for(tokens * heads, kThreads), kThreads, 0, stream>>>(row_values(log_sum_exp), tokens, heads);
  ITHACA_CUDA_CHECK_LAUNCH("clear_kernel");
}

void gather_rows(const Tensor& tokens, int64_t first_token, int64_t distance, int64_t batch, int64_t length,
                 float* dense, cudaStream_t stream) {
  move_rows<true>(tokens, first_token, distance, batch, length, dense, stream);
}

void scatter_rows(const float* dense, int64_t first_token, int64_t distance, int64_t batch, int64_t length,
                  const Tensor& tokens, cudaStream_t stream) {
  move_rows<false>(tokens, first_token, distance, batch, length, const_cast<float*>(dense), stream);
}

void copy_heads(const Tensor& from, const Tensor& to, cudaStream_t stream) {
  const int64_t tokens = to.extent(0);
  const int64_t heads = to.extent(1);
  if (tokens * heads == 0) return;
  with_float_type(from.dtype, [&](auto type) {
    with_width({&from, &to}, [&](auto width) {
      using T = decltype(type);
      copy_heads_kernel<T, decltype(width)::value><<<blocks_for(tokens * heads, kRowsPerBlock), kThreads, 0, stream>>>(
          tokens, heads, static_cast<int>(to.extent(2)), head_rows<const T>(from), head_rows<T>(to));
      ITHACA_CUDA_CHECK_LAUNCH("copy_heads_kernel");
    });
  });
}

void copy_rows(const Tensor& from, const Tensor& to, cudaStream_t stream) {
  const int64_t tokens = to.extent(0);
  const int64_t heads = to.extent(1);
  if (tokens * heads == 0) return;
  copy_rows_kernel<<<blocks_for(tokens * heads, kThreads), kThreads, 0, stream>>>(row_values(from), row_values(to),
                                                                                  tokens, heads);
  ITHACA_CUDA_CHECK_LAUNCH("copy_rows_kernel");
}

void place_gradient(const Tensor& from, const Tensor& to, bool overwrites, cudaStream_t stream) {
  if (to.dtype == DType::bfloat16) {
    require(overwrites, "attention: a bfloat16 gradient can only be overwritten");
    copy_heads(from, to, stream);
    return;
  }
  const int64_t tokens = to.extent(0);
  const int64_t heads = to.extent(1);
  if (tokens * heads == 0) return;
  with_width({&from, &to}, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const auto kernel = overwrites ? add_gradient_kernel<kWidth, true> : add_gradient_kernel<kWidth, false>;
    kernel<<<blocks_for(tokens * heads, kRowsPerBlock), kThreads, 0, stream>>>(
        tokens, heads, static_cast<int>(to.extent(2)), head_rows<const BFloat>(from), head_rows<float>(to));
    ITHACA_CUDA_CHECK_LAUNCH("add_gradient_kernel");
  });
}

void round_gradient(const Tensor& from, const Tensor& to, cudaStream_t stream) {
  const int64_t tokens = to.extent(0);
  const int64_t heads = to.extent(1);
  if (tokens * heads == 0) return;
  with_width({&from, &to}, [&](auto width) {
    round_gradient_kernel<decltype(width)::value><<<blocks_for(tokens * heads, kRowsPerBlock), kThreads, 0, stream>>>(
        tokens, heads, static_cast<int>(to.extent(2)), head_rows<const float>(from), head_rows<BFloat>(to));
    ITHACA_CUDA_CHECK_LAUNCH("round_gradient_kernel");
  });
}

void clear_gradient(const Tensor& to, cudaStream_t stream) {
  const int64_t tokens = to.extent(0);
  const int64_t heads = to.extent(1);
  if (tokens * heads == 0) return;
  with_float_type(to.dtype, [&](auto type) {
    using T = decltype(type);
    with_width({&to}, [&](auto width) {
      clear_gradient_kernel<T, decltype(width)::value>
          <<<blocks_for(tokens * heads, kRowsPerBlock), kThreads, 0, stream>>>(
              tokens, heads, static_cast<int>(to.extent(2)), head_rows<T>(to));
      ITHACA_CUDA_CHECK_LAUNCH("clear_gradient_kernel");
    });
  });
}

void output_gradient_sums(const Tensor& output, const Tensor& doutput, float* sums, cudaStream_t stream) {
  const int64_t tokens = output.extent(0);
  const int64_t heads = output.extent(1);
  if (tokens * heads == 0) return;
  with_float_type(output.dtype, [&](auto type) {
    with_width({&output, &doutput}, [&](auto width) {
      using T = decltype(type);
      output_gradient_sums_kernel<T, decltype(width)::value>
          <<<blocks_for(tokens * heads, kRowsPerBlock), kThreads, 0, stream>>>(
              tokens, heads, static_cast<int>(output.extent(2)), head_rows<const T>(output),
              head_rows<const T>(doutput), sums);
      ITHACA_CUDA_CHECK_LAUNCH("output_gradient_sums_kernel");
    });
  });
}

}  // namespace ithaca::cuda
