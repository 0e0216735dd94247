// Backward attention of short documents on the tensor cores: lists of tasks that share neither queries nor keys.
//
// A block takes a document and a key head at a time, from a queue, the largest first. For every 64 keys it goes through
// the 64-query tiles that see them, of all query heads of the group: five products for each (scores, dO V^T, dV, dK,
// dQ). dK and dV stay in registers; a dQ that more than 64 keys contribute to waits in memory of the block's own, where
// each thread finds what it has left. So nothing is added by two blocks, and the bits are always the same.
//
// Four warps, two by two over every 64 x 64 tile of scores and every 64 x kSize tile of gradients. P and dS go through
// shared memory, where dV and dK find them transposed.
#include <algorithm>
#include <cmath>

#include "backend/cuda/attention_mma.cuh"

namespace ithaca::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTileThirtyTwo = 32;  // rows and columns of scores of one warp

struct DocumentArguments {
  HeadsView<const BFloat> query;
  HeadsView<const BFloat> key;
  HeadsView<const BFloat> value;
  HeadsView<const BFloat> output;
  HeadsView<const BFloat> doutput;
  RowsView log_sum_exp;
  RowsView sums;  // workspace: dO . O of every row
  const AttentionTask* tasks;
  int64_t task_count;
  int64_t key_heads;
  int group;  // query heads of one key head
  float scale;
  int* next;              // the queue: items taken so far
  float4* waiting;        // dQ of one block: [query head of the group][query tile][vector][thread]
  int64_t waiting_tiles;  // query tiles of the longest document
};

// How a gradient is written: over what is there, or added to it (float32).
template <typename D>
struct GradientView {
  HeadsView<D> to;
  bool adds;

  __device__ void write(D* at, float first, float second) const {
    if constexpr (std::is_same_v<D, BFloat>) {
      *reinterpret_cast<uint32_t*>(at) = pack_pair(first, second);
    } else {
      float2 pair = {first, second};
      if (adds) {
        const float2 before = *reinterpret_cast<const float2*>(at);
        pair.x += before.x;
        pair.y += before.y;
      }
      *reinterpret_cast<float2*>(at) = pair;
    }
  }

  // A warp's 32 rows (of which `rows` are there) and kSize / 2 columns from `column` on.
  template <int kBlocks>
  __device__ void write_tile(const float (&sums)[2][kBlocks][4], float factor, int64_t token, int64_t head, int rows,
                             int column, int lane) const {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = 16 * m + 8 * half + lane / 4;
        if (r >= rows) continue;
        D* row = to.row(token + r, head);
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
          const int c = column + 8 * n + 2 * (lane % 4);
          if (c < to.size) write(row + c, factor * sums[m][n][2 * half], factor * sums[m][n][2 * half + 1]);
        }
      }
    }
  }
};

template <int kBlocks>
__device__ void clear(float (&sums)[2][kBlocks][4]) {
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[m][n][j] = 0.0f;
    }
  }
}

// Two blocks of 16 rows += a * b for 16 columns.
template <int kBlocks>
__device__ void multiply_add_pair(float (&sums)[2][kBlocks][4], int n, const Fragment& first, const Fragment& second,
                                  const Fragment& b) {
  multiply_add(sums[0][n], first, b.registers[0], b.registers[1]);
  multiply_add(sums[0][n + 1], first, b.registers[2], b.registers[3]);
  multiply_add(sums[1][n], second, b.registers[0], b.registers[1]);
  multiply_add(sums[1][n + 1], second, b.registers[2], b.registers[3]);
}

// A lane's part of the addresses of rows_by_columns and columns_by_rows in tiles that begin at multiples of 256 bytes:
// the rows' part is added and the (even) chunk's is an exclusive or, so that one register serves a whole tile.
template <int kSize>
struct LaneOffsets {
  uint32_t by_columns;  // of rows_by_columns
  uint32_t by_rows;     // of columns_by_rows

