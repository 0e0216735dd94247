// Counter-based random numbers: value i of a stream is a function of (seed, stream name, i) alone.
//
// So a tensor can be filled in any order, in any pieces, by any rank, and always gets the same values.
// The generator is SplitMix64's finalizer (Steele, Lea, Flood 2014) over the counter; normals by Box-Muller in double
// precision. Thread-safety: immutable after construction; share freely.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

namespace ithaca {

// Mixes 64 bits so that every input bit moves every output bit.
constexpr uint64_t mix_bits(uint64_t value) {
  value += 0x9E3779B97F4A7C15ull;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
  return value ^ (value >> 31);
}

// FNV-1a, mixed: a stable hash of bytes that is the same on every machine.
constexpr uint64_t stable_hash(std::string_view bytes, uint64_t start = 0xCBF29CE484222325ull) {
  uint64_t hash = start;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return mix_bits(hash);
}

class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view name) : key_(mix_bits(seed ^ mix_bits(stable_hash(name)))) {}

  // 64 uniform bits.
  uint64_t bits(uint64_t index) const { return mix_bits(key_ ^ mix_bits(index)); }

  // Uniform in [0, 1), 53 bits.
  double uniform(uint64_t index) const { return static_cast<double>(bits(index) >> 11) * 0x1.0p-53; }

  // Standard normal.
  double normal(uint64_t index) const {
    const double radius = std::sqrt(-2.0 * std::log1p(-uniform(2 * index)));
    return radius * std::cos(6.283185307179586476925 * uniform(2 * index + 1));
  }

 private:
  uint64_t key_;
};

}  // namespace ithaca
