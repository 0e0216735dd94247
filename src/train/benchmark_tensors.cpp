#include "train/benchmark_tensors.h"

#include <algorithm>
#include <vector>

namespace ithaca {

void fill_random(Backend& backend, const Tensor& tensor, uint32_t seed) {
  constexpr int64_t kPeriod = 65521;  // prime, so that rows differ
  std::vector<float> values(static_cast<size_t>(kPeriod));
  uint32_t state = seed;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
  }
  Stream& stream = backend.compute_stream();
  const Buffer block =
      backend.arena(Tier::device).allocate("random numbers", MemoryClass::workspace, DType::float32, {kPeriod}, stream);
  backend.copy_from_host(stream, std::as_bytes(std::span(values)), block.tensor());
  const int64_t count = tensor.element_count();
  const Tensor flat = tensor.reshape({count});
  for (int64_t begin = 0; begin < count; begin += kPeriod) {
    const int64_t part = std::min(kPeriod, count - begin);
    backend.copy(stream, {block.tensor().slice(0, 0, part), flat.slice(0, begin, begin + part)});
  }
}

}  // namespace ithaca
