// SampleEncoder: samples in the form in which a token cache keeps them. Thread-safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/cache/token_cache.h"
#include "data/samples/sample.h"

namespace ithaca {

// Consecutive samples, encoded.
struct EncodedSamples {
  std::vector<std::byte> tokens;
  std::vector<std::byte> targets;
  std::vector<TokenCache::DocumentRecord> documents;
  std::vector<int64_t> document_tokens;        // length of each document
  std::vector<int64_t> document_target_bytes;  // of each document in `targets`
  std::vector<int64_t> sample_documents;       // of each sample

  int64_t memory_bytes() const;
};

class SampleEncoder {
 public:
  explicit SampleEncoder(int64_t vocabulary);
  // Throws RecordError for an id that the vocabulary does not have, ContractError for a sample whose parts do not fit.
  void add(const Sample& sample, const std::string& place, EncodedSamples& out) const;

 private:
  void add_document(const Sample& sample, size_t begin, size_t end, EncodedSamples& out) const;

  int64_t vocabulary_;
  int64_t token_bytes_;
};

}  // namespace ithaca
