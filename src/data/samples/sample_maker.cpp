#include "data/samples/sample_maker.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "data/byte_reader.h"
#include "data/samples/chat_weights.h"
#include "data/samples/conversation.h"
#include "data/samples/quoted_text.h"
#include "data/samples/record_json.h"
#include "data/samples/record_object.h"
#include "data/samples/token_ids_record.h"
#include "data/samples/token_weights.h"
#include "data/samples/train_on.h"

namespace ithaca {

namespace {

using Json = nlohmann::ordered_json;

// Part of settings_hash(): a change of what make() gives for the same options needs another one.
constexpr int kRulesVersion = 2;
// Ids and labels are kept in 32 bits; a vocabulary is far below.
constexpr int64_t kLargestVocabulary = int64_t{1} << 31;

enum class Format { kMessages, kConversations, kPromptCompletion, kInstruction, kText, kInputIds };

Format format_of(const std::string& name) {
  if (name == "tokens") return Format::kInputIds;
  const std::vector<std::string>& names = sample_formats();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    throw ConfigurationError(fmt::format("data.format: {} is not known; {} are", name, fmt::join(names, ", ")));
  }
  return static_cast<Format>(found - names.begin());
}

TrainOn train_on_of(const std::string& name, Format format) {
  const bool has_turns = format != Format::kText && format != Format::kInputIds;
  if (name == "all" || (name.empty() && !has_turns)) return TrainOn::kAll;
  if (name != "assistant" && name != "completion" && !name.empty()) {
    throw ConfigurationError(fmt::format("data.train_on: {} is not known; assistant, completion, all are", name));
  }
  if (!has_turns) {
    throw ConfigurationError(fmt::format(
        "data.train_on: {} needs conversations or prompts, but data.format is {}: {}", name,
        format == Format::kText ? "text" : "input_ids",
        format == Format::kText ? "leave it out, or set all" : "leave it out; labels and weights say what is trained"));
  }
  const bool is_prompted = format == Format::kPromptCompletion || format == Format::kInstruction;
  if (name.empty()) return is_prompted ? TrainOn::kCompletion : TrainOn::kAssistant;
  return name == "assistant" ? TrainOn::kAssistant : TrainOn::kCompletion;
}

// The wording of Stanford Alpaca (https://github.com/tatsu-lab/stanford_alpaca), for models without a chat template.
std::string alpaca_prompt(const std::string& instruction, const std::string& input) {
  if (input.empty()) {
    return "Below is an instruction that describes a task. Write a response that appropriately completes the "
           "request.\n\n"
           "### Instruction:\n" +
           instruction + "\n\n### Response:\n";
  }
  return "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
         "response that appropriately completes the request.\n\n### Instruction:\n" +
         instruction + "\n\n### Input:\n" + input + "\n\n### Response:\n";
}

class FormatSampleMaker : public SampleMaker {
 public:
  explicit FormatSampleMaker(const SampleOptions& options)
      : options_(options),
        format_(format_of(options.format)),
        train_on_(train_on_of(options.train_on, format_)),
        end_of_text_(end_of_text(options)) {
    if (options_.vocabulary < 1 || options_.vocabulary > kLargestVocabulary) {
      throw ConfigurationError(
          fmt::format("a vocabulary of {} ids is not usable; 1 to {} are", options_.vocabulary, kLargestVocabulary));
    }
    const std::string& name = options_.format;
    if (format_ != Format::kInputIds && options_.tokenizer == nullptr) {
      throw ConfigurationError(fmt::format(
          "data.format: {} needs a tokenizer; give ready token ids (data.format: input_ids) without one", name));
    }
    const bool is_chat = format_ == Format::kMessages || format_ == Format::kConversations;
    if (is_chat && options_.chat_template == nullptr) {
      throw ConfigurationError(fmt::format(
          "data.format: {} needs a chat template, and the model has none (chat_template.jinja, or chat_template in "
          "tokenizer_config.json); add one, or write conversations as \"prompt\" and \"completion\"",
          name));
    }
  }

