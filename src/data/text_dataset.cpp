#include "data/text_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "base/error.h"
#include "base/json.h"
#include "data/byte_reader.h"

namespace ithaca {

namespace {

constexpr int64_t kByteTokens = 256;

bool is_json_lines(std::string name) {
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  return name.ends_with(".jsonl") || name.ends_with(".ndjson");
}

class TextDataset : public Dataset {
 public:
  explicit TextDataset(const DatasetOptions& options) : max_length_(options.max_length) {
    for (const std::string& file : options.files) {
      const size_t size_before = bytes_.size();
      if (is_json_lines(file)) {
        read_lines(file);
      } else {
        read_plain(file);
      }
      if (bytes_.size() == size_before) throw InputError(file + ": holds no text; remove it from the list or fill it");
    }
    bytes_.shrink_to_fit();
    if (size() == 0) {
      throw InputError(
          fmt::format("{}: the {} documents hold no text of two tokens or more; there is nothing to train on",
                      options.files.front(), summary_.documents));
    }
    summary_.sequences = size();
  }

  int64_t size() const override { return first_window_.back(); }
  const DatasetSummary& summary() const override { return summary_; }

  Sequence sequence(int64_t index) const override {
    const Window window = find_window(index);
    const int64_t length = window.end - window.begin;
    Sequence result;
    result.token_ids.assign(bytes_.begin() + window.begin, bytes_.begin() + window.end);
    result.position_ids.resize(static_cast<size_t>(length));
    std::iota(result.position_ids.begin(), result.position_ids.end(), int64_t{0});
    // The successor of the last token lies in the next window, unless the document ends here.
    const int64_t labels_end = std::min(window.end + 1, window.document_end);
    result.shifted_labels.assign(bytes_.begin() + window.begin + 1, bytes_.begin() + labels_end);
    result.shifted_labels.resize(static_cast<size_t>(length), kNoLabel);
    result.document_lengths = {length};
    return result;
  }

  SequenceTotals totals(int64_t index) const override {
    const Window window = find_window(index);
    const int64_t labels = std::min(window.end + 1, window.document_end) - window.begin - 1;
    return {window.end - window.begin, labels, static_cast<double>(labels)};
  }

 private:
  struct Window {
    int64_t begin;
    int64_t end;
    int64_t document_end;
  };

  Window find_window(int64_t index) const {
    require(index >= 0 && index < size(), fmt::format("sequence {} of {}", index, size()));
    const auto after = std::upper_bound(first_window_.begin(), first_window_.end(), index);
    const auto document = static_cast<size_t>(after - first_window_.begin()) - 1;
    const int64_t begin = starts_[document] + (index - first_window_[document]) * max_length_;
    // The left-out last token of a document is in no window, but ends the document all the same.
    const int64_t document_end = ends_[document];
    return {begin, std::min(begin + max_length_, document_end), document_end};
  }

  // Everything that bytes_ has gained since `begin` is one document.
  void add_document(int64_t begin) {
    const auto end = static_cast<int64_t>(bytes_.size());
    ++summary_.documents;
    const int64_t windows = window_count(end - begin, max_length_);
    if (windows == 0) {
      ++summary_.skipped_documents;
      return;
    }
    starts_.push_back(begin);
    ends_.push_back(end);
    first_window_.push_back(first_window_.back() + windows);
    const int64_t trained_tokens = std::min(windows * max_length_, end - begin);
    summary_.tokens += trained_tokens;
    summary_.valid_tokens += end - begin - 1;
    summary_.longest_sequence = std::max(summary_.longest_sequence, std::min(max_length_, trained_tokens));
  }

  void read_plain(const std::string& file) {
    const auto begin = static_cast<int64_t>(bytes_.size());
    std::error_code ignored;
    const auto file_bytes = std::filesystem::file_size(file, ignored);
    if (!ignored) bytes_.reserve(bytes_.size() + file_bytes);
    ByteReader reader(file);
    for (std::span<const char> piece = reader.next(); !piece.empty(); piece = reader.next()) {
      bytes_.insert(bytes_.end(), piece.begin(), piece.end());
    }
    add_document(begin);
  }

  void read_lines(const std::string& file) {
    LineReader reader(file);
    std::string_view line;
    while (reader.next(line)) {
      if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
      const nlohmann::ordered_json object = parse_json(line, file, reader.line_number());
      const std::string place = fmt::format("{}:{}", file, reader.line_number());
      if (!object.is_object()) throw InputError(place + ": each line must be an object {\"text\": ...}");
      const auto text = object.find("text");
      if (text == object.end()) {
        const bool has_ids = object.contains("input_ids");
        throw InputError(place + ": the key \"text\" is missing" +
                         (has_ids ? "; for lines with \"input_ids\" set data.format: tokens" : ""));
      }
      if (!text->is_string()) throw InputError(place + ": \"text\" must be a string, not " + text->type_name());
      const auto& content = text->get_ref<const std::string&>();
      const auto begin = static_cast<int64_t>(bytes_.size());
      bytes_.insert(bytes_.end(), content.begin(), content.end());
      add_document(begin);
    }
  }

  int64_t max_length_;
  std::vector<uint8_t> bytes_;               // all documents, end to end
  std::vector<int64_t> starts_, ends_;       // of the documents with windows, in bytes_
  std::vector<int64_t> first_window_ = {0};  // of each of them; one more for the total
  DatasetSummary summary_;
};

}  // namespace

std::unique_ptr<Dataset> open_text_dataset(const DatasetOptions& options) {
  if (options.tokenizer != "bytes") {
    throw ConfigurationError(fmt::format("data.tokenizer is \"{}\"; supported is \"bytes\"", options.tokenizer));
  }
  if (options.vocabulary < kByteTokens) {
    throw ConfigurationError(
        fmt::format("data.tokenizer: bytes needs a model with a vocabulary of at least 256, but vocab_size "
                    "is {}",
                    options.vocabulary));
  }
  return std::make_unique<TextDataset>(options);
}

}  // namespace ithaca
