#include "data/token_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "data/byte_reader.h"
#include "data/text_dataset.h"

namespace ithaca {

namespace {

using Json = nlohmann::ordered_json;

// Ids and labels are kept in 32 bits; a vocabulary is far below.
constexpr int64_t kLargestVocabulary = int64_t{1} << 31;

// Keys that other tools write beside input_ids and that would change what is trained, if they were honoured.
struct RefusedKey {
  const char* name;
  const char* advice;
};
constexpr std::array<RefusedKey, 5> kRefusedKeys{{
    {"attention_mask", "there is no padding here: leave it out, and give document_lengths for packed documents"},
    {"position_ids", "positions follow from document_lengths: leave it out"},
    {"token_type_ids", "the models here have no token types: leave it out"},
    {"loss_mask", "give labels (-100 where nothing is trained) or weights instead"},
    {"sample_weight", "give weights, one for each token, instead"},
}};

// One line of a file: where it is, and its typed fields.
class SampleLine {
 public:
  SampleLine(const Json& object, std::string place) : object_(object), place_(std::move(place)) {
    if (!object_.is_object()) complain("each line must be an object {\"input_ids\": [...]}");
    const std::vector<std::string> known = {"input_ids", "labels", "weights", "document_lengths"};
    for (const auto& [key, value] : object_.items()) {
      for (const RefusedKey& refused : kRefusedKeys) {
        if (key == refused.name) complain(fmt::format("\"{}\" is not supported; {}", key, refused.advice));
      }
      // Other keys are notes of the user's; one that is nearly ours is a slip of the pen.
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      const std::string near = nearest_name(key, known);
      if (!near.empty()) complain(fmt::format("unknown key \"{}\"; is \"{}\" meant?", key, near));
    }
    if (!has("input_ids")) {
      const bool has_text = object_.contains("text");
      complain(std::string("the key \"input_ids\" is missing") +
               (has_text ? "; for lines with \"text\" set data.format: text" : ""));
    }
  }

  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }

  [[noreturn]] void complain(const std::string& problem) const { throw InputError(place_ + ": " + problem); }

  // The list under `key`, of `size` elements unless that is negative.
  const Json& list(const char* key, int64_t size = -1) const {
    const Json& values = object_.at(key);
    if (!values.is_array()) complain(fmt::format("\"{}\" must be a list of numbers, not {}", key, values.type_name()));
    if (size >= 0 && static_cast<int64_t>(values.size()) != size) {
      complain(
          fmt::format("\"{}\" has {} elements, \"input_ids\" has {}; they must be as many", key, values.size(), size));
    }
    return values;
  }

  int64_t integer(const Json& values, const char* key, size_t index) const {
    const Json& value = values[index];
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
    if (!fits) complain(fmt::format("{}[{}] is {}; a whole number is needed", key, index, value.dump()));
    return value.get<int64_t>();
  }

 private:
  const Json& object_;
  std::string place_;
};

class TokenDataset : public Dataset {
 public:
  explicit TokenDataset(const DatasetOptions& options)
      : max_length_(options.max_length), vocabulary_(options.vocabulary) {
    for (const std::string& file : options.files) read_file(file);
    totals_.reserve(static_cast<size_t>(size()));
    double weight_sum = 0.0;
    for (int64_t index = 0; index < size(); ++index) {
      totals_.push_back(sequence_totals(make_sequence(index)));
      summary_.tokens += totals_.back().tokens;
      summary_.valid_tokens += totals_.back().valid_tokens;
      summary_.longest_sequence = std::max(summary_.longest_sequence, totals_.back().tokens);
      weight_sum += totals_.back().label_weight_sum;
    }
    summary_.sequences = size();
    if (summary_.valid_tokens == 0 || weight_sum == 0.0) {
      throw InputError(
          fmt::format("{}: there is nothing to train on: the {} sequences have no label{}; sequences need two "
                      "tokens or more, and labels other than -100",
                      options.files.front(), size(), summary_.valid_tokens > 0 ? " of a weight above 0" : ""));
    }
  }

  int64_t size() const override { return first_window_.back(); }
  const DatasetSummary& summary() const override { return summary_; }
  Sequence sequence(int64_t index) const override { return make_sequence(index); }
  SequenceTotals totals(int64_t index) const override {
    require(index >= 0 && index < size(), fmt::format("sequence {} of {}", index, size()));
    return totals_[static_cast<size_t>(index)];
  }

 private:
  // One line that has windows. Offsets are into the vectors below; -1: the line has none.
  struct Sample {
    size_t tokens_begin = 0;
    int64_t tokens = 0;
    int64_t labels_begin = -1;
    int64_t weights_begin = -1;
    size_t documents_begin = 0;
    size_t documents_end = 0;
  };

  void read_file(const std::string& file) {
    LineReader reader(file);
    std::string_view line;
    int64_t lines = 0;
    while (reader.next(line)) {
      if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
      ++lines;
      const Json object = parse_json(line, file, reader.line_number());
      read_sample(SampleLine(object, fmt::format("{}:{}", file, reader.line_number())));
    }
    if (lines == 0) throw InputError(file + ": holds no line; remove it from the list or fill it");
  }

