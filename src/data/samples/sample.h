// Samples: what one record of the input becomes, and the two stages that make them.
//
// A RecordSource reads raw records in a fixed order on one thread; a SampleMaker turns one record into token ids with
// the weight of each as a target, on any thread. The token cache runs both (data/cache), packing lays samples out as
// sequences (data/packing).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ithaca {

// One document of token ids.
struct Sample {
  std::vector<int64_t> token_ids;
  // Of each token as a target (before shifting): 0 where nothing is trained. Empty: 1 everywhere. The first token of a
  // document is never a target.
  std::vector<float> target_weights;
  // Only of ready token ids (format input_ids): where the sample is made of several documents. Empty: one.
  std::vector<int64_t> document_lengths;
};

// One line of JSONL, one element of a JSON array, or one whole text file.
struct Record {
  std::string bytes;
  std::string place;  // "file.jsonl:17", "file.json[3]", "book.txt": for errors
};

// Thread-safety: one thread at a time.
class RecordSource {
 public:
  RecordSource() = default;
  RecordSource(const RecordSource&) = delete;
  RecordSource& operator=(const RecordSource&) = delete;
  virtual ~RecordSource() = default;
  // The next record; nothing at the end. Throws InputError, FileError.
  virtual std::optional<Record> next() = 0;
  // Bytes read so far and in all (compressed as they are): for progress bars.
  virtual int64_t bytes_read() const = 0;
  virtual int64_t bytes_in_all() const = 0;
};

// Thread-safety: make() may be called from several threads at once.
class SampleMaker {
 public:
  SampleMaker() = default;
  SampleMaker(const SampleMaker&) = delete;
  SampleMaker& operator=(const SampleMaker&) = delete;
  virtual ~SampleMaker() = default;
  // Throws InputError that names record.place. A sample may be empty (an empty text).
  virtual Sample make(const Record& record) const = 0;
  // A hash of everything but the records that decides what make() gives: the key of token caches.
  virtual uint64_t settings_hash() const = 0;
};

}  // namespace ithaca
