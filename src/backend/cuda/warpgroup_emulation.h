// The functions of warpgroup_mma.cuh (and what they use of attention_mma.cuh) on the CPU, so that tests can run the
// work of a block: every thread of it is a fibre, and one after the other runs until it has to wait for others. Test
// code; one block at a time.
//
// What the hardware leaves open is chosen at random: which thread goes on; whether a copy or a product under way is
// done at once or at the very end. Until then its destination holds NaN. Products that read shared memory which a
// thread has written and not published, threads that wait for each other in vain and addresses out of range throw.
//
// Products follow the PTX ISA's matrix descriptors (128-byte swizzle) and register fragments, element by element.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/cuda/warpgroup_layout.h"

namespace ithaca::cuda {

class EmulatedBlock {
 public:
  enum class Timing : uint8_t { early, late, random };

  static constexpr int kWarpgroup = 128;

  EmulatedBlock(int block, int threads, size_t shared_bytes, Timing timing, uint32_t seed)
      : block_index(block),
        timing_(timing),
        random_(seed),
        shared_(shared_bytes + 2048, std::byte{0xFF}),
        unpublished_((shared_bytes + 2048) / 16, -1),
        lanes_(static_cast<size_t>(threads)),
        warps_(static_cast<size_t>(threads) / 32),
        groups_(static_cast<size_t>(threads) / kWarpgroup),
        shared_bytes_(shared_bytes) {}

  static EmulatedBlock& current() {
    if (instance() == nullptr) throw std::logic_error("no block runs");
    return *instance();
  }

  // All threads run `function`.
  void run(const std::function<void()>& function) {
    instance() = this;
    function_ = &function;
    for (Lane& lane : lanes_) {
      constexpr size_t kStackBytes = 96 << 10;
      lane.stack.resize(kStackBytes);
      getcontext(&lane.context);
      lane.context.uc_stack.ss_sp = lane.stack.data();
      lane.context.uc_stack.ss_size = kStackBytes;
      lane.context.uc_link = &scheduler_;
      makecontext(&lane.context, &EmulatedBlock::enter, 0);
    }
    std::vector<int> order(lanes_.size());
    std::iota(order.begin(), order.end(), 0);
    for (bool any_left = true; any_left;) {
      std::shuffle(order.begin(), order.end(), random_);
      any_left = false;
      bool any_ran = false;
      for (const int i : order) {
        Lane& lane = lanes_[static_cast<size_t>(i)];
        if (lane.is_done) continue;
        any_left = true;
        if (lane.is_ready && !lane.is_ready()) continue;
        lane.is_ready = nullptr;
        any_ran = true;
        thread = i;
        swapcontext(&scheduler_, &lane.context);
        if (!error_.empty()) throw std::logic_error(error_);
      }
      if (any_left && !any_ran) throw std::logic_error("threads wait for each other: " + waits());
    }
    instance() = nullptr;
  }

  int thread = 0;
  int block_index = 0;

  void* shared_memory() { return shared_.data(); }
  uint32_t address(const void* pointer) const {
    return kFirstAddress + static_cast<uint32_t>(static_cast<const std::byte*>(pointer) - shared_.data());
  }
  std::byte* at(uint32_t address, size_t bytes) {
    if (address < kFirstAddress || address - kFirstAddress + bytes > shared_bytes_) {
      throw std::logic_error("an address outside of shared memory");
    }
    return shared_.data() + (address - kFirstAddress);
  }

  // ---- waiting ----

  void wait_until(const char* what, std::function<bool()> is_ready) {
    if (is_ready()) return;
    Lane& lane = this->lane();
    lane.is_ready = std::move(is_ready);
    lane.waits_for = what;
    swapcontext(&lane.context, &scheduler_);
  }
  // Threads that meet, by a number of their own.
  void meet(int number, int count) {
    Meeting& meeting = meetings_[number];
    const int64_t time = meeting.times;
    if (++meeting.arrived == count) {
      meeting.arrived = 0;
      ++meeting.times;
      return;
    }
    wait_until("a meeting", [&meeting, time] { return meeting.times > time; });
  }
  void meet_warp() { exchange(0); }
  void meet_block() { meet(0, static_cast<int>(lanes_.size())); }
  // The words that the lanes of a warp bring.
  const uint32_t* exchange(uint32_t word) {
    Warp& warp = warps_[static_cast<size_t>(thread / 32)];
    const int64_t time = warp.times;
    warp.words[time % 2][thread % 32] = word;
    if (++warp.arrived == 32) {
      warp.arrived = 0;
      ++warp.times;
    } else {
      wait_until("its warp", [&warp, time] { return warp.times > time; });
    }
    return warp.words[time % 2];
  }

