// Tokens in the order of their ids: what a repeatable sum of their gradients goes by.
//
// A stable radix sort of our own, two kernels a digit of nine bits: no more than a few hundred thousand tokens are
// sorted, which takes a general sort twice as long, and the sum behind it waits (docs/benchmarks.md). Functions enqueue
// on `stream` and may be called from any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/operations.h"

namespace ithaca::cuda {

// Device arrays of as many elements as there are tokens, in the workspace of sort_tokens.
struct SortedTokens {
  const uint32_t* ids;     // ascending; those outside of the vocabulary are all `vocabulary`, so they come last
  const uint32_t* tokens;  // which token has that id; tokens of one id ascend
};

// Fewer than 2^31 tokens, and a vocabulary below 2^32 - 1; throws Error otherwise.
int64_t token_sort_workspace_bytes(int64_t tokens, int64_t vocabulary);

// `token_ids`: int64 [tokens], of any stride. `workspace`: token_sort_workspace_bytes, aligned to 256 bytes.
SortedTokens sort_tokens(const Tensor& token_ids, int64_t vocabulary, void* workspace, cudaStream_t stream);

}  // namespace ithaca::cuda
