// Dealing a step's sequences to dp ranks and micro-batches so that all have about the same work.
//
// Attention's work on a sequence grows with the sum of the squares of its documents' lengths; that is its cost. How
// many sequences a rank and a micro-batch get is fixed (as even as can be), which ones is chosen: most costly first,
// each to whoever has least so far and still has room (longest processing time first; Graham 1969). Micro-batches
// of every rank then stand in order of falling cost, since ranks meet at every micro-batch.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace ithaca {

// Part `part` of `parts` of [0, size): the first size % parts of them have one more.
std::pair<int64_t, int64_t> even_part(int64_t size, int64_t part, int64_t parts);

// Which items each of `parts` gets, numbers from 0, rising within a part; part p gets as many as even_part says.
std::vector<std::vector<int64_t>> deal_evenly(std::span<const double> costs, int64_t parts);

// [dp rank][micro-batch][item]: all ranks get the same number of micro-batches, at most `accumulation` and no more than
// the rank with most items can fill; one may be empty on some ranks, but never on all.
std::vector<std::vector<std::vector<int64_t>>> deal_step(std::span<const double> costs, int64_t dp_size,
                                                         int64_t accumulation);

// What waiting costs: the share of all ranks' time that is lost when the work of a step is divided like this, 0 for a
// perfect balance. Ranks meet at every micro-batch.
double deal_imbalance(const std::vector<std::vector<std::vector<int64_t>>>& deal, std::span<const double> costs);

}  // namespace ithaca
