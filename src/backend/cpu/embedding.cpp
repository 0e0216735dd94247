// Table look-up of the CPU backend, and its gradient.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "backend/cpu/kernels.h"
#include "base/error.h"

namespace ithaca::cpu {
namespace {

int64_t row_of(const char* operation, const Tensor& token_ids, int64_t token, int64_t vocabulary) {
  const int64_t id = token_ids.as<int64_t>()[token * token_ids.stride(0)];
  if (id < 0 || id >= vocabulary) {
    throw ContractError(fmt::format("{}: token id {} at position {} is outside of the vocabulary [0, {})", operation,
                                    id, token, vocabulary));
  }
  return id;
}

}  // namespace

void embedding_forward(const EmbeddingForward& arguments) {
  const int64_t size = arguments.table.extent(1);
  for (int64_t token = 0; token < arguments.token_ids.extent(0); ++token) {
    const int64_t id = row_of("embedding_forward", arguments.token_ids, token, arguments.table.extent(0));
    std::copy_n(arguments.table.as<float>() + id * arguments.table.stride(0), size,
                arguments.output.as<float>() + token * arguments.output.stride(0));
  }
}

void embedding_backward(const EmbeddingBackward& arguments) {
  const int64_t size = arguments.dtable.extent(1);
  for (int64_t token = 0; token < arguments.token_ids.extent(0); ++token) {
    const int64_t id = row_of("embedding_backward", arguments.token_ids, token, arguments.dtable.extent(0));
    add_row(arguments.doutput.as<float>() + token * arguments.doutput.stride(0), 1.0f, size,
            arguments.dtable.as<float>() + id * arguments.dtable.stride(0));
  }
}

}  // namespace ithaca::cpu