  void read_sample(const SampleLine& line) {
    const Json& ids = line.list("input_ids");
    Sample sample;
    sample.tokens = static_cast<int64_t>(ids.size());
    sample.tokens_begin = ids_.size();
    sample.documents_begin = document_ends_.size();
    for (size_t i = 0; i < ids.size(); ++i) {
      const int64_t id = line.integer(ids, "input_ids", i);
      if (id < 0 || id >= vocabulary_) {
        line.complain(fmt::format("input_ids[{}] is {}, but the model's ids are 0 to {}; was another tokenizer used?",
                                  i, id, vocabulary_ - 1));
      }
      ids_.push_back(static_cast<int32_t>(id));
    }
    if (line.has("labels")) read_labels(line, sample);
    if (line.has("weights")) read_weights(line, sample);
    read_documents(line, sample);

    const int64_t windows = window_count(sample.tokens, max_length_);
    if (windows == 0) {
      ++summary_.skipped_documents;
      return;
    }
    sample.documents_end = document_ends_.size();
    samples_.push_back(sample);
    first_window_.push_back(first_window_.back() + windows);
  }

  void read_labels(const SampleLine& line, Sample& sample) {
    const Json& labels = line.list("labels", sample.tokens);
    sample.labels_begin = static_cast<int64_t>(labels_.size());
    for (size_t i = 0; i < labels.size(); ++i) {
      const int64_t label = line.integer(labels, "labels", i);
      if (label != kNoLabel && (label < 0 || label >= vocabulary_)) {
        line.complain(fmt::format("labels[{}] is {}; -100 (none) or 0 to {} is needed", i, label, vocabulary_ - 1));
      }
      labels_.push_back(static_cast<int32_t>(label));
    }
  }

  void read_weights(const SampleLine& line, Sample& sample) {
    const Json& weights = line.list("weights", sample.tokens);
    sample.weights_begin = static_cast<int64_t>(weights_.size());
    for (size_t i = 0; i < weights.size(); ++i) {
      const float weight = weights[i].is_number() ? weights[i].get<float>() : -1.0f;
      if (!std::isfinite(weight) || weight < 0.0f) {
        line.complain(fmt::format("weights[{}] is {}; a finite number of at least 0 is needed", i, weights[i].dump()));
      }
      weights_.push_back(weight);
    }
  }

  void read_documents(const SampleLine& line, const Sample& sample) {
    if (!line.has("document_lengths")) {
      ++summary_.documents;
      document_ends_.push_back(sample.tokens);
      return;
    }
    const Json& lengths = line.list("document_lengths");
    int64_t end = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
      const int64_t length = line.integer(lengths, "document_lengths", i);
      if (length < 1 || length > sample.tokens - end) {
        line.complain(
            fmt::format("document_lengths[{}] is {}; each must be at least 1, and their sum the {} tokens of "
                        "input_ids",
                        i, length, sample.tokens));
      }
      end += length;
      document_ends_.push_back(end);
    }
    if (end != sample.tokens) {
      line.complain(fmt::format("document_lengths sum to {}, but input_ids has {} tokens", end, sample.tokens));
    }
    summary_.documents += static_cast<int64_t>(lengths.size());
  }

  Sequence make_sequence(int64_t index) const {
    require(index >= 0 && index < size(), fmt::format("sequence {} of {}", index, size()));
    const auto after = std::upper_bound(first_window_.begin(), first_window_.end(), index);
    const auto number = static_cast<size_t>(after - first_window_.begin()) - 1;
    const Sample& sample = samples_[number];
    const int64_t begin = (index - first_window_[number]) * max_length_;
    const int64_t end = std::min(begin + max_length_, sample.tokens);

    Sequence result;
    const auto ends_begin = document_ends_.begin() + static_cast<std::ptrdiff_t>(sample.documents_begin);
    const auto ends_end = document_ends_.begin() + static_cast<std::ptrdiff_t>(sample.documents_end);
    auto document = std::upper_bound(ends_begin, ends_end, begin);
    int64_t document_begin = document == ends_begin ? 0 : *(document - 1);
    for (int64_t piece = begin; piece < end; ++document) {
      const int64_t piece_end = std::min(end, *document);
      result.document_lengths.push_back(piece_end - piece);
      for (; piece < piece_end; ++piece) append_token(sample, piece, document_begin, *document, result);
      document_begin = *document;
    }
    return result;
  }

  // Token `token` of a sample, in the document [document_begin, document_end).
  void append_token(const Sample& sample, int64_t token, int64_t document_begin, int64_t document_end,
                    Sequence& result) const {
    result.token_ids.push_back(ids_[sample.tokens_begin + static_cast<size_t>(token)]);
    result.position_ids.push_back(token - document_begin);
    const int64_t next = token + 1;
    int64_t label = kNoLabel;
    if (next < document_end) {
      label = sample.labels_begin < 0 ? ids_[sample.tokens_begin + static_cast<size_t>(next)]
                                      : labels_[static_cast<size_t>(sample.labels_begin + next)];
    }
    result.shifted_labels.push_back(label);
    if (sample.weights_begin < 0) return;
    result.label_weights.push_back(label == kNoLabel ? 0.0f
                                                     : weights_[static_cast<size_t>(sample.weights_begin + next)]);
  }

  int64_t max_length_;
  int64_t vocabulary_;
  std::vector<int32_t> ids_, labels_;  // of all samples, end to end
  std::vector<float> weights_;
  std::vector<int64_t> document_ends_;  // within each sample
  std::vector<Sample> samples_;
  std::vector<int64_t> first_window_ = {0};  // of each sample; one more for the total
  std::vector<SequenceTotals> totals_;
  DatasetSummary summary_;
};

}  // namespace

std::unique_ptr<Dataset> open_token_dataset(const DatasetOptions& options) {
  if (options.vocabulary < 1 || options.vocabulary > kLargestVocabulary) {
    throw ConfigurationError(
        fmt::format("a vocabulary of {} ids is not usable; 1 to {} are", options.vocabulary, kLargestVocabulary));
  }
  return std::make_unique<TokenDataset>(options);
}

}  // namespace ithaca