  void init_barrier(uint32_t address, int arrivals) {
    at(address, 8);
    barriers_[address] = {arrivals, arrivals, 0};
  }
  void arrive(uint32_t address) {
    Barrier& barrier = barriers_.at(address);
    if (--barrier.missing == 0) {
      barrier.missing = barrier.arrivals;
      ++barrier.times;
    }
  }
  void wait_for_phase(uint32_t address, int phase) {
    const Barrier& barrier = barriers_.at(address);
    wait_until("a barrier", [&barrier, phase] { return (barrier.times + 1) % 2 == phase; });
  }

  // ---- copies ----

  void copy(uint32_t to, const void* from, bool is_live) {
    Copy copy = {to, {}};
    if (is_live) std::memcpy(copy.bytes, from, 16);
    if (to % 16 != 0) throw std::logic_error("a copy to an odd address");
    if (is_done_at_once()) {
      write(to, copy.bytes, 16);
    } else {
      std::memset(at(to, 16), 0xFF, 16);
      lane().copies.push_back(copy);
    }
  }
  void commit_copies() { lane().copy_groups.push_back(lane().copies.size()); }
  void wait_for_copies(size_t pending) {
    Lane& lane = this->lane();
    if (lane.copy_groups.size() <= pending) return;
    const size_t end = lane.copy_groups[lane.copy_groups.size() - 1 - pending];
    for (; lane.copies_done < end; ++lane.copies_done) {
      write(lane.copies[lane.copies_done].to, lane.copies[lane.copies_done].bytes, 16);
    }
  }
  // What a thread writes is not for products until it is published.
  void write(uint32_t to, const void* from, size_t bytes) {
    std::memcpy(at(to, bytes), from, bytes);
    const size_t chunk = (to - kFirstAddress) / 16;
    unpublished_[chunk] = static_cast<int16_t>(thread);
    lane().written.push_back(chunk);
  }
  void publish() {
    for (const size_t chunk : lane().written) {
      if (unpublished_[chunk] == thread) unpublished_[chunk] = -1;
    }
    lane().written.clear();
  }

  // ---- products ----

  struct Operand {
    uint64_t descriptor = 0;
    bool by_columns = false;
    std::vector<const uint32_t*> registers;  // of the lanes instead
  };

  void multiply(float* sums, int columns, const uint32_t* a_registers, uint64_t a, bool columns_of_a, uint64_t b,
                bool columns_of_b, bool adds) {
    Group& group = this->group();
    Lane& lane = this->lane();
    const size_t number = lane.products++;
    if (number == group.products.size()) {
      Product product;
      product.columns = columns;
      product.adds = adds;
      product.a = {a, columns_of_a, {}};
      if (a_registers != nullptr) product.a.registers.resize(kWarpgroup);
      product.b = {b, columns_of_b, {}};
      product.is_at_once = is_done_at_once();
      product.sums.resize(kWarpgroup);
      product.before.resize(kWarpgroup);
      group.products.push_back(std::move(product));
    }
    Product& product = group.products[number];
    if (product.columns != columns || product.adds != adds || product.a.descriptor != a || product.b.descriptor != b) {
      throw std::logic_error("threads of a warpgroup disagree about a product");
    }
    const size_t index = static_cast<size_t>(thread % kWarpgroup);
    if (a_registers != nullptr) product.a.registers[index] = a_registers;
    product.sums[index] = sums;
    bool is_first_of_its_sums = true;
    for (size_t i = group.done; i < number; ++i) {
      if (group.products[i].sums[index] == sums) is_first_of_its_sums = false;
    }
    if (is_first_of_its_sums) {
      product.before[index].assign(sums, sums + columns / 2);
      std::fill_n(sums, columns / 2, std::numeric_limits<float>::quiet_NaN());
    }
    if (++product.arrived == kWarpgroup && product.is_at_once) finish_products(group, number + 1);
  }
  void commit_products() { lane().product_groups.push_back(lane().products); }
  void wait_for_products(size_t pending) {
    Lane& lane = this->lane();
    if (lane.product_groups.size() <= pending) return;
    const size_t end = lane.product_groups[lane.product_groups.size() - 1 - pending];
    if (end == 0) return;
    Group& group = this->group();
    // Products of a warpgroup begin when all of its warps are there.
    wait_until("its warpgroup",
               [&group, end] { return group.done >= end || group.products[end - 1].arrived == kWarpgroup; });
    finish_products(group, end);
  }

