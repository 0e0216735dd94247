#include "backend/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "base/error.h"

#if defined(__SANITIZE_ADDRESS__)
#define ITHACA_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ITHACA_ADDRESS_SANITIZER 1
#endif
#endif

namespace ithaca {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

class Arenas : public testing::Test {
 protected:
  Arena& arena() { return backend_->arena(Tier::device); }
  Buffer floats(std::string_view name, int64_t count, MemoryClass memory_class = MemoryClass::workspace) {
    return arena().allocate(name, memory_class, DType::float32, {count}, backend_->compute_stream());
  }
  int64_t offset_of(const Buffer& buffer) {
    return static_cast<std::byte*>(buffer.tensor().data) - static_cast<std::byte*>(first_.tensor().data);
  }

  std::unique_ptr<Backend> backend_ =
      make_cpu_backend({.memory_limit_bytes = kMiB, .host_memory_limit_bytes = 2 * kMiB});
  Buffer first_ = floats("first", 1);  // takes the lowest kAlignment bytes
};

TEST_F(Arenas, HandOutAlignedRowMajorTensors) {
  const Buffer buffer =
      arena().allocate("x", MemoryClass::saved, DType::float32, {3, 5, 7}, backend_->compute_stream());
  const Tensor& tensor = buffer.tensor();
  EXPECT_EQ(tensor.describe(), "float32 [3, 5, 7]");
  EXPECT_TRUE(tensor.is_contiguous());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data) % Arena::kAlignment, 0u);
  std::memset(tensor.data, 1, static_cast<size_t>(tensor.byte_count()));
  EXPECT_EQ(arena().tier(), Tier::device);
  EXPECT_EQ(arena().capacity(), kMiB);
  EXPECT_EQ(backend_->arena(Tier::host).capacity(), 2 * kMiB);
  EXPECT_EQ(backend_->arena(Tier::host).tier(), Tier::host);
  EXPECT_THROW(backend_->arena(Tier::disk), ContractError);
}

TEST_F(Arenas, EmptyTensorsHaveAddressesOfTheirOwn) {
  const Buffer a = floats("a", 0);
  const Buffer b = floats("b", 0);
  EXPECT_NE(a.tensor().data, nullptr);
  EXPECT_NE(a.tensor().data, b.tensor().data);
  EXPECT_EQ(a.tensor().element_count(), 0);
}

TEST_F(Arenas, BookByClassAndKeepPeaks) {
  const auto of = [](const std::array<int64_t, kMemoryClasses>& bytes, MemoryClass memory_class) {
    return bytes[static_cast<size_t>(memory_class)];
  };
  const int64_t before = arena().usage().current;
  {
    const Buffer weights = floats("w", 1000, MemoryClass::weights);  // 4000 bytes take 4096
    const Buffer saved = floats("s", 64, MemoryClass::saved);        // 256
    EXPECT_EQ(arena().usage().current, before + 4096 + 256);
    EXPECT_EQ(of(arena().usage().current_by_class, MemoryClass::weights), 4096);
    EXPECT_EQ(of(arena().usage().current_by_class, MemoryClass::saved), 256);
  }
  EXPECT_EQ(arena().usage().current, before);
  EXPECT_EQ(arena().usage().peak, before + 4096 + 256);
  EXPECT_EQ(of(arena().usage().peak_by_class, MemoryClass::weights), 4096);
  arena().reset_peak();
  EXPECT_EQ(arena().usage().peak, before);
  EXPECT_EQ(of(arena().usage().peak_by_class, MemoryClass::weights), 0);
  EXPECT_EQ(backend_->arena(Tier::host).usage().peak, 0);
}

TEST_F(Arenas, BuffersMoveAndRelease) {
  Buffer a = floats("a", 100);
  void* const data = a.tensor().data;
  Buffer b = std::move(a);
  // NOLINTNEXTLINE(bugprone-use-after-move,clang-analyzer-cplusplus.Move): the state after a move is documented
  EXPECT_TRUE(a.is_empty());
  EXPECT_EQ(b.tensor().data, data);
  Buffer c = floats("c", 100);
  const int64_t used = arena().usage().current;
  c = std::move(b);  // gives back what c had
  EXPECT_LT(arena().usage().current, used);
  EXPECT_EQ(c.tensor().data, data);
  Buffer& same = c;
  c = std::move(same);
  EXPECT_FALSE(c.is_empty());
  c.release();
  EXPECT_TRUE(c.is_empty());
  c.release();
  EXPECT_TRUE(Buffer{}.is_empty());
}

TEST_F(Arenas, FreedMemoryIsHandedOutAgain) {
  Buffer a = floats("a", 64);
  const int64_t offset = offset_of(a);
  const Buffer b = floats("b", 64);
  a.release();
  EXPECT_EQ(offset_of(floats("c", 64)), offset);
  EXPECT_GT(offset_of(floats("d", 65)), offset_of(b));
}

// ---- stream order ----

