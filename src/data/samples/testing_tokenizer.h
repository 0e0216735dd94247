// For tests only: a tokenizer whose tokens can be seen, and samples as texts in which the trained tokens are marked.
#pragma once

#include <fmt/format.h>

#include <cctype>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/samples/sample.h"
#include "data/tokenizer/tokenizer.h"

namespace ithaca {

// Tokens: <...> (special), a word with the space before it, a run of line ends, any other byte. Ids are given as texts
// come; 0 is <bos>, 1 is <eos>. Thread-safety: one thread at a time.
class WordTokenizer : public Tokenizer {
 public:
  WordTokenizer() : WordTokenizer(false, true) {}
  // adds_bos: whether special tokens are added, <bos> at the front; has_end: whether <eos> ends texts.
  WordTokenizer(bool adds_bos, bool has_end) : adds_bos_(adds_bos), has_end_(has_end) {
    id_of("<bos>");
    id_of("<eos>");
  }

  Encoding encode(std::string_view text, const EncodeOptions& options) const override {
    Encoding encoding;
    const auto add = [&](std::string_view token, size_t begin, size_t end) {
      encoding.ids.push_back(id_of(std::string(token)));
      if (options.spans) encoding.spans.push_back({static_cast<int64_t>(begin), static_cast<int64_t>(end)});
    };
    if (adds_bos_ && options.add_special_tokens) add("<bos>", 0, 0);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = token_end(text, begin);
      add(text.substr(begin, end - begin), begin, end);
      begin = end;
    }
    return encoding;
  }
  std::string decode(std::span<const int64_t> ids, const DecodeOptions&) const override {
    std::string text;
    for (const int64_t id : ids) text += token_text(id);
    return text;
  }
  int64_t vocabulary_size() const override { return 1000; }
  std::optional<int64_t> token_id(std::string_view token) const override { return id_of(std::string(token)); }
  std::string token_text(int64_t id) const override { return texts_.at(static_cast<size_t>(id)); }
  std::optional<int64_t> end_of_text_id() const override { return has_end_ ? std::optional<int64_t>(1) : std::nullopt; }
  std::optional<int64_t> beginning_of_text_id() const override { return 0; }
  uint64_t content_hash() const override { return adds_bos_ ? 17 : 18; }

 private:
  static size_t token_end(std::string_view text, size_t begin) {
    const auto is_letter = [&](size_t i) {
      return i < text.size() && std::isalpha(static_cast<unsigned char>(text[i])) != 0;
    };
    size_t end = begin;
    if (text[begin] == '<') {
      end = text.find('>', begin);
      return end == std::string_view::npos ? begin + 1 : end + 1;
    }
    if (text[begin] == '\n') {
      while (end < text.size() && text[end] == '\n') ++end;
      return end;
    }
    if (text[begin] == ' ' && is_letter(begin + 1)) ++end;
    while (is_letter(end)) ++end;
    return end == begin ? begin + 1 : end;
  }
  int64_t id_of(const std::string& token) const {
    const auto [found, is_new] = ids_.try_emplace(token, static_cast<int64_t>(texts_.size()));
    if (is_new) texts_.push_back(token);
    return found->second;
  }

  bool adds_bos_;
  bool has_end_;
  mutable std::map<std::string, int64_t> ids_;
  mutable std::vector<std::string> texts_;
};

// The tokens of a sample, the trained ones in braces: "Q{ A}{<eos>}", other weights than 1 behind them: "{ A*0.5}".
inline std::string marked(const Sample& sample, const Tokenizer& tokenizer) {
  std::string text;
  for (size_t i = 0; i < sample.token_ids.size(); ++i) {
    const float weight = sample.target_weights.empty() ? 1.0f : sample.target_weights[i];
    const std::string token = tokenizer.token_text(sample.token_ids[i]);
    if (weight == 0.0f) {
      text += token;
    } else {
      text += weight == 1.0f ? fmt::format("{{{}}}", token) : fmt::format("{{{}*{}}}", token, weight);
    }
  }
  return text;
}

// A line of JSONL as a source gives it.
inline Record json_record(std::string bytes, int64_t line = 1) {
  Record record;
  record.bytes = std::move(bytes);
  record.place = fmt::format("x.jsonl:{}", line);
  record.file = "x.jsonl";
  record.line = line;
  return record;
}

}  // namespace ithaca