 private:
  static constexpr uint32_t kFirstAddress = 1024 + 48;  // not aligned

  struct Copy {
    uint32_t to;
    std::byte bytes[16];
  };
  struct Lane {
    ucontext_t context = {};
    std::vector<std::byte> stack;
    std::function<bool()> is_ready;
    const char* waits_for = "";
    bool is_done = false;
    std::vector<Copy> copies;
    std::vector<size_t> copy_groups;
    size_t copies_done = 0;
    std::vector<size_t> written;
    size_t products = 0;
    std::vector<size_t> product_groups;
  };
  struct Warp {
    int64_t times = 0;
    int arrived = 0;
    uint32_t words[2][32] = {};
  };
  struct Meeting {
    int arrived = 0;
    int64_t times = 0;
  };
  struct Barrier {
    int arrivals = 0;
    int missing = 0;
    int64_t times = 0;
  };
  struct Product {
    int columns = 0;
    bool adds = false;
    bool is_at_once = false;
    int arrived = 0;
    Operand a;
    Operand b;
    std::vector<float*> sums;
    std::vector<std::vector<float>> before;
  };
  struct Group {
    std::vector<Product> products;
    size_t done = 0;
  };

  static EmulatedBlock*& instance() {
    static EmulatedBlock* block = nullptr;
    return block;
  }
  static void enter() {
    EmulatedBlock& block = current();
    Lane& lane = block.lane();
    try {
      (*block.function_)();
    } catch (const std::exception& error) {
      block.error_ = error.what();
    }
    lane.is_done = true;
  }

  Lane& lane() { return lanes_[static_cast<size_t>(thread)]; }
  Group& group() { return groups_[static_cast<size_t>(thread / kWarpgroup)]; }
  bool is_done_at_once() { return timing_ == Timing::early || (timing_ == Timing::random && random_() % 2 == 0); }
  std::string waits() const {
    std::map<std::string, int> counts;
    for (size_t i = 0; i < lanes_.size(); ++i) {
      if (!lanes_[i].is_done) ++counts["warp " + std::to_string(i / 32) + " for " + lanes_[i].waits_for];
    }
    std::string text;
    for (const auto& [what, count] : counts) text += std::to_string(count) + " of " + what + "; ";
    return text;
  }

  // Eight neighbouring elements; `place` as if nothing were swizzled.
  void read_chunk(uint32_t place, float* to, int stride) {
    const uint32_t address = place ^ ((place >> 7 & 7) << 4);
    const std::byte* from = at(address, 16);
    if (unpublished_[(address - kFirstAddress) / 16] >= 0) {
      throw std::logic_error("a product reads what was not published");
    }
    uint16_t words[8];
    std::memcpy(words, from, 16);
    for (int i = 0; i < 8; ++i) to[i * stride] = std::bit_cast<float>(static_cast<uint32_t>(words[i]) << 16);
  }
  // to[row][k], `rows` rows of 16.
  void read_operand(const Operand& operand, int rows, float* to) {
    const uint64_t bits = operand.descriptor;
    const auto start = static_cast<uint32_t>(bits & 0x3FFF) << 4;
    const auto leading = static_cast<uint32_t>(bits >> 16 & 0x3FFF) << 4;
    const auto stride = static_cast<uint32_t>(bits >> 32 & 0x3FFF) << 4;
    if (bits >> 62 != 1 || (bits >> 49 & 7) != 0) throw std::logic_error("a descriptor of another layout");
    for (int chunk = 0; chunk < 2 * rows; ++chunk) {
      if (operand.by_columns) {  // [k][8 rows]
        const int k = chunk % 16;
        const int row = chunk / 16 * 8;
        const uint32_t place = start + static_cast<uint32_t>(row / 64) * leading + static_cast<uint32_t>(row % 64 * 2) +
                               static_cast<uint32_t>(k / 8) * stride + static_cast<uint32_t>(k % 8 * 128);
        read_chunk(place, to + row * 16 + k, 16);
      } else {
        const int row = chunk / 2;
        const uint32_t place = start + static_cast<uint32_t>(row / 8) * stride + static_cast<uint32_t>(row % 8 * 128) +
                               static_cast<uint32_t>(chunk % 2 * 16);
        read_chunk(place, to + row * 16 + chunk % 2 * 8, 1);
      }
    }
  }