  __device__ explicit LaneOffsets(int lane)
      : by_columns(chunk_offset<kSize>(lane % 16, lane / 16)),
        by_rows(chunk_offset<kSize>((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1)) {}

  // Keeps the compiler from computing all addresses once and for all: there are more of them than registers.
  __device__ void forget() { asm volatile("" : "+r"(by_columns), "+r"(by_rows)); }

  __device__ uint32_t rows_by_columns(uint32_t tile, int row, int chunk) const {
    return (tile + by_columns + static_cast<uint32_t>(row * kSize * 2)) ^ static_cast<uint32_t>(chunk << 4);
  }
  __device__ uint32_t columns_by_rows(uint32_t tile, int row, int chunk) const {
    return (tile + by_rows + static_cast<uint32_t>(row * kSize * 2)) ^ static_cast<uint32_t>(chunk << 4);
  }
};

// products (32 x 32) += rows of `left` * rows of `right`, transposed.
template <int kSize>
__device__ void multiply_tiles(uint32_t left, int left_row, uint32_t right, int right_row, const LaneOffsets<kSize>& at,
                               float (&products)[2][4][4]) {
#pragma unroll
  for (int k = 0; k < kSize / 16; ++k) {
    const Fragment first = load_matrices(at.rows_by_columns(left, left_row, 2 * k));
    const Fragment second = load_matrices(at.rows_by_columns(left, left_row + 16, 2 * k));
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      const Fragment b = load_matrices(at.columns_by_rows(right, right_row + 8 * n, 2 * k));
      multiply_add_pair(products, n, first, second, b);
    }
  }
}

// copy_tile_async() with few registers. `thread` may be hidden from the compiler, like LaneOffsets.
template <int kSize>
__device__ void copy_document_tile(const HeadsView<const BFloat>& from, int64_t head, int64_t begin, int live_rows,
                                   uint32_t tile, int thread) {
  constexpr int kChunks = kSize / 8;
  constexpr int kRows = kThreads / kChunks;  // at a time: a multiple of 8, so that chunks keep their places
  const int chunk = thread % kChunks;
  const int row = thread / kChunks;
  const BFloat* source = from.row(begin + row, head) + chunk * 8;
  const uint32_t target = tile + chunk_offset<kSize>(row, chunk);
  const int live = chunk * 8 < from.size ? live_rows : 0;
#pragma unroll
  for (int i = 0; i < kMmaTile; i += kRows) {
    copy_async_16(target + static_cast<uint32_t>(i * kSize * 2), row + i < live ? source : from.data, row + i < live);
    source += kRows * from.token_stride;
  }
}

// What of a tile of scores is visible, by quarters of 32 x 32. Row r and column c: lower < c - r <= upper.
struct DocumentMask {
  int rows;  // that are there
  int columns;
  int lower;
  int upper;

  __device__ bool is_visible(int row, int column) const {
    return column < columns && column - row > lower && column - row <= upper;
  }
  __device__ bool is_any_visible(int row_half, int column_half) const {
    const int row = kTileThirtyTwo * row_half;
    const int last_row = min(row + kTileThirtyTwo, rows) - 1;
    const int column = kTileThirtyTwo * column_half;
    const int last_column = min(column + kTileThirtyTwo, columns) - 1;
    return row <= last_row && column <= last_column && last_column - row > lower && column - last_row <= upper;
  }
  __device__ bool is_all_visible(int row_half, int column_half) const {
    const int row = kTileThirtyTwo * row_half;
    const int column = kTileThirtyTwo * column_half;
    return column + kTileThirtyTwo <= columns && column - (row + kTileThirtyTwo - 1) > lower &&
           column + kTileThirtyTwo - 1 - row <= upper;
  }
};

// What a block is at, in shared memory, where it costs no registers.
struct Document {
  int64_t q_begin;
  int64_t k_begin;
  int query_count;
  int key_count;
  int lower;
  int upper;
  int key_head;
  int first_head;  // of the group
  bool is_there;   // the queue was not empty

  __device__ void take(const DocumentArguments& arguments) {
    const int64_t item = atomicAdd(arguments.next, 1);
    is_there = item < arguments.task_count * arguments.key_heads;
    if (!is_there) return;
    const AttentionTask task = arguments.tasks[item / arguments.key_heads];
    q_begin = task.q_begin;
    k_begin = task.k_begin;
    query_count = static_cast<int>(task.q_end - task.q_begin);
    key_count = static_cast<int>(task.k_end - task.k_begin);
    lower = static_cast<int>(task.lower);
    upper = static_cast<int>(task.upper);
    key_head = static_cast<int>(item % arguments.key_heads);
    first_head = key_head * arguments.group;
  }
};

