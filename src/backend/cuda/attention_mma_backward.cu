// Backward attention of any tasks on the tensor cores, for bfloat16 heads of at most 256 elements. The formulas and the
// two passes are those of attention_tasks_backward.cu: one block owns 64 queries (of one or two heads of a key head)
// for dQ, another 64 keys of a key head for dK and dV; P and dS are rounded to bfloat16 to be multiplied.
#include <algorithm>
#include <cmath>

#include "backend/cuda/attention_mma.cuh"

namespace ithaca::cuda {
namespace {

struct BackwardArguments {
  HeadsView<const BFloat> query;
  HeadsView<const BFloat> key;
  HeadsView<const BFloat> value;
  HeadsView<const BFloat> doutput;
  RowsView log_sum_exp;
  RowsView sums;
  HeadsView<float> dquery;
  HeadsView<float> dkey;
  HeadsView<float> dvalue;
  int64_t query_tokens;
  int64_t key_tokens;
  int64_t key_heads;
  int64_t group;
  float scale;
  TaskTiles tiles;
};

// Columns of scores at a time, in eights: half a tile, to keep registers for the sums.
constexpr int kBlocks = 4;

// Rows g and g + 8 of a warp's 16 += factor * sums. `rows`: how many of the 16 are there.
template <int kSize>
__device__ void add_to_rows(const float (&sums)[kSize / 8][4], float factor, const HeadsView<float>& to, int64_t token,
                            int64_t head, int rows, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = lane / 4 + 8 * half;
    if (r >= rows) continue;
    float* row = to.row(token + r, head);
    constexpr int kStep = 8;  // reads under way together
#pragma unroll
    for (int first = 0; first < kSize / 8; first += kStep) {
      float2 before[kStep];
#pragma unroll
      for (int n = 0; n < kStep; ++n) {
        const int column = 8 * (first + n) + 2 * (lane % 4);
        if (column < to.size) before[n] = *reinterpret_cast<const float2*>(row + column);
      }
#pragma unroll
      for (int n = 0; n < kStep; ++n) {
        const int column = 8 * (first + n) + 2 * (lane % 4);
        if (column >= to.size) continue;
        before[n].x += factor * sums[first + n][2 * half];
        before[n].y += factor * sums[first + n][2 * half + 1];
        *reinterpret_cast<float2*>(row + column) = before[n];
      }
    }
  }
}

template <int kSize, int kHeads>
constexpr int kQueryPassBytes = (2 * kHeads + 4) * kTileBytes<kSize>;

template <int kSize, int kHeads>
__global__ void __launch_bounds__(128 * kHeads, 1) query_gradient_kernel(const BackwardArguments arguments) {
  constexpr int kThreads = 128 * kHeads;
  extern __shared__ uint4 shared[];
  const uint32_t query = shared_address(shared);
  const uint32_t doutput = query + kHeads * kTileBytes<kSize>;
  const uint32_t keys = doutput + kHeads * kTileBytes<kSize>;
  const uint32_t values = keys + 2 * kTileBytes<kSize>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int slot = warp / 4;
  const int row = warp % 4 * 16;
  const BlockPlace place = last_tile_first(arguments.tiles.tile_count, arguments.key_heads * arguments.group / kHeads);
  const int64_t first_head = place.head * kHeads;
  const int64_t head = first_head + slot;
  const int64_t key_head = first_head / arguments.group;
  const TaskTile tile = arguments.tiles.tiles[place.tile];
  const int live_rows = to_tile(arguments.query_tokens - tile.begin);
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    copy_tile_async<kSize, kThreads>(arguments.query, first_head + i, tile.begin, live_rows,
                                     query + i * kTileBytes<kSize>);
    copy_tile_async<kSize, kThreads>(arguments.doutput, first_head + i, tile.begin, live_rows,
                                     doutput + i * kTileBytes<kSize>);
  }
  const uint32_t own_query = query + slot * kTileBytes<kSize>;
  const uint32_t own_doutput = doutput + slot * kTileBytes<kSize>;
  const auto copy_keys = [&](const TileStep& step, int stage) {
    copy_tile_async<kSize, kThreads>(arguments.key, key_head, step.begin, step.mask.column_end,
                                     keys + stage * kTileBytes<kSize>);
    copy_tile_async<kSize, kThreads>(arguments.value, key_head, step.begin, step.mask.column_end,
                                     values + stage * kTileBytes<kSize>);
  };
  float log_sum_exp_2[2];  // in units of log2(e), of rows g and g + 8; +inf for rows that have seen no key
  float delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = row + lane / 4 + 8 * half;
    const bool is_live = r < live_rows;
    const float value = is_live ? arguments.log_sum_exp.at(tile.begin + r, head) : -INFINITY;
    log_sum_exp_2[half] = value == -INFINITY ? INFINITY : value * kLog2E;
    delta[half] = is_live ? arguments.sums.at(tile.begin + r, head) : 0.0f;
  }

  float sums[kSize / 8][4] = {};
  const float scale_2 = arguments.scale * kLog2E;
  KeyTileWalk walk(arguments.tiles, tile);
  TileStep step;
  TileStep coming;
  bool more = walk.next(step);
  if (more) copy_keys(step, 0);
  commit_copies();
  for (int stage = 0; more; stage ^= 1) {
    more = walk.next(coming);
    if (more) copy_keys(coming, stage ^ 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    {
      const uint32_t key = keys + stage * kTileBytes<kSize>;
      const uint32_t value = values + stage * kTileBytes<kSize>;
#pragma unroll 1
      for (int first = 0; first < kMmaTile; first += 8 * kBlocks) {
        if (!step.mask.is_any_visible(row, first, first + 8 * kBlocks)) continue;
        const bool all_visible = step.mask.is_all_visible(row, first, first + 8 * kBlocks);
        float scores[kBlocks][4];
        float dscores[kBlocks][4];
        multiply_rows<kSize, kBlocks>(own_query, row, key, first, lane, scores);
        multiply_rows<kSize, kBlocks>(own_doutput, row, value, first, lane, dscores);
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const bool visible = (all_visible || step.mask.is_visible(row + lane / 4 + j / 2 * 8,
                                                                      first + 8 * n + 2 * (lane % 4) + j % 2)) &&
                                 log_sum_exp_2[j / 2] != INFINITY;
            const float p = exponential_2(scores[n][j] * scale_2 - log_sum_exp_2[j / 2]);
            dscores[n][j] = visible ? p * (dscores[n][j] - delta[j / 2]) : 0.0f;
          }
        }
        add_weighted_rows<kSize, kBlocks>(dscores, key, first, lane, sums);
      }
    }
    __syncthreads();
    step = coming;
  }
  wait_for_copies<0>();
  add_to_rows<kSize>(sums, arguments.scale, arguments.dquery, tile.begin + row, head, live_rows - row, lane);
}

