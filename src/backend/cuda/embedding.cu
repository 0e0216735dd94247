// Rows of the embedding table by token id, and the sum of gradients into them.
//
// Backward sorts the tokens by id (stable, so tokens of one id stay in their order); then one block for each id that
// occurs adds up its tokens' rows in that order.
#include <math_constants.h>

#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>
#include <limits>

#include "backend/cuda/kernels.h"
#include "backend/cuda/tiles.cuh"

namespace ithaca::cuda {
namespace {

template <typename T, typename W, int kWidth>
struct EmbeddingOperation {
  const W* table;
  const int64_t* token_ids;
  T* output;
  int64_t table_stride, id_stride, output_stride, vocabulary;

  struct Loaded {
    Pack<W, kWidth> values;
    bool is_valid;
  };
  __device__ Loaded load(int64_t row, int64_t column) const {
    const int64_t id = token_ids[row * id_stride];
    const bool is_valid = id >= 0 && id < vocabulary;
    Loaded loaded;
    loaded.is_valid = is_valid;
    if (is_valid) loaded.values = Pack<W, kWidth>::load(table + id * table_stride + column);
    return loaded;
  }
  __device__ void finish(const Loaded& loaded, int64_t row, int64_t column) const {
    Pack<T, kWidth> result;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) result.set(i, loaded.is_valid ? loaded.values[i] : CUDART_NAN_F);
    result.store(output + row * output_stride + column);
  }
};

__global__ void __launch_bounds__(256) sort_keys_kernel(const int64_t* token_ids, int64_t id_stride, int64_t tokens,
                                                        int64_t vocabulary, uint32_t* keys, uint32_t* order) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (token >= tokens) return;
  const int64_t id = token_ids[token * id_stride];
  keys[token] = static_cast<uint32_t>(id >= 0 && id < vocabulary ? id : vocabulary);
  order[token] = static_cast<uint32_t>(token);
}

constexpr uint32_t kNoId = 0xffffffffU;  // above every vocabulary

// Block (x, y): the tokens of the id that begins at sorted place x (nothing when none begins there), columns of y.
template <typename T, int kWidth>
__global__ void __launch_bounds__(256)
    embedding_backward_kernel(const T* doutput, int64_t doutput_stride, const uint32_t* keys, const uint32_t* order,
                              int64_t tokens, int64_t vocabulary, float* dtable, int64_t dtable_stride,
                              int64_t columns) {
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kWidth;
  if (column >= columns) return;
  for (int64_t begin = blockIdx.x; begin < tokens; begin += gridDim.x) {
    // All that says where rows lie is asked for at once: most ids have one or two tokens, and each wait is for memory.
    const uint32_t id = keys[begin];
    const uint32_t id_before = begin > 0 ? keys[begin - 1] : kNoId;
    const uint32_t id_behind = begin + 1 < tokens ? keys[begin + 1] : kNoId;
    const uint32_t first = order[begin];
    if (id >= vocabulary || id_before == id) continue;
    float* const to = dtable + static_cast<int64_t>(id) * dtable_stride + column;
    auto total = Pack<float, kWidth>::load(to);  // on its way beside the rows
    const auto row_of = [&](uint32_t token) {
      return Pack<T, kWidth>::load(doutput + static_cast<int64_t>(token) * doutput_stride + column);
    };
    const auto first_row = row_of(first);
    float sum[kWidth];
#pragma unroll
    for (int element = 0; element < kWidth; ++element) sum[element] = first_row[element];
    const auto add = [&](const Pack<T, kWidth>& row) {
#pragma unroll
      for (int element = 0; element < kWidth; ++element) sum[element] += row[element];
    };
    if (id_behind == id) {
      constexpr int kAhead = 4;  // rows under way at the same time
      int64_t place = begin + 1;
      while (place + kAhead <= tokens && keys[place + kAhead - 1] == id) {
        Pack<T, kWidth> rows[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) rows[i] = row_of(order[place + i]);
#pragma unroll
        for (int i = 0; i < kAhead; ++i) add(rows[i]);
        place += kAhead;
      }
      for (; place < tokens && keys[place] == id; ++place) add(row_of(order[place]));
    }
#pragma unroll
    for (int element = 0; element < kWidth; ++element) total.values[element] += sum[element];
    total.store(to);
  }
}

int key_bits(int64_t vocabulary) {
  return static_cast<int>(std::bit_width(static_cast<uint64_t>(vocabulary)));
}

constexpr int64_t kPieceAlignment = 256;

int64_t piece_bytes(int64_t bytes) {
  return divide_up(bytes, kPieceAlignment) * kPieceAlignment;
}

