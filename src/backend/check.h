// The requirements of every operation's arguments, the same for all backends.
//
// Each check() throws ContractError that names the operation, the argument, what it is and what it should be. They look
// at shapes, dtypes and strides only, never at the data. `compute` is the backend's compute dtype. Thread-safety: pure
// functions.
#pragma once

#include "backend/operations.h"

namespace ithaca {

void check(const Gemm& arguments, DType compute);
void check(const AttentionShape& shape);
void check(const AttentionForward& arguments, const AttentionShape& shape, DType compute);
void check(const AttentionBackward& arguments, DType compute);
// Arguments of Backend::begin_attention. An absent destination always fits.
void check(const AttentionDestination& destination, const AttentionShape& shape, DType compute);
// Arguments of Backend::finish_attention.
void check_attention_results(const AttentionShape& shape, const Tensor& output, const Tensor& log_sum_exp,
                             DType compute);
// They are the destination that begin_attention was given, if it was given one.
void check_attention_destination(const AttentionDestination& destination, const Tensor& output,
                                 const Tensor& log_sum_exp);
void check(const RmsNormForward& arguments, DType compute);
void check(const RmsNormBackward& arguments, DType compute);
void check(const RopeTable& arguments);
void check(const HeadRopeForward& arguments, DType compute);
void check(const HeadRopeBackward& arguments, DType compute);
void check(const SwigluForward& arguments, DType compute);
void check(const SwigluBackward& arguments, DType compute);
void check(const EmbeddingForward& arguments, DType compute);
void check(const EmbeddingBackward& arguments, DType compute);
void check(const CrossEntropy& arguments, DType compute);
void check(const Copy& arguments);
void check(const Add& arguments, DType compute);
void check(const Fill& arguments);
void check(const ColumnSum& arguments, DType compute);
void check(const SquareSum& arguments);
void check(const StepNumbers& arguments);
void check(const AdamW& arguments, DType compute);

}  // namespace ithaca