// sums = dO . O of the document's rows; half a warp for each, four under way together.
__device__ void sum_rows(const DocumentArguments& arguments, const Document& document) {
  constexpr int kTogether = 4;
  constexpr int kStep = kThreads / 16;
  const int lane = static_cast<int>(threadIdx.x) % 16;
  const int rows = document.query_count * arguments.group;
  const bool has_elements = lane * 8 < arguments.output.size;
  // All lanes of a warp take part in its shuffles.
  for (int begin = 0; begin < rows; begin += kTogether * kStep) {
    Pack<BFloat, 8> output[kTogether];
    Pack<BFloat, 8> doutput[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int row = begin + i * kStep + static_cast<int>(threadIdx.x) / 16;
      if (row >= rows || !has_elements) continue;
      const int64_t token = document.q_begin + row / arguments.group;
      const int64_t head = document.first_head + row % arguments.group;
      output[i] = Pack<BFloat, 8>::load(arguments.output.row(token, head) + lane * 8);
      doutput[i] = Pack<BFloat, 8>::load(arguments.doutput.row(token, head) + lane * 8);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int row = begin + i * kStep + static_cast<int>(threadIdx.x) / 16;
      float sum = 0.0f;
      if (row < rows && has_elements) {
#pragma unroll
        for (int j = 0; j < 8; ++j) sum += output[i][j] * doutput[i][j];
      }
#pragma unroll
      for (int distance = 8; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
      if (row < rows && lane == 0) {
        arguments.sums.at(document.q_begin + row / arguments.group, document.first_head + row % arguments.group) = sum;
      }
    }
  }
}

constexpr int kScoreBytes = kMmaTile * kMmaTile * 2;
// Keys, values, two stages of queries and output gradients; P and dS.
template <int kSize>
constexpr int kDocumentBytes = 6 * kTileBytes<kSize> + 2 * kScoreBytes + 255;

template <int kSize, typename D>
__global__ void __launch_bounds__(kThreads, 2)
    document_gradient_kernel(const DocumentArguments arguments, const GradientView<D> dquery,
                             const GradientView<D> dkey, const GradientView<D> dvalue) {
  constexpr int kBlocks = kSize / 16;  // of 8 columns: half of a head for each warp
  extern __shared__ uint4 shared[];
  __shared__ Document document;
  const uint32_t key = (shared_address(shared) + 255) / 256 * 256;
  const uint32_t value = key + kTileBytes<kSize>;
  const uint32_t queries = value + kTileBytes<kSize>;
  const uint32_t doutputs = queries + 2 * kTileBytes<kSize>;
  const uint32_t weights = doutputs + 2 * kTileBytes<kSize>;
  const uint32_t dscores = weights + kScoreBytes;
  const int thread = static_cast<int>(threadIdx.x);
  int lane = thread % 32;
  const int row_half = thread / 32 % 2;
  const int column_half = thread / 64;
  const int row = kTileThirtyTwo * row_half;
  const int column = kTileThirtyTwo * column_half;
  LaneOffsets<kSize> at(lane);
  LaneOffsets<kMmaTile> at_scores(lane);
  // Where the lane puts the first pair of its first row of a tile of scores.
  uint32_t score_offset = chunk_offset<kMmaTile>(row + lane / 4, column / 8) + 4 * (lane % 4);
  const int group = arguments.group;
  const float scale_2 = arguments.scale * kLog2E;
  float4* const waiting =
      arguments.waiting + blockIdx.x * (arguments.waiting_tiles * group * (kMmaTile * kSize / 4)) + thread;

  for (;;) {
    __syncthreads();  // everybody is done with the document before
    if (thread == 0) document.take(arguments);
    __syncthreads();
    if (!document.is_there) break;
    sum_rows(arguments, document);
    __syncthreads();  // the sums are there

    for (int key_begin = 0; key_begin < document.key_count; key_begin += kMmaTile) {
      const int key_rows = min(document.key_count - key_begin, kMmaTile);
      // Query tiles with a row that sees one of these keys.
      const int first_tile = max(0, key_begin - document.upper) / kMmaTile;
      const int end_tile = (min(document.query_count, key_begin + key_rows - 1 - document.lower) - 1) / kMmaTile + 1;
      const int tiles = end_tile - first_tile;
      const int steps = tiles * group;
      int copy_thread = thread;
      const auto copy_queries = [&](int step, int stage) {
        const int64_t head = document.first_head + step / tiles;
        const int begin = (first_tile + step % tiles) * kMmaTile;
        copy_document_tile<kSize>(arguments.query, head, document.q_begin + begin, document.query_count - begin,
                                  queries + stage * kTileBytes<kSize>, copy_thread);
        copy_document_tile<kSize>(arguments.doutput, head, document.q_begin + begin, document.query_count - begin,
                                  doutputs + stage * kTileBytes<kSize>, copy_thread);
      };
      copy_document_tile<kSize>(arguments.key, document.key_head, document.k_begin + key_begin, key_rows, key,
                                copy_thread);
      copy_document_tile<kSize>(arguments.value, document.key_head, document.k_begin + key_begin, key_rows, value,
                                copy_thread);
      if (steps > 0) copy_queries(0, 0);
      commit_copies();
      float key_sums[2][kBlocks][4];
      float value_sums[2][kBlocks][4];
      clear(key_sums);
      clear(value_sums);
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        at.forget();
        at_scores.forget();
        asm volatile("" : "+r"(copy_thread), "+r"(lane), "+r"(score_offset));
        const int stage = step % 2;
        const int query_head = step / tiles;
        const int64_t head = document.first_head + query_head;
        const int query_tile = first_tile + step % tiles;
        const int query_begin = query_tile * kMmaTile;
        const uint32_t query = queries + stage * kTileBytes<kSize>;
        const uint32_t doutput = doutputs + stage * kTileBytes<kSize>;
        const int shift = key_begin - query_begin;
        const DocumentMask mask = {document.query_count - query_begin, key_rows, document.lower - shift,
                                   document.upper - shift};
        // In units of log2(e), of the lane's four rows; +inf for rows that are not there or have seen no key.
        float log_sum_exp_2[4];
        float delta[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = row + 8 * i + lane / 4;
          const bool is_live = r < mask.rows;
          const int64_t token = document.q_begin + query_begin + r;
          const float number = is_live ? arguments.log_sum_exp.at(token, head) : -INFINITY;
          log_sum_exp_2[i] = number == -INFINITY ? INFINITY : number * kLog2E;
          delta[i] = is_live ? arguments.sums.at(token, head) : 0.0f;
        }
        wait_for_copies<0>();
        __syncthreads();

        // P first, rounded as it is multiplied, then dS = P (dO V^T - delta): one tile in registers at a time.
        const bool any_visible = mask.is_any_visible(row_half, column_half);
        const bool all_visible = mask.is_all_visible(row_half, column_half);
        const auto place_of = [&](int m, int half, int n) {
          return (score_offset ^ static_cast<uint32_t>(n << 4)) + (16 * m + 8 * half) * (kMmaTile * 2);
        };
        uint32_t probabilities[2][4][2];
        {
          float scores[2][4][4];
          clear(scores);
          if (any_visible) multiply_tiles<kSize>(query, row, key, column, at, scores);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int n = 0; n < 4; ++n) {
#pragma unroll
              for (int j = 0; j < 4; ++j) {
                const int i = 2 * m + j / 2;
                const bool visible =
                    all_visible ||
                    (any_visible && mask.is_visible(row + 8 * i + lane / 4, column + 8 * n + 2 * (lane % 4) + j % 2));
                scores[m][n][j] = visible ? exponential_2(scores[m][n][j] * scale_2 - log_sum_exp_2[i]) : 0.0f;
              }
#pragma unroll
              for (int half = 0; half < 2; ++half) {
                probabilities[m][n][half] = pack_pair(scores[m][n][2 * half], scores[m][n][2 * half + 1]);
                store_shared_4(weights + place_of(m, half, n), probabilities[m][n][half]);
              }
            }
          }
        }
        {
          float products[2][4][4];
#pragma unroll
          for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int n = 0; n < 4; ++n) {
#pragma unroll
              for (int j = 0; j < 4; ++j) products[m][n][j] = -delta[2 * m + j / 2];
            }
          }
          if (any_visible) multiply_tiles<kSize>(doutput, row, value, column, at, products);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int n = 0; n < 4; ++n) {
#pragma unroll
              for (int half = 0; half < 2; ++half) {
                const uint32_t pair = probabilities[m][n][half];
                const float first = __uint_as_float(pair << 16) * products[m][n][2 * half];
                const float second = __uint_as_float(pair & 0xFFFF0000u) * products[m][n][2 * half + 1];
                store_shared_4(dscores + place_of(m, half, n), pack_pair(first, second));
              }
            }
          }
        }
        __syncthreads();  // and everybody is done with the step before
        if (step + 1 < steps) copy_queries(step + 1, stage ^ 1);
        commit_copies();

        // dV += P^T dO and dK += dS^T Q: rows are keys now, the warp's from `row` on.
