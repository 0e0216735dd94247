// Token weights: which tokens the trained parts of a text are, exactly or not at all.
//
// Thread-safety: pure functions; values.
#pragma once

#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace ithaca {

struct WeightedSpan {
  TextSpan span;
  float weight = 1.0f;
};

// A text and the weight of its bytes as targets.
struct WeightedText {
  std::string text;
  // In order, disjoint; all other bytes have weight 0.
  std::vector<WeightedSpan> spans;

  // Adds a span behind the others. Empty ones and such of weight 0 add nothing; one that continues the last with the
  // same weight makes it longer.
  void add(TextSpan span, float weight);
  bool has_one_weight_everywhere(float weight) const;
};

// The weight of each token: that of all of its bytes. A token without bytes of its own (one that the tokenizer adds)
// has the weight of the next token that has some, or `trailing_weight` behind the last such token. Throws
// RecordError("<place>: ...") for a token whose bytes differ in weight: a boundary lies inside of it. `encoding` has
// spans.
std::vector<float> token_weights(const WeightedText& text, const Encoding& encoding, float trailing_weight,
                                 const std::string& place);

}  // namespace ithaca
