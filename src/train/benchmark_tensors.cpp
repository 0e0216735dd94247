#include "train/benchmark_tensors.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "train/step.h"

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

double seconds_of_call(Backend& backend, Communicator& world, double seconds, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  const auto run = [&](int64_t repetitions) {
    world.barrier();
    const auto start = Clock::now();
    for (int64_t index = 0; index < repetitions; ++index) work();
    backend.finish(backend.record(backend.compute_stream()));
    world.barrier();
    return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(repetitions);
  };
  static_cast<void>(run(1));  // kernels are chosen
  const double once = run(1);
  // Rank 0's clock decides for all.
  const std::array mine = {static_cast<int64_t>(std::clamp(seconds / std::max(once, 1e-6), 1.0, 200.0)),
                           static_cast<int64_t>(once * 1e9)};
  const std::vector<int64_t> of_rank_0 = gather_values(world, backend, mine);
  const int64_t repetitions = of_rank_0[0];
  // A call that takes as long as a measurement is one.
  const double first = repetitions == 1 ? static_cast<double>(of_rank_0[1]) * 1e-9 : run(repetitions);
  return std::min(first, run(repetitions));
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

}  // namespace ithaca
