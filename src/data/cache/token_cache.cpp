#include "data/cache/token_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/regular_file.h"
#include "data/cache/cache_meta.h"
#include "data/step_batch.h"

namespace ithaca {

namespace {

namespace fs = std::filesystem;

CacheMeta read_meta(const std::string& folder, const ContentDigest& key) {
  const std::string path = (fs::path(folder) / kCacheMetaName).string();
  std::string text;
  try {
    text = read_regular_file(path);
  } catch (const FileError& error) {
    throw DamagedCacheError(error.what());
  }
  CacheMeta meta = parse_cache_meta(text, path);
  if (meta.key != key) throw DamagedCacheError(path + ": it describes another cache; was the folder renamed?");
  return meta;
}

std::unique_ptr<MappedFile> open_checked(const std::string& folder, const std::string& name, const CacheMeta& meta) {
  const std::string path = (fs::path(folder) / name).string();
  const auto expected = meta.files.find(name);
  if (expected == meta.files.end()) throw DamagedCacheError(path + ": meta.json does not name it");
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) throw DamagedCacheError(fmt::format("{}: {}", path, error.message()));
  if (static_cast<int64_t>(size) != expected->second.bytes) {
    throw DamagedCacheError(fmt::format("{}: it has {} bytes and should have {}", path, size, expected->second.bytes));
  }
  if (hash_file(path) != expected->second.digest) {
    throw DamagedCacheError(path + ": its bytes do not match their checksum");
  }
  return std::make_unique<MappedFile>(path);
}

}  // namespace

TokenCache::TokenCache(const std::string& folder, const ContentDigest& key) : folder_(folder), key_(key) {
  const CacheMeta meta = read_meta(folder, key);
  summary_ = meta.summary;
  token_bytes_ = meta.token_bytes;
  tokens_ = open_checked(folder, "tokens.bin", meta);
  token_offsets_ = open_checked(folder, "token_offsets.bin", meta);
  documents_ = open_checked(folder, "documents.bin", meta);
  targets_ = open_checked(folder, "targets.bin", meta);
  target_offsets_ = open_checked(folder, "target_offsets.bin", meta);
  samples_ = open_checked(folder, "samples.bin", meta);

  const auto documents = static_cast<size_t>(summary_.documents);
  const auto offsets = token_offsets_->as<int64_t>();
  const auto target_offsets = target_offsets_->as<int64_t>();
  const auto samples = samples_->as<int64_t>();
  const bool fits =
      (token_bytes_ == 1 || token_bytes_ == 2 || token_bytes_ == 4) && offsets.size() == documents + 1 &&
      offsets.back() == summary_.tokens &&
      static_cast<int64_t>(tokens_->bytes().size()) == summary_.tokens * token_bytes_ &&
      documents_->as<DocumentRecord>().size() == documents &&
      (target_offsets.empty() || (target_offsets.size() == documents + 1 &&
                                  target_offsets.back() == static_cast<int64_t>(targets_->bytes().size()))) &&
      (samples.empty()
           ? summary_.samples == summary_.documents
           : static_cast<int64_t>(samples.size()) == summary_.samples + 1 && samples.back() == summary_.documents);
  if (!fits) throw DamagedCacheError(folder + ": the sizes of its files do not fit each other");
}

int64_t TokenCache::first_document(int64_t sample) const {
  const auto samples = samples_->as<int64_t>();
  return samples.empty() ? sample : samples[static_cast<size_t>(sample)];
}

void TokenCache::check_document(int64_t document) const {
  // Called for every document of a large cache: the text is made only when it is needed.
  if (document >= 0 && document < summary_.documents) return;
  throw ContractError(fmt::format("document {} of {}", document, summary_.documents));
}

int64_t TokenCache::length(int64_t document) const {
  check_document(document);
  const auto offsets = token_offsets_->as<int64_t>();
  return offsets[static_cast<size_t>(document) + 1] - offsets[static_cast<size_t>(document)];
}

const TokenCache::DocumentRecord& TokenCache::record(int64_t document) const {
  check_document(document);
  return documents_->as<DocumentRecord>()[static_cast<size_t>(document)];
}

TargetView TokenCache::target_view(int64_t document) const {
  const int64_t tokens = length(document);
  const auto offsets = target_offsets_->as<int64_t>();
  if (offsets.empty()) return TargetView({}, tokens);
  const int64_t begin = offsets[static_cast<size_t>(document)];
  const int64_t end = offsets[static_cast<size_t>(document) + 1];
  return TargetView(targets_->bytes().subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), tokens);
}

TargetTotals TokenCache::targets(int64_t document) const {
  const DocumentRecord& known = record(document);
  return {known.targets, known.weight_sum};
}

TargetTotals TokenCache::targets(int64_t document, int64_t begin, int64_t end) const {
  if (begin <= 1 && end == length(document)) return targets(document);
  return target_view(document).totals(begin, end);
}

int64_t TokenCache::token(int64_t index) const {
  const auto at = static_cast<size_t>(index);
  if (token_bytes_ == 1) return tokens_->as<uint8_t>()[at];
  if (token_bytes_ == 2) return tokens_->as<uint16_t>()[at];
  return tokens_->as<uint32_t>()[at];
}

void TokenCache::read_tokens(int64_t document, int64_t begin, int64_t count, int64_t stride,
                             std::vector<int64_t>& ids) const {
  if (count == 0) return;
  require(begin >= 0 && begin + (count - 1) * stride < length(document),
          "tokens beyond the end of a document were asked for");
  const int64_t first = token_offsets_->as<int64_t>()[static_cast<size_t>(document)] + begin;
  for (int64_t i = 0; i < count; ++i) ids.push_back(token(first + i * stride));
}

void TokenCache::read_targets(int64_t document, int64_t begin, int64_t count, int64_t stride,
                              std::vector<int64_t>& labels, std::vector<float>* weights) const {
  if (count == 0) return;
  require(begin >= 0 && begin + (count - 1) * stride < length(document),
          "tokens beyond the end of a document were asked for");
  const int64_t first = token_offsets_->as<int64_t>()[static_cast<size_t>(document)];
  const TargetView view = target_view(document);
  TargetView::Cursor cursor(view);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = begin + i * stride;
    const float weight = cursor.weight(index);
    if (weights != nullptr) weights->push_back(weight);
    if (weight == 0.0f) {
      labels.push_back(kNoLabel);
    } else {
      labels.push_back(view.labels().empty() ? token(first + index)
                                             : static_cast<int64_t>(view.labels()[static_cast<size_t>(index)]));
    }
  }
}

}  // namespace ithaca
