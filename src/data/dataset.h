// Datasets: sequences by number, the same on every rank, and what is known of them without reading their tokens.
// Thread-safety: all functions are const and may be called from several threads at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/layout.h"
#include "data/step_batch.h"

namespace ithaca {

// One training sequence, whole. All vectors have the same length (label_weights may be empty: 1 wherever there is a
// label).
struct Sequence {
  std::vector<int64_t> token_ids;
  std::vector<int64_t> position_ids;  // rise by 1 within a document
  std::vector<int64_t>
      shifted_labels;  // successor of each token, kNoLabel across documents and where nothing is trained
  std::vector<float> label_weights;
  std::vector<int64_t> document_lengths;  // sum = number of tokens
};

// Totals over all sequences of one dataset, or of one of its stages.
struct DatasetSummary {
  int64_t sequences = 0;
  int64_t samples = 0;       // records of the input files
  int64_t documents = 0;     // in them, skipped and dropped ones included
  int64_t tokens = 0;        // in sequences
  int64_t valid_tokens = 0;  // labels
  int64_t longest_sequence = 0;
  int64_t longest_document = 0;      // before anything is cut
  int64_t unfilled_tokens = 0;       // what sequences lack to max_length; not computed, since there is no padding
  int64_t skipped_documents = 0;     // of fewer than two tokens: they have no label, and no sequence
  int64_t unlabelled_documents = 0;  // in sequences, without anything that is trained
  int64_t split_documents = 0;       // cut into several pieces
  int64_t truncated_documents = 0;
  int64_t truncated_tokens = 0;  // lost with them
  int64_t dropped_documents = 0;
  int64_t dropped_tokens = 0;
  int64_t skipped_records = 0;     // that could not be understood (data.on_error: skip)
  std::string format;              // one of sample_formats(); empty: not known
  bool tokens_are_bytes = false;   // text without a tokenizer
  std::vector<std::string> notes;  // worth saying once: what was decided, what was left out and why
};

// What a training step must know of every sequence, whichever rank it goes to.
struct SequenceTotals {
  int64_t tokens = 0;
  int64_t valid_tokens = 0;       // labels
  double label_weight_sum = 0.0;  // over the labels, in token order
};
// Counted from the sequence itself.
SequenceTotals sequence_totals(const Sequence& sequence);

// A sequence without its tokens.
struct SequenceShape {
  std::vector<int64_t> document_lengths;
  int64_t tokens = 0;
  int64_t largest_position = 0;
  bool weighted = false;  // some label's weight may not be 1
};

// Some tokens of a sequence, or of several one after the other.
struct TokenSlice {
  std::vector<int64_t> token_ids, position_ids, shifted_labels;
  std::vector<float> label_weights;  // where they are asked for: 0 without a label
};

// A run's steps from `first_step` on, up to the next stage, train on the sequences [begin, end).
struct DatasetStage {
  int64_t first_step = 0;
  int64_t max_length = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

class Dataset {
 public:
  Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;
  virtual ~Dataset() = default;

  // Over all stages.
  virtual int64_t size() const = 0;
  virtual Sequence sequence(int64_t index) const = 0;
  // Of the whole dataset; where it has several stages, of the last one, with the longest sequence of all.
  virtual const DatasetSummary& summary() const = 0;

  // The stages, in order; the first begins at step 0. One with everything, unless the dataset has a curriculum.
  virtual std::vector<DatasetStage> stages() const;
  // A hash that tells the sequences of stage `stage` from others: what a position in them is worth.
  virtual uint64_t stage_hash(int64_t stage) const;

  // What follows is known from the sequence; a dataset may know it without reading the tokens.
  virtual SequenceTotals totals(int64_t index) const { return sequence_totals(sequence(index)); }
  virtual SequenceShape shape(int64_t index) const;
  // Different for different sequences.
  virtual uint64_t content_hash(int64_t index) const;
  // Sum of the squares of its documents' lengths: what attention's work grows with.
  virtual double cost(int64_t index) const;
  // Appends the tokens at the positions of `tokens` (of the sequence); with weights if asked for.
  virtual void read(int64_t index, const Segment& tokens, bool with_weights, TokenSlice& out) const;
};

// Sequences that are at hand.
class ListedDataset : public Dataset {
 public:
  // Throws ContractError when the parts of a sequence differ in length.
  explicit ListedDataset(std::vector<Sequence> sequences);
  int64_t size() const override { return static_cast<int64_t>(sequences_.size()); }
  Sequence sequence(int64_t index) const override { return sequences_.at(static_cast<size_t>(index)); }
  const DatasetSummary& summary() const override { return summary_; }

 private:
  std::vector<Sequence> sequences_;
  DatasetSummary summary_;
};

}  // namespace ithaca
