// Forward attention of any tasks on the tensor cores, for bfloat16 heads of at most 256 elements: FlashAttention-2's
// loop (Dao 2023). One block for 64 queries of one or two heads of a key head, 16 queries for each warp; keys and
// values come 64 at a time, the next ones while these are multiplied.
#include <algorithm>
#include <cmath>

#include "backend/cuda/attention_mma.cuh"

namespace ithaca::cuda {
namespace {

struct ForwardArguments {
  HeadsView<const BFloat> query;
  HeadsView<const BFloat> key;
  HeadsView<const BFloat> value;
  HeadsView<BFloat> output;
  RowsView log_sum_exp;
  int64_t query_tokens;
  int64_t query_heads;
  int64_t group;  // query heads of one key head
  float scale;
  TaskTiles by_query;
};

// Over the 4 lanes that share a row of a fragment.
__device__ float largest_of_quad(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, 2));
}
__device__ float sum_of_quad(float value) {
  value += __shfl_xor_sync(0xFFFFFFFFu, value, 1);
  return value + __shfl_xor_sync(0xFFFFFFFFu, value, 2);
}

template <int kSize, int kHeads>
constexpr int kForwardBytes = (kHeads + 4) * kTileBytes<kSize>;

template <int kSize, int kHeads>
__global__ void __launch_bounds__(128 * kHeads, kSize > 128   ? 1
                                                : kHeads == 2 ? 2
                                                              : 3) forward_kernel(const ForwardArguments arguments) {
  constexpr int kThreads = 128 * kHeads;
  constexpr int kKeyBlocks = kMmaTile / 8;
  extern __shared__ uint4 shared[];
  const uint32_t query = shared_address(shared);
  const uint32_t keys = query + kHeads * kTileBytes<kSize>;
  const uint32_t values = keys + 2 * kTileBytes<kSize>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int slot = warp / 4;
  const int row = warp % 4 * 16;  // of the tile
  const BlockPlace place = last_tile_first(arguments.by_query.tile_count, arguments.query_heads / kHeads);
  const int64_t first_head = place.head * kHeads;
  const int64_t head = first_head + slot;
  const int64_t key_head = first_head / arguments.group;
  const TaskTile tile = arguments.by_query.tiles[place.tile];
  const int live_rows = to_tile(arguments.query_tokens - tile.begin);
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    copy_tile_async<kSize, kThreads>(arguments.query, first_head + i, tile.begin, live_rows,
                                     query + i * kTileBytes<kSize>);
  }
  const uint32_t own_query = query + slot * kTileBytes<kSize>;
  const auto copy_keys = [&](const TileStep& step, int stage) {
    copy_tile_async<kSize, kThreads>(arguments.key, key_head, step.begin, step.mask.column_end,
                                     keys + stage * kTileBytes<kSize>);
    copy_tile_async<kSize, kThreads>(arguments.value, key_head, step.begin, step.mask.column_end,
                                     values + stage * kTileBytes<kSize>);
  };

  float sums[kSize / 8][4] = {};
  float maximum[2] = {-INFINITY, -INFINITY};  // of rows g and g + 8, of scores before scaling
  float total[2] = {0.0f, 0.0f};              // this lane's part
  const float scale_2 = arguments.scale * kLog2E;
  KeyTileWalk walk(arguments.by_query, tile);
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
    if (step.mask.is_any_visible(row, 0, kMmaTile)) {
      float scores[kKeyBlocks][4];
      multiply_rows<kSize, kKeyBlocks>(own_query, row, keys + stage * kTileBytes<kSize>, 0, lane, scores);
      if (!step.mask.is_all_visible(row, 0, kMmaTile)) {
#pragma unroll
        for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const bool visible = step.mask.is_visible(row + lane / 4 + j / 2 * 8, 8 * n + 2 * (lane % 4) + j % 2);
            if (!visible) scores[n][j] = -INFINITY;
          }
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // The scale may be negative: the largest scaled score is what the exponent counts from.
        float largest = -INFINITY;
#pragma unroll
        for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
          for (int j = 2 * half; j < 2 * half + 2; ++j) {
            scores[n][j] = scores[n][j] == -INFINITY ? -INFINITY : scores[n][j] * scale_2;
            largest = fmaxf(largest, scores[n][j]);
          }
        }
        largest = fmaxf(maximum[half], largest_of_quad(largest));
        const float reference = largest == -INFINITY ? 0.0f : largest;  // no key yet: all weights are 0
        const float keep = exponential_2(maximum[half] - reference);
        maximum[half] = largest;
        total[half] *= keep;