// What a pass over key tiles makes: both, or one of them where registers do not hold both.
enum class KeyPass { both, dkey, dvalue };

// Keys, values, two stages of queries and output gradients, of log-sum-exps and row sums.
template <int kSize>
constexpr int kKeyPassBytes = 6 * kTileBytes<kSize> + 4 * kMmaTile* static_cast<int>(sizeof(float));

template <int kSize, KeyPass kPass>
__global__ void __launch_bounds__(128, kSize > 128 ? 1 : 2) key_gradient_kernel(const BackwardArguments arguments) {
  constexpr int kThreads = 128;
  extern __shared__ uint4 shared[];
  const uint32_t key = shared_address(shared);
  const uint32_t value = key + kTileBytes<kSize>;
  const uint32_t queries = value + kTileBytes<kSize>;
  const uint32_t doutputs = queries + 2 * kTileBytes<kSize>;
  float* const rows = reinterpret_cast<float*>(reinterpret_cast<char*>(shared) + 6 * kTileBytes<kSize>);
  const uint32_t rows_address = doutputs + 2 * kTileBytes<kSize>;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int row = thread / 32 * 16;
  const BlockPlace place = first_tile_first(arguments.key_heads);
  const int64_t key_head = place.head;
  const int64_t first_head = key_head * arguments.group;
  const TaskTile tile = arguments.tiles.tiles[place.tile];
  const int live_rows = to_tile(arguments.key_tokens - tile.begin);
  copy_tile_async<kSize, kThreads>(arguments.key, key_head, tile.begin, live_rows, key);
  copy_tile_async<kSize, kThreads>(arguments.value, key_head, tile.begin, live_rows, value);
  const auto copy_queries = [&](const TileStep& step, int64_t head, int stage) {
    copy_tile_async<kSize, kThreads>(arguments.query, head, step.begin, step.mask.column_end,
                                     queries + stage * kTileBytes<kSize>);
    copy_tile_async<kSize, kThreads>(arguments.doutput, head, step.begin, step.mask.column_end,
                                     doutputs + stage * kTileBytes<kSize>);
    // Threads 0 to 63 take the log-sum-exps, 64 to 127 the row sums.
    const int column = thread % kMmaTile;
    const bool is_live = column < step.mask.column_end;
    const RowsView& from = thread < kMmaTile ? arguments.log_sum_exp : arguments.sums;
    const float* source = is_live ? &from.at(step.begin + column, head) : from.data;
    copy_async_4(rows_address + static_cast<uint32_t>((stage * 2 * kMmaTile + thread) * sizeof(float)), source,
                 is_live);
  };

  constexpr bool kMakesKeys = kPass != KeyPass::dvalue;
  constexpr bool kMakesValues = kPass != KeyPass::dkey;
  float key_sums[kSize / 8][4] = {};
  float value_sums[kSize / 8][4] = {};
  const float scale_2 = arguments.scale * kLog2E;
  QueryTileWalk walk(arguments.tiles, tile, static_cast<int>(arguments.group));
  TileStep step;
  TileStep coming;
  int head = 0;
  bool more = walk.next(step, head);
  if (more) copy_queries(step, first_head + head, 0);
  commit_copies();
  for (int stage = 0; more; stage ^= 1) {
    more = walk.next(coming, head);
    if (more) copy_queries(coming, first_head + head, stage ^ 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const uint32_t query = queries + stage * kTileBytes<kSize>;
    const uint32_t doutput = doutputs + stage * kTileBytes<kSize>;
    const float* log_sum_exp = rows + stage * 2 * kMmaTile;
    const float* delta = log_sum_exp + kMmaTile;
#pragma unroll 1
    for (int first = 0; first < kMmaTile; first += 8 * kBlocks) {
      if (!step.mask.is_any_visible(row, first, first + 8 * kBlocks)) continue;
      const bool all_visible = step.mask.is_all_visible(row, first, first + 8 * kBlocks);
      float weights[kBlocks][4];  // [key][query]
      float dscores[kBlocks][4];
      multiply_rows<kSize, kBlocks>(key, row, query, first, lane, weights);
      if constexpr (kMakesKeys) multiply_rows<kSize, kBlocks>(value, row, doutput, first, lane, dscores);
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
        const int column = first + 8 * n + 2 * (lane % 4);
        const float2 of_rows = *reinterpret_cast<const float2*>(log_sum_exp + column);
        const float2 deltas = *reinterpret_cast<const float2*>(delta + column);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float row_value = j % 2 == 0 ? of_rows.x : of_rows.y;
          const bool visible = (all_visible || step.mask.is_visible(row + lane / 4 + j / 2 * 8, column + j % 2)) &&
                               row_value != -INFINITY;
          const float p = visible ? exponential_2(weights[n][j] * scale_2 - row_value * kLog2E) : 0.0f;
          weights[n][j] = p;
          if constexpr (kMakesKeys) {
            dscores[n][j] = visible ? p * (dscores[n][j] - (j % 2 == 0 ? deltas.x : deltas.y)) : 0.0f;
          }
        }
      }
      if constexpr (kMakesValues) add_weighted_rows<kSize, kBlocks>(weights, doutput, first, lane, value_sums);
      if constexpr (kMakesKeys) add_weighted_rows<kSize, kBlocks>(dscores, query, first, lane, key_sums);
    }
    __syncthreads();
    step = coming;
  }
  wait_for_copies<0>();
  if constexpr (kMakesKeys) {
    add_to_rows<kSize>(key_sums, arguments.scale, arguments.dkey, tile.begin + row, key_head, live_rows - row, lane);
  }
  if constexpr (kMakesValues) {
    add_to_rows<kSize>(value_sums, 1.0f, arguments.dvalue, tile.begin + row, key_head, live_rows - row, lane);
  }
}

}  // namespace

