// Building token caches: tokenized once, on all cores, by whoever comes first.
//
// One thread reads records, several make samples of them, and the caller's thread writes them in the order in which
// they were read; what is between them is bounded in bytes. A cache is built in a folder beside its place and renamed
// into it, under a lock (flock) on a file beside it: other processes that want the same cache wait and then use it.
// What a killed builder leaves is removed by the next one that comes.
//
// The key of a cache is a hash of everything that decides what is in it: every file's name and the hash of its content,
// in order, the sample maker's settings, the vocabulary, whether bad records are skipped, and the version of the form.
// Contents are hashed whenever a cache is asked for, at the speed of reading them, so that a stale cache cannot be
// taken for a good one, whatever the times of the files say; files may be moved or touched without being tokenized
// again. Thread-safety: functions may be called from several threads and processes at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/cache/token_cache.h"
#include "data/samples/sample.h"

namespace ithaca {

struct TokenizeProgress {
  int64_t bytes_read = 0;  // of the files, compressed as they are
  int64_t bytes_in_all = 0;
  int64_t samples = 0;
  int64_t tokens = 0;
  double seconds = 0.0;
  bool finished = false;
};

// What is tokenized, and how.
struct TokenCacheSource {
  std::vector<std::string> files;                               // that the records come from, in order
  std::function<std::unique_ptr<RecordSource>()> open_records;  // called at most once, when there is no cache
  const SampleMaker* maker = nullptr;
  int64_t vocabulary = 0;  // ids must be below it
  bool skip_bad_records = false;
};

struct TokenCacheOptions {
  std::string folder;  // holds caches and their locks; made when it is not there
  int threads = 0;     // sample makers; 0: as many as the machine has cores
  // Of records that have been read and not yet written: the memory that building takes is a small multiple of it.
  // 0: 16 MiB, or 1 MiB for each thread where that is more.
  int64_t bytes_in_flight = 0;
  std::function<void(const TokenizeProgress&)> on_progress;  // a few times a second, in the caller's thread
  std::function<void(const std::string&)> on_note;           // worth telling people: waiting, a damaged cache
  const std::atomic<bool>* stop = nullptr;                   // set: StoppedError, soon
};

// The cache's key. Reads all files.
ContentDigest token_cache_key(const TokenCacheSource& source);

// The cache of the source: the one in the folder if it is there and whole, otherwise built first. Throws InputError (a
// record, with its place), FileError (naming data.cache_dir where that cannot be written), StoppedError.
std::unique_ptr<TokenCache> open_token_cache(const TokenCacheSource& source, const TokenCacheOptions& options);

}  // namespace ithaca
