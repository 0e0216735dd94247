// Records of ready token ids (data.format: input_ids). Thread-safety: a pure function.
#pragma once

#include "data/samples/record_object.h"
#include "data/samples/sample.h"

namespace ithaca {

// {"input_ids": [...]} and, at the same index, "labels" (-100: nothing is trained) and "weights" of the labels;
// "document_lengths", whose sum is the number of ids. Ids and labels must be in [0, vocabulary). Throws RecordError.
Sample sample_of_token_ids(const RecordObject& record, int64_t vocabulary);

}  // namespace ithaca
