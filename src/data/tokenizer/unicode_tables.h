// Where Hugging Face's library knows another version of Unicode than the libraries that Ithaca uses.
//
// It has several versions built in: normalization forms as of Unicode 9, accents as of 9, punctuation as of 8, regular
// expressions as of 16; here are utf8proc with Unicode 15 and PCRE2 with 14. A code point that is assigned in one and
// not in the other would give other ids. The tables were made by asking that library about every code point.
// Thread-safety: pure functions.
#pragma once

#include <algorithm>
#include <vector>

namespace ithaca::tokenizer_internal {

struct CodePointRange {
  char32_t first;
  char32_t last;
};

// Code points that have a decomposition or a combining class for utf8proc and none there.
const std::vector<CodePointRange>& young_to_normalization();
// Marks (M*) that are none there.
const std::vector<CodePointRange>& young_to_accents();
// Punctuation (P*) that is none there.
const std::vector<CodePointRange>& young_to_punctuation();
// \w and numbers (N*) there, as of Unicode 17, that are not yet for utf8proc.
const std::vector<CodePointRange>& new_word_characters();
const std::vector<CodePointRange>& new_numbers();

// Code points that PCRE2 takes for unassigned, and one with the same category (for Han, also the same script) and the
// same length in UTF-8 that it knows.
struct StandIn {
  char32_t first;
  char32_t last;
  char32_t known;
};
const std::vector<StandIn>& stand_ins();

// The one of these that `code_point` is in; null for none.
template <class Range>
const Range* find_range(const std::vector<Range>& ranges, char32_t code_point) {
  const auto range = std::lower_bound(ranges.begin(), ranges.end(), code_point,
                                      [](const Range& a, char32_t value) { return a.last < value; });
  return range != ranges.end() && range->first <= code_point ? &*range : nullptr;
}

}  // namespace ithaca::tokenizer_internal
