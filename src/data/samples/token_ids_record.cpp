#include "data/samples/token_ids_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "data/samples/record_json.h"

namespace ithaca {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kNothingTrained = -100;

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

void check_keys(const RecordObject& record) {
  const std::vector<std::string> known = {"input_ids", "labels", "weights", "document_lengths"};
  for (const auto& [key, ignored] : record.value().items()) {
    for (const RefusedKey& refused : kRefusedKeys) {
      if (key == refused.name) {
        record.complain(fmt::format("\"{}\" is not supported; {}", key, refused.advice),
                        fmt::format("\"{}\" is not supported", key));
      }
    }
    // Other keys are notes of the user's; one that is nearly ours is a slip of the pen.
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string near = nearest_name(key, known);
    if (!near.empty()) {
      record.complain(fmt::format("unknown key \"{}\"; is \"{}\" meant?", key, near), "a key is nearly a known one");
    }
  }
}

// The list under `key`, of `size` elements unless that is negative.
const Json& list_of(const RecordObject& record, const char* key, int64_t size = -1) {
  const Json& values = record.at(key);
  if (!values.is_array()) {
    record.complain(fmt::format("\"{}\" must be a list of numbers, not {}", key, values.type_name()),
                    fmt::format("\"{}\" is not a list", key));
  }
  if (size >= 0 && static_cast<int64_t>(values.size()) != size) {
    record.complain(
        fmt::format("\"{}\" has {} elements, \"input_ids\" has {}; they must be as many", key, values.size(), size),
        fmt::format("\"{}\" and \"input_ids\" differ in length", key));
  }
  return values;
}

int64_t integer_of(const RecordObject& record, const Json& values, const char* key, size_t index) {
  const Json& value = values[index];
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  if (!fits) {
    record.complain(fmt::format("{}[{}] is {}; a whole number is needed", key, index, brief_json(value)),
                    fmt::format("\"{}\" holds something that is not a whole number", key));
  }
  return value.get<int64_t>();
}

void read_ids(const RecordObject& record, int64_t vocabulary, Sample& sample) {
  const Json& ids = list_of(record, "input_ids");
  sample.token_ids.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t id = integer_of(record, ids, "input_ids", i);
    if (id < 0 || id >= vocabulary) {
      record.complain(fmt::format("input_ids[{}] is {}, but the model's ids are 0 to {}; was another tokenizer used?",
                                  i, id, vocabulary - 1),
                      "a token id is outside of the vocabulary");
    }
    sample.token_ids.push_back(id);
  }
}

// Gives `sample` its labels, where they are not the ids, and its weights: 0 where the label is -100.
void read_labels(const RecordObject& record, int64_t vocabulary, Sample& sample) {
  const Json& labels = list_of(record, "labels", static_cast<int64_t>(sample.token_ids.size()));
  sample.labels = sample.token_ids;
  sample.target_weights.assign(sample.token_ids.size(), 1.0f);
  for (size_t i = 0; i < labels.size(); ++i) {
    const int64_t label = integer_of(record, labels, "labels", i);
    if (label == kNothingTrained) {
      sample.target_weights[i] = 0.0f;
      continue;
    }
    if (label < 0 || label >= vocabulary) {
      record.complain(fmt::format("labels[{}] is {}; -100 (none) or 0 to {} is needed", i, label, vocabulary - 1),
                      "a label is outside of the vocabulary");
    }
    sample.labels[i] = label;
  }
  if (sample.labels == sample.token_ids) sample.labels.clear();
}

void read_weights(const RecordObject& record, Sample& sample) {
  const Json& weights = list_of(record, "weights", static_cast<int64_t>(sample.token_ids.size()));
  sample.target_weights.resize(sample.token_ids.size(), 1.0f);
  for (size_t i = 0; i < weights.size(); ++i) {
    float weight = 0.0f;
    const std::string problem = read_weight(weights[i], weight);
    if (!problem.empty()) record.complain(fmt::format("weights[{}] {}", i, problem), "a weight cannot be used");
    // Not a product: a label of -100 stays 0 whatever the weight is.
    if (sample.target_weights[i] != 0.0f) sample.target_weights[i] = weight;
  }
}

void read_documents(const RecordObject& record, Sample& sample) {
  const char* reason = "\"document_lengths\" does not fit \"input_ids\"";
  const Json& lengths = list_of(record, "document_lengths");
  const auto tokens = static_cast<int64_t>(sample.token_ids.size());
  int64_t end = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t length = integer_of(record, lengths, "document_lengths", i);
    if (length < 1 || length > tokens - end) {
      record.complain(fmt::format("document_lengths[{}] is {}; each must be at least 1, and their sum the {} tokens of "
                                  "input_ids",
                                  i, length, tokens),
                      reason);
    }
    end += length;
    sample.document_lengths.push_back(length);
  }
  if (end != tokens) {
    record.complain(fmt::format("document_lengths sum to {}, but input_ids has {} tokens", end, tokens), reason);
  }
}

}  // namespace

Sample sample_of_token_ids(const RecordObject& record, int64_t vocabulary) {
  check_keys(record);
  Sample sample;
  read_ids(record, vocabulary, sample);
  if (record.has("labels")) read_labels(record, vocabulary, sample);
  if (record.has("weights")) read_weights(record, sample);
  if (record.has("document_lengths")) read_documents(record, sample);
  return sample;
}

}  // namespace ithaca
