// Datasets: sequences by number, the same on every rank.
// Thread-safety: sequence() may be called from several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/step_batch.h"

namespace ithaca {

// One training sequence, whole. All vectors have the same length (label_weights may be empty: 1 wherever there is a
// label).
struct Sequence {
  std::vector<int64_t> token_ids;
  std::vector<int64_t> position_ids;  // restart at every document
  std::vector<int64_t>
      shifted_labels;  // successor of each token, kNoLabel across documents and where nothing is trained
  std::vector<float> label_weights;
  std::vector<int64_t> document_lengths;  // sum = number of tokens
};

// Totals over all sequences of one dataset.
struct DatasetSummary {
  int64_t sequences = 0;
  int64_t documents = 0;  // of the input files
  int64_t tokens = 0;
  int64_t valid_tokens = 0;  // labels
  int64_t longest_sequence = 0;
  int64_t skipped_documents = 0;  // of fewer than two tokens: they have no label, and no sequence
};

// What a training step must know of every sequence, whichever rank it goes to.
struct SequenceTotals {
  int64_t tokens = 0;
  int64_t valid_tokens = 0;       // labels
  double label_weight_sum = 0.0;  // over the labels, in token order
};
// Counted from the sequence itself.
SequenceTotals sequence_totals(const Sequence& sequence);

class Dataset {
 public:
  Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual Sequence sequence(int64_t index) const = 0;
  // sequence_totals(sequence(index)), quicker where the dataset knows them.
  virtual SequenceTotals totals(int64_t index) const { return sequence_totals(sequence(index)); }
  virtual const DatasetSummary& summary() const = 0;
};

struct DatasetOptions {
  std::vector<std::string> files;
  std::string format = "text";      // text | tokens
  std::string tokenizer = "bytes";  // for text
  int64_t max_length = 8192;
  int64_t vocabulary = 0;  // ids must be below it
};

// Formats:
//   text    each plain file is one document; a file whose name ends in .jsonl or .ndjson (.gz may follow) holds one
//           object with a key "text" per line, each a document. Window w of a document is tokens [w L, (w + 1) L),
//           where L is max_length; the label of its last token is the first token of the next window, so every token
//           but a document's first is a label exactly once. A window is one sequence, with positions from 0.
//   tokens  JSONL with input_ids and, at the same index, labels (-100 = none; without them every token is one) and
//           weights of the labels; document_lengths. A line longer than max_length is cut into windows by the same
//           rule; the positions of a document that is cut go on.
// Gzipped files are read directly. Every file must hold something; the dataset must hold a label.
//
// Throws InputError (file, line, column, what is wrong, what would work), FileError, ConfigurationError.
std::unique_ptr<Dataset> open_dataset(const DatasetOptions& options);

}  // namespace ithaca