bool mma_attention_backward(const AttentionBackward& arguments, const TaskTiles& by_query, const TaskTiles& by_key,
                            const float* sums, cudaStream_t stream) {
  if (!is_mma_input(arguments.query) || !is_mma_input(arguments.key) || !is_mma_input(arguments.value) ||
      !is_mma_input(arguments.doutput) || !is_pair_output(arguments.dquery) || !is_pair_output(arguments.dkey) ||
      !is_pair_output(arguments.dvalue)) {
    return false;
  }
  const int64_t query_heads = arguments.query.extent(1);
  const int64_t key_heads = arguments.key.extent(1);
  const int64_t group = query_heads / key_heads;
  const int64_t size = std::max(arguments.query.extent(2), arguments.value.extent(2));
  with_mma_shape(size, group, [&](auto padded, auto heads) {
    constexpr int kSize = decltype(padded)::value;
    constexpr int kHeads = decltype(heads)::value;
    BackwardArguments call = {heads_view<const BFloat>(arguments.query),
                              heads_view<const BFloat>(arguments.key),
                              heads_view<const BFloat>(arguments.value),
                              heads_view<const BFloat>(arguments.doutput),
                              rows_view(arguments.log_sum_exp),
                              {const_cast<float*>(sums), query_heads, 1},
                              heads_view<float>(arguments.dquery),
                              heads_view<float>(arguments.dkey),
                              heads_view<float>(arguments.dvalue),
                              arguments.query.extent(0),
                              arguments.key.extent(0),
                              key_heads,
                              group,
                              arguments.scale,
                              by_query};
    allow_shared_memory(query_gradient_kernel<kSize, kHeads>, kQueryPassBytes<kSize, kHeads>);
    const auto query_grid = static_cast<unsigned>(by_query.tile_count * (query_heads / kHeads));
    query_gradient_kernel<kSize, kHeads><<<query_grid, 128 * kHeads, kQueryPassBytes<kSize, kHeads>, stream>>>(call);
    ITHACA_CUDA_CHECK_LAUNCH("mma query_gradient_kernel");
    call.tiles = by_key;
    const auto key_grid = static_cast<unsigned>(by_key.tile_count * key_heads);
    const auto key_pass = [&](auto kernel) {
      allow_shared_memory(kernel, kKeyPassBytes<kSize>);
      kernel<<<key_grid, 128, kKeyPassBytes<kSize>, stream>>>(call);
      ITHACA_CUDA_CHECK_LAUNCH("mma key_gradient_kernel");
    };
    if constexpr (kSize <= 128) {
      key_pass(key_gradient_kernel<kSize, KeyPass::both>);
    } else {
      key_pass(key_gradient_kernel<kSize, KeyPass::dvalue>);
      key_pass(key_gradient_kernel<kSize, KeyPass::dkey>);
    }
  });
  return true;
}

}  // namespace ithaca::cuda
