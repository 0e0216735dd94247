// Rows of the embedding table by token id, and the sum of gradients into them.
//
// Backward sorts the tokens by id (stable, so tokens of one id stay in their order); then one block for each id that
// occurs adds up its tokens' rows in that order.
#include <math_constants.h>

#include "backend/cuda/kernels.h"
#include "backend/cuda/tiles.cuh"
#include "backend/cuda/token_sort.h"

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

constexpr uint32_t kNoId = 0xffffffffU;  // above every vocabulary

// Block (x, y): the tokens of the id that begins at sorted place x (nothing when none begins there), columns of y.
template <typename T, int kWidth>
__global__ void __launch_bounds__(256)
    embedding_backward_kernel(const T* doutput, int64_t doutput_stride, SortedTokens sorted, int64_t tokens,
                              int64_t vocabulary, float* dtable, int64_t dtable_stride, int64_t columns) {
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kWidth;
  if (column >= columns) return;
  for (int64_t begin = blockIdx.x; begin < tokens; begin += gridDim.x) {
    // All that says where rows lie is asked for at once: most ids have one or two tokens, and each wait is for memory.
    const uint32_t id = sorted.ids[begin];
    const uint32_t id_before = begin > 0 ? sorted.ids[begin - 1] : kNoId;
    const uint32_t id_behind = begin + 1 < tokens ? sorted.ids[begin + 1] : kNoId;
    const uint32_t first = sorted.tokens[begin];
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
      while (place + kAhead <= tokens && sorted.ids[place + kAhead - 1] == id) {
        Pack<T, kWidth> rows[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) rows[i] = row_of(sorted.tokens[place + i]);
#pragma unroll
        for (int i = 0; i < kAhead; ++i) add(rows[i]);
        place += kAhead;
      }
      for (; place < tokens && sorted.ids[place] == id; ++place) add(row_of(sorted.tokens[place]));
    }
#pragma unroll
    for (int element = 0; element < kWidth; ++element) total.values[element] += sum[element];
    total.store(to);
  }
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
  return token_sort_workspace_bytes(tokens, vocabulary);
}

void embedding_backward(const EmbeddingBackward& arguments, void* workspace, cudaStream_t stream) {
  const auto& [doutput, token_ids, dtable] = arguments;
  const int64_t tokens = token_ids.extent(0);
  const int64_t vocabulary = dtable.extent(0);
  const int64_t columns = dtable.extent(1);
  if (tokens == 0 || columns == 0 || vocabulary == 0) return;

  const SortedTokens sorted = sort_tokens(token_ids, vocabulary, workspace, stream);
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
          <<<blocks, threads, 0, stream>>>(data_of<T>(doutput), doutput.stride(0), sorted, tokens, vocabulary,
                                           dtable.as<float>(), dtable.stride(0), columns);
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
