#include "data/step_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/error.h"
#include "base/random.h"

namespace ithaca {

namespace {

// Fisher-Yates over the counter-based generator: the same on every rank and machine.
std::vector<int64_t> shuffled(int64_t count, int64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  const RandomStream random(static_cast<uint64_t>(seed), fmt::format("data order of epoch {}", epoch));
  for (size_t last = order.size(); last > 1; --last) {
    std::swap(order[last - 1], order[random.bits(last) % last]);
  }
  return order;
}

// Part `part` of `parts` of [0, size): the first size % parts of them have one more.
std::pair<int64_t, int64_t> even_part(int64_t size, int64_t part, int64_t parts) {
  const int64_t share = size / parts;
  const int64_t larger = size % parts;
  const int64_t begin = part * share + std::min(part, larger);
  return {begin, begin + share + (part < larger ? 1 : 0)};
}

class ContentHash {
 public:
  void add(uint64_t value) { hash_ = mix_bits(hash_ ^ mix_bits(value + 0x632BE59BD9B4E019ull)); }
  void add(const std::vector<int64_t>& values) {
    add(values.size());
    for (const int64_t value : values) add(static_cast<uint64_t>(value));
  }
  void add(const Sequence& sequence) {
    add(sequence.token_ids);
    add(sequence.position_ids);
    add(sequence.shifted_labels);
    add(sequence.document_lengths);
    add(sequence.label_weights.size());
    for (const float weight : sequence.label_weights) add(std::bit_cast<uint32_t>(weight));
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0x9E3779B97F4A7C15ull;
};

void check_lengths(const Sequence& sequence) {
  const size_t tokens = sequence.token_ids.size();
  const bool fits = sequence.position_ids.size() == tokens && sequence.shifted_labels.size() == tokens &&
                    (sequence.label_weights.empty() || sequence.label_weights.size() == tokens) &&
                    std::accumulate(sequence.document_lengths.begin(), sequence.document_lengths.end(), int64_t{0}) ==
                        static_cast<int64_t>(tokens);
  require(fits, "the parts of a sequence differ in length");
}

// A micro-batch's axis, and a walk over this rank's share of it.
class TokenAxis {
 public:
  explicit TokenAxis(const std::vector<Sequence>& sequences) : sequences_(sequences) {
    for (const Sequence& sequence : sequences) {
      check_lengths(sequence);
      begins_.push_back(size_);
      size_ += static_cast<int64_t>(sequence.token_ids.size());
    }
  }
  int64_t size() const { return size_; }

  // Calls visit(sequence, index within it) for every position of the segment, in order.
  template <typename Visit>
  void walk(const Segment& segment, const Visit& visit) const {
    if (segment.count == 0) return;
    // Positions grow along a segment, so that the sequence at hand only moves on.
    auto at =
        static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), segment.begin) - begins_.begin()) - 1;
    for (int64_t i = 0; i < segment.count; ++i) {
      const int64_t position = segment.begin + i * segment.stride;
      while (position - begins_[at] >= static_cast<int64_t>(sequences_[at].token_ids.size())) ++at;
      visit(sequences_[at], static_cast<size_t>(position - begins_[at]));
    }
  }

 private:
  const std::vector<Sequence>& sequences_;
  std::vector<int64_t> begins_;
  int64_t size_ = 0;
};

}  // namespace

MicroBatch cut_micro_batch(const std::vector<Sequence>& sequences, const BatchPosition& position) {
  const TokenAxis axis(sequences);
  MicroBatch result;
  std::vector<int64_t> document_lengths;
  bool has_weights = false;
  for (const Sequence& sequence : sequences) {
    document_lengths.insert(document_lengths.end(), sequence.document_lengths.begin(), sequence.document_lengths.end());
    has_weights = has_weights || !sequence.label_weights.empty();
    for (const int64_t id : sequence.position_ids) result.largest_position = std::max(result.largest_position, id);
  }
  result.documents = Documents(document_lengths);
  result.shard = sequence_shard(position.layout, axis.size(), position.ring_rank, position.ring_size,
                                position.ulysses_rank, position.ulysses_size);
  const auto local_tokens = static_cast<size_t>(result.shard.size());
  result.token_ids.reserve(local_tokens);
  result.position_ids.reserve(local_tokens);
  result.shifted_labels.reserve(local_tokens);
  if (has_weights) result.label_weights.reserve(local_tokens);
  for (const Segment& segment : result.shard.segments()) {
    axis.walk(segment, [&](const Sequence& sequence, size_t index) {
      result.token_ids.push_back(sequence.token_ids[index]);
      result.position_ids.push_back(sequence.position_ids[index]);
      const int64_t label = sequence.shifted_labels[index];
      result.shifted_labels.push_back(label);
      if (!has_weights) return;
      const float given = sequence.label_weights.empty() ? 1.0f : sequence.label_weights[index];
      result.label_weights.push_back(label == kNoLabel ? 0.0f : given);
    });
  }
  return result;
}

