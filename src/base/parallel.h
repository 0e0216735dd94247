// parallel_parts: one loop over several threads of its own.
//
// For work of milliseconds and more outside of a step (drawing weights, converting checkpoints). Thread-safety: call
// from any thread; `work` runs on several at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace ithaca {

// Calls work(begin, end) for parts that together are [0, count), each of `smallest_part` or more where count allows, on
// at most one thread per core. What one of them throws is thrown here once all have ended.
template <typename Work>
void parallel_parts(int64_t count, int64_t smallest_part, const Work& work) {
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const int64_t parts = std::clamp<int64_t>(count / std::max<int64_t>(1, smallest_part), 1, cores);
  if (parts == 1) {
    work(int64_t{0}, count);
    return;
  }
  std::mutex mutex;
  std::exception_ptr failure;
  {
    std::vector<std::jthread> threads;
    for (int64_t part = 0; part < parts; ++part) {
      threads.emplace_back([&, begin = count / parts * part + std::min(part, count % parts),
                            end = count / parts * (part + 1) + std::min(part + 1, count % parts)] {
        try {
          work(begin, end);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!failure) failure = std::current_exception();
        }
      });
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace ithaca
