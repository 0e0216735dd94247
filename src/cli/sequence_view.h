// A training sequence as text for people: what is trained stands out, and the edges of documents and shards are marked.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/layout.h"
#include "data/dataset.h"
#include "data/tokenizer/tokenizer.h"

namespace ithaca {

struct SequenceViewOptions {
  bool color = false;    // what is trained is green; otherwise it stands between two angular brackets
  int64_t tokens = 400;  // shown of a sequence: two thirds of them from its beginning, the rest from its end
  Layout layout = Layout::contiguous;
  int ring_size = 1;
  int ulysses_size = 1;
};

// The sequence's lines: one for each document (tokens, positions, how many are trained), one for each shard of the
// mesh, and the text. Without a tokenizer (null) tokens are shown as numbers.
std::vector<std::string> sequence_lines(const Sequence& sequence, const Tokenizer* tokenizer,
                                        const SequenceViewOptions& options);

// How many of `values` lie in [2^k, 2^(k+1)), as lines with bars; empty without any.
std::vector<std::string> length_histogram(const std::vector<int64_t>& counts_by_power, const std::string& what);
// The power of two that a length belongs to: counts_by_power[length_power(n)] counts n.
size_t length_power(int64_t length);

}  // namespace ithaca
