#include "backend/cpu/kernels.h"

#include "backend/reference.h"
namespace ithaca::cpu {
void rms_norm_forward(const RmsNormForward& a) {
  reference::rms_norm_forward(a);
}
void rms_norm_backward(const RmsNormBackward& a, WeightSumSpace) {
  reference::rms_norm_backward(a);
}
void rope_table(const RopeTable& a) {
  reference::rope_table(a);
}
void head_rope_forward(const HeadRopeForward& a) {
  reference::head_rope_forward(a);
}
void head_rope_backward(const HeadRopeBackward& a, WeightSumSpace) {
  reference::head_rope_backward(a);
}
void swiglu_forward(const SwigluForward& a) {
  reference::swiglu_forward(a);
}
void swiglu_backward(const SwigluBackward& a) {
  reference::swiglu_backward(a);
}
void embedding_forward(const EmbeddingForward& a) {
  reference::embedding_forward(a);
}
void embedding_backward(const EmbeddingBackward& a) {
  reference::embedding_backward(a);
}
void cross_entropy(const CrossEntropy& a) {
  reference::cross_entropy(a);
}
void copy(const Copy& a) {
  reference::copy(a);
}
void add(const Add& a) {
  reference::add(a);
}
void fill(const Fill& a) {
  reference::fill(a);
}
void column_sum(const ColumnSum& a, WeightSumSpace) {
  reference::column_sum(a);
}
void square_sum(const SquareSum& a) {
  reference::square_sum(a);
}
void step_numbers(const StepNumbers& a) {
  reference::step_numbers(a);
}
void adamw(const AdamW& a) {
  reference::adamw(a);
}
}  // namespace ithaca::cpu
