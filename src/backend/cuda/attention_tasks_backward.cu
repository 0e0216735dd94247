// Backward attention of any tasks (attention_kernels.h). With the final log-sum-exp L and delta = sum(dO * O) of every
// row, for every visible pair (Dao et al. 2022, appendix B)
//   P = exp(scale Q K^T - L),  dS = P * (dO V^T - delta) * scale,  dV = P^T dO,  dK = dS^T Q,  dQ = dS K.
// Two passes over the scores: one block owns 64 queries of a head for dQ, another 64 keys of a key head for dK and dV.
// So nothing is added by two blocks, and the order of additions is fixed.
#include <algorithm>
#include <cmath>

#include "backend/cuda/attention_mma.cuh"
#include "backend/cuda/attention_tasks.cuh"

namespace ithaca::cuda {
namespace {

template <typename T>
struct BackwardArguments {
  HeadsView<const T> query;
  HeadsView<const T> key;
  HeadsView<const T> value;
  HeadsView<const T> doutput;
  RowsView log_sum_exp;
  RowsView sums;
  HeadsView<float> dquery;
  HeadsView<float> dkey;
  HeadsView<float> dvalue;
  int64_t query_tokens;
  int64_t key_tokens;
  int64_t group;
  float scale;
  TaskTiles tiles;
};

// exp(score - log-sum-exp), 0 for a row that has seen no key.
__device__ float probability(float score, float log_sum_exp) {
  return log_sum_exp == -INFINITY ? 0.0f : expf(score - log_sum_exp);
}

// row of `to` += the thread's columns of `sums`.
template <int kGroups>
__device__ void add_to_row(const float (&sums)[4 * kGroups], int x, int size, float* to) {
#pragma unroll
  for (int c = 0; c < 4 * kGroups; ++c) {
    const int column = 64 * (c / 4) + 4 * x + c % 4;
    if (column < size) to[column] += sums[c];
  }
}

template <int kGroups>
constexpr int kQueryPassSharedBytes = static_cast<int>(sizeof(float)) *
                                      ((2 * kOuterTile + 2 * kInnerTile) * kTilePitch<kGroups> +
                                       kOuterTile * kScorePitch);

template <typename T, int kGroups>
__global__ void __launch_bounds__(kTaskThreads) query_gradient_kernel(const BackwardArguments<T> arguments) {
  extern __shared__ float4 shared[];
  float* query = reinterpret_cast<float*>(shared);
  float* doutput = query + kOuterTile * kTilePitch<kGroups>;
  float* key = doutput + kOuterTile * kTilePitch<kGroups>;
  float* value = key + kInnerTile * kTilePitch<kGroups>;
  float* dscores = value + kInnerTile * kTilePitch<kGroups>;
  const int y = static_cast<int>(threadIdx.x) / 16;
  const int x = static_cast<int>(threadIdx.x) % 16;
  const int64_t head = blockIdx.y;
  const int64_t key_head = head / arguments.group;
  const TaskTile tile = arguments.tiles.tiles[blockIdx.x];
  load_tile<kOuterTile, kGroups>(arguments.query, head, tile.begin, arguments.query_tokens, query);
  load_tile<kOuterTile, kGroups>(arguments.doutput, head, tile.begin, arguments.query_tokens, doutput);
  float log_sum_exp[4];
  float delta[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t row = tile.begin + 4 * y + i;
    const bool is_live = row < arguments.query_tokens;
    log_sum_exp[i] = is_live ? arguments.log_sum_exp.at(row, head) : -INFINITY;
    delta[i] = is_live ? arguments.sums.at(row, head) : 0.0f;
  }

  float sums[4][4 * kGroups] = {};
  for (int index = 0; index < tile.count; ++index) {
    const AttentionTask task = arguments.tiles.tasks[tile.first + index];
    const TaskPart part = part_of_queries(task, tile.begin);
    if (part.is_empty()) continue;
    for (int64_t begin = part.k_begin; begin < part.k_end; begin += kInnerTile) {
      __syncthreads();
      load_tile<kInnerTile, kGroups>(arguments.key, key_head, begin, part.k_end, key);
      load_tile<kInnerTile, kGroups>(arguments.value, key_head, begin, part.k_end, value);
      __syncthreads();
      float scores[4][2];
      float dprobabilities[4][2];
      inner_products<kGroups>(query, key, y, x, scores);
      inner_products<kGroups>(doutput, value, y, x, dprobabilities);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t row = tile.begin + 4 * y + i;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float dscore = 0.0f;
          if (is_visible(task, part, row, begin + x + 16 * j) && log_sum_exp[i] != -INFINITY) {
            const float p = probability(scores[i][j] * arguments.scale, log_sum_exp[i]);
            dscore = p * (dprobabilities[i][j] - delta[i]) * arguments.scale;
          }
          dscores[(4 * y + i) * kScorePitch + x + 16 * j] = dscore;
        }
      }
      __syncwarp();
      add_products<kGroups>(dscores, key, y, x, sums);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t row = tile.begin + 4 * y + i;
    if (row < arguments.query_tokens) {
      add_to_row<kGroups>(sums[i], x, arguments.dquery.size, arguments.dquery.row(row, head));
    }
  }
}

template <int kGroups>
constexpr int kKeyPassSharedBytes = static_cast<int>(sizeof(float)) *
                                    ((2 * kOuterTile + 2 * kInnerTile) * kTilePitch<kGroups> +
                                     2 * kOuterTile * kScorePitch + 2 * kInnerTile);

template <typename T, int kGroups>
__global__ void __launch_bounds__(kTaskThreads) key_gradient_kernel(const BackwardArguments<T> arguments) {
  extern __shared__ float4 shared[];
  float* key = reinterpret_cast<float*>(shared);
  float* value = key + kOuterTile * kTilePitch<kGroups>;
  float* query = value + kOuterTile * kTilePitch<kGroups>;
  float* doutput = query + kInnerTile * kTilePitch<kGroups>;
  float* probabilities = doutput + kInnerTile * kTilePitch<kGroups>;
  float* dscores = probabilities + kOuterTile * kScorePitch;
  float* log_sum_exp = dscores + kOuterTile * kScorePitch;
  float* delta = log_sum_exp + kInnerTile;
  const int thread = static_cast<int>(threadIdx.x);
  const int y = thread / 16;
  const int x = thread % 16;
  const int64_t key_head = blockIdx.y;
  const TaskTile tile = arguments.tiles.tiles[blockIdx.x];
  load_tile<kOuterTile, kGroups>(arguments.key, key_head, tile.begin, arguments.key_tokens, key);
  load_tile<kOuterTile, kGroups>(arguments.value, key_head, tile.begin, arguments.key_tokens, value);

  float key_sums[4][4 * kGroups] = {};
  float value_sums[4][4 * kGroups] = {};
  for (int64_t head = key_head * arguments.group; head < (key_head + 1) * arguments.group; ++head) {
    for (int index = 0; index < tile.count; ++index) {
      const AttentionTask task = arguments.tiles.tasks[tile.first + index];
      const TaskPart part = part_of_keys(task, tile.begin);
      if (part.is_empty()) continue;
      for (int64_t begin = part.q_begin; begin < part.q_end; begin += kInnerTile) {
        __syncthreads();
        load_tile<kInnerTile, kGroups>(arguments.query, head, begin, part.q_end, query);
        load_tile<kInnerTile, kGroups>(arguments.doutput, head, begin, part.q_end, doutput);
        if (thread < kInnerTile) {
          const bool is_live = begin + thread < part.q_end;
          log_sum_exp[thread] = is_live ? arguments.log_sum_exp.at(begin + thread, head) : -INFINITY;
          delta[thread] = is_live ? arguments.sums.at(begin + thread, head) : 0.0f;
        }
        __syncthreads();
        float scores[4][2];  // [key][query]
        float dprobabilities[4][2];
        inner_products<kGroups>(key, query, y, x, scores);
        inner_products<kGroups>(value, doutput, y, x, dprobabilities);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int64_t key_token = tile.begin + 4 * y + i;
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int row = x + 16 * j;
            float p = 0.0f;
            float dscore = 0.0f;
            if (is_visible(task, part, begin + row, key_token) && log_sum_exp[row] != -INFINITY) {
              p = probability(scores[i][j] * arguments.scale, log_sum_exp[row]);
              dscore = p * (dprobabilities[i][j] - delta[row]) * arguments.scale;
            }
            probabilities[(4 * y + i) * kScorePitch + row] = p;
            dscores[(4 * y + i) * kScorePitch + row] = dscore;
          }
        }
        __syncwarp();
        add_products<kGroups>(probabilities, doutput, y, x, value_sums);
        add_products<kGroups>(dscores, query, y, x, key_sums);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t token = tile.begin + 4 * y + i;
    if (token >= arguments.key_tokens) continue;
    add_to_row<kGroups>(key_sums[i], x, arguments.dkey.size, arguments.dkey.row(token, key_head));
    add_to_row<kGroups>(value_sums[i], x, arguments.dvalue.size, arguments.dvalue.row(token, key_head));
  }
}

}  // namespace

