// What attention costs the busiest rank of a ring, in pairs of a query and a key, before anything is run: by it `auto`
// compares layouts and sizes for the documents at hand. Thread-safety: pure functions.
#pragma once

#include <cstdint>

#include "attention/documents.h"
#include "attention/layout.h"
#include "attention/tasks.h"

namespace ithaca {

// Kernels multiply whole tiles of so many queries and keys.
inline constexpr int64_t kWorkTile = 128;
// What every call costs beside the products, in keys for each of its queries: half of it for these (sums of rows,
// merging), half for the shard's keys (float32 gradients, adding). On H200s, from sequences of 64K and 128K tokens over
// 1, 2, 4 and 8 ranks, it came out between 500 and 1,000 for one document, and between 950 and 1,500 for packed ones,
// whose tiles are the worse the shorter a rank's part of them.
inline constexpr int64_t kKeysOfACall = 700;

// Forward slows down once the keys and values of a head, at 128 each, no longer fit a GPU's second-level cache:
// measured 612, 584, 522 and 498 TFLOP/s on 64K to 512K tokens. Backward does not; of both together it is this much
// each time that a call's keys double.
inline constexpr int64_t kKeysInCache = 65536;
inline constexpr double kSlowdownOfADoubling = 0.02;

struct RingWork {
  double pairs = 0.0;  // of one query head, those of all tiles, slowed down, and what calls cost
  int hops = 0;        // of other ranks' keys, which some of this rank's queries see
};

// Of the rank that has most. Striped rings, whose ranks are alike, are judged by some of their hops and up to 1,024
// documents: what this takes grows with the documents and the ranks, not with both.
RingWork busiest_ring_work(Layout layout, const Documents& documents, const MaskRule& mask, int ring_size);

}  // namespace ithaca
