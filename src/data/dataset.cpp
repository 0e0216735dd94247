#include "data/dataset.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "base/error.h"
#include "data/cache/content_hash.h"

namespace ithaca {

namespace {

template <typename T>
void add_values(const std::vector<T>& values, ContentHash& hash) {
  hash.add_number(values.size());
  hash.add(std::as_bytes(std::span(values)));
}

void check_lengths(const Sequence& sequence) {
  const size_t tokens = sequence.token_ids.size();
  const bool fits = sequence.position_ids.size() == tokens && sequence.shifted_labels.size() == tokens &&
                    (sequence.label_weights.empty() || sequence.label_weights.size() == tokens) &&
                    std::accumulate(sequence.document_lengths.begin(), sequence.document_lengths.end(), int64_t{0}) ==
                        static_cast<int64_t>(tokens);
  require(fits, "the parts of a sequence differ in length");
}

}  // namespace

SequenceTotals sequence_totals(const Sequence& sequence) {
  SequenceTotals totals;
  totals.tokens = static_cast<int64_t>(sequence.token_ids.size());
  for (size_t i = 0; i < sequence.shifted_labels.size(); ++i) {
    if (sequence.shifted_labels[i] == kNoLabel) continue;
    ++totals.valid_tokens;
    totals.label_weight_sum += sequence.label_weights.empty() ? 1.0 : static_cast<double>(sequence.label_weights[i]);
  }
  return totals;
}

std::vector<DatasetStage> Dataset::stages() const {
  return {{0, summary().longest_sequence, 0, size()}};
}

uint64_t Dataset::stage_hash(int64_t stage) const {
  const DatasetStage which = stages().at(static_cast<size_t>(stage));
  ContentHash hash;
  for (int64_t index = which.begin; index < which.end; ++index) hash.add_number(content_hash(index));
  return hash.digest().low;
}

SequenceShape Dataset::shape(int64_t index) const {
  const Sequence whole = sequence(index);
  check_lengths(whole);
  SequenceShape shape;
  shape.document_lengths = whole.document_lengths;
  shape.tokens = static_cast<int64_t>(whole.token_ids.size());
  for (const int64_t position : whole.position_ids) shape.largest_position = std::max(shape.largest_position, position);
  shape.weighted = !whole.label_weights.empty();
  return shape;
}

uint64_t Dataset::content_hash(int64_t index) const {
  const Sequence whole = sequence(index);
  ContentHash hash;
  add_values(whole.token_ids, hash);
  add_values(whole.position_ids, hash);
  add_values(whole.shifted_labels, hash);
  add_values(whole.document_lengths, hash);
  add_values(whole.label_weights, hash);
  return hash.digest().low;
}

double Dataset::cost(int64_t index) const {
  double sum = 0.0;
  for (const int64_t length : shape(index).document_lengths) {
    sum += static_cast<double>(length) * static_cast<double>(length);
  }
  return sum;
}

void Dataset::read(int64_t index, const Segment& tokens, bool with_weights, TokenSlice& out) const {
  const Sequence whole = sequence(index);
  for (int64_t i = 0; i < tokens.count; ++i) {
    const auto at = static_cast<size_t>(tokens.begin + i * tokens.stride);
    require(at < whole.token_ids.size(), "tokens beyond the end of a sequence were asked for");
    out.token_ids.push_back(whole.token_ids[at]);
    out.position_ids.push_back(whole.position_ids[at]);
    const int64_t label = whole.shifted_labels[at];
    out.shifted_labels.push_back(label);
    if (!with_weights) continue;
    const float given = whole.label_weights.empty() ? 1.0f : whole.label_weights[at];
    out.label_weights.push_back(label == kNoLabel ? 0.0f : given);
  }
}

ListedDataset::ListedDataset(std::vector<Sequence> sequences) : sequences_(std::move(sequences)) {
  summary_.sequences = size();
  for (const Sequence& sequence : sequences_) {
    check_lengths(sequence);
    const SequenceTotals totals = sequence_totals(sequence);
    summary_.documents += static_cast<int64_t>(sequence.document_lengths.size());
    summary_.tokens += totals.tokens;
    summary_.valid_tokens += totals.valid_tokens;
    summary_.longest_sequence = std::max(summary_.longest_sequence, totals.tokens);
  }
}

}  // namespace ithaca