  void finish_products(Group& group, size_t end) {
    for (; group.done < end; ++group.done) finish(group.products[group.done]);
  }
  void finish(Product& product) {
    const int columns = product.columns;
    std::vector<float> a(64 * 16);
    std::vector<float> b(static_cast<size_t>(columns) * 16);
    if (product.a.registers.empty()) {
      read_operand(product.a, 64, a.data());
    } else {
      for (int lane = 0; lane < kWarpgroup; ++lane) {
        for (int word = 0; word < 4; ++word) {
          const int row = lane / 32 * 16 + lane % 32 / 4 + word % 2 * 8;
          const int k = lane % 4 * 2 + word / 2 * 8;
          const uint32_t pair = product.a.registers[static_cast<size_t>(lane)][word];
          a[static_cast<size_t>(row * 16 + k)] = std::bit_cast<float>(pair << 16);
          a[static_cast<size_t>(row * 16 + k + 1)] = std::bit_cast<float>(pair & 0xFFFF0000u);
        }
      }
    }
    read_operand(product.b, columns, b.data());
    std::vector<float> turned(b.size());  // [k][column]
    for (int column = 0; column < columns; ++column) {
      for (int k = 0; k < 16; ++k) {
        turned[static_cast<size_t>(k * columns + column)] = b[static_cast<size_t>(column * 16 + k)];
      }
    }
    std::vector<float> row_sums(static_cast<size_t>(columns));
    for (int row = 0; row < 64; ++row) {
      std::fill(row_sums.begin(), row_sums.end(), 0.0f);
      for (int k = 0; k < 16; ++k) {
        const float factor = a[static_cast<size_t>(row * 16 + k)];
        const float* from = turned.data() + k * columns;
        for (int column = 0; column < columns; ++column) row_sums[static_cast<size_t>(column)] += factor * from[column];
      }
      for (int column = 0; column < columns; ++column) {
        const int lane = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
        const int place = column / 8 * 4 + row % 16 / 8 * 2 + column % 2;
        const size_t index = static_cast<size_t>(lane);
        const std::vector<float>& before = product.before[index];
        float* sum = product.sums[index] + place;
        const float old = before.empty() ? *sum : before[static_cast<size_t>(place)];
        *sum = row_sums[static_cast<size_t>(column)] + (product.adds ? old : 0.0f);
      }
    }
    product = {};
  }

