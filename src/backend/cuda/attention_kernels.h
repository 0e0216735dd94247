// The own kernels of CUDA attention: partial results and their merging, gradients on their way into float32, index
// arrays, and attention of any tasks. Internal to backend/cuda: includes CUDA headers.
//
// Everything is enqueued on the given stream of the current device. Shapes are the caller's to check. Thread-safety:
// as CUDA's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "backend/cuda/attention_calls.h"
#include "backend/operations.h"
#include "tensor/tensor.h"

namespace ithaca::cuda {

// ---- index arrays ----

// Copies bytes from the host to the device in stream order. The bytes travel as kernel arguments: they are taken before
// the call returns, no pinned memory is needed and nothing waits. For some hundred kilobytes at most.
void upload_bytes(std::span<const std::byte> from, void* to, cudaStream_t stream);

// The index arrays of a ragged call (cudnn_attention.h), from its rectangles. Offsets count from first_query and
// first_key.
struct RaggedArrayAddresses {
  int32_t* query_lengths = nullptr;  // [batch]
  int32_t* key_lengths = nullptr;
  int64_t* query = nullptr;  // [batch + 1]
  int64_t* key = nullptr;
  int64_t* value = nullptr;
  int64_t* output = nullptr;
  int64_t* log_sum_exp = nullptr;
};
struct RaggedTokenStrides {
  int64_t query = 0;
  int64_t key = 0;
  int64_t value = 0;
  int64_t output = 0;
  int64_t log_sum_exp = 0;
  auto operator<=>(const RaggedTokenStrides&) const = default;
};
void write_ragged_arrays(std::span<const AttentionEntry> entries, int64_t batch, int64_t first_query, int64_t first_key,
                         const RaggedTokenStrides& strides, const RaggedArrayAddresses& arrays, cudaStream_t stream);

// ---- partial results ----
// An output is [tokens, heads, size], float32 or bfloat16, a log-sum-exp [tokens, heads] float32; any strides but the
// last of outputs. -inf: the row has seen no key, and its output is not read.

// result = the softmax over the keys of both, 0 where no key was seen; it may be `first` itself. With log-sum-exps l
// and m: output a + (b - a) / (1 + exp(l - m)) in float32, which holds for any gap.
void merge_partials(const Tensor& first, const Tensor& first_log_sum_exp, const Tensor& second,
                    const Tensor& second_log_sum_exp, const Tensor& result, const Tensor& result_log_sum_exp,
                    cudaStream_t stream);
// output = from, 0 where no key was seen; and the log-sum-exps. `from` may be `output` itself (then only rows without
// keys are written).
void finish_partial(const Tensor& from, const Tensor& from_log_sum_exp, const Tensor& output, const Tensor& log_sum_exp,
                    cudaStream_t stream);
// -inf everywhere.
void clear_log_sum_exp(const Tensor& log_sum_exp, cudaStream_t stream);

// Rows of a dense batch, [batch, heads, length] contiguous, to and from the tokens of a [tokens, heads] tensor that
// begin at first_token + batch index * distance.
void gather_rows(const Tensor& tokens, int64_t first_token, int64_t distance, int64_t batch, int64_t length,
                 float* dense, cudaStream_t stream);
void scatter_rows(const float* dense, int64_t first_token, int64_t distance, int64_t batch, int64_t length,
                  const Tensor& tokens, cudaStream_t stream);

// ---- tensors ----

// to = from, [tokens, heads, size] of the same dtype.
void copy_heads(const Tensor& from, const Tensor& to, cudaStream_t stream);
// to = from, [tokens, heads] float32.
void copy_rows(const Tensor& from, const Tensor& to, cudaStream_t stream);
// to += from, or to = from with `overwrites`: [tokens, heads, size], from bfloat16, to float32 (or bfloat16 with
// `overwrites`).
void place_gradient(const Tensor& from, const Tensor& to, bool overwrites, cudaStream_t stream);
// to = from, [tokens, heads, size], float32 to bfloat16.
void round_gradient(const Tensor& from, const Tensor& to, cudaStream_t stream);
// to = 0, [tokens, heads, size] float32 or bfloat16.
void clear_gradient(const Tensor& to, cudaStream_t stream);
// sums[token, head] = sum of output * doutput; contiguous float32.
void output_gradient_sums(const Tensor& output, const Tensor& doutput, float* sums, cudaStream_t stream);

// ---- attention of any tasks ----
// Deterministic: every query tile (forward, dquery) and every key tile (dkey, dvalue) belongs to one block that adds in
// the order of the list.

inline constexpr int64_t kTaskTile = 64;  // tokens

// Tasks as tiled_by_queries or tiled_by_keys gives them for kTaskTile; device memory.
struct TaskTiles {
  const AttentionTask* tasks = nullptr;
  const TaskTile* tiles = nullptr;
  int64_t tile_count = 0;
};

// Heads of up to 256 elements. bfloat16 heads aligned to 16 bytes are multiplied on the tensor cores; everything else
// in plain float32 arithmetic.

// Writes output and log_sum_exp of the rows that see a key, nothing else. `by_query` as arguments.tasks.
void task_attention_forward(const AttentionForward& arguments, const TaskTiles& by_query, const Tensor& output,
                            const Tensor& log_sum_exp, cudaStream_t stream);
// Adds to dquery, dkey, dvalue. `sums`: of output_gradient_sums.
void task_attention_backward(const AttentionBackward& arguments, const TaskTiles& by_query, const TaskTiles& by_key,
                             const float* sums, cudaStream_t stream);

// ---- backward attention of short documents ----

// Tasks that share neither queries nor keys, those with most visible pairs first; device memory.
struct DocumentTasks {
  const AttentionTask* tasks = nullptr;
  int64_t count = 0;
  int64_t longest = 0;  // queries of one task
};
inline constexpr int64_t kLongestDocument = 1024;

// Whether document_attention_backward takes these tensors, on this device: compute capability 9.0; bfloat16 heads of up
// to 128 elements, aligned to 16 bytes; gradients all of one dtype, float32 pairs or bfloat16 aligned to 16 bytes.
bool takes_documents(const AttentionBackward& arguments);
// Blocks of document_attention_backward, and the workspace that they need.
int64_t document_blocks(const AttentionBackward& arguments, int64_t task_count);
int64_t document_workspace_bytes(const AttentionBackward& arguments, int64_t longest, int64_t blocks);
// Overwrites the gradients of all tokens of the tasks, or adds to them, as the arguments say. Deterministic. Workspace:
// `sums` [query tokens, query heads] float32, one int, document_workspace_bytes().
void document_attention_backward(const AttentionBackward& arguments, const DocumentTasks& documents, float* sums,
                                 int* queue, void* workspace, int64_t blocks, cudaStream_t stream);

}  // namespace ithaca::cuda