#pragma unroll
        for (int n = 0; n < kSize / 8; ++n) {
          sums[n][2 * half] *= keep;
          sums[n][2 * half + 1] *= keep;
        }
#pragma unroll
        for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
          for (int j = 2 * half; j < 2 * half + 2; ++j) {
            scores[n][j] = exponential_2(scores[n][j] - reference);
            total[half] += scores[n][j];
          }
        }
      }
      add_weighted_rows<kSize, kKeyBlocks>(scores, values + stage * kTileBytes<kSize>, 0, lane, sums);
    }
    __syncthreads();  // the stage is free
    step = coming;
  }
  wait_for_copies<0>();

  // Through the warp's own rows of the query tile, so that whole chunks are written.
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    total[half] = sum_of_quad(total[half]);
    inverse[half] = total[half] == 0.0f ? 0.0f : 1.0f / total[half];
    const int64_t token = tile.begin + row + lane / 4 + 8 * half;
    if (lane % 4 == 0 && total[half] != 0.0f) {
      arguments.log_sum_exp.at(token, head) = (maximum[half] + log2f(total[half])) * kLn2;
    }
  }
  __syncwarp();
#pragma unroll
  for (int n = 0; n < kSize / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t pair = pack_pair(sums[n][2 * half] * inverse[half], sums[n][2 * half + 1] * inverse[half]);
      store_shared_4(own_query + chunk_offset<kSize>(row + lane / 4 + 8 * half, n) + 4 * (lane % 4), pair);
    }
  }
  // Bit r of the mask: row r of the warp has seen a key.
  uint32_t seen = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t votes = __ballot_sync(0xFFFFFFFFu, total[half] != 0.0f);
#pragma unroll
    for (int g = 0; g < 8; ++g) seen |= ((votes >> (4 * g)) & 1u) << (g + 8 * half);
  }
  __syncwarp();
  constexpr int kChunks = kSize / 8;
#pragma unroll
  for (int i = 0; i < 16 * kChunks; i += 32) {
    const int r = (i + lane) / kChunks;
    const int chunk = (i + lane) % kChunks;
    if (((seen >> r) & 1u) == 0 || chunk * 8 >= arguments.output.size) continue;
    const uint4 word = load_shared_16(own_query + chunk_offset<kSize>(row + r, chunk));
    *reinterpret_cast<uint4*>(arguments.output.row(tile.begin + row + r, head) + chunk * 8) = word;
  }
}

}  // namespace

bool mma_attention_forward(const AttentionForward& arguments, const TaskTiles& by_query, const Tensor& output,
                           const Tensor& log_sum_exp, cudaStream_t stream) {
  if (!is_mma_input(arguments.query) || !is_mma_input(arguments.key) || !is_mma_input(arguments.value) ||
      !is_mma_input(output)) {
    return false;
  }
  const int64_t query_heads = arguments.query.extent(1);
  const int64_t group = query_heads / arguments.key.extent(1);
  const int64_t size = std::max(arguments.query.extent(2), arguments.value.extent(2));
  with_mma_shape(size, group, [&](auto padded, auto heads) {
    constexpr int kSize = decltype(padded)::value;
    constexpr int kHeads = decltype(heads)::value;
    const ForwardArguments call = {heads_view<const BFloat>(arguments.query),
                                   heads_view<const BFloat>(arguments.key),
                                   heads_view<const BFloat>(arguments.value),
                                   heads_view<BFloat>(output),
                                   rows_view(log_sum_exp),
                                   arguments.query.extent(0),
                                   query_heads,
                                   group,
                                   arguments.scale,
                                   by_query};
    allow_shared_memory(forward_kernel<kSize, kHeads>, kForwardBytes<kSize, kHeads>);
    const auto grid = static_cast<unsigned>(by_query.tile_count * (query_heads / kHeads));
    forward_kernel<kSize, kHeads><<<grid, 128 * kHeads, kForwardBytes<kSize, kHeads>, stream>>>(call);
    ITHACA_CUDA_CHECK_LAUNCH("mma forward_kernel");
  });
  return true;
}

}  // namespace ithaca::cuda
