#include "data/packed_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "base/random.h"
#include "data/cache/cache_testing.h"
#include "data/step_loader.h"
#include "data/test_files.h"

namespace ithaca {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class PackedDatasetTest : public testing::Test {
 protected:
  std::shared_ptr<const TokenCache> cache(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    const std::string file = directory_.write("lines", text);
    TokenCacheOptions options;
    options.folder = directory_.file("caches");
    return open_token_cache(line_source({file}, maker_), options);
  }
  std::unique_ptr<PackedDataset> open(const std::vector<std::string>& lines, PackingKind packing, int64_t max_length,
                                      Overlong overlong = Overlong::split) {
    PackedDatasetOptions options;
    options.packing = packing;
    options.overlong = overlong;
    options.stages = {{0, max_length}};
    return std::make_unique<PackedDataset>(cache(lines), options);
  }

  TemporaryDirectory directory_;
  const ByteMaker maker_;
};

TEST_F(PackedDatasetTest, WindowsByHand) {
  const auto dataset = open({"abcde", "xyz"}, PackingKind::none, 3);
  ASSERT_EQ(dataset->size(), 3);
  const Sequence first = dataset->sequence(0);
  EXPECT_THAT(first.token_ids, ElementsAre('a', 'b', 'c'));
  EXPECT_THAT(first.position_ids, ElementsAre(0, 1, 2));
  EXPECT_THAT(first.shifted_labels, ElementsAre('b', 'c', 'd'));
  EXPECT_THAT(first.document_lengths, ElementsAre(3));
  EXPECT_THAT(first.label_weights, IsEmpty());
  const Sequence second = dataset->sequence(1);
  EXPECT_THAT(second.token_ids, ElementsAre('d', 'e'));
  EXPECT_THAT(second.position_ids, ElementsAre(0, 1));
  EXPECT_THAT(second.shifted_labels, ElementsAre('e', kNoLabel));
  EXPECT_THROW(dataset->sequence(3), ContractError);
  EXPECT_THROW(dataset->sequence(-1), ContractError);
}

TEST_F(PackedDatasetTest, WrappedDocumentsGoOn) {
  const auto dataset = open({"abc", "vwxyz"}, PackingKind::wrapped, 5);
  ASSERT_EQ(dataset->size(), 2);
  const Sequence first = dataset->sequence(0);
  EXPECT_THAT(first.token_ids, ElementsAre('a', 'b', 'c', 'v', 'w'));
  EXPECT_THAT(first.shifted_labels, ElementsAre('b', 'c', kNoLabel, 'w', 'x'));
  EXPECT_THAT(first.document_lengths, ElementsAre(3, 2));
  const Sequence second = dataset->sequence(1);
  EXPECT_THAT(second.token_ids, ElementsAre('x', 'y', 'z'));
  EXPECT_THAT(second.position_ids, ElementsAre(2, 3, 4));
  EXPECT_EQ(dataset->shape(1).largest_position, 4);
}

// Weights of a document that is packed with others stand at the tokens whose labels they are of.
TEST_F(PackedDatasetTest, WeightsAreShiftedWithTheLabels) {
  const auto dataset = open({"weights", "mask 3"}, PackingKind::best_fit, 20);
  ASSERT_EQ(dataset->size(), 1);
  const Sequence sequence = dataset->sequence(0);
  EXPECT_THAT(sequence.label_weights, ElementsAre(0.5f, 1.0f, 1.5f, 2.0f, 2.5f, 3.0f, 0.0f,  //
                                                  0.0f, 0.0f, 1.0f, 1.0f, 1.0f, 0.0f));
  EXPECT_THAT(sequence.shifted_labels, ElementsAre('e', 'i', 'g', 'h', 't', 's', kNoLabel,  //
                                                   kNoLabel, kNoLabel, 'k', ' ', '3', kNoLabel));
  EXPECT_EQ(dataset->totals(0).label_weight_sum, 10.5 + 3.0);
}

TEST_F(PackedDatasetTest, TruncatedDocumentsEnd) {
  const auto dataset = open({"abcdef", "xy"}, PackingKind::none, 4, Overlong::truncate);
  ASSERT_EQ(dataset->size(), 2);
  EXPECT_THAT(dataset->sequence(0).shifted_labels, ElementsAre('b', 'c', 'd', kNoLabel));
  EXPECT_EQ(dataset->summary().truncated_tokens, 2);
  EXPECT_EQ(dataset->summary().valid_tokens, 4);
}

// Random documents in every packing: what is known without reading is what is read, and any slice is a slice.
TEST_F(PackedDatasetTest, WhatIsKnownIsWhatIsRead) {
  const RandomStream random(1, "packed");
  std::vector<std::string> lines;
  for (uint64_t i = 0; i < 40; ++i) {
    const std::string tail(random.bits(i) % 40, static_cast<char>('a' + i % 26));
    const char* const heads[] = {"", "mask 3", "weights", "labels", "split "};
    lines.push_back(heads[i % 5] + tail);
  }
  for (const PackingKind kind : {PackingKind::none, PackingKind::wrapped, PackingKind::best_fit}) {
    for (const int64_t max_length : {3, 16, 50}) {
      for (const Overlong overlong : {Overlong::split, Overlong::truncate, Overlong::drop}) {
        if (overlong == Overlong::drop && max_length == 3) continue;
        const auto dataset = open(lines, kind, max_length, overlong);
        SCOPED_TRACE(testing::Message() << packing_name(kind) << " " << max_length << " " << overlong_name(overlong));
        std::set<uint64_t> hashes;
        int64_t tokens = 0;
        int64_t labels = 0;
        for (int64_t index = 0; index < dataset->size(); ++index) {
          const Sequence sequence = dataset->sequence(index);
          const auto length = static_cast<int64_t>(sequence.token_ids.size());
          const SequenceTotals known = dataset->totals(index);
          const SequenceTotals counted = sequence_totals(sequence);
          ASSERT_EQ(known.tokens, counted.tokens);
          ASSERT_EQ(known.valid_tokens, counted.valid_tokens);
          ASSERT_DOUBLE_EQ(known.label_weight_sum, counted.label_weight_sum);
          ASSERT_EQ(dataset->cost(index), dataset->Dataset::cost(index));
          tokens += known.tokens;
          labels += known.valid_tokens;
          for (const int64_t stride : {1, 3}) {
            for (int64_t begin = 0; begin < std::min<int64_t>(length, 5); ++begin) {
              const Segment segment = {begin, (length - 1 - begin) / stride + 1, stride};
              TokenSlice slice;
              TokenSlice expected;
              dataset->read(index, segment, true, slice);
              dataset->Dataset::read(index, segment, true, expected);
              ASSERT_EQ(slice.token_ids, expected.token_ids);
              ASSERT_EQ(slice.position_ids, expected.position_ids);
              ASSERT_EQ(slice.shifted_labels, expected.shifted_labels);
              ASSERT_EQ(slice.label_weights, expected.label_weights);
            }
          }
        }
        EXPECT_EQ(dataset->summary().tokens, tokens);
        EXPECT_EQ(dataset->summary().valid_tokens, labels);
        TokenSlice beyond;
        EXPECT_THROW(dataset->read(0, {0, 1000, 1}, false, beyond), ContractError);
      }
    }
  }
}

// A rank reads its own tokens once, and no others: not for the denominator, the counts, the hash or the dealing.
TEST_F(PackedDatasetTest, ARankReadsItsOwnShardOnly) {
  class Watched : public Dataset {
   public:
    explicit Watched(const Dataset& inner) : inner_(inner) {}
    int64_t size() const override { return inner_.size(); }
    Sequence sequence(int64_t index) const override {
      ADD_FAILURE() << "a whole sequence was read";
      return inner_.sequence(index);
    }
    const DatasetSummary& summary() const override { return inner_.summary(); }
    uint64_t stage_hash(int64_t stage) const override { return inner_.stage_hash(stage); }
    SequenceTotals totals(int64_t index) const override { return inner_.totals(index); }
    SequenceShape shape(int64_t index) const override { return inner_.shape(index); }
    uint64_t content_hash(int64_t index) const override { return inner_.content_hash(index); }
    double cost(int64_t index) const override { return inner_.cost(index); }
    void read(int64_t index, const Segment& tokens, bool with_weights, TokenSlice& out) const override {
      tokens_read += tokens.count;
      inner_.read(index, tokens, with_weights, out);
    }
    mutable int64_t tokens_read = 0;

   private:
    const Dataset& inner_;
  };
  std::vector<std::string> lines;
  for (int i = 0; i < 30; ++i) lines.push_back(std::string(static_cast<size_t>(5 + 3 * i), 'x'));
  const auto dataset = open(lines, PackingKind::best_fit, 100);
  const Watched watched(*dataset);
  StepLoaderOptions options;
  options.micro_batch_size = 3;
  options.accumulation = 2;
  options.dp_size = 2;
  const StepLoader loader(watched, options);
  for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
    int64_t all = 0;
    for (int rank = 0; rank < 8; ++rank) {
      watched.tokens_read = 0;
      const StepBatch batch = loader.load(0, {rank / 4, rank / 2 % 2, 2, rank % 2, 2, layout});
      int64_t own = 0;
      for (const MicroBatch& each : batch.micro_batches) own += each.shard.size();
      EXPECT_EQ(watched.tokens_read, own);
      all += own;
      EXPECT_EQ(rank == 7 ? all : batch.tokens, batch.tokens);
    }
  }
}

