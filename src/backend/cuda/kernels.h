// The operations of the CUDA backend that are own kernels. Internal to backend/cuda: includes CUDA headers.
//
// Arguments are those of backend/operations.h, checked already (backend/check.h), with bfloat16 or float32 as compute
// dtype. Everything is enqueued on the given stream of the current device; workspaces are the caller's and must stay
// allocated, in stream order, until the work has run. Sums over tokens and elements are made in an order that depends
// on the shapes alone. Rows that begin at multiples of 16 bytes are moved in 16-byte words, others element by element.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "backend/operations.h"

namespace ithaca::cuda {

// Whether the current device has machine code here: cudaSuccess, or why not.
cudaError_t find_kernels();

void rms_norm_forward(const RmsNormForward& arguments, cudaStream_t stream);
// `partial`: float32 [rms_norm_partial_rows(tokens, size), size], unused without dweight.
void rms_norm_backward(const RmsNormBackward& arguments, float* partial, cudaStream_t stream);
int64_t rms_norm_partial_rows(int64_t tokens, int64_t size);

void rope_table(const RopeTable& arguments, cudaStream_t stream);
void head_rope_forward(const HeadRopeForward& arguments, cudaStream_t stream);
// `partial`: float32 [head_rope_partial_rows(tokens * heads), size], unused without dnorm_weight.
void head_rope_backward(const HeadRopeBackward& arguments, float* partial, cudaStream_t stream);
int64_t head_rope_partial_rows(int64_t heads_of_all_tokens);

void swiglu_forward(const SwigluForward& arguments, cudaStream_t stream);
void swiglu_backward(const SwigluBackward& arguments, cudaStream_t stream);

// A token id outside of the vocabulary gives a row of NaN.
void embedding_forward(const EmbeddingForward& arguments, cudaStream_t stream);
// `workspace`: embedding_backward_workspace_bytes(tokens, vocabulary), aligned to 256 bytes. Token ids outside of the
// vocabulary add nothing.
void embedding_backward(const EmbeddingBackward& arguments, void* workspace, cudaStream_t stream);
int64_t embedding_backward_workspace_bytes(int64_t tokens, int64_t vocabulary);

// `row_losses`: float64 [tokens]. A label that is neither -100 nor in the vocabulary makes the loss NaN.
void cross_entropy(const CrossEntropy& arguments, double* row_losses, cudaStream_t stream);

void copy(const Copy& arguments, cudaStream_t stream);
void add(const Add& arguments, cudaStream_t stream);
void fill(const Fill& arguments, cudaStream_t stream);
// to = from, elements in row-major order of either view, whose shapes may differ; same dtype and element count.
void copy_elements(const Tensor& from, const Tensor& to, cudaStream_t stream);
// to = ((parts[0] + parts[1]) + parts[2]) + ..., as comm/host_movement.h; at most kMostSumParts parts.
void sum_elements(std::span<const Tensor> parts, const Tensor& to, cudaStream_t stream);
inline constexpr int kMostSumParts = 32;

// `partial`: float32 [column_sum_partial_rows(rows), columns].
void column_sum(const ColumnSum& arguments, float* partial, cudaStream_t stream);
int64_t column_sum_partial_rows(int64_t rows);
// `partial`: float64 [kSquareSumPartials].
void square_sum(const SquareSum& arguments, double* partial, cudaStream_t stream);
inline constexpr int64_t kSquareSumPartials = 1056;
void step_numbers(const StepNumbers& arguments, cudaStream_t stream);
// `numbers`: float32 [kAdamWNumbers].
void adamw(const AdamW& arguments, float* numbers, cudaStream_t stream);
inline constexpr int64_t kAdamWNumbers = 4;

// What cuBLASLt does not do. c = alpha op(a) op(b) + beta c for any shape and stride, in float32; slow.
void plain_gemm(const Gemm& arguments, cudaStream_t stream);
// c = beta * c (0 writes zeros without reading).
void scale_rows(const Tensor& c, float beta, cudaStream_t stream);
// Adds `bias` [n] to every row of c.
void add_bias(const Tensor& bias, const Tensor& c, cudaStream_t stream);

}  // namespace ithaca::cuda