void task_attention_backward(const AttentionBackward& arguments, const TaskTiles& by_query, const TaskTiles& by_key,
                             const float* sums, cudaStream_t stream) {
  const int64_t query_heads = arguments.query.extent(1);
  const int64_t key_heads = arguments.key.extent(1);
  if (by_query.tile_count == 0 || query_heads == 0) return;
  if (mma_attention_backward(arguments, by_query, by_key, sums, stream)) return;
  with_float_type(arguments.query.dtype, [&](auto type) {
    using T = decltype(type);
    with_groups(std::max(arguments.query.extent(2), arguments.value.extent(2)), [&](auto groups) {
      constexpr int kGroups = decltype(groups)::value;
      BackwardArguments<T> call = {heads_view<const T>(arguments.query),
                                   heads_view<const T>(arguments.key),
                                   heads_view<const T>(arguments.value),
                                   heads_view<const T>(arguments.doutput),
                                   rows_view(arguments.log_sum_exp),
                                   {const_cast<float*>(sums), query_heads, 1},
                                   heads_view<float>(arguments.dquery),
                                   heads_view<float>(arguments.dkey),
                                   heads_view<float>(arguments.dvalue),
                                   arguments.query.extent(0),
                                   arguments.key.extent(0),
                                   query_heads / key_heads,
                                   arguments.scale,
                                   by_query};
      allow_shared_memory(query_gradient_kernel<T, kGroups>, kQueryPassSharedBytes<kGroups>);
      const dim3 query_grid(static_cast<unsigned>(by_query.tile_count), static_cast<unsigned>(query_heads));
      query_gradient_kernel<T, kGroups><<<query_grid, kTaskThreads, kQueryPassSharedBytes<kGroups>, stream>>>(call);
      ITHACA_CUDA_CHECK_LAUNCH("query_gradient_kernel");
      call.tiles = by_key;
      allow_shared_memory(key_gradient_kernel<T, kGroups>, kKeyPassSharedBytes<kGroups>);
      const dim3 key_grid(static_cast<unsigned>(by_key.tile_count), static_cast<unsigned>(key_heads));
      key_gradient_kernel<T, kGroups><<<key_grid, kTaskThreads, kKeyPassSharedBytes<kGroups>, stream>>>(call);
      ITHACA_CUDA_CHECK_LAUNCH("key_gradient_kernel");
    });
  });
}

}  // namespace ithaca::cuda
