// TokenCache: tokenized documents in memory-mapped files.
//
// A cache is a folder, named by what it was made of, that appears complete or not at all (cache_builder.h makes it):
//   meta.json           what it is, totals, and size and checksum of every other file; itself with a checksum
//   tokens.bin          token ids of all documents, end to end, each in `token_bytes` bytes (1, 2 or 4, little-endian)
//   token_offsets.bin   i64: where each document begins in tokens; one more for the end
//   documents.bin       of each document {u64 content hash, i64 targets, f64 sum of their weights}
//   targets.bin         what is trained (target_codec.h), of the documents where that is not simply everything
//   target_offsets.bin  i64: where each document begins in targets.bin; one more for the end; empty with targets.bin
//   samples.bin         i64: first document of each sample; one more for the end; empty where each sample is a document
// Pages are read when they are touched: documents cost memory only while they are used.
// Thread-safety: immutable after construction; share freely.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/cache/content_hash.h"
#include "data/cache/mapped_file.h"
#include "data/cache/target_codec.h"
#include "data/samples/skipped.h"

namespace ithaca {

// A cache's files are not what they were when it was made. Names the file and what is wrong with it.
class DamagedCacheError : public InputError {
 public:
  using InputError::InputError;
};

// What is known of the documents without reading any.
struct TokenCacheSummary {
  int64_t samples = 0;
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t targets = 0;  // trained tokens, before anything is cut
  int64_t longest_document = 0;
  ReasonCounter skipped;  // records that were left out
};

class TokenCache {
 public:
  // Opens a finished cache and checks every byte of it against its checksums. Throws DamagedCacheError, FileError when
  // there is none.
  TokenCache(const std::string& folder, const ContentDigest& key);

  const std::string& folder() const { return folder_; }
  const ContentDigest& key() const { return key_; }
  const TokenCacheSummary& summary() const { return summary_; }

  // Documents of sample `sample` are [first_document(sample), first_document(sample + 1)).
  int64_t first_document(int64_t sample) const;
  int64_t length(int64_t document) const;
  // Of everything that training sees of the document.
  uint64_t content_hash(int64_t document) const { return record(document).content_hash; }
  // The targets of the whole document, and those at its tokens [begin, end).
  TargetTotals targets(int64_t document) const;
  TargetTotals targets(int64_t document, int64_t begin, int64_t end) const;
  bool weighted(int64_t document) const { return target_view(document).weighted(); }

  // Appends `count` token ids, at begin, begin + stride, ...
  void read_tokens(int64_t document, int64_t begin, int64_t count, int64_t stride, std::vector<int64_t>& ids) const;
  // Appends, for the tokens at begin, begin + stride, ..., their label (kNoLabel where the weight is 0) and their
  // weight as targets. `weights` may be null.
  void read_targets(int64_t document, int64_t begin, int64_t count, int64_t stride, std::vector<int64_t>& labels,
                    std::vector<float>* weights) const;

  // How the files are written, and the parts of one document.
  struct DocumentRecord {
    uint64_t content_hash;
    int64_t targets;
    double weight_sum;
  };

 private:
  void check_document(int64_t document) const;
  const DocumentRecord& record(int64_t document) const;
  TargetView target_view(int64_t document) const;
  int64_t token(int64_t index) const;

  std::string folder_;
  ContentDigest key_;
  TokenCacheSummary summary_;
  int64_t token_bytes_ = 4;
  std::unique_ptr<MappedFile> tokens_, token_offsets_, documents_, targets_, target_offsets_, samples_;
};

// Bytes that ids below `vocabulary` take.
constexpr int64_t token_bytes_of(int64_t vocabulary) {
  return vocabulary <= 256 ? 1 : vocabulary <= 65536 ? 2 : 4;
}

}  // namespace ithaca