  Timing timing_;
  std::mt19937 random_;
  std::vector<std::byte> shared_;
  std::vector<int16_t> unpublished_;  // by chunks of 16 bytes: who has written it
  std::vector<Lane> lanes_;
  std::vector<Warp> warps_;
  std::vector<Group> groups_;
  size_t shared_bytes_;
  std::map<int, Meeting> meetings_;
  std::map<uint32_t, Barrier> barriers_;
  ucontext_t scheduler_ = {};
  const std::function<void()>* function_ = nullptr;
  std::string error_;
};

// ---- what device code finds ----

struct EmulatedIndex {
  unsigned x;
};
inline EmulatedIndex emulated_thread() {
  return {static_cast<unsigned>(EmulatedBlock::current().thread)};
}
inline EmulatedIndex emulated_block() {
  return {static_cast<unsigned>(EmulatedBlock::current().block_index)};
}
#define threadIdx ::ithaca::cuda::emulated_thread()
#define blockIdx ::ithaca::cuda::emulated_block()

using std::max;
using std::min;
inline constexpr float kLog2E = 1.4426950408889634f;

inline uint64_t __cvta_generic_to_global(const void* pointer) {
  return std::bit_cast<uint64_t>(pointer);
}
inline uint32_t shared_address(const void* pointer) {
  return EmulatedBlock::current().address(pointer);
}
inline float __uint_as_float(uint32_t bits) {
  return std::bit_cast<float>(bits);
}
inline float exponential_2(float x) {
  return std::exp2(x);
}
inline uint32_t pack_pair(float first, float second) {
  const auto rounded = [](float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    if (std::isnan(value)) return bits >> 16 | 0x40u;
    return (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  };
  return rounded(first) | rounded(second) << 16;
}
inline int atomicAdd(int* to, int value) {
  const int before = *to;
  *to += value;
  return before;
}
inline void __syncthreads() {
  EmulatedBlock::current().meet_block();
}
inline void __syncwarp() {
  EmulatedBlock::current().meet_warp();
}
template <typename T>
T __shfl_xor_sync(uint32_t, T value, int distance) {
  EmulatedBlock& block = EmulatedBlock::current();
  const int lane = block.thread % 32;
  return std::bit_cast<T>(block.exchange(std::bit_cast<uint32_t>(value))[lane ^ distance]);
}

inline void init_barrier(uint32_t barrier, int arrivals) {
  EmulatedBlock::current().init_barrier(barrier, arrivals);
}
inline void arrive(uint32_t barrier) {
  EmulatedBlock::current().arrive(barrier);
}
inline void wait_for_phase(uint32_t barrier, int phase) {
  EmulatedBlock::current().wait_for_phase(barrier, phase);
}
template <int kBarrier, int kThreads>
void meet() {
  EmulatedBlock::current().meet(kBarrier, kThreads);
}
inline void publish_to_products() {
  EmulatedBlock::current().publish();
}
template <int kRegisters>
void take_registers() {}
template <int kRegisters>
void give_registers() {}

inline void copy_async_16(uint32_t to, const void* from, bool is_live) {
  EmulatedBlock::current().copy(to, from, is_live);
}
inline void commit_copies() {
  EmulatedBlock::current().commit_copies();
}
template <int kPending>
void wait_for_copies() {
  EmulatedBlock::current().wait_for_copies(kPending);
}
inline uint4 load_shared_16(uint32_t from) {
  uint4 word;
  std::memcpy(&word, EmulatedBlock::current().at(from, 16), 16);
  return word;
}
inline void store_matrices(uint32_t address, const uint32_t (&words)[4]) {
  EmulatedBlock& block = EmulatedBlock::current();
  const int lane = block.thread % 32;
  const uint32_t* addresses = block.exchange(address);
  for (int matrix = 0; matrix < 4; ++matrix) {
    const uint32_t row = addresses[8 * matrix + lane / 4];
    if (row % 16 != 0) throw std::logic_error("a row of a matrix at an odd address");
    block.write(row + static_cast<uint32_t>(lane % 4 * 4), &words[matrix], 4);
  }
}

inline int uniform(int value) {
  return static_cast<int>(EmulatedBlock::current().exchange(static_cast<uint32_t>(value))[0]);
}
template <typename T>
T forgotten(T value) {
  return value;
}
inline void fence_registers() {}
inline void commit_products() {
  EmulatedBlock::current().commit_products();
}
template <int kPending>
void wait_for_products() {
  EmulatedBlock::current().wait_for_products(kPending);
}
template <typename T>
void hold(T&) {}
template <bool kColumnsOfA, bool kColumnsOfB, int kCount>
void multiply_shared(float (&sums)[kCount], uint64_t a, uint64_t b, bool adds) {
  EmulatedBlock::current().multiply(sums, 2 * kCount, nullptr, a, kColumnsOfA, b, kColumnsOfB, adds);
}
template <bool kColumnsOfB, int kCount>
void multiply_registers(float (&sums)[kCount], const uint32_t (&a)[4], uint64_t b) {
  EmulatedBlock::current().multiply(sums, 2 * kCount, a, 0, false, b, kColumnsOfB, true);
}

}  // namespace ithaca::cuda
