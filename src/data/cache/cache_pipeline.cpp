#include "data/cache/cache_pipeline.h"

#include <chrono>
#include <utility>

#include "base/error.h"

namespace ithaca {

namespace {

// A batch is worth a thread's while and small beside what may be in flight.
constexpr size_t kBatchRecords = 512;
constexpr int64_t kBatchBytes = int64_t{256} << 10;
constexpr auto kPatience = std::chrono::milliseconds(100);

// What a record takes beside its text, so that millions of empty ones count too.
constexpr int64_t kRecordBytes = 128;

}  // namespace

CachePipeline::CachePipeline(RecordSource& source, const SampleMaker& maker, const CachePipelineOptions& options)
    : source_(source), maker_(maker), options_(options), encoder_(options.vocabulary) {
  require(options.threads > 0 && options.bytes_in_flight > 0, "a pipeline needs a thread and room");
  threads_.emplace_back([this] { read(); });
  for (int i = 0; i < options.threads; ++i) threads_.emplace_back([this] { make(); });
}

CachePipeline::~CachePipeline() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  work_.notify_all();
  space_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

CachePipeline::Outcome CachePipeline::next(EncodedBatch& batch) {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return finished_.contains(taken_) || (reading_over_ && taken_ == submitted_); };
  if (!done_.wait_for(lock, kPatience, ready)) return Outcome::waiting;
  const auto found = finished_.find(taken_);
  if (found == finished_.end()) return Outcome::end;
  DoneBatch done = std::move(found->second);
  finished_.erase(found);
  ++taken_;
  in_flight_ -= done.bytes;
  lock.unlock();
  space_.notify_one();
  if (done.error) std::rethrow_exception(done.error);
  batch = std::move(done.batch);
  return Outcome::batch;
}

void CachePipeline::read() {
  bool more = true;
  while (more) {
    RawBatch batch;
    more = read_batch(batch);
    if (!batch.items.empty() && !submit(std::move(batch))) return;
  }
  {
    const std::lock_guard lock(mutex_);
    reading_over_ = true;
  }
  work_.notify_all();
  done_.notify_all();
}

// False when nothing follows the batch.
bool CachePipeline::read_batch(RawBatch& batch) {
  while (batch.items.size() < kBatchRecords && batch.bytes < kBatchBytes) {
    Item item;
    bool goes_on = true;
    try {
      std::optional<Record> record = source_.next();
      if (!record) return false;
      item.record = std::move(*record);
    } catch (const RecordError&) {
      item.error = std::current_exception();
      goes_on = options_.skip_bad_records;
    } catch (...) {
      item.error = std::current_exception();
      goes_on = false;
    }
    batch.bytes += kRecordBytes + static_cast<int64_t>(item.record.bytes.size());
    batch.items.push_back(std::move(item));
    batch.bytes_read = source_.bytes_read();
    if (!goes_on) return false;
  }
  return true;
}

bool CachePipeline::submit(RawBatch batch) {
  {
    std::unique_lock lock(mutex_);
    // One batch always fits, however large its record is.
    space_.wait(lock,
                [&] { return stopped_ || in_flight_ == 0 || in_flight_ + batch.bytes <= options_.bytes_in_flight; });
    if (stopped_) return false;
    batch.number = submitted_++;
    in_flight_ += batch.bytes;
    raw_.push_back(std::move(batch));
  }
  work_.notify_one();
  return true;
}

void CachePipeline::make() {
  while (true) {
    RawBatch raw;
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [&] { return stopped_ || !raw_.empty() || reading_over_; });
      if (stopped_ || raw_.empty()) return;
      raw = std::move(raw_.front());
      raw_.pop_front();
    }
    DoneBatch done = encode(raw);
    {
      const std::lock_guard lock(mutex_);
      in_flight_ += done.bytes - raw.bytes;
      finished_.emplace(raw.number, std::move(done));
    }
    done_.notify_one();
  }
}

CachePipeline::DoneBatch CachePipeline::encode(RawBatch& raw) const {
  DoneBatch done;
  done.batch.bytes_read = raw.bytes_read;
  for (Item& item : raw.items) {
    try {
      if (item.error) std::rethrow_exception(item.error);
      encoder_.add(maker_.make(item.record), item.record.place, done.batch.samples);
    } catch (const RecordError& error) {
      if (!options_.skip_bad_records) {
        done.error = std::current_exception();
        break;
      }
      done.batch.skipped.add(error);
    } catch (...) {
      done.error = std::current_exception();
      break;
    }
    // The text is not needed any more; a batch of long records would hold all of them.
    item.record = Record();
  }
  done.bytes = done.batch.samples.memory_bytes();
  return done;
}

}  // namespace ithaca
