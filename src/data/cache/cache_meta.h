// meta.json of a token cache: read, written and checked. Thread-safety: pure functions but for the file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "data/cache/token_cache.h"

namespace ithaca {

struct CacheFile {
  int64_t bytes = 0;
  ContentDigest digest;
};

struct CacheMeta {
  ContentDigest key;
  std::vector<std::string> sources;  // for people: what it was made of
  int64_t token_bytes = 4;
  TokenCacheSummary summary;
  std::map<std::string, CacheFile> files;  // by name
};

inline constexpr const char* kCacheMetaName = "meta.json";
// Of everything that has a place in a cache.
const std::vector<std::string>& cache_file_names();

std::string cache_meta_text(const CacheMeta& meta);
// `where` names the file in errors. Throws DamagedCacheError.
CacheMeta parse_cache_meta(const std::string& text, const std::string& where);

}  // namespace ithaca