#pragma unroll
        for (int k = 0; k < kMmaTile / 16; ++k) {
          if (!mask.is_any_visible(k / 2, row_half)) continue;
          const Fragment weights_first = load_matrices_transposed(at_scores.columns_by_rows(weights, 16 * k, row / 8));
          const Fragment weights_second =
              load_matrices_transposed(at_scores.columns_by_rows(weights, 16 * k, row / 8 + 2));
          const Fragment dscores_first = load_matrices_transposed(at_scores.columns_by_rows(dscores, 16 * k, row / 8));
          const Fragment dscores_second =
              load_matrices_transposed(at_scores.columns_by_rows(dscores, 16 * k, row / 8 + 2));
#pragma unroll
          for (int n = 0; n < kBlocks; n += 2) {
            const int chunk = column_half * kBlocks + n;
            const Fragment b = load_matrices_transposed(at.rows_by_columns(doutput, 16 * k, chunk));
            multiply_add_pair(value_sums, n, weights_first, weights_second, b);
            const Fragment c = load_matrices_transposed(at.rows_by_columns(query, 16 * k, chunk));
            multiply_add_pair(key_sums, n, dscores_first, dscores_second, c);
          }
        }

        // dQ = dS K, on top of what the keys before have left.
        const int last_row = min(document.query_count, query_begin + kMmaTile) - 1;
        const bool is_first = max(0, query_begin + document.lower + 1) / kMmaTile * kMmaTile == key_begin;
        const bool is_last = min(document.key_count - 1, last_row + document.upper) / kMmaTile * kMmaTile == key_begin;
        float4* const place = waiting + (static_cast<int64_t>(query_head) * arguments.waiting_tiles + query_tile) *
                                            (kMmaTile * kSize / 4);