  Sample make(const Record& record) const override {
    if (record.is_plain_text) {
      if (format_ != Format::kText) {
        throw RecordError(
            record.place,
            fmt::format("is a text file, which is data.format: text, but data.format is {}", options_.format),
            "a text file is not of the data's format");
      }
      require_utf8(record);
      return sample_of_text(record.bytes, record.place);
    }
    const Json value = parse_record(record);
    const RecordObject object(value, record.place);
    switch (format_) {
      case Format::kMessages:
        return sample_of_conversation(conversation_of_messages(object), record.place);
      case Format::kConversations:
        return sample_of_conversation(conversation_of_sharegpt(object), record.place);
      case Format::kPromptCompletion:
        return sample_of_prompt(object);
      case Format::kInstruction:
        return sample_of_instruction(object);
      case Format::kText:
        return sample_of_text(object.string("text"), record.place);
      case Format::kInputIds:
        break;
    }
    return sample_of_token_ids(object, options_.vocabulary);
  }

  uint64_t settings_hash() const override {
    const std::string settings = fmt::format(
        "rules {} format {} train_on {} end {} tokenizer {} template {} {} vocabulary {}", kRulesVersion,
        static_cast<int>(format_), static_cast<int>(train_on_), end_of_text_.value_or(-1),
        options_.tokenizer == nullptr || format_ == Format::kInputIds ? 0 : options_.tokenizer->content_hash(),
        options_.chat_template != nullptr, options_.chat_template_hash, options_.vocabulary);
    return stable_hash(settings);
  }

 private:
  // The token that texts get at their end, if they do.
  static std::optional<int64_t> end_of_text(const SampleOptions& options) {
    const std::string& choice = options.append_eos;
    if (choice != "auto" && choice != "always" && choice != "never") {
      throw ConfigurationError(fmt::format("data.append_eos: {} is not known; auto, always, never are", choice));
    }
    if (choice == "never" || options.tokenizer == nullptr) return std::nullopt;
    const std::optional<int64_t> id = options.tokenizer->end_of_text_id();
    if (!id && choice == "always") {
      throw ConfigurationError(
          "data.append_eos: always needs an end-of-text token, and the tokenizer has none (eos_token in "
          "tokenizer_config.json); set auto or never");
    }
    return id;
  }

  Encoding encode(const std::string& text, bool add_special_tokens, bool spans, const std::string& place) const {
    EncodeOptions options;
    options.add_special_tokens = add_special_tokens;
    options.spans = spans;
    Encoding encoding = options_.tokenizer->encode(text, options);
    for (const int64_t id : encoding.ids) check_id(id, place);
    return encoding;
  }

  void check_id(int64_t id, const std::string& place) const {
    if (id >= 0 && id < options_.vocabulary) return;
    throw RecordError(place,
                      fmt::format("the tokenizer gives the id {} ({}), but the model's ids are 0 to {}; tokenizer and "
                                  "model do not belong together",
                                  id, quoted_text(options_.tokenizer->token_text(id)), options_.vocabulary - 1),
                      "a token id is outside of the vocabulary");
  }

  // Whether the end of a text is still to be added.
  bool needs_end(const Encoding& encoding) const {
    return end_of_text_ && (encoding.ids.empty() || encoding.ids.back() != *end_of_text_);
  }

  Sample sample_of_text(const std::string& text, const std::string& place) const {
    Sample sample;
    if (text.empty()) return sample;
    Encoding encoding = encode(text, true, false, place);
    if (needs_end(encoding)) {
      check_id(*end_of_text_, place);
      encoding.ids.push_back(*end_of_text_);
    }
    sample.token_ids = std::move(encoding.ids);
    return sample;
  }

  Sample sample_of_conversation(const Conversation& conversation, const std::string& place) const {
    const WeightedText text = weigh_conversation(conversation, train_on_, *options_.chat_template, place);
    const bool is_all = text.has_one_weight_everywhere(1.0f);
    // The template writes the special tokens itself.
    Encoding encoding = encode(text.text, false, !is_all, place);
    Sample sample;
    if (!is_all) sample.target_weights = token_weights(text, encoding, 0.0f, place);
    sample.token_ids = std::move(encoding.ids);
    return sample;
  }

