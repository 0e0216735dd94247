// The operations of the CPU backend on memory: float32, on the calling thread.
//
// Arguments have been checked (backend/check.h). The same arguments give the same bits, always. Thread-safety: pure
// functions; any number of threads at the same time.
#pragma once

#include <span>

#include "backend/operations.h"

namespace ithaca::cpu {

// Sums over tokens that end in weight gradients are made in pieces of rows, so that their error does not grow with the
// number of tokens: float32 within a piece, float64 over the pieces. `partial` is the caller's memory for both.
struct WeightSumSpace {
  std::span<float> piece;   // one element per column
  std::span<double> total;  // one element per column
};

void rms_norm_forward(const RmsNormForward& arguments);
void rms_norm_backward(const RmsNormBackward& arguments, WeightSumSpace space);
void rope_table(const RopeTable& arguments);
void head_rope_forward(const HeadRopeForward& arguments);
void head_rope_backward(const HeadRopeBackward& arguments, WeightSumSpace space);
void swiglu_forward(const SwigluForward& arguments);
void swiglu_backward(const SwigluBackward& arguments);
void embedding_forward(const EmbeddingForward& arguments);
void embedding_backward(const EmbeddingBackward& arguments);
void cross_entropy(const CrossEntropy& arguments);
void copy(const Copy& arguments);
void add(const Add& arguments);
void fill(const Fill& arguments);
void column_sum(const ColumnSum& arguments, WeightSumSpace space);
void square_sum(const SquareSum& arguments);
void step_numbers(const StepNumbers& arguments);
void adamw(const AdamW& arguments);

}  // namespace ithaca::cpu