#pragma unroll 1
        for (int part = 0; part < 2; ++part) {  // half of the warp's columns at a time
          constexpr int kPart = kBlocks / 2;
          const int chunk = column_half * kBlocks + part * kPart;
          float4* const own = place + part * (2 * kPart * kThreads);
          float query_sums[2][kPart][4];
          if (is_first) {
            clear(query_sums);
          } else {
#pragma unroll
            for (int m = 0; m < 2; ++m) {
#pragma unroll
              for (int n = 0; n < kPart; ++n) {
                const float4 before = own[(m * kPart + n) * kThreads];
                query_sums[m][n][0] = before.x;
                query_sums[m][n][1] = before.y;
                query_sums[m][n][2] = before.z;
                query_sums[m][n][3] = before.w;
              }
            }
          }
#pragma unroll
          for (int k = 0; k < kMmaTile / 16; ++k) {
            if (!mask.is_any_visible(row_half, k / 2)) continue;
            const Fragment first = load_matrices(at_scores.rows_by_columns(dscores, row, 2 * k));
            const Fragment second = load_matrices(at_scores.rows_by_columns(dscores, row + 16, 2 * k));
#pragma unroll
            for (int n = 0; n < kPart; n += 2) {
              const Fragment b = load_matrices_transposed(at.rows_by_columns(key, 16 * k, chunk + n));
              multiply_add_pair(query_sums, n, first, second, b);
            }
          }
          if (is_last) {
            dquery.write_tile(query_sums, arguments.scale, document.q_begin + query_begin + row, head, mask.rows - row,
                              chunk * 8, lane);
          } else {
#pragma unroll
            for (int m = 0; m < 2; ++m) {
#pragma unroll
              for (int n = 0; n < kPart; ++n) {
                own[(m * kPart + n) * kThreads] = {query_sums[m][n][0], query_sums[m][n][1], query_sums[m][n][2],
                                                   query_sums[m][n][3]};
              }
            }
          }
        }
      }
      const int64_t token = document.k_begin + key_begin + row;
      dkey.write_tile(key_sums, arguments.scale, token, document.key_head, key_rows - row, column_half * kSize / 2,
                      lane);
      dvalue.write_tile(value_sums, 1.0f, token, document.key_head, key_rows - row, column_half * kSize / 2, lane);
      wait_for_copies<0>();
      __syncthreads();  // keys and values may be written
    }
  }
}

