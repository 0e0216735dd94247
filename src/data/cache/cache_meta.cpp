#include "data/cache/cache_meta.h"

#include <charconv>

#include "base/json.h"

namespace ithaca {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormatName = "ithaca token cache";
constexpr int64_t kFormatVersion = 1;

std::string checksum_of(const Json& json) {
  ContentHash hash;
  hash.add_text(json.dump());
  return hash.digest().text();
}

ContentDigest parse_digest(const std::string& text) {
  ContentDigest digest;
  const auto read = [&](size_t begin, uint64_t& value) {
    const char* first = text.data() + begin;
    const auto [end, error] = std::from_chars(first, first + 16, value, 16);
    return error == std::errc() && end == first + 16;
  };
  if (text.size() != 32 || !read(0, digest.high) || !read(16, digest.low)) {
    throw DamagedCacheError("\"" + text + "\" is not a checksum");
  }
  return digest;
}

CacheMeta meta_from_json(const Json& json) {
  CacheMeta meta;
  meta.key = parse_digest(json.at("key").get<std::string>());
  meta.sources = json.at("sources").get<std::vector<std::string>>();
  meta.token_bytes = json.at("token_bytes").get<int64_t>();
  TokenCacheSummary& summary = meta.summary;
  summary.samples = json.at("samples").get<int64_t>();
  summary.documents = json.at("documents").get<int64_t>();
  summary.tokens = json.at("tokens").get<int64_t>();
  summary.targets = json.at("targets").get<int64_t>();
  summary.longest_document = json.at("longest_document").get<int64_t>();
  for (const Json& group : json.at("skipped")) {
    summary.skipped.add(group.at("reason").get<std::string>(), group.at("place").get<std::string>(),
                        group.at("problem").get<std::string>(), group.at("count").get<int64_t>());
  }
  for (const auto& [name, file] : json.at("files").items()) {
    meta.files[name] = {file.at("bytes").get<int64_t>(), parse_digest(file.at("checksum").get<std::string>())};
  }
  return meta;
}

}  // namespace

const std::vector<std::string>& cache_file_names() {
  static const std::vector<std::string> names = {"tokens.bin",  "token_offsets.bin",  "documents.bin",
                                                 "targets.bin", "target_offsets.bin", "samples.bin"};
  return names;
}

std::string cache_meta_text(const CacheMeta& meta) {
  Json json = {{"format", kFormatName},
               {"version", kFormatVersion},
               {"key", meta.key.text()},
               {"sources", meta.sources},
               {"token_bytes", meta.token_bytes},
               {"samples", meta.summary.samples},
               {"documents", meta.summary.documents},
               {"tokens", meta.summary.tokens},
               {"targets", meta.summary.targets},
               {"longest_document", meta.summary.longest_document}};
  Json skipped = Json::array();
  for (const ReasonCounter::Group& group : meta.summary.skipped.groups()) {
    skipped.push_back({{"reason", group.reason},
                       {"place", group.first_place},
                       {"problem", group.first_problem},
                       {"count", group.count}});
  }
  json["skipped"] = std::move(skipped);
  Json files = Json::object();
  for (const auto& [name, file] : meta.files) files[name] = {{"bytes", file.bytes}, {"checksum", file.digest.text()}};
  json["files"] = std::move(files);
  // Places and problems quote people's files, which need not be UTF-8.
  json = Json::parse(json.dump(-1, ' ', false, Json::error_handler_t::replace));
  json["checksum"] = checksum_of(json);
  return json.dump(1) + "\n";
}

CacheMeta parse_cache_meta(const std::string& text, const std::string& where) {
  try {
    Json json = Json::parse(text);
    if (json.at("format") != kFormatName || json.at("version") != kFormatVersion) {
      throw DamagedCacheError("it is not the description of a token cache of this version");
    }
    const auto checksum = json.at("checksum").get<std::string>();
    json.erase("checksum");
    if (checksum != checksum_of(json)) throw DamagedCacheError("its checksum does not match");
    return meta_from_json(json);
  } catch (const Json::exception& error) {
    throw DamagedCacheError(where + ": " + json_complaint(error.what()));
  } catch (const DamagedCacheError& error) {
    throw DamagedCacheError(where + ": " + error.what());
  }
}

}  // namespace ithaca
