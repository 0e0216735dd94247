#include "data/step_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/error.h"

namespace ithaca {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kNone = kNoLabel;

// One document of these tokens, its labels their successors.
Sequence sequence_of(std::vector<int64_t> tokens, std::vector<int64_t> document_lengths = {}) {
  Sequence sequence;
  sequence.token_ids = std::move(tokens);
  const auto length = static_cast<int64_t>(sequence.token_ids.size());
  sequence.document_lengths = document_lengths.empty() ? std::vector<int64_t>{length} : std::move(document_lengths);
  size_t at = 0;
  for (const int64_t document : sequence.document_lengths) {
    for (int64_t position = 0; position < document; ++position, ++at) {
      sequence.position_ids.push_back(position);
      sequence.shifted_labels.push_back(position + 1 < document ? sequence.token_ids[at + 1] : kNone);
    }
  }
  return sequence;
}

std::vector<int64_t> counting(int64_t first, int64_t count) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(first + i);
  return values;
}

BatchPosition ring_position(int rank, int size, Layout layout) {
  BatchPosition position;
  position.ring_rank = rank;
  position.ring_size = size;
  position.layout = layout;
  return position;
}

// Labels are shifted on the whole sequence, so the last token of a shard has the first of the next as its label.
TEST(CutMicroBatch, LabelsAreShiftedBeforeTheCut) {
  const std::vector<Sequence> sequences = {sequence_of(counting(1, 8))};
  const MicroBatch first = cut_micro_batch(sequences, ring_position(0, 2, Layout::contiguous));
  const MicroBatch second = cut_micro_batch(sequences, ring_position(1, 2, Layout::contiguous));
  EXPECT_THAT(first.token_ids, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(first.shifted_labels, ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(second.token_ids, ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(second.shifted_labels, ElementsAre(6, 7, 8, kNone));
  EXPECT_THAT(second.position_ids, ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(first.largest_position, 7);
  EXPECT_EQ(first.documents, Documents::single(8));
}

TEST(CutMicroBatch, Zigzag) {
  const std::vector<Sequence> sequences = {sequence_of(counting(0, 8))};
  const MicroBatch first = cut_micro_batch(sequences, ring_position(0, 2, Layout::zigzag));
  const MicroBatch second = cut_micro_batch(sequences, ring_position(1, 2, Layout::zigzag));
  EXPECT_THAT(first.token_ids, ElementsAre(0, 1, 6, 7));
  EXPECT_THAT(first.position_ids, ElementsAre(0, 1, 6, 7));
  EXPECT_THAT(first.shifted_labels, ElementsAre(1, 2, 7, kNone));
  EXPECT_THAT(second.token_ids, ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(second.shifted_labels, ElementsAre(3, 4, 5, 6));
}

TEST(CutMicroBatch, Striped) {
  const std::vector<Sequence> sequences = {sequence_of(counting(0, 4)), sequence_of(counting(10, 3))};
  const MicroBatch first = cut_micro_batch(sequences, ring_position(0, 2, Layout::striped));
  const MicroBatch second = cut_micro_batch(sequences, ring_position(1, 2, Layout::striped));
  EXPECT_THAT(first.token_ids, ElementsAre(0, 2, 10, 12));
  EXPECT_THAT(first.shifted_labels, ElementsAre(1, 3, 11, kNone));
  EXPECT_THAT(second.token_ids, ElementsAre(1, 3, 11));
  EXPECT_THAT(second.shifted_labels, ElementsAre(2, kNone, 12));
  EXPECT_THAT(second.position_ids, ElementsAre(1, 3, 1));
}

// A document that ends where a shard ends, and one that ends inside: neither's last token learns the next document.
TEST(CutMicroBatch, NoLabelAcrossDocumentsEvenAtAShardEdge) {
  const std::vector<Sequence> packed = {sequence_of(counting(1, 8), {4, 2, 2})};
  EXPECT_THAT(cut_micro_batch(packed, ring_position(0, 2, Layout::contiguous)).shifted_labels,
              ElementsAre(2, 3, 4, kNone));
  EXPECT_THAT(cut_micro_batch(packed, ring_position(1, 2, Layout::contiguous)).shifted_labels,
              ElementsAre(6, kNone, 8, kNone));
  // The same as three sequences of one micro-batch.
  const std::vector<Sequence> apart = {sequence_of({1, 2, 3, 4}), sequence_of({5, 6}), sequence_of({7, 8})};
  for (int rank = 0; rank < 3; ++rank) {
    const MicroBatch left = cut_micro_batch(packed, ring_position(rank, 3, Layout::zigzag));
    const MicroBatch right = cut_micro_batch(apart, ring_position(rank, 3, Layout::zigzag));
    EXPECT_EQ(left.shifted_labels, right.shifted_labels);
    EXPECT_EQ(left.position_ids, right.position_ids);
    EXPECT_EQ(left.documents, right.documents);
  }
}

// Over every layout and mesh, odd lengths included: each token with its own position and label, exactly once.
TEST(CutMicroBatch, EveryTokenExactlyOnce) {
  for (const int64_t length : {1, 2, 3, 5, 7, 16, 29}) {
    Sequence first = sequence_of(counting(100, length));
    first.label_weights.assign(static_cast<size_t>(length), 0.5f);
    const std::vector<Sequence> sequences = {
        first, sequence_of(counting(1000, 3)), Sequence{},
        sequence_of(counting(2000, length), length > 2 ? std::vector<int64_t>{2, length - 2} : std::vector<int64_t>{})};
    std::multiset<std::tuple<int64_t, int64_t, int64_t, float>> expected;
    for (const Sequence& sequence : sequences) {
      for (size_t i = 0; i < sequence.token_ids.size(); ++i) {
        const float given = sequence.label_weights.empty() ? 1.0f : sequence.label_weights[i];
        expected.insert({sequence.token_ids[i], sequence.position_ids[i], sequence.shifted_labels[i],
                         sequence.shifted_labels[i] == kNone ? 0.0f : given});
      }
    }
    for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
      for (const auto& [ring_size, ulysses_size] : {std::pair{1, 1}, {2, 1}, {3, 1}, {1, 2}, {2, 3}, {8, 2}}) {
        std::multiset<std::tuple<int64_t, int64_t, int64_t, float>> found;
        for (int rank = 0; rank < ring_size * ulysses_size; ++rank) {
          BatchPosition position = ring_position(rank / ulysses_size, ring_size, layout);
          position.ulysses_rank = rank % ulysses_size;
          position.ulysses_size = ulysses_size;
          const MicroBatch cut = cut_micro_batch(sequences, position);
          ASSERT_EQ(static_cast<int64_t>(cut.token_ids.size()), cut.shard.size());
          for (size_t i = 0; i < cut.token_ids.size(); ++i) {
            found.insert({cut.token_ids[i], cut.position_ids[i], cut.shifted_labels[i], cut.label_weights[i]});
          }
        }
        EXPECT_EQ(found, expected) << length << " " << layout_name(layout) << " " << ring_size << "x" << ulysses_size;
      }
    }
  }
}

TEST(CutMicroBatch, EmptyOnesAndBrokenOnes) {
  const MicroBatch empty = cut_micro_batch({}, ring_position(1, 2, Layout::zigzag));
  EXPECT_THAT(empty.token_ids, IsEmpty());
  EXPECT_EQ(empty.documents.count(), 0);
  Sequence broken = sequence_of({1, 2, 3});
  broken.position_ids.pop_back();
  EXPECT_THROW(cut_micro_batch({broken}, {}), ContractError);
  broken = sequence_of({1, 2, 3});
  broken.document_lengths = {4};
  EXPECT_THROW(cut_micro_batch({broken}, {}), ContractError);
}

// Sequences of odd lengths and uneven weights; some without a label.
std::vector<Sequence> uneven_sequences(int64_t count) {
  std::vector<Sequence> sequences;
  for (int64_t i = 0; i < count; ++i) {
    Sequence sequence = sequence_of(counting(1000 * i, 1 + i * 7 % 11));
    if (i % 3 == 1) {
      for (size_t k = 0; k < sequence.token_ids.size(); ++k) {
        sequence.label_weights.push_back(0.1f * static_cast<float>(k + 1));
      }
    }
    if (i % 5 == 4) std::fill(sequence.shifted_labels.begin(), sequence.shifted_labels.end(), kNone);
    sequences.push_back(sequence);
  }
  return sequences;
}

std::vector<int64_t> flatten(const std::vector<std::vector<std::vector<int64_t>>>& indices) {
  std::vector<int64_t> all;
  for (const auto& rank : indices) {
    for (const auto& micro_batch : rank) all.insert(all.end(), micro_batch.begin(), micro_batch.end());
  }
  return all;
}

TEST(StepLoader, EverySequenceOncePerEpoch) {
  const ListedDataset dataset(uneven_sequences(23));
  for (const auto& [micro_batch, accumulation, dp] :
       {std::tuple{1, 1, 1}, {1, 3, 2}, {2, 1, 2}, {2, 2, 2}, {5, 1, 4}, {1, 1, 30}}) {
    StepLoaderOptions options;
    options.micro_batch_size = micro_batch;
    options.accumulation = accumulation;
    options.dp_size = dp;
    const StepLoader loader(dataset, options);
    EXPECT_EQ(loader.sequences_per_step(), micro_batch * accumulation * dp);
    EXPECT_EQ(loader.steps_per_epoch(), (23 + loader.sequences_per_step() - 1) / loader.sequences_per_step());
    std::vector<std::vector<int64_t>> orders;
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      std::vector<int64_t> seen;
      for (int64_t step = 0; step < loader.steps_per_epoch(); ++step) {
        const auto indices = loader.indices(epoch * loader.steps_per_epoch() + step);
        ASSERT_EQ(static_cast<int64_t>(indices.size()), dp);
        size_t fewest = 1000;
        size_t most = 0;
        for (const auto& rank : indices) {
          ASSERT_EQ(static_cast<int64_t>(rank.size()), accumulation);
          for (const auto& sequences : rank) {
            ASSERT_LE(static_cast<int64_t>(sequences.size()), micro_batch);
            fewest = std::min(fewest, sequences.size());
            most = std::max(most, sequences.size());
          }
        }
        EXPECT_LE(most - fewest, 1u);  // as even as can be
        const std::vector<int64_t> of_step = flatten(indices);
        seen.insert(seen.end(), of_step.begin(), of_step.end());
      }
      orders.push_back(seen);
      std::sort(seen.begin(), seen.end());
      EXPECT_EQ(seen, counting(0, 23));
    }
    EXPECT_NE(orders[0], orders[1]);
    EXPECT_NE(orders[0], counting(0, 23));
  }
}

TEST(StepLoader, TheOrderIsAFunctionOfSeedAndEpoch) {
  const ListedDataset dataset(uneven_sequences(40));
  StepLoaderOptions options;
  options.micro_batch_size = 10;
  const StepLoader loader(dataset, options);
  const StepLoader again(dataset, options);
  EXPECT_EQ(loader.indices(9), again.indices(9));
  EXPECT_EQ(loader.indices(2), again.indices(2));  // whatever was asked before
  options.seed = 43;
  EXPECT_NE(StepLoader(dataset, options).indices(2), loader.indices(2));
  options.shuffle = false;
  EXPECT_EQ(flatten(StepLoader(dataset, options).indices(5)), counting(10, 10));
}

// Everything a step trains, over all ranks of a mesh.
struct StepContent {
  std::map<std::pair<int64_t, int64_t>, int64_t> labels;  // (token, its position) -> how often, with a label
  double label_weight_sum = 0.0;
  int64_t valid_tokens = 0;
  int64_t tokens = 0;
};

StepContent content_of(const StepLoader& loader, int64_t step, int64_t dp, int ring, int ulysses, Layout layout) {
  StepContent content;
  for (int64_t dp_rank = 0; dp_rank < dp; ++dp_rank) {
    uint64_t hash = 0;
    for (int rank = 0; rank < ring * ulysses; ++rank) {
      const BatchPosition position = {dp_rank, rank / ulysses, ring, rank % ulysses, ulysses, layout};
      const StepBatch batch = loader.load(step, position);
      if (rank == 0) hash = batch.content_hash;
      EXPECT_EQ(batch.content_hash, hash);
      const bool is_first = dp_rank == 0 && rank == 0;
      if (is_first) content.label_weight_sum = batch.label_weight_sum;
      EXPECT_EQ(batch.label_weight_sum, content.label_weight_sum);
      if (is_first) content.valid_tokens = batch.valid_tokens;
      EXPECT_EQ(batch.valid_tokens, content.valid_tokens);
      if (is_first) content.tokens = batch.tokens;
      EXPECT_EQ(batch.tokens, content.tokens);
      for (const MicroBatch& micro_batch : batch.micro_batches) {
        for (size_t i = 0; i < micro_batch.token_ids.size(); ++i) {
          if (micro_batch.shifted_labels[i] == kNone) continue;
          ++content.labels[{micro_batch.token_ids[i], micro_batch.position_ids[i]}];
        }
      }
    }
  }
  return content;
}

// The same sequences per step, dealt in every way: the same labels and the same denominator to the last bit.
TEST(StepLoader, MeshAndAccumulationDoNotChangeTheStep) {
  const ListedDataset dataset(uneven_sequences(31));
  StepLoaderOptions alone;
  alone.micro_batch_size = 12;
  const StepLoader reference(dataset, alone);
  for (int64_t step = 0; step < reference.steps_per_epoch(); ++step) {
    const StepContent expected = content_of(reference, step, 1, 1, 1, Layout::contiguous);
    for (const auto& [label, times] : expected.labels) EXPECT_EQ(times, 1);
    EXPECT_EQ(static_cast<int64_t>(expected.labels.size()), expected.valid_tokens);
    for (const auto& [micro_batch, accumulation, dp] :
         {std::tuple{1, 12, 1}, {4, 3, 1}, {6, 1, 2}, {1, 6, 2}, {2, 2, 3}, {1, 3, 4}, {1, 1, 12}}) {
      StepLoaderOptions options;
      options.micro_batch_size = micro_batch;
      options.accumulation = accumulation;
      options.dp_size = dp;
      const StepLoader loader(dataset, options);
      for (const auto& [ring, ulysses, layout] : {std::tuple{1, 1, Layout::contiguous},
                                                  {2, 1, Layout::zigzag},
                                                  {1, 2, Layout::contiguous},
                                                  {2, 2, Layout::zigzag},
                                                  {3, 1, Layout::striped}}) {
        const StepContent content = content_of(loader, step, dp, ring, ulysses, layout);
        EXPECT_EQ(content.labels, expected.labels);
        EXPECT_EQ(content.label_weight_sum, expected.label_weight_sum);
        EXPECT_EQ(content.valid_tokens, expected.valid_tokens);
        EXPECT_EQ(content.tokens, expected.tokens);
      }
    }
  }
}

TEST(StepLoader, RanksAndStepsWithoutLabels) {
  const ListedDataset dataset(uneven_sequences(5));
  StepLoaderOptions options;
  options.dp_size = 3;
  options.shuffle = false;
  const StepLoader loader(dataset, options);
  // The second step has sequences 3 and 4: the second rank's has no label, the third rank has no sequence.
  ASSERT_EQ(loader.steps_per_epoch(), 2);
  const StepBatch unlabelled = loader.load(1, {1, 0, 1, 0, 1, Layout::contiguous});
  const StepBatch nothing = loader.load(1, {2, 0, 1, 0, 1, Layout::contiguous});
  EXPECT_THAT(unlabelled.micro_batches.at(0).shifted_labels, testing::Each(kNone));
  EXPECT_EQ(nothing.micro_batches.size(), 1u);
  EXPECT_THAT(nothing.micro_batches[0].token_ids, IsEmpty());
  EXPECT_EQ(nothing.valid_tokens, 10);  // sequence 3 has 1 + 21 % 11 = 11 tokens
  EXPECT_EQ(nothing.label_weight_sum, 10.0);
  EXPECT_NE(unlabelled.content_hash, nothing.content_hash);
  EXPECT_THROW(loader.load(1, {3, 0, 1, 0, 1, Layout::contiguous}), ContractError);

  // A step with no label at all has a denominator of 0 and says so.
  options.dp_size = 1;
  const StepBatch none = StepLoader(dataset, options).load(4, {});
  EXPECT_EQ(none.label_weight_sum, 0.0);
  EXPECT_EQ(none.valid_tokens, 0);
  EXPECT_GT(none.tokens, 0);
}

TEST(StepLoader, NoMicroBatchIsEmptyOnEveryRank) {
  const ListedDataset dataset(uneven_sequences(5));
  StepLoaderOptions options;
  options.accumulation = 1000000;
  options.dp_size = 2;
  options.shuffle = false;
  const auto indices = StepLoader(dataset, options).indices(3);
  // Of 1, 8, 4, 11 and 7 tokens: 121 to the first rank, 64 and 49 to the second, what is left to the first.
  const std::vector<std::vector<std::vector<int64_t>>> expected = {{{3}, {2}, {0}}, {{1}, {4}, {}}};
  EXPECT_EQ(indices, expected);
}

TEST(StepLoader, TheHashSeesEveryPart) {
  const auto hash = [](const Sequence& sequence) {
    const ListedDataset dataset({sequence});
    return StepLoader(dataset, {}).load(0, {}).content_hash;
  };
  const Sequence base = sequence_of({1, 2, 3, 4});
  std::set<uint64_t> hashes = {hash(base)};
  EXPECT_EQ(hash(base), hash(base));
  Sequence changed = base;
  changed.token_ids[0] = 9;
  hashes.insert(hash(changed));
  changed = base;
  changed.position_ids[3] = 9;
  hashes.insert(hash(changed));
  changed = base;
  changed.shifted_labels[1] = 9;
  hashes.insert(hash(changed));
  changed = base;
  changed.label_weights.assign(4, 1.0f);
  hashes.insert(hash(changed));
  changed.label_weights[2] = 0.5f;
  hashes.insert(hash(changed));
  changed = base;
  changed.document_lengths = {2, 2};
  hashes.insert(hash(changed));
  EXPECT_EQ(hashes.size(), 7u);
}

std::vector<int64_t> sequences_of(const StepLoader& loader, int64_t step) {
  return flatten(loader.indices(step));
}

// Stopped in the middle of an epoch and resumed with more ranks, other micro-batches or other accumulation, again and
// again: every sequence once per epoch, in the same epochs' orders.
TEST(StepLoader, ResumedOnAnyMeshNothingIsLostOrRepeated) {
  const ListedDataset dataset(uneven_sequences(53));
  const auto options_of = [](int64_t sequences, int64_t dp) {
    StepLoaderOptions options;
    options.micro_batch_size = sequences;
    options.dp_size = dp;
    return options;
  };
  // What one sequence at a time sees, in order.
  std::vector<int64_t> expected;
  const StepLoader single(dataset, options_of(1, 1));
  for (int64_t step = 0; step < 4 * 53; ++step) expected.push_back(sequences_of(single, step).at(0));

  const std::vector<std::pair<int64_t, int64_t>> meshes = {{3, 1}, {1, 4}, {7, 2}, {1, 1}, {60, 1}, {2, 3}, {5, 1}};
  const std::vector<int64_t> steps = {4, 9, 2, 30, 1, 3, 6};
  std::vector<int64_t> seen;
  DataPosition position = single.position(0);
  int64_t step = 0;
  for (size_t part = 0; part < meshes.size(); ++part) {
    StepLoader loader(dataset, options_of(meshes[part].first, meshes[part].second));
    loader.resume(step, data_position_from_json(data_position_to_json(position), "checkpoint"));
    EXPECT_EQ(loader.position(step), position);
    for (int64_t i = 0; i < steps[part]; ++i, ++step) {
      // The order within a step is the dealing's: compared as sets.
      std::vector<int64_t> of_step = sequences_of(loader, step);
      std::vector<int64_t> due(expected.begin() + static_cast<std::ptrdiff_t>(seen.size()),
                               expected.begin() + static_cast<std::ptrdiff_t>(seen.size() + of_step.size()));
      std::sort(of_step.begin(), of_step.end());
      std::sort(due.begin(), due.end());
      EXPECT_EQ(of_step, due) << "part " << part << " step " << step;
      seen.insert(seen.end(), due.begin(), due.end());
    }
    position = loader.position(step);
    // A step never reaches into the next epoch.
    EXPECT_EQ(static_cast<int64_t>(seen.size()), position.epoch * 53 + position.next);
  }
  EXPECT_GT(seen.size(), 106u);
}

TEST(StepLoader, ResumesOnlyWhereItWas) {
  const ListedDataset dataset(uneven_sequences(20));
  StepLoaderOptions options;
  options.micro_batch_size = 3;
  const DataPosition position = StepLoader(dataset, options).position(4);
  EXPECT_EQ(position.next, 12);
  const auto complaint = [&](const Dataset& data, const StepLoaderOptions& with, DataPosition at) {
    StepLoader loader(data, with);
    try {
      loader.resume(4, at);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(complaint(dataset, options, position), "none");
  StepLoaderOptions other = options;
  other.seed = 7;
  EXPECT_THAT(complaint(dataset, other, position), testing::HasSubstr("train.seed was 42 and is 7 now"));
  other = options;
  other.shuffle = false;
  EXPECT_THAT(complaint(dataset, other, position), testing::HasSubstr("data.shuffle"));
  EXPECT_THAT(complaint(ListedDataset(uneven_sequences(21)), options, position),
              testing::HasSubstr("number of sequences"));
  DataPosition changed = position;
  changed.data ^= 1;
  EXPECT_THAT(complaint(dataset, options, changed), testing::HasSubstr("hash of the data"));
  changed = position;
  changed.stage = 1;
  EXPECT_THAT(complaint(dataset, options, changed), testing::HasSubstr("data.max_length"));
  changed = position;
  changed.next = 20;
  EXPECT_THAT(complaint(dataset, options, changed), testing::HasSubstr("sequence 20 of 20"));
  StepLoader loader(dataset, options);
  loader.resume(4, position);
  EXPECT_THROW(loader.position(3), ContractError);
}

TEST(DataPositionTest, ReadsWhatItWritesAndNothingElse) {
  DataPosition position;
  position.stage = 2;
  position.epoch = 3;
  position.next = 4;
  position.seed = -5;
  position.shuffle = false;
  position.sequences = 6;
  position.data = 0xfedcba9876543210;
  const nlohmann::ordered_json json = data_position_to_json(position);
  EXPECT_EQ(data_position_from_json(nlohmann::ordered_json::parse(json.dump()), "x"), position);
  for (const char* key : {"stage", "epoch", "next", "seed", "shuffle", "sequences", "data"}) {
    nlohmann::ordered_json broken = json;
    broken.erase(key);
    EXPECT_THROW(data_position_from_json(broken, "state.json"), InputError) << key;
    broken = json;
    broken[key] = nlohmann::ordered_json::array();
    EXPECT_THROW(data_position_from_json(broken, "state.json"), InputError) << key;
  }
  nlohmann::ordered_json negative = json;
  negative["next"] = -1;
  EXPECT_THROW(data_position_from_json(negative, "state.json"), InputError);
}

TEST(StepLoader, Requirements) {
  const ListedDataset dataset(uneven_sequences(3));
  StepLoaderOptions options;
  options.accumulation = 0;
  EXPECT_THROW(StepLoader(dataset, options), ContractError);
  EXPECT_THROW(StepLoader(ListedDataset(uneven_sequences(0)), {}), ContractError);
  EXPECT_THROW(StepLoader(dataset, {}).indices(-1), ContractError);
}

}  // namespace
}  // namespace ithaca
