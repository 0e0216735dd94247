#include "data/open_data.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "data/chat/chat_template.h"
#include "data/samples/records.h"
#include "data/samples/sample_maker.h"

namespace ithaca {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kByteTokens = 256;

bool uses_chat_template(const std::string& format) {
  return format == "messages" || format == "conversations" || format == "prompt_completion" || format == "instruction";
}

// Conversations cannot be rendered without one; the other formats have a form of their own.
std::shared_ptr<const ChatTemplate> chat_template_of(const DataOptions& options, const std::string& format) {
  if (!uses_chat_template(format)) return nullptr;
  const bool needed = format == "messages" || format == "conversations";
  if (options.model_directory.empty() && !needed) return nullptr;
  try {
    return std::make_shared<const ChatTemplate>(open_chat_template(options.model_directory));
  } catch (const FileError& error) {
    if (!needed) return nullptr;
    throw InputError(fmt::format(
        "{}: the data holds conversations (data.format {}), but the model has no chat template; put the one it was "
        "trained with into chat_template.jinja there, or give the data as text",
        error.what(), format));
  }
}

void check_options(const DataOptions& options) {
  if (options.paths.empty()) throw ConfigurationError("the list of data files is empty; name at least one file");
  if (options.tokenizer != "auto" && options.tokenizer != "bytes") {
    throw ConfigurationError(fmt::format("data.tokenizer is \"{}\"; auto and bytes are supported", options.tokenizer));
  }
  for (const ContextStage& stage : options.stages) {
    if (stage.max_length >= 1) continue;
    throw ConfigurationError(fmt::format("data.max_length is {}; at least 1 is needed", stage.max_length));
  }
  if (options.cache_dir.empty()) throw ConfigurationError("data.cache_dir: a folder for token caches is needed");
}

// What is made of the records, and what there is to say about it.
struct Making {
  std::string format;
  bool tokens_are_bytes = false;
  std::vector<std::string> notes;
  std::unique_ptr<SampleMaker> maker;
};

Making prepare(const DataOptions& options, const std::vector<std::string>& files) {
  Making making;
  making.format = options.format;
  if (options.format == "auto") {
    const DetectedFormat detected = detect_format(files);
    making.format = detected.format;
    making.notes.push_back(detected.reason);
  }
  SampleOptions samples;
  samples.format = making.format;
  samples.train_on = options.train_on == "auto" ? "" : options.train_on;
  samples.append_eos = options.append_eos;
  samples.vocabulary = options.vocabulary;
  if (needs_tokenizer(making.format)) {
    samples.tokenizer = tokenizer_of(options);
    making.tokens_are_bytes = options.tokenizer == "bytes" || !has_tokenizer(options.model_directory);
    if (options.tokenizer == "auto" && !has_tokenizer(options.model_directory)) {
      making.notes.push_back(fmt::format("data.tokenizer: {} has no tokenizer, so every byte of text is a token",
                                         options.model_directory.empty() ? "the model" : options.model_directory));
    }
    samples.chat_template = chat_template_of(options, making.format);
    if (samples.chat_template != nullptr) samples.chat_template_hash = chat_template_hash(options.model_directory);
  } else {
    for (const auto& [option, value] :
         {std::pair("append_eos", options.append_eos), std::pair("tokenizer", options.tokenizer)}) {
      if (value == "auto") continue;
      throw ConfigurationError(
          fmt::format("data.{}: {} has no effect, since data.format is {}: ready token ids; leave it out", option,
                      value, making.format));
    }
  }
  making.maker = make_sample_maker(samples);
  return making;
}

}  // namespace

bool needs_tokenizer(const std::string& format) {
  return format != "input_ids" && format != "tokens";
}

bool has_tokenizer(const std::string& model_directory) {
  if (model_directory.empty()) return false;
  std::error_code ignored;
  return fs::exists(fs::path(model_directory) / "tokenizer.json", ignored) ||
         fs::exists(fs::path(model_directory) / "tokenizer.model", ignored);
}

std::shared_ptr<const Tokenizer> tokenizer_of(const DataOptions& options) {
  if (options.tokenizer == "auto" && has_tokenizer(options.model_directory)) {
    return open_tokenizer(options.model_directory);
  }
  if (options.vocabulary < kByteTokens) {
    throw ConfigurationError(fmt::format(
        "data.tokenizer: bytes needs a model with a vocabulary of at least 256, but vocab_size is {}{}",
        options.vocabulary,
        options.tokenizer == "auto" ? "; put the model's tokenizer.json into its folder, or give ready token ids "
                                      "(data.format: input_ids)"
                                    : ""));
  }
  return byte_tokenizer();
}

std::unique_ptr<PackedDataset> open_data(const DataOptions& options, const DataWatch& watch) {
  check_options(options);
  RecordFiles found = find_record_files(options.paths);
  Making making = prepare(options, found.files);
  making.notes.insert(making.notes.begin(), found.notes.begin(), found.notes.end());

  TokenCacheSource source;
  source.files = found.files;
  source.open_records = [&] {
    // The files that were found, not what the paths stand for by now: the cache's key is of these.
    RecordOptions records;
    records.paths = found.files;
    return open_records(records);
  };
  source.maker = making.maker.get();
  source.vocabulary = options.vocabulary;
  source.skip_bad_records = options.skip_bad_records;
  TokenCacheOptions cache_options;
  cache_options.folder = options.cache_dir;
  cache_options.on_progress = watch.on_progress;
  cache_options.on_note = watch.on_note;
  cache_options.stop = watch.stop;

  PackedDatasetOptions packed;
  packed.packing = options.packing;
  packed.overlong = options.overlong;
  packed.stages = options.stages;
  packed.name = found.files.size() == 1
                    ? found.files.front()
                    : fmt::format("{} and {} more files", found.files.front(), found.files.size() - 1);
  auto dataset = std::make_unique<PackedDataset>(open_token_cache(source, cache_options), packed);
  dataset->describe_source(making.format, making.tokens_are_bytes, making.notes);
  return dataset;
}

}  // namespace ithaca
