// The operations of the CPU backend on memory: float32, on the calling thread.
//
// Arguments have been checked (backend/check.h). The same arguments give the same bits, always. Thread-safety: pure
// functions; any number of threads at the same time.
#pragma once

#include <cstdint>
#include <span>

#include "backend/operations.h"

namespace ithaca::cpu {

// Memory that the caller lends to sums over tokens that end in weight gradients (backend/cpu/weight_sum.h): one element
// per column each, or nothing where no weight gradient is wanted.
struct WeightSumSpace {
  std::span<float> piece;
  std::span<double> total;
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
// to[i] += scale * from[i].
void add_row(const float* from, float scale, int64_t size, float* to);
void copy(const Copy& arguments);
void add(const Add& arguments);
void fill(const Fill& arguments);
void column_sum(const ColumnSum& arguments, WeightSumSpace space);
void square_sum(const SquareSum& arguments);
void step_numbers(const StepNumbers& arguments);
void adamw(const AdamW& arguments);

}  // namespace ithaca::cpu
