// What the tests and the benchmark of CUDA attention share: device memory with an allocator, and tensors that go back
// and forth. Test code: includes CUDA headers.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "backend/cuda/attention.h"
#include "backend/cuda/cuda_check.h"
#include "tensor/memory.h"
#include "tensor/tensor.h"

namespace ithaca::cuda {

// One block of device memory, handed out as an arena does it: offsets, first fit. For one stream.
class TestMemory {
 public:
  explicit TestMemory(int64_t bytes) : offsets_(bytes, 256) {
    ITHACA_CUDA_CHECK(cudaMalloc(&base_, static_cast<size_t>(bytes)));
  }
  TestMemory(const TestMemory&) = delete;
  TestMemory& operator=(const TestMemory&) = delete;
  ~TestMemory() { cudaFree(base_); }

  std::shared_ptr<void> allocate(int64_t bytes) {
    const auto offset = offsets_.allocate(bytes);
    require(offset.has_value(), "test memory: full");
    largest_use_ = std::max(largest_use_, offsets_.used());
    return {static_cast<std::byte*>(base_) + *offset, [this, at = *offset](void*) { offsets_.free(at); }};
  }
  // With `poison` everything that is handed out is NaN, so that reading what nobody wrote shows.
  WorkspaceProvider provider(bool poison) {
    return [this, poison](std::string_view, int64_t bytes, cudaStream_t stream) {
      std::shared_ptr<void> memory = allocate(bytes);
      if (poison) ITHACA_CUDA_CHECK(cudaMemsetAsync(memory.get(), 0xFF, static_cast<size_t>(bytes), stream));
      return memory;
    };
  }
  int64_t largest_use() const { return largest_use_; }
  void forget_largest_use() { largest_use_ = offsets_.used(); }

 private:
  void* base_ = nullptr;
  OffsetAllocator offsets_;
  int64_t largest_use_ = 0;
};

// A [tokens, heads, size] (or [tokens, heads]) tensor on the device: a view of memory that is NaN around it.
struct TestTensor {
  std::shared_ptr<void> memory;
  int64_t elements = 0;  // of the memory
  Tensor tensor;
};

// How a tensor lies in memory: elements between heads and behind the heads of a token, elements before the first.
struct TestLayout {
  int64_t head_gap = 0;
  int64_t token_gap = 0;
  int64_t offset = 0;
};

inline TestTensor make_test_tensor(TestMemory& memory, DType dtype, const Extents& extents,
                                   const TestLayout& layout = {}) {
  TestTensor result;
  const int64_t size = extents.rank() == 3 ? extents[2] : 1;
  const int64_t head_stride = size + layout.head_gap;
  const int64_t token_stride = extents[1] * head_stride + layout.token_gap;
  result.elements = layout.offset + extents[0] * token_stride + 64;
  const int64_t bytes = result.elements * element_size(dtype);
  result.memory = memory.allocate(bytes);
  ITHACA_CUDA_CHECK(cudaMemset(result.memory.get(), 0xFF, static_cast<size_t>(bytes)));
  result.tensor.data = static_cast<std::byte*>(result.memory.get()) + layout.offset * element_size(dtype);
  result.tensor.dtype = dtype;
  result.tensor.extents = extents;
  result.tensor.strides =
      extents.rank() == 3 ? Extents{token_stride, head_stride, 1} : Extents{token_stride, head_stride};
  return result;
}

}  // namespace ithaca::cuda
