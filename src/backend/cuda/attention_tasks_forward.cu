// Forward attention of any tasks (attention_kernels.h): a running softmax over 32 keys at a time (Milakov & Gimelshein
// 2018), one block for 64 queries of one head.
#include <algorithm>
#include <cmath>

#include "backend/cuda/attention_mma.cuh"
#include "backend/cuda/attention_tasks.cuh"

namespace ithaca::cuda {
namespace {

template <typename T>
struct ForwardArguments {
  HeadsView<const T> query;
  HeadsView<const T> key;
  HeadsView<const T> value;
  HeadsView<T> output;
  RowsView log_sum_exp;
  int64_t query_tokens;
  int64_t group;  // query heads of one key head
  float scale;
  TaskTiles by_query;
};

// Largest and sum over the 16 threads that have the same rows.
__device__ float largest_of_row(float value) {
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, offset));
  return value;
}
__device__ float sum_of_row(float value) {
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, offset);
  return value;
}

template <int kGroups>
constexpr int kForwardSharedBytes = static_cast<int>(sizeof(float)) *
                                    ((kOuterTile + 2 * kInnerTile) * kTilePitch<kGroups> + kOuterTile * kScorePitch);

template <typename T, int kGroups>
__global__ void __launch_bounds__(kTaskThreads) forward_kernel(const ForwardArguments<T> arguments) {
  extern __shared__ float4 shared[];
  float* query = reinterpret_cast<float*>(shared);
  float* key = query + kOuterTile * kTilePitch<kGroups>;
  float* value = key + kInnerTile * kTilePitch<kGroups>;
  float* weights = value + kInnerTile * kTilePitch<kGroups>;
  const int y = static_cast<int>(threadIdx.x) / 16;
  const int x = static_cast<int>(threadIdx.x) % 16;
  const int64_t head = blockIdx.y;
  const int64_t key_head = head / arguments.group;
  const TaskTile tile = arguments.by_query.tiles[blockIdx.x];
  load_tile<kOuterTile, kGroups>(arguments.query, head, tile.begin, arguments.query_tokens, query);

  float sums[4][4 * kGroups] = {};
  float maximum[4];
  float sum[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    maximum[i] = -INFINITY;
    sum[i] = 0.0f;
  }
  for (int index = 0; index < tile.count; ++index) {
    const AttentionTask task = arguments.by_query.tasks[tile.first + index];
    const TaskPart part = part_of_queries(task, tile.begin);
    if (part.is_empty()) continue;
    for (int64_t begin = part.k_begin; begin < part.k_end; begin += kInnerTile) {
      __syncthreads();  // the previous keys and values have been used
      load_tile<kInnerTile, kGroups>(arguments.key, key_head, begin, part.k_end, key);
      load_tile<kInnerTile, kGroups>(arguments.value, key_head, begin, part.k_end, value);
      __syncthreads();
      float scores[4][2];
      inner_products<kGroups>(query, key, y, x, scores);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t row = tile.begin + 4 * y + i;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const bool visible = is_visible(task, part, row, begin + x + 16 * j);
          scores[i][j] = visible ? scores[i][j] * arguments.scale : -INFINITY;
        }
        const float largest = fmaxf(maximum[i], largest_of_row(fmaxf(scores[i][0], scores[i][1])));
        const float reference = largest == -INFINITY ? 0.0f : largest;  // no key yet: all weights are 0
        const float keep = expf(maximum[i] - reference);
        const float first = expf(scores[i][0] - reference);
        const float second = expf(scores[i][1] - reference);
        maximum[i] = largest;
        sum[i] = sum[i] * keep + sum_of_row(first + second);
        weights[(4 * y + i) * kScorePitch + x] = first;
        weights[(4 * y + i) * kScorePitch + x + 16] = second;
#pragma unroll
        for (int c = 0; c < 4 * kGroups; ++c) sums[i][c] *= keep;
      }
      __syncwarp();  // the 16 threads of a row are in one warp
      add_products<kGroups>(weights, value, y, x, sums);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t row = tile.begin + 4 * y + i;
    if (row >= arguments.query_tokens || sum[i] == 0.0f) continue;
    T* output = arguments.output.row(row, head);
#pragma unroll
    for (int c = 0; c < 4 * kGroups; ++c) {
      const int column = 64 * (c / 4) + 4 * x + c % 4;
      if (column < arguments.output.size) output[column] = from_float<T>(sums[i][c] / sum[i]);
    }
    if (x == 0) arguments.log_sum_exp.at(row, head) = maximum[i] + logf(sum[i]);
  }
}

}  // namespace

void task_attention_forward(const AttentionForward& arguments, const TaskTiles& by_query, const Tensor& output,
                            const Tensor& log_sum_exp, cudaStream_t stream) {
  const int64_t query_heads = arguments.query.extent(1);
  if (by_query.tile_count == 0 || query_heads == 0) return;
  if (mma_attention_forward(arguments, by_query, output, log_sum_exp, stream)) return;
  with_float_type(arguments.query.dtype, [&](auto type) {
    using T = decltype(type);
    with_groups(std::max(arguments.query.extent(2), arguments.value.extent(2)), [&](auto groups) {
      constexpr int kGroups = decltype(groups)::value;
      const ForwardArguments<T> call = {heads_view<const T>(arguments.query),
                                        heads_view<const T>(arguments.key),
                                        heads_view<const T>(arguments.value),
                                        heads_view<T>(output),
                                        rows_view(log_sum_exp),
                                        arguments.query.extent(0),
                                        query_heads / arguments.key.extent(1),
                                        arguments.scale,
                                        by_query};
      allow_shared_memory(forward_kernel<T, kGroups>, kForwardSharedBytes<kGroups>);
      const dim3 grid(static_cast<unsigned>(by_query.tile_count), static_cast<unsigned>(query_heads));
      forward_kernel<T, kGroups><<<grid, kTaskThreads, kForwardSharedBytes<kGroups>, stream>>>(call);
      ITHACA_CUDA_CHECK_LAUNCH("task attention forward_kernel");
    });
  });
}

}  // namespace ithaca::cuda