TEST_F(PackedDatasetTest, HashesTellSequencesApart) {
  const auto dataset = open({"abcdefgh", "abcdefgx", "mask 3", "mask 4", "abcdefgh"}, PackingKind::none, 100);
  EXPECT_EQ(dataset->content_hash(0), dataset->content_hash(4));
  std::set<uint64_t> hashes;
  for (const int64_t index : {0, 1, 2, 3}) hashes.insert(dataset->content_hash(index));
  // The same documents in other pieces, with other positions, with other ends.
  for (const auto& other :
       {open({"abcdefgh", "zz"}, PackingKind::none, 4), open({"abcdefgh", "zz"}, PackingKind::wrapped, 4),
        open({"abcdefgh", "zz"}, PackingKind::none, 4, Overlong::truncate)}) {
    hashes.insert(other->content_hash(1 % other->size()));
    hashes.insert(other->stage_hash(0));
  }
  EXPECT_GE(hashes.size(), 9u);
}

TEST_F(PackedDatasetTest, Totals) {
  const auto dataset = open({"abcdefgh", "", "x", "mask 9", "hello", "split abc"}, PackingKind::best_fit, 6);
  const DatasetSummary& summary = dataset->summary();
  EXPECT_EQ(summary.samples, 6);
  EXPECT_EQ(summary.documents, 10);
  EXPECT_EQ(summary.skipped_documents, 3);  // "", "x", "c"
  EXPECT_EQ(summary.split_documents, 1);
  EXPECT_EQ(summary.unlabelled_documents, 1);
  EXPECT_EQ(summary.longest_document, 8);
  EXPECT_EQ(summary.longest_sequence, 6);
  EXPECT_EQ(summary.tokens, 8 + 6 + 5 + 8);
  EXPECT_EQ(summary.valid_tokens, 7 + 0 + 4 + 4);
  EXPECT_EQ(summary.unfilled_tokens, summary.sequences * 6 - summary.tokens);
}

