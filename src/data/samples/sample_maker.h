// Sample makers: records of every supported format to token ids and training weights, exact per token (docs/data.md).
//
// Thread-safety: the functions are pure but for the files they read; see sample.h for SampleMaker.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/samples/sample.h"
#include "data/tokenizer/tokenizer.h"

namespace ithaca {

// The names of formats that make_sample_maker() knows: messages, conversations, prompt_completion, instruction, text,
// input_ids.
const std::vector<std::string>& sample_formats();

struct SampleOptions {
  // One of sample_formats(), or "tokens", an older name of input_ids. "auto" is for detect_format().
  std::string format = "messages";
  // What is trained:
  //   assistant    every turn of the assistant
  //   completion   the last turn of the assistant (prompt_completion: the completion; instruction: the output)
  //   all          every token
  //   ""           as the format suggests: assistant for messages and conversations, completion for prompt_completion
  //   and
  //                instruction, all for text and input_ids
  std::string train_on;
  // Whether the tokenizer's end-of-text token follows a text (text, and prompt_completion and instruction where they
  // are not rendered by a chat template, which ends turns itself): auto (where the tokenizer has one), always, never.
  // One that is there already is not doubled.
  std::string append_eos = "auto";
  // Not needed for input_ids.
  std::shared_ptr<const Tokenizer> tokenizer;
  // Needed for messages, conversations and lists of messages; instruction falls back to a fixed wording without one.
  std::shared_ptr<const ChatTemplate> chat_template;
  // Of the template's source and variables; part of settings_hash(). chat_template_hash() below gives one.
  uint64_t chat_template_hash = 0;
  // Token ids must be below it.
  int64_t vocabulary = 0;
};

// Throws ConfigurationError for an option that cannot be honoured.
std::unique_ptr<SampleMaker> make_sample_maker(const SampleOptions& options);

// A hash of the files of a model folder that decide how its chat template renders.
uint64_t chat_template_hash(const std::filesystem::path& model_directory);

struct DetectedFormat {
  std::string format;  // one of sample_formats()
  std::string reason;  // a sentence for plans and logs: which record decided, by what, and how many were looked at
};

// Decides data.format: auto from the first records of the first files: by the keys that a format needs, in the order
// input_ids, messages, conversations, prompt and completion, instruction and output, text; a text file is text.
// `paths` as find_record_files() takes them. Throws InputError when records differ (naming two of them) or fit no
// format, and what open_records() throws.
DetectedFormat detect_format(const std::vector<std::string>& paths);

}  // namespace ithaca
