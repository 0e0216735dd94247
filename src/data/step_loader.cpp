#include "data/step_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "data/packing/deal.h"

namespace ithaca {

namespace {

// A micro-batch's axis, and a walk over this rank's share of it.
class TokenAxis {
 public:
  TokenAxis(const Dataset& dataset, std::span<const int64_t> indices) : dataset_(dataset), indices_(indices) {
    for (const int64_t index : indices) {
      shapes_.push_back(dataset.shape(index));
      begins_.push_back(size_);
      size_ += shapes_.back().tokens;
    }
  }

  int64_t size() const { return size_; }
  const std::vector<SequenceShape>& shapes() const { return shapes_; }

  // Appends the tokens at the positions of the segment.
  void read(const Segment& segment, bool with_weights, TokenSlice& out) const {
    int64_t done = 0;
    auto at =
        static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), segment.begin) - begins_.begin()) - 1;
    while (done < segment.count) {
      const int64_t position = segment.begin + done * segment.stride;
      while (position - begins_[at] >= shapes_[at].tokens) ++at;
      Segment part;
      part.begin = position - begins_[at];
      part.stride = segment.stride;
      part.count = std::min(segment.count - done, (shapes_[at].tokens - part.begin - 1) / segment.stride + 1);
      dataset_.read(indices_[at], part, with_weights, out);
      done += part.count;
    }
  }

 private:
  const Dataset& dataset_;
  std::span<const int64_t> indices_;
  std::vector<SequenceShape> shapes_;
  std::vector<int64_t> begins_;
  int64_t size_ = 0;
};

uint64_t mixed(uint64_t hash, uint64_t value) {
  return mix_bits(hash ^ mix_bits(value + 0x632BE59BD9B4E019ull));
}

}  // namespace

std::optional<RopeDescription> rope_at(const std::vector<RopeStage>& stages, int64_t step) {
  std::optional<RopeDescription> rope;
  for (const RopeStage& stage : stages) {
    if (stage.first_step <= step) rope = stage.rope;
  }
  return rope;
}

MicroBatch cut_micro_batch(const Dataset& dataset, std::span<const int64_t> indices, const BatchPosition& position) {
  const TokenAxis axis(dataset, indices);
  MicroBatch result;
  std::vector<int64_t> document_lengths;
  bool has_weights = false;
  for (const SequenceShape& shape : axis.shapes()) {
    document_lengths.insert(document_lengths.end(), shape.document_lengths.begin(), shape.document_lengths.end());
    has_weights = has_weights || shape.weighted;
    result.largest_position = std::max(result.largest_position, shape.largest_position);
  }
  result.documents = Documents(document_lengths);
  result.shard = sequence_shard(position.layout, axis.size(), position.ring_rank, position.ring_size,
                                position.ulysses_rank, position.ulysses_size);
  const auto local_tokens = static_cast<size_t>(result.shard.size());
  TokenSlice slice;
  slice.token_ids.reserve(local_tokens);
  slice.position_ids.reserve(local_tokens);
  slice.shifted_labels.reserve(local_tokens);
  if (has_weights) slice.label_weights.reserve(local_tokens);
  for (const Segment& segment : result.shard.segments()) axis.read(segment, has_weights, slice);
  result.token_ids = std::move(slice.token_ids);
  result.position_ids = std::move(slice.position_ids);
  result.shifted_labels = std::move(slice.shifted_labels);
  result.label_weights = std::move(slice.label_weights);
  return result;
}

MicroBatch cut_micro_batch(std::vector<Sequence> sequences, const BatchPosition& position) {
  std::vector<int64_t> indices(sequences.size());
  std::iota(indices.begin(), indices.end(), int64_t{0});
  return cut_micro_batch(ListedDataset(std::move(sequences)), indices, position);
}

StepLoader::StepLoader(const Dataset& dataset, const StepLoaderOptions& options)
    : dataset_(dataset), options_(options), stages_(dataset.stages()) {
  require(options.micro_batch_size > 0 && options.accumulation > 0 && options.dp_size > 0,
          "micro-batch size, accumulation and dp size must be at least 1");
  require(!stages_.empty() && stages_.front().first_step == 0, "a dataset has a stage that begins at step 0");
  for (const DatasetStage& stage : stages_) {
    require(stage.size() > 0, "a step loader needs a dataset with sequences");
  }
}

void StepLoader::resume(int64_t step, const DataPosition& position) {
  resumed_.reset();
  const DataPosition due = this->position(step);
  const auto differs = [](const char* what, const auto& was, const auto& is) {
    throw InputError(
        fmt::format("the run cannot be resumed at its place in the data: {} was {} and is {} now", what, was, is));
  };
  if (position.seed != due.seed) differs("train.seed", position.seed, due.seed);
  if (position.shuffle != due.shuffle) differs("data.shuffle", position.shuffle, due.shuffle);
  if (position.stage != due.stage) {
    differs(fmt::format("the stage of data.max_length at step {}", step).c_str(), position.stage + 1, due.stage + 1);
  }
  if (position.sequences != due.sequences) differs("the number of sequences", position.sequences, due.sequences);
  if (position.data != due.data) {
    differs("the hash of the data (files, tokenizer, format, max_length, packing)",
            fmt::format("{:016x}", position.data), fmt::format("{:016x}", due.data));
  }
  if (position.next >= position.sequences) {
    throw InputError(fmt::format("the run cannot be resumed at its place in the data: sequence {} of {} would be next",
                                 position.next, position.sequences));
  }
  resumed_ = {position.stage, step, position.epoch, position.next};
}

int64_t StepLoader::sequences_per_step() const {
  return options_.micro_batch_size * options_.accumulation * options_.dp_size;
}