size_t sort_bytes(int64_t tokens, int64_t vocabulary) {
  size_t bytes = 0;
  ITHACA_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(
      nullptr, bytes, static_cast<const uint32_t*>(nullptr), static_cast<uint32_t*>(nullptr),
      static_cast<const uint32_t*>(nullptr), static_cast<uint32_t*>(nullptr), static_cast<int>(tokens), 0,
      key_bits(vocabulary)));
  return bytes;
}

void check_sortable(int64_t tokens, int64_t vocabulary) {
  require(tokens <= std::numeric_limits<int32_t>::max() && vocabulary < std::numeric_limits<uint32_t>::max(),
          "embedding_backward: more than 2^31 tokens in one call, or a vocabulary over 2^32");
}

}  // namespace

void embedding_forward(const EmbeddingForward& arguments, cudaStream_t stream) {
  const auto& [table, token_ids, output] = arguments;
  if (output.element_count() == 0) return;
  with_float_type(output.dtype, [&](auto type) {
    using T = decltype(type);
    with_type_or_float<T>(table.dtype, [&](auto table_type) {
      using W = decltype(table_type);
      const auto launch = [&](auto width) {
        constexpr int kWidth = decltype(width)::value;
        const EmbeddingOperation<T, W, kWidth> operation{data_of<W>(table), token_ids.as<int64_t>(), data_of<T>(output),
                                                         table.stride(0),   token_ids.stride(0),     output.stride(0),
                                                         table.extent(0)};
        launch_tiles<kWidth, 2>(operation, output.extent(0), output.extent(1), stream,
                                "launch of the kernel embedding_forward");
      };
      if (rows_are_vectors(table, kVectorWidth<T>) && rows_are_vectors(output, kVectorWidth<T>)) {
        launch(std::integral_constant<int, kVectorWidth<T>>{});
      } else {
        launch(std::integral_constant<int, 1>{});
      }
    });
  });
}

int64_t embedding_backward_workspace_bytes(int64_t tokens, int64_t vocabulary) {
  check_sortable(tokens, vocabulary);
  if (tokens == 0) return 0;
  return 4 * piece_bytes(tokens * static_cast<int64_t>(sizeof(uint32_t))) +
         piece_bytes(static_cast<int64_t>(sort_bytes(tokens, vocabulary)));
}

void embedding_backward(const EmbeddingBackward& arguments, void* workspace, cudaStream_t stream) {
  const auto& [doutput, token_ids, dtable] = arguments;
  const int64_t tokens = token_ids.extent(0);
  const int64_t vocabulary = dtable.extent(0);
  const int64_t columns = dtable.extent(1);
  if (tokens == 0 || columns == 0 || vocabulary == 0) return;
  check_sortable(tokens, vocabulary);

  auto* const bytes = static_cast<std::byte*>(workspace);
  const int64_t piece = piece_bytes(tokens * static_cast<int64_t>(sizeof(uint32_t)));
  const auto list = [&](int64_t index) { return reinterpret_cast<uint32_t*>(bytes + index * piece); };
  uint32_t* const keys = list(0);
  uint32_t* const order = list(1);
  uint32_t* const sorted_keys = list(2);
  uint32_t* const sorted_order = list(3);
  sort_keys_kernel<<<static_cast<unsigned>(divide_up(tokens, 256)), 256, 0, stream>>>(
      token_ids.as<int64_t>(), token_ids.stride(0), tokens, vocabulary, keys, order);
  ITHACA_CUDA_CHECK_LAUNCH("sort_keys");
  size_t temporary_bytes = sort_bytes(tokens, vocabulary);
  ITHACA_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(
      bytes + 4 * piece, temporary_bytes, static_cast<const uint32_t*>(keys), sorted_keys,
      static_cast<const uint32_t*>(order), sorted_order, static_cast<int>(tokens), 0, key_bits(vocabulary), stream));
  with_float_type(doutput.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const int64_t vectors = columns / kWidth;
      const int64_t parts = divide_up(vectors, 256);  // of a row, all as long as each other
      require(parts <= 65535, "embedding_backward: rows of over 65535 x 256 elements");
      const auto threads = static_cast<unsigned>(divide_up(divide_up(vectors, parts), 32) * 32);
      const dim3 blocks(static_cast<unsigned>(tokens), static_cast<unsigned>(parts));
      embedding_backward_kernel<T, kWidth>
          <<<blocks, threads, 0, stream>>>(data_of<T>(doutput), doutput.stride(0), sorted_keys, sorted_order, tokens,
                                           vocabulary, dtable.as<float>(), dtable.stride(0), columns);
      ITHACA_CUDA_CHECK_LAUNCH("embedding_backward");
    };
    if (rows_are_vectors(doutput, kVectorWidth<T>) && rows_are_vectors(dtable, kVectorWidth<T>)) {
      launch(std::integral_constant<int, kVectorWidth<T>>{});
    } else {
      launch(std::integral_constant<int, 1>{});
    }
  });
}

}  // namespace ithaca::cuda
