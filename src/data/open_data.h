// Opening a dataset: files to records, records to samples, samples to a token cache, documents to sequences.
//
// Thread-safety: may be called from several threads and processes at once; they share caches.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/cache/cache_builder.h"
#include "data/packed_dataset.h"
#include "data/tokenizer/tokenizer.h"

namespace ithaca {

struct DataOptions {
  std::vector<std::string> paths;  // files, folders, patterns (samples/records.h)
  std::string format = "auto";     // or one of sample_formats(), or tokens
  // Of text: auto takes the tokenizer of the model where it has one, bytes makes every byte a token.
  std::string tokenizer = "auto";
  std::string model_directory;      // tokenizer and chat template; may be empty with bytes and ready token ids
  std::string train_on = "auto";    // auto (as the format suggests), assistant, completion, all
  std::string append_eos = "auto";  // auto, always, never: the end-of-text token after a text
  PackingKind packing = PackingKind::none;
  Overlong overlong = Overlong::split;
  std::vector<ContextStage> stages = {{}};  // at least one, from step 0
  bool skip_bad_records = false;
  std::string cache_dir;   // where token caches are kept
  int64_t vocabulary = 0;  // of the model: ids must be below it
};

// What opening says while it goes on. All may be empty.
struct DataWatch {
  std::function<void(const TokenizeProgress&)> on_progress;
  std::function<void(const std::string&)> on_note;
  const std::atomic<bool>* stop = nullptr;
};

// Throws InputError (file, line, column, what is wrong, what would work), FileError, ConfigurationError, StoppedError.
std::unique_ptr<PackedDataset> open_data(const DataOptions& options, const DataWatch& watch = {});

// Whether records of this data.format are text, and not ready token ids.
bool needs_tokenizer(const std::string& format);

// Whether the folder of a model holds a tokenizer that open_tokenizer() could read.
bool has_tokenizer(const std::string& model_directory);

// What samples are made with, for programs that show them: the tokenizer that the options mean.
std::shared_ptr<const Tokenizer> tokenizer_of(const DataOptions& options);

}  // namespace ithaca
