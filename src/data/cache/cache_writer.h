// CacheWriter: the files of a token cache, written front to back with their checksums.
// Thread-safety: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/cache/cache_meta.h"
#include "data/cache/sample_encoder.h"

namespace ithaca {

class CacheWriter {
 public:
  // Begins the files in `folder`, which must exist. Throws FileError.
  CacheWriter(const std::string& folder, const ContentDigest& key, std::vector<std::string> sources,
              int64_t vocabulary);
  CacheWriter(const CacheWriter&) = delete;
  CacheWriter& operator=(const CacheWriter&) = delete;
  ~CacheWriter();

  void add(const EncodedSamples& samples);
  void add_skipped(const ReasonCounter& skipped) { meta_.summary.skipped.merge(skipped); }
  const TokenCacheSummary& summary() const { return meta_.summary; }
  // Closes the files and writes meta.json, which makes the folder a cache.
  void finish();

 private:
  class File;
  File& file(size_t index) { return *files_[index]; }

  std::string folder_;
  CacheMeta meta_;
  std::vector<std::unique_ptr<File>> files_;  // in the order of cache_file_names()
  int64_t target_bytes_ = 0;
  bool one_document_each_ = true;  // every sample so far
};

}  // namespace ithaca
