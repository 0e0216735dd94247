// PackedDataset: the documents of a token cache, packed into sequences, for one max_length or a curriculum of them.
//
// Nothing is read before it is needed: what is known of a sequence comes from the cache's index, and only the tokens
// that are asked for are touched. Thread-safety: as Dataset.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/cache/token_cache.h"
#include "data/dataset.h"
#include "data/packing/packing.h"

namespace ithaca {

// From step `first_step` on, up to the next stage, sequences have at most `max_length` tokens.
struct ContextStage {
  int64_t first_step = 0;
  int64_t max_length = 8192;
  bool operator==(const ContextStage&) const = default;
};

struct PackedDatasetOptions {
  PackingKind packing = PackingKind::none;
  Overlong overlong = Overlong::split;
  std::vector<ContextStage> stages = {{}};  // by rising step, from step 0
  std::string name = "the data";            // for errors: a file
};

class PackedDataset : public Dataset {
 public:
  // Throws InputError when some stage has nothing to train on.
  PackedDataset(std::shared_ptr<const TokenCache> cache, const PackedDatasetOptions& options);
  ~PackedDataset() override;

  int64_t size() const override { return stages_.back().bounds.end; }
  Sequence sequence(int64_t index) const override;
  const DatasetSummary& summary() const override { return longest().summary; }
  const DatasetSummary& stage_summary(int64_t stage) const { return stages_.at(static_cast<size_t>(stage)).summary; }
  // Where the documents came from, for the summaries; what is worth saying of it comes first in their notes.
  void describe_source(const std::string& format, bool tokens_are_bytes, const std::vector<std::string>& notes);

  std::vector<DatasetStage> stages() const override;
  uint64_t stage_hash(int64_t stage) const override;
  SequenceTotals totals(int64_t index) const override;
  SequenceShape shape(int64_t index) const override;
  uint64_t content_hash(int64_t index) const override;
  double cost(int64_t index) const override;
  void read(int64_t index, const Segment& tokens, bool with_weights, TokenSlice& out) const override;

  const TokenCache& cache() const { return *cache_; }
  // Where the tokens of a sequence are in the documents of the cache.
  std::vector<Piece> pieces(int64_t index) const;

 private:
  class Table;
  struct Stage {
    DatasetStage bounds;
    std::unique_ptr<Packing> packing;
    DatasetSummary summary;
  };

  void add_stage(const ContextStage& stage);
  DatasetSummary summarize(const Packing& packing) const;
  // The stage with the longest sequence.
  const Stage& longest() const;

  std::shared_ptr<const TokenCache> cache_;
  PackedDatasetOptions options_;
  std::unique_ptr<Table> table_;
  std::vector<Stage> stages_;
};

}  // namespace ithaca
