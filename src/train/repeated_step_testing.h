// Test support: one training step, made many times from the same state while everything around it goes at another pace
// each time. For test sources only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "train/parity_harness.h"

namespace ithaca::testing {

// What a step leaves on one rank, bit by bit, by names that say what it is.
using StepBits = std::map<std::string, std::vector<std::byte>>;

// Makes `count` whole steps (forward, backward, sums over the ranks, clipping, AdamW) from the same weights and no
// momentum; each must leave the same bits on every rank, which this expects. The host and both streams of every rank
// are held up for random times around attention, and each device has other work to do. Returns what the steps leave, by
// rank.
std::vector<StepBits> repeat_step(const ModelDescription& model, const Sequence& sequence, const RunSettings& settings,
                                  int count, uint64_t seed);

}  // namespace ithaca::testing