StepLoader::StepLoader(const Dataset& dataset, const StepLoaderOptions& options)
    : dataset_(dataset), options_(options) {
  require(options.micro_batch_size > 0 && options.accumulation > 0 && options.dp_size > 0,
          "micro-batch size, accumulation and dp size must be at least 1");
  require(dataset.size() > 0, "a step loader needs a dataset with sequences");
}

int64_t StepLoader::sequences_per_step() const {
  return options_.micro_batch_size * options_.accumulation * options_.dp_size;
}

int64_t StepLoader::steps_per_epoch() const {
  return (dataset_.size() - 1) / sequences_per_step() + 1;
}

StepLoader::Permutation StepLoader::permutation(int64_t epoch) const {
  const std::lock_guard lock(mutex_);
  if (kept_epoch_ != epoch) {
    kept_permutation_ = std::make_shared<const std::vector<int64_t>>(shuffled(dataset_.size(), options_.seed, epoch));
    kept_epoch_ = epoch;
  }
  return kept_permutation_;
}

std::vector<int64_t> StepLoader::sequences_of_step(int64_t step) const {
  require(step >= 0, "steps are counted from 0");
  const int64_t begin = step % steps_per_epoch() * sequences_per_step();
  const int64_t end = std::min(begin + sequences_per_step(), dataset_.size());
  std::vector<int64_t> result(static_cast<size_t>(end - begin));
  std::iota(result.begin(), result.end(), begin);
  if (!options_.shuffle) return result;
  const Permutation order = permutation(step / steps_per_epoch());
  for (int64_t& index : result) index = (*order)[static_cast<size_t>(index)];
  return result;
}

std::vector<std::vector<std::vector<int64_t>>> StepLoader::indices(int64_t step) const {
  const std::vector<int64_t> sequences = sequences_of_step(step);
  const auto count = static_cast<int64_t>(sequences.size());
  // Micro-batches that would be empty on every rank are left out: they would take time and add nothing.
  const int64_t most_of_a_rank = (count - 1) / options_.dp_size + 1;
  const int64_t micro_batch_count = std::min(options_.accumulation, most_of_a_rank);
  std::vector<std::vector<std::vector<int64_t>>> result(static_cast<size_t>(options_.dp_size));
  for (int64_t rank = 0; rank < options_.dp_size; ++rank) {
    const auto [rank_begin, rank_end] = even_part(count, rank, options_.dp_size);
    auto& micro_batches = result[static_cast<size_t>(rank)];
    for (int64_t number = 0; number < micro_batch_count; ++number) {
      const auto [begin, end] = even_part(rank_end - rank_begin, number, micro_batch_count);
      micro_batches.emplace_back(sequences.begin() + rank_begin + begin, sequences.begin() + rank_begin + end);
    }
  }
  return result;
}

StepBatch StepLoader::load(int64_t step, const BatchPosition& position) const {
  require(position.dp_rank >= 0 && position.dp_rank < options_.dp_size,
          fmt::format("dp rank {} of {}", position.dp_rank, options_.dp_size));
  StepBatch batch;
  // In the order of the permutation, so that the sum has the same bits however the sequences are dealt.
  for (const int64_t index : sequences_of_step(step)) {
    const SequenceTotals totals = dataset_.totals(index);
    batch.tokens += totals.tokens;
    batch.valid_tokens += totals.valid_tokens;
    batch.label_weight_sum += totals.label_weight_sum;
  }
  ContentHash hash;
  const auto all_indices = indices(step);
  for (const std::vector<int64_t>& micro_batch : all_indices[static_cast<size_t>(position.dp_rank)]) {
    std::vector<Sequence> sequences;
    sequences.reserve(micro_batch.size());
    hash.add(micro_batch.size());
    for (const int64_t index : micro_batch) {
      sequences.push_back(dataset_.sequence(index));
      hash.add(sequences.back());
    }
    batch.micro_batches.push_back(cut_micro_batch(sequences, position));
  }
  batch.content_hash = hash.value();
  return batch;
}

}  // namespace ithaca
