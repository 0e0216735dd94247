// For tests only: records and samples without files of any format, and what a cache holds.
//
// A record is a line; its sample is one token for every byte. A line "bad..." is a RecordError, "ids 70000" a sample of
// one token, "mask 3" trains the tokens from 3 on, "weights" gives token i the weight i / 2, "labels" learns id + 1 at
// every token, "split" makes one document of every two tokens.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "data/cache/cache_builder.h"
#include "data/samples/sample.h"

namespace ithaca {

class LineSource : public RecordSource {
 public:
  explicit LineSource(std::vector<std::string> files) : files_(std::move(files)) {
    for (const std::string& file : files_) in_all_ += static_cast<int64_t>(std::filesystem::file_size(file));
  }
  std::optional<Record> next() override {
    std::string line;
    while (true) {
      if (!stream_.is_open()) {
        if (at_ == files_.size()) return std::nullopt;
        stream_.open(files_[at_], std::ios::binary);
        number_ = 0;
      }
      if (std::getline(stream_, line)) break;
      stream_ = std::ifstream();
      ++at_;
    }
    ++number_;
    bytes_ += static_cast<int64_t>(line.size()) + 1;
    if (line == "unreadable") throw RecordError(place(), "it cannot be read", "not readable");
    Record record;
    record.place = place();
    record.bytes = std::move(line);
    return record;
  }
  int64_t bytes_read() const override { return bytes_; }
  int64_t bytes_in_all() const override { return in_all_; }

 private:
  std::string place() const { return files_[at_] + ":" + std::to_string(number_); }
  std::vector<std::string> files_;
  size_t at_ = 0;
  std::ifstream stream_;
  int64_t number_ = 0;
  int64_t bytes_ = 0;
  int64_t in_all_ = 0;
};

class ByteMaker : public SampleMaker {
 public:
  explicit ByteMaker(uint64_t settings = 1, std::chrono::milliseconds delay = std::chrono::milliseconds(0))
      : settings_(settings), delay_(delay) {}
  Sample make(const Record& record) const override {
    ++made_;
    if (delay_.count() > 0) std::this_thread::sleep_for(delay_);
    const std::string& text = record.bytes;
    if (text.starts_with("bad")) throw RecordError(record.place, "it is bad: " + text, "bad");
    Sample sample;
    if (text.starts_with("ids ")) {
      sample.token_ids = {std::stoll(text.substr(4))};
      return sample;
    }
    for (const char c : text) sample.token_ids.push_back(static_cast<unsigned char>(c));
    const size_t tokens = text.size();
    if (text.starts_with("mask ")) {
      sample.target_weights.assign(tokens, 0.0f);
      for (auto i = static_cast<size_t>(text[5] - '0'); i < tokens; ++i) sample.target_weights[i] = 1.0f;
    } else if (text.starts_with("weights")) {
      for (size_t i = 0; i < tokens; ++i) sample.target_weights.push_back(0.5f * static_cast<float>(i));
    } else if (text.starts_with("labels")) {
      for (const int64_t id : sample.token_ids) sample.labels.push_back(id + 1);
    } else if (text.starts_with("split")) {
      for (size_t begin = 0; begin < tokens; begin += 2) {
        sample.document_lengths.push_back(static_cast<int64_t>(std::min<size_t>(2, tokens - begin)));
      }
    }
    return sample;
  }
  uint64_t settings_hash() const override { return settings_; }
  int64_t made() const { return made_.load(); }

 private:
  uint64_t settings_;
  std::chrono::milliseconds delay_;
  mutable std::atomic<int64_t> made_{0};
};

inline TokenCacheSource line_source(const std::vector<std::string>& files, const SampleMaker& maker,
                                    int64_t vocabulary = 256) {
  TokenCacheSource source;
  source.files = files;
  source.open_records = [files] { return std::make_unique<LineSource>(files); };
  source.maker = &maker;
  source.vocabulary = vocabulary;
  return source;
}

// The documents of a cache of bytes, as texts.
inline std::vector<std::string> cache_texts(const TokenCache& cache) {
  std::vector<std::string> texts;
  for (int64_t document = 0; document < cache.summary().documents; ++document) {
    std::vector<int64_t> ids;
    cache.read_tokens(document, 0, cache.length(document), 1, ids);
    texts.emplace_back(ids.begin(), ids.end());
  }
  return texts;
}

}  // namespace ithaca