TEST_F(Arenas, ReuseOnAnotherStreamWaitsForTheStreamThatFreed) {
  std::promise<void> gate;
  std::atomic<bool> done = false;
  Stream& communication = backend_->communication_stream();
  Buffer buffer = floats("send", 4096);
  void* const data = buffer.tensor().data;
  backend_->enqueue(communication, [&done, opened = gate.get_future().share()] {
    opened.wait();
    done = true;
  });
  buffer.last_used_on(communication);
  buffer.release();  // the host goes on, the communication stream still uses the memory

  // The same stream needs not wait: its own order is enough.
  Buffer again = arena().allocate("again", MemoryClass::communication, DType::float32, {1024}, communication);
  EXPECT_EQ(again.tensor().data, data);
  EXPECT_FALSE(done);
  again.release();

  // The copy stream waits, the host does not.
  bool copied_after = false;
  Buffer copy = arena().allocate("copy", MemoryClass::workspace, DType::float32, {1024}, backend_->copy_stream());
  EXPECT_EQ(copy.tensor().data, data);
  backend_->enqueue(backend_->copy_stream(), [&] { copied_after = done; });
  EXPECT_FALSE(done);
  gate.set_value();
  // Compute waits.
  const Buffer compute = floats("compute", 2048);
  EXPECT_TRUE(done);
  backend_->finish(backend_->record(backend_->copy_stream()));
  EXPECT_TRUE(copied_after);
}

TEST_F(Arenas, PartsOfAFreedRangeAreOrderedOneByOne) {
  Stream& communication = backend_->communication_stream();
  std::promise<void> first_gate;
  std::promise<void> second_gate;
  std::atomic<int> done = 0;
  Buffer first = floats("first part", 64);
  Buffer second = floats("second part", 64);
  void* const data = first.tensor().data;
  backend_->enqueue(communication, [&done, opened = first_gate.get_future().share()] {
    opened.wait();
    ++done;
  });
  first.last_used_on(communication);
  first.release();
  backend_->enqueue(backend_->copy_stream(), [&done, opened = second_gate.get_future().share()] {
    opened.wait();
    ++done;
  });
  second.last_used_on(backend_->copy_stream());
  second.release();
  // One block over both: it waits for both streams.
  std::thread opener([&] {
    first_gate.set_value();
    second_gate.set_value();
  });
  const Buffer both = floats("both", 128);
  EXPECT_EQ(both.tensor().data, data);
  EXPECT_EQ(done, 2);
  opener.join();
}

TEST_F(Arenas, WaitingOnceIsEnough) {
  Stream& communication = backend_->communication_stream();
  for (int64_t round = 0; round < 50; ++round) {
    Buffer buffer = floats("round", 64 * (1 + round % 5));
    backend_->enqueue(communication,
                      [data = buffer.tensor().as<float>(), round] { data[0] = static_cast<float>(round); });
    buffer.last_used_on(communication);
    buffer.release();
    const Buffer reused = floats("reused", 64);
    // Ordered after the write above: the thread sanitizer would see it otherwise.
    reused.tensor().as<float>()[0] = -1.0f;
    EXPECT_EQ(reused.tensor().as<float>()[0], -1.0f);
  }
}

TEST_F(Arenas, BuffersOfAFailedStreamAreStillGivenBack) {
  Stream& communication = backend_->communication_stream();
  const int64_t before = arena().usage().current;
  Buffer buffer = arena().allocate("receive", MemoryClass::communication, DType::float32, {100}, communication);
  backend_->enqueue(communication, [] { throw CommunicationError("lost"); });
  EXPECT_THROW(backend_->finish(backend_->record(communication)), CommunicationError);
  buffer.release();
  EXPECT_EQ(arena().usage().current, before);
  // Whoever would have to wait for the failed stream learns about it, and the arena stays usable.
  EXPECT_THROW(floats("next", 100), CommunicationError);
  EXPECT_EQ(arena().usage().current, before);
}

// ---- out of memory ----

