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
};

class Dataset {
 public:
  Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual Sequence sequence(int64_t index) const = 0;
  virtual const DatasetSummary& summary() const = 0;
};

struct DatasetOptions {
  std::vector<std::string> files;
  std::string format = "text";      // text | tokens
  std::string tokenizer = "bytes";  // for text
  int64_t max_length = 8192;
  int64_t vocabulary = 0;  // ids must be below it
};

// Throws InputError (file, line, column, what is wrong, what would work), FileError, ConfigurationError.
std::unique_ptr<Dataset> open_dataset(const DatasetOptions& options);

}  // namespace ithaca