  Sample sample_of_prompt(const RecordObject& record) const {
    const Json& prompt = record.at("prompt");
    const Json& completion = record.at("completion");
    if (prompt.is_string() && completion.is_string()) {
      return sample_of_strings(prompt.get<std::string>(), completion.get_ref<const std::string&>(), record);
    }
    if (!prompt.is_array() || !completion.is_array()) {
      record.complain(
          fmt::format("\"prompt\" and \"completion\" must be two strings or two lists of messages, not {} and "
                      "{}",
                      prompt.type_name(), completion.type_name()),
          "\"prompt\" and \"completion\" are neither two strings nor two lists");
    }
    if (options_.chat_template == nullptr) {
      record.complain(
          "lists of messages need a chat template, and the model has none; write \"prompt\" and "
          "\"completion\" as strings",
          "the model has no chat template");
    }
    return sample_of_conversation(conversation_of_prompt(record), record.place());
  }

  Sample sample_of_instruction(const RecordObject& record) const {
    if (record.has("history") && !record.at("history").empty()) {
      record.complain("\"history\" is not supported; write such conversations as \"messages\"",
                      "\"history\" is not supported");
    }
    if (options_.chat_template != nullptr) {
      return sample_of_conversation(conversation_of_instruction(record), record.place());
    }
    if (!record.string_or_empty("system").empty()) {
      record.complain("\"system\" needs a chat template, and the model has none", "the model has no chat template");
    }
    return sample_of_strings(alpaca_prompt(record.string("instruction"), record.string_or_empty("input")),
                             record.string("output"), record);
  }

  Sample sample_of_strings(std::string prompt, const std::string& completion, const RecordObject& record) const {
    const std::string& place = record.place();
    WeightedText text;
    const auto boundary = static_cast<int64_t>(prompt.size());
    text.text = std::move(prompt) + completion;
    text.add({train_on_ == TrainOn::kAll ? 0 : boundary, static_cast<int64_t>(text.text.size())}, 1.0f);
    const bool is_all = text.has_one_weight_everywhere(1.0f);
    Encoding encoding = encode(text.text, true, !is_all, place);
    Sample sample;
    // What the tokenizer adds behind the completion is to be learnt with it.
    if (!is_all) sample.target_weights = token_weights(text, encoding, 1.0f, place);
    if (needs_end(encoding)) {
      check_id(*end_of_text_, place);
      encoding.ids.push_back(*end_of_text_);
      if (!is_all) sample.target_weights.push_back(1.0f);
    }
    if (completion.empty() && std::none_of(sample.target_weights.begin(), sample.target_weights.end(),
                                           [](float weight) { return weight > 0.0f; })) {
      record.complain("nothing of it is trained: the completion is empty", "nothing of the record is trained");
    }
    sample.token_ids = std::move(encoding.ids);
    return sample;
  }

  SampleOptions options_;
  Format format_;
  TrainOn train_on_;
  std::optional<int64_t> end_of_text_;
};

}  // namespace

const std::vector<std::string>& sample_formats() {
  // In the order of Format.
  static const std::vector<std::string> names = {"messages",    "conversations", "prompt_completion",
                                                 "instruction", "text",          "input_ids"};
  return names;
}

std::unique_ptr<SampleMaker> make_sample_maker(const SampleOptions& options) {
  return std::make_unique<FormatSampleMaker>(options);
}

uint64_t chat_template_hash(const std::filesystem::path& model_directory) {
  uint64_t hash = 0;
  for (const char* name :
       {"chat_template.jinja", "chat_template.json", "tokenizer_config.json", "special_tokens_map.json"}) {
    const std::filesystem::path file = model_directory / name;
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(file, ignored)) continue;
    ByteReader reader(file.string());
    hash = mix_bits(hash ^ stable_hash(name));
    for (auto piece = reader.next(); !piece.empty(); piece = reader.next()) {
      hash = mix_bits(hash ^ stable_hash({piece.data(), piece.size()}));
    }
  }
  return hash;
}

}  // namespace ithaca