// Calls function(integral constant) with room for `size` elements.
template <typename Function>
void with_document_size(int64_t size, const Function& function) {
  if (size <= 64) {
    function(std::integral_constant<int, 64>{});
  } else {
    function(std::integral_constant<int, 128>{});
  }
}

template <typename D>
GradientView<D> gradient_view(const Tensor& tensor, bool adds) {
  return {heads_view<D>(tensor), adds};
}

}  // namespace

bool takes_documents(const AttentionBackward& arguments) {
  const Tensor& dquery = arguments.dquery;
  const auto is_input = [](const Tensor& tensor) { return is_mma_input(tensor, 128); };
  const auto is_output = [&](const Tensor& tensor) { return tensor.dtype == dquery.dtype && is_pair_output(tensor); };
  return is_input(arguments.query) && is_input(arguments.key) && is_input(arguments.value) &&
         is_input(arguments.output) && is_input(arguments.doutput) && is_output(dquery) && is_output(arguments.dkey) &&
         is_output(arguments.dvalue);
}

int64_t document_blocks(const AttentionBackward& arguments, int64_t task_count) {
  int64_t blocks = 0;
  const int64_t size = std::max(arguments.query.extent(2), arguments.value.extent(2));
  with_document_size(size, [&](auto padded) {
    constexpr int kSize = decltype(padded)::value;
    with_float_type(arguments.dquery.dtype, [&](auto type) {
      const auto kernel = document_gradient_kernel<kSize, decltype(type)>;
      allow_shared_memory(kernel, kDocumentBytes<kSize>);
      ITHACA_CUDA_CHECK(
          cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
      blocks = resident_blocks(kernel, kThreads, kDocumentBytes<kSize>);
    });
  });
  return std::min(blocks, task_count * arguments.key.extent(1));
}

int64_t document_workspace_bytes(const AttentionBackward& arguments, int64_t longest, int64_t blocks) {
  const int64_t size = std::max(arguments.query.extent(2), arguments.value.extent(2)) <= 64 ? 64 : 128;
  const int64_t group = arguments.query.extent(1) / arguments.key.extent(1);
  return blocks * group * divide_up(longest, kTaskTile) * kTaskTile * size * static_cast<int64_t>(sizeof(float));
}

void document_attention_backward(const AttentionBackward& arguments, const DocumentTasks& documents, float* sums,
                                 int* queue, void* workspace, int64_t blocks, cudaStream_t stream) {
  ITHACA_CUDA_CHECK(cudaMemsetAsync(queue, 0, sizeof(int), stream));
  const int64_t query_heads = arguments.query.extent(1);
  const int64_t key_heads = arguments.key.extent(1);
  const DocumentArguments call = {heads_view<const BFloat>(arguments.query),
                                  heads_view<const BFloat>(arguments.key),
                                  heads_view<const BFloat>(arguments.value),
                                  heads_view<const BFloat>(arguments.output),
                                  heads_view<const BFloat>(arguments.doutput),
                                  rows_view(arguments.log_sum_exp),
                                  {sums, query_heads, 1},
                                  documents.tasks,
                                  documents.count,
                                  key_heads,
                                  static_cast<int>(query_heads / key_heads),
                                  arguments.scale,
                                  queue,
                                  static_cast<float4*>(workspace),
                                  divide_up(documents.longest, kTaskTile)};
  const int64_t size = std::max(arguments.query.extent(2), arguments.value.extent(2));
  with_document_size(size, [&](auto padded) {
    constexpr int kSize = decltype(padded)::value;
    with_float_type(arguments.dquery.dtype, [&](auto type) {
      using D = decltype(type);
      const auto kernel = document_gradient_kernel<kSize, D>;
      kernel<<<static_cast<unsigned>(blocks), kThreads, kDocumentBytes<kSize>, stream>>>(
          call, gradient_view<D>(arguments.dquery, !arguments.overwrites_dquery),
          gradient_view<D>(arguments.dkey, !arguments.overwrites_dkey_dvalue),
          gradient_view<D>(arguments.dvalue, !arguments.overwrites_dkey_dvalue));
      ITHACA_CUDA_CHECK_LAUNCH("document_gradient_kernel");
    });
  });
}

}  // namespace ithaca::cuda
