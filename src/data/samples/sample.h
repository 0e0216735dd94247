// Samples: what one record of the input becomes, and the two stages that make them.
//
// A RecordSource reads raw records in a fixed order on one thread (records.h); a SampleMaker turns one record into
// token ids with the weight of each as a target, on any thread (sample_maker.h). The token cache runs both
// (data/cache), packing lays samples out as sequences (data/packing).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace ithaca {

// One document of token ids.
struct Sample {
  std::vector<int64_t> token_ids;
  // Of each token as a target (before shifting): 0 where nothing is trained. Empty: 1 everywhere. The first token of a
  // document is never a target.
  std::vector<float> target_weights;
  // Only of ready token ids (format input_ids): where the sample is made of several documents. Empty: one.
  std::vector<int64_t> document_lengths;
  // Only of ready token ids that come with labels of their own: what each token is as a target (before shifting), where
  // that is not the token itself. Empty: token_ids. Where target_weights is 0 the label has no meaning (it is a valid
  // id all the same).
  std::vector<int64_t> labels;
};

// One line of JSONL, one element of a JSON array, or one whole text file.
struct Record {
  std::string bytes;
  std::string place;  // "file.jsonl:17", "file.json[3]", "book.txt": for errors
  // A text file; otherwise `bytes` is JSON.
  bool is_plain_text = false;
  // Where `bytes` begin, for errors inside of them: file, line and column (from 1). An empty file: not known.
  std::string file = {};
  int64_t line = 1;
  int64_t column = 1;
};

// What is wrong with one record, when the others can still be read: with data.on_error: skip it is counted (skipped.h)
// and reading goes on.
class RecordError : public InputError {
 public:
  // The text of the error is "<place>: <problem><skip_advice>"; `reason` is the kind of problem, without values, to
  // group by. `skip_advice` is what only those need to know who have not skipped the record: problem() has it not.
  RecordError(const std::string& place, const std::string& problem, std::string reason,
              const std::string& skip_advice = {})
      : InputError(place + ": " + problem + skip_advice),
        place_(place),
        problem_(problem),
        reason_(std::move(reason)) {}
  const std::string& place() const { return place_; }
  const std::string& problem() const { return problem_; }
  const std::string& reason() const { return reason_; }

 private:
  std::string place_;
  std::string problem_;
  std::string reason_;
};

// Thread-safety: one thread at a time.
class RecordSource {
 public:
  RecordSource() = default;
  RecordSource(const RecordSource&) = delete;
  RecordSource& operator=(const RecordSource&) = delete;
  virtual ~RecordSource() = default;
  // The next record; nothing at the end. Throws RecordError (an empty file: next() may be called again and goes on with
  // what follows), any other InputError (damaged compression, an array that is not one: there is no way on), FileError.
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
  // Throws RecordError (an InputError) that names record.place. A sample may be empty (an empty text).
  virtual Sample make(const Record& record) const = 0;
  // A hash of everything but the records that decides what make() gives: the key of token caches.
  virtual uint64_t settings_hash() const = 0;
};

}  // namespace ithaca