int64_t StepLoader::most_sequences_in_a_step() const {
  int64_t largest = 0;
  for (const DatasetStage& stage : stages_) largest = std::max(largest, stage.size());
  return std::min(sequences_per_step(), largest);
}

int64_t StepLoader::steps_per_epoch() const {
  return (stages_.front().size() - 1) / sequences_per_step() + 1;
}

StepLoader::Origin StepLoader::origin_of(int64_t step) const {
  require(step >= 0, "steps are counted from 0");
  size_t stage = stages_.size() - 1;
  while (stages_[stage].first_step > step) --stage;
  const Origin beginning = {static_cast<int64_t>(stage), stages_[stage].first_step, 0, 0};
  if (!resumed_ || resumed_->stage != beginning.stage) return beginning;
  require(step >= resumed_->step,
          fmt::format("step {} lies before step {}, where the run was resumed", step, resumed_->step));
  return *resumed_;
}

DataPosition StepLoader::position(int64_t step) const {
  DataPosition position = place_of(step);
  position.data = dataset_.stage_hash(position.stage);
  return position;
}

DataPosition StepLoader::place_of(int64_t step) const {
  const Origin origin = origin_of(step);
  const int64_t size = stages_[static_cast<size_t>(origin.stage)].size();
  DataPosition position;
  position.stage = origin.stage;
  position.seed = options_.seed;
  position.shuffle = options_.shuffle;
  position.sequences = size;
  int64_t steps = step - origin.step;
  const int64_t left_of_epoch = (size - origin.next - 1) / sequences_per_step() + 1;
  if (steps < left_of_epoch) {
    position.epoch = origin.epoch;
    position.next = origin.next + steps * sequences_per_step();
    return position;
  }
  steps -= left_of_epoch;
  const int64_t whole_epoch = (size - 1) / sequences_per_step() + 1;
  position.epoch = origin.epoch + 1 + steps / whole_epoch;
  position.next = steps % whole_epoch * sequences_per_step();
  return position;
}

StepLoader::Order StepLoader::order(int64_t stage, int64_t epoch) const {
  const std::lock_guard lock(mutex_);
  if (kept_of_ != std::pair(stage, epoch)) {
    const std::string name = stage == 0 ? fmt::format("data order of epoch {}", epoch)
                                        : fmt::format("data order of stage {}, epoch {}", stage, epoch);
    kept_order_ = std::make_shared<const EpochOrder>(stages_[static_cast<size_t>(stage)].size(), options_.seed, name);
    kept_of_ = {stage, epoch};
  }
  return kept_order_;
}

std::vector<int64_t> StepLoader::sequences_of_step(int64_t step) const {
  const DataPosition at = place_of(step);
  const int64_t end = std::min(at.next + sequences_per_step(), at.sequences);
  std::vector<int64_t> result(static_cast<size_t>(end - at.next));
  std::iota(result.begin(), result.end(), at.next);
  const Order shuffled = options_.shuffle ? order(at.stage, at.epoch) : nullptr;
  const int64_t first = stages_[static_cast<size_t>(at.stage)].begin;
  for (int64_t& index : result) index = first + (shuffled == nullptr ? index : shuffled->at(index));
  return result;
}

std::vector<double> StepLoader::costs_of(const std::vector<int64_t>& sequences) const {
  std::vector<double> costs;
  costs.reserve(sequences.size());
  for (const int64_t index : sequences) costs.push_back(dataset_.cost(index));
  return costs;
}

std::vector<std::vector<std::vector<int64_t>>> StepLoader::deal(const std::vector<int64_t>& sequences) const {
  auto result = deal_step(costs_of(sequences), options_.dp_size, options_.accumulation);
  for (auto& rank : result) {
    for (std::vector<int64_t>& micro_batch : rank) {
      for (int64_t& item : micro_batch) item = sequences[static_cast<size_t>(item)];
    }
  }
  return result;
}

std::vector<std::vector<std::vector<int64_t>>> StepLoader::indices(int64_t step) const {
  return deal(sequences_of_step(step));
}

double StepLoader::imbalance(int64_t step) const {
  const std::vector<double> costs = costs_of(sequences_of_step(step));
  return deal_imbalance(deal_step(costs, options_.dp_size, options_.accumulation), costs);
}

StepBatch StepLoader::load(int64_t step, const BatchPosition& position) const {
  require(position.dp_rank >= 0 && position.dp_rank < options_.dp_size,
          fmt::format("dp rank {} of {}", position.dp_rank, options_.dp_size));
  StepBatch batch;
  const std::vector<int64_t> sequences = sequences_of_step(step);
  // In the order of the epoch, so that the sum has the same bits however the sequences are dealt.
  for (const int64_t index : sequences) {
    const SequenceTotals totals = dataset_.totals(index);
    batch.tokens += totals.tokens;
    batch.valid_tokens += totals.valid_tokens;
    batch.label_weight_sum += totals.label_weight_sum;
  }
  const std::optional<RopeDescription> rope = rope_at(options_.rope, step);
  uint64_t hash = 0;
  const auto dealt = deal(sequences);
  for (const std::vector<int64_t>& micro_batch : dealt[static_cast<size_t>(position.dp_rank)]) {
    hash = mixed(hash, micro_batch.size());
    for (const int64_t index : micro_batch) hash = mixed(hash, dataset_.content_hash(index));
    batch.micro_batches.push_back(cut_micro_batch(dataset_, micro_batch, position));
    batch.micro_batches.back().rope = rope;
  }
  batch.content_hash = hash;
  return batch;
}

}  // namespace ithaca
