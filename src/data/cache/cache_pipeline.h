// CachePipeline: records to encoded samples on several threads, handed out in the order of the records.
//
// Bounded: the reader waits while what has been read and not yet taken exceeds a number of bytes. Errors come out where
// the record that caused them would have, so that the first error is always the same one. Thread-safety: one thread
// constructs, calls next() and destroys; the others are its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "data/cache/sample_encoder.h"
#include "data/samples/sample.h"
#include "data/samples/skipped.h"

namespace ithaca {

// What comes out: the samples of some consecutive records.
struct EncodedBatch {
  EncodedSamples samples;
  ReasonCounter skipped;
  int64_t bytes_read = 0;  // by the source, when the batch was complete
};

struct CachePipelineOptions {
  int threads = 1;
  int64_t bytes_in_flight = int64_t{16} << 20;
  bool skip_bad_records = false;
  int64_t vocabulary = 0;
};

class CachePipeline {
 public:
  // Everything given must outlive it.
  CachePipeline(RecordSource& source, const SampleMaker& maker, const CachePipelineOptions& options);
  CachePipeline(const CachePipeline&) = delete;
  CachePipeline& operator=(const CachePipeline&) = delete;
  // Stops reading; what has not been taken is dropped.
  ~CachePipeline();

  enum class Outcome : uint8_t { batch, waiting, end };
  // The next batch, waiting at most a tenth of a second for it. Throws what reading or making threw.
  Outcome next(EncodedBatch& batch);

 private:
  struct Item {
    Record record;
    std::exception_ptr error;  // instead of a record: reading failed here
  };
  struct RawBatch {
    int64_t number = 0;
    int64_t bytes = 0;  // that count as in flight
    int64_t bytes_read = 0;
    std::vector<Item> items;
  };
  struct DoneBatch {
    EncodedBatch batch;
    int64_t bytes = 0;
    std::exception_ptr error;  // after the batch's samples, and nothing follows it
  };

  void read();
  bool read_batch(RawBatch& batch);
  bool submit(RawBatch batch);  // false: stopped
  void make();
  DoneBatch encode(RawBatch& batch) const;

  RecordSource& source_;
  const SampleMaker& maker_;
  CachePipelineOptions options_;
  SampleEncoder encoder_;

  std::mutex mutex_;  // guards everything below but the threads
  std::condition_variable work_, space_, done_;
  std::deque<RawBatch> raw_;
  std::map<int64_t, DoneBatch> finished_;
  int64_t in_flight_ = 0;
  int64_t submitted_ = 0;
  int64_t taken_ = 0;
  bool reading_over_ = false;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ithaca