std::string out_of_memory_text(const std::function<void()>& action) {
  try {
    action();
  } catch (const OutOfMemoryError& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(Arenas, OutOfMemoryTellsTheWholeStory) {
  const Buffer weights = floats("layers.0.attention.query.weight", 65536, MemoryClass::weights);  // 256 KiB
  { const Buffer peak = floats("peak", 131072, MemoryClass::saved); }                             // 512 KiB
  const Buffer small = floats("small", 256, MemoryClass::optimizer);
  MemoryUsage advised;  // what is in use, and what there was no room for
  arena().advise([&](const MemoryUsage& usage) {
    advised = usage;
    return "memory.recompute: full";
  });
  const std::string text = out_of_memory_text([&] {
    arena().allocate("layers.0.mlp.gate", MemoryClass::workspace, DType::float32, {1024, 256},
                     backend_->compute_stream());
  });
  EXPECT_THAT(text, AllOf(HasSubstr("out of device memory"), HasSubstr("\"layers.0.mlp.gate\""),
                          HasSubstr("float32 [1024, 256]"), HasSubstr("1.00 MiB")));
  EXPECT_THAT(text, HasSubstr("weights 256.00 KiB (256.00 KiB)"));
  EXPECT_THAT(text, HasSubstr("saved 0 B (512.00 KiB)"));
  EXPECT_THAT(text, HasSubstr("optimizer 1.00 KiB"));
  EXPECT_THAT(text, HasSubstr("Largest blocks: \"layers.0.attention.query.weight\" 256.00 KiB, \"small\" 1.00 KiB"));
  EXPECT_THAT(text, HasSubstr("What would help: memory.recompute: full"));
  const auto more_of = [&](MemoryClass memory_class) {
    const auto index = static_cast<size_t>(memory_class);
    return advised.current_by_class[index] - arena().usage().current_by_class[index];
  };
  EXPECT_EQ(more_of(MemoryClass::workspace), int64_t{1} << 20);
  EXPECT_EQ(more_of(MemoryClass::weights), 0);
}

TEST_F(Arenas, OutOfMemoryTellsFragmentationFromExhaustion) {
  std::vector<Buffer> blocks;
  blocks.reserve(15);
  for (int i = 0; i < 15; ++i) blocks.push_back(floats("block", 16384));  // 64 KiB each
  for (size_t i = 0; i < blocks.size(); i += 2) blocks[i].release();
  const std::string text = out_of_memory_text([&] { floats("large", 65536); });
  EXPECT_THAT(text, HasSubstr("are free, 127.75 KiB of them in one piece"));
}

TEST_F(Arenas, SizesBeyondInt64AreOutOfMemoryToo) {
  for (const int64_t count : {int64_t{1} << 40, int64_t{1} << 61, INT64_MAX}) {
    EXPECT_THAT(out_of_memory_text([&] { floats("huge", count); }), HasSubstr("no room for \"huge\""));
  }
  EXPECT_FALSE(floats("still works", 10).is_empty());
}

// An arena far larger than 2^32 bytes: only shapes and offsets, as on the meta backend.
TEST_F(Arenas, CountBeyondThirtyTwoBits) {
  Arena large(*backend_, Tier::host, nullptr, int64_t{1} << 45);
  const Buffer a =
      large.allocate("a", MemoryClass::saved, DType::float32, {int64_t{1} << 33, 16}, backend_->compute_stream());
  const Buffer b = large.allocate("b", MemoryClass::saved, DType::float32, {1}, backend_->compute_stream());
  EXPECT_EQ(large.usage().current, (int64_t{1} << 39) + Arena::kAlignment);
  EXPECT_EQ(a.tensor().data, nullptr);
  EXPECT_FALSE(a.tensor().is_absent());
}

TEST(CpuBackends, ServeTheMachinesMemoryByDefault) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  EXPECT_GT(backend->arena(Tier::device).capacity(), int64_t{100} << 20);
  EXPECT_EQ(backend->arena(Tier::device).capacity(), backend->arena(Tier::host).capacity());
  // Pages are committed when they are touched: this is far more than the machine has, over several backends.
  std::vector<std::unique_ptr<Backend>> backends;
  backends.reserve(16);
  for (int i = 0; i < 16; ++i) backends.push_back(make_cpu_backend());
  const int64_t bytes = std::min(int64_t{1} << 30, backend->arena(Tier::host).capacity() / 2);
  const Buffer buffer =
      backends[15]
          ->arena(Tier::host)
          .allocate("large", MemoryClass::saved, DType::uint8, {bytes}, backends[15]->compute_stream());
  static_cast<std::byte*>(buffer.tensor().data)[buffer.tensor().byte_count() - 1] = std::byte{1};
  EXPECT_THROW(make_cpu_backend({.memory_limit_bytes = -1}), ContractError);
}

#ifdef ITHACA_ADDRESS_SANITIZER
TEST_F(Arenas, UseAfterFreeIsFound) {
  Buffer buffer = floats("x", 64);
  float* const data = buffer.tensor().as<float>();
  data[0] = 1.0f;
  buffer.release();
  EXPECT_DEATH(data[0] = 2.0f, "use-after-poison");
  const Buffer odd = floats("odd", 3);
  float* const odd_data = odd.tensor().as<float>();
  EXPECT_DEATH(odd_data[4] = 2.0f, "use-after-poison");
}
#endif

// A rank that fails unwinds while the exchange that it had begun is still read on another stream: not a misuse.
TEST_F(Arenas, WhatAFailureGivesBackMayStillBeRead) {
  std::promise<void> gate;
  float seen = 0.0f;
  try {
    const Buffer sent = floats("sent", 64);
    float* const data = sent.tensor().as<float>();
    data[63] = 5.0f;
    backend_->enqueue(backend_->communication_stream(), [data, &seen, opened = gate.get_future().share()] {
      opened.wait();
      seen = data[63];
    });
    static_cast<void>(floats("too large", 2 * kMiB));
    ADD_FAILURE() << "there is room";
  } catch (const OutOfMemoryError&) {
    EXPECT_EQ(arena().usage().current, Arena::kAlignment);
  }
  gate.set_value();
  backend_->finish(backend_->record(backend_->communication_stream()));
  EXPECT_EQ(seen, 5.0f);
}

}  // namespace
}  // namespace ithaca
