// Plain versions of the numeric operations: what every backend is held to.
//
// Straight loops, written for the reader. Every operation takes the same arguments as in backend/operations.h, reads
// and writes memory of the host, and computes in double precision; tensors may be float64 wherever operations.h says
// float32 or compute dtype, so that nothing is lost on the way in and out. Attention has its own reference
// (backend/cpu/reference_attention.h). Thread-safety: pure functions.
#pragma once

#include "backend/operations.h"

namespace ithaca::reference {

// One element as double, and back (rounded to the tensor's dtype).
double load(const Tensor& tensor, int64_t offset);
void store(const Tensor& tensor, int64_t offset, double value);

void gemm(const Gemm& arguments);
void rms_norm_forward(const RmsNormForward& arguments);
void rms_norm_backward(const RmsNormBackward& arguments);
void rope_table(const RopeTable& arguments);
void head_rope_forward(const HeadRopeForward& arguments);
void head_rope_backward(const HeadRopeBackward& arguments);
void swiglu_forward(const SwigluForward& arguments);
void swiglu_backward(const SwigluBackward& arguments);
void embedding_forward(const EmbeddingForward& arguments);
void embedding_backward(const EmbeddingBackward& arguments);
void cross_entropy(const CrossEntropy& arguments);
void copy(const Copy& arguments);
void add(const Add& arguments);
void fill(const Fill& arguments);
void column_sum(const ColumnSum& arguments);
void square_sum(const SquareSum& arguments);
void step_numbers(const StepNumbers& arguments);
void adamw(const AdamW& arguments);

}  // namespace ithaca::reference
