// Flash attention of the CPU backend: a running softmax over lists of tasks, and its gradient (Dao et al. 2022 and
// 2023), in float32.
//
// Plain functions on views. They run on the calling thread, allocate nothing and keep no state between calls: the
// caller owns the running softmax (an AttentionAccumulator) and lends workspace, both of a size known in closed form
// that does not depend on the number of tokens. Results are bit-identical from call to call for the same arguments on
// the same processor. The widest instruction set of the processor is picked at run time (AVX-512, AVX2, or portable
// code).
//
// Masking multiplies by an exact 0, so a NaN or infinity in a key or value may reach a query that must not see it (as
// NaN) when both lie in the same block; finite numbers never do.
//
// Thread-safety: any number of threads at once, each with its own accumulator, outputs and workspace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/operations.h"
#include "tensor/tensor.h"

namespace ithaca::cpu {

// The running softmax of a set of queries. Per query row and head, with scaled scores s in units of log2(e):
//   maximum = a reference m that no score exceeds by more than 8 (-inf: no key seen yet),
//   sum     = sum over the keys seen of 2^(s - m),
//   output  = sum over the keys seen of 2^(s - m) * value; undefined while maximum is -inf.
// Row-major float32 views of memory that the caller owns.
struct AttentionAccumulator {
  Tensor output;   // [query tokens, query heads, value size]
  Tensor maximum;  // [query tokens, query heads]
  Tensor sum;      // [query tokens, query heads]
};

// float32 elements of the memory behind one accumulator: query tokens * query heads * (value size + 2).
int64_t attention_accumulator_elements(const AttentionShape& shape);

// Lays an accumulator out in `memory`, a contiguous float32 tensor of attention_accumulator_elements(shape) elements,
// and starts it: no query has seen a key. Only the maxima and sums are written.
AttentionAccumulator begin_attention(const AttentionShape& shape, const Tensor& memory);

// Bytes of workspace that attention_forward / attention_backward need for heads of these sizes. The same on every
// processor, so that a plan made on one machine holds on another. Closed forms in attention_blocks.h.
int64_t attention_forward_workspace_bytes(int64_t key_size, int64_t value_size);
int64_t attention_backward_workspace_bytes(int64_t key_size, int64_t value_size);

// Throw ContractError, naming the tensor and what would fit, unless shapes, dtypes (float32), strides and tasks are as
// operations.h requires. They look at shapes only, never at data, and are what the functions below call first.
void check_attention_forward(const AttentionForward& arguments, const AttentionShape& shape);
void check_attention_backward(const AttentionBackward& arguments);

// Adds the keys of arguments.tasks to `accumulator` (arguments.state is not used). Tasks whose keys or queries are
// empty, and blocks without a visible pair, cost nothing. `workspace` holds at least
// attention_forward_workspace_bytes(key size, value size); any alignment, content undefined before and after.
void attention_forward(const AttentionForward& arguments, const AttentionAccumulator& accumulator,
                       std::span<std::byte> workspace);

// output [query tokens, query heads, value size] and log_sum_exp [query tokens, query heads] (natural logarithm, of the
// scaled scores), float32; any strides but the last of output, any strides of log_sum_exp. A query that saw no key gets
// 0 and -inf. The accumulator is not changed.
void finish_attention(const AttentionAccumulator& accumulator, const Tensor& output, const Tensor& log_sum_exp);

// Adds to dquery, dkey and dvalue. Rows whose log_sum_exp is -inf contribute nothing, whatever their doutput holds.
// `workspace` holds at least attention_backward_workspace_bytes(key size, value size).
void attention_backward(const AttentionBackward& arguments, std::span<std::byte> workspace);

}  // namespace ithaca::cpu