TEST_F(PackedDatasetTest, NothingToTrainOn) {
  EXPECT_THAT(message_of<InputError>([&] {
                open({"a", ""}, PackingKind::none, 8);
              }),
              AllOf(HasSubstr("nothing to train on"), HasSubstr("2 have fewer than two tokens")));
  EXPECT_THAT(message_of<InputError>([&] { open({"mask 9"}, PackingKind::none, 8); }), HasSubstr("data.train_on"));
  EXPECT_THAT(message_of<InputError>([&] { open({"abcdefghij"}, PackingKind::none, 8, Overlong::drop); }),
              AllOf(HasSubstr("dropped"), HasSubstr("data.max_length 8")));
}

// Every stage has sequences of its own length, of the same documents; steps switch at the right places, on any mesh.
TEST_F(PackedDatasetTest, Curriculum) {
  std::vector<std::string> lines;
  for (int i = 0; i < 12; ++i) lines.push_back(std::string(static_cast<size_t>(20 + i), static_cast<char>('a' + i)));
  PackedDatasetOptions options;
  options.packing = PackingKind::wrapped;
  options.stages = {{0, 8}, {3, 32}, {5, 128}};
  const PackedDataset dataset(cache(lines), options);
  const std::vector<DatasetStage> stages = dataset.stages();
  ASSERT_EQ(stages.size(), 3u);
  EXPECT_EQ(dataset.size(), stages[0].size() + stages[1].size() + stages[2].size());
  EXPECT_EQ(dataset.summary().longest_sequence, 128);
  for (const auto& [micro_batch, accumulation, dp] : {std::tuple{4, 1, 1}, {1, 2, 2}, {2, 2, 1}}) {
    StepLoaderOptions loading;
    loading.micro_batch_size = micro_batch;
    loading.accumulation = accumulation;
    loading.dp_size = dp;
    RopeDescription stretched;
    stretched.theta = 5e5;
    loading.rope = {{3, stretched}};
    const StepLoader loader(dataset, loading);
    for (int64_t step = 0; step < 12; ++step) {
      const int64_t stage = step < 3 ? 0 : step < 5 ? 1 : 2;
      EXPECT_EQ(loader.position(step).stage, stage);
      for (const auto& rank : loader.indices(step)) {
        for (const auto& batch : rank) {
          for (const int64_t index : batch) {
            EXPECT_GE(index, stages[static_cast<size_t>(stage)].begin);
            EXPECT_LT(index, stages[static_cast<size_t>(stage)].end);
            EXPECT_LE(dataset.shape(index).tokens, stages[static_cast<size_t>(stage)].max_length);
          }
        }
      }
      const StepBatch batch = loader.load(step, {});
      for (const MicroBatch& each : batch.micro_batches) {
        EXPECT_EQ(each.rope.has_value(), step >= 3);
        EXPECT_EQ(each.rope.value_or(RopeDescription()).theta, step >= 3 ? 5e5 : 10000.0);
      }
    }
    // Where a stage begins, so does an epoch.
    EXPECT_EQ(loader.position(3).epoch, 0);
    EXPECT_EQ(loader.position(3).next, 0);
    EXPECT_EQ(loader.position(4).next, 4);
  }
}

}  // namespace
}  // namespace ithaca
