// Hugging Face model directories: opened for import, written for export.
//
// A directory holds config.json and, unless it only describes a model to be initialised, model.safetensors or the
// shards that model.safetensors.index.json names; tokenizer files lie beside them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"
#include "model/description.h"
#include "model/parameter_store.h"

namespace ithaca {

// An opened directory. Thread-safety: immutable after construction; share freely.
class ModelDirectory {
 public:
  // Parses config.json and maps the weights. Throws FileError when the directory or a named shard cannot be read,
  // InputError when something in them is wrong.
  explicit ModelDirectory(const std::string& path);

  const std::string& path() const { return path_; }
  const ModelDescription& description() const { return description_; }
  const std::string& config_text() const { return config_text_; }

  // False when there is a config.json only (model.init: random).
  bool has_weights() const { return !files_.empty(); }
  // Why there are none and what would work, for errors; empty when there are.
  std::string missing_weights_reason() const;
  // Sum over all tensors as stored.
  int64_t weight_bytes() const;
  std::vector<std::string> tensor_names() const;
  // The element type that a tensor is stored in, or nothing when it is not there.
  std::optional<DType> stored_dtype(std::string_view name) const;

  // Throws InputError unless the weights are exactly the given parameters: names missing, left over or of another shape
  // are listed. Left over but harmless: rotary_emb.inv_freq, and lm_head.weight equal to the embedding when the head is
  // tied.
  void check(std::span<const ParameterSpec> parameters) const;

  // The whole tensor, or its flattened elements [first, first + destination.size()), converted from F32, F64, BF16 or
  // F16. Throws InputError when it is not there or has another element count.
  void read_float32(std::string_view name, std::span<float> destination) const;
  void read_float32(std::string_view name, int64_t first, std::span<float> destination) const;

 private:
  const SafetensorsFile* file_of(std::string_view name) const;
  const SafetensorsFile& require_file_of(std::string_view name) const;
  void open_weights();
  void check_tied_head() const;

  std::string path_;
  std::string config_text_;
  ModelDescription description_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*, std::less<>> file_by_tensor_;
};

struct ExportOptions {
  std::string directory;  // made by the export; its parent must exist
  // Stored type of every tensor; nothing: as the input stores each one (or as its config.json says, where it has no
  // weights).
  std::optional<DType> dtype;
  int64_t max_shard_bytes = 5'000'000'000;  // a single larger tensor gets a shard of its own
  // Whether an existing directory may be replaced. Only one that looks like an earlier export is (a flat folder with a
  // config.json), never the input itself.
  bool replace_existing = false;
  // How positions were turned at the end, where that is not what the input's config.json says; and
  // max_position_embeddings then.
  std::optional<RopeDescription> rope;
  std::optional<int64_t> max_positions;
  // What is known of the training, for the text about values that are not finite; may be empty.
  std::string if_not_finite;
};

// Takes the next values of a tensor, in row-major order, in pieces of any size.
using TensorSink = std::function<void(std::span<const float>)>;
// Gives all values of a parameter to the sink. Called once for each parameter, in the given order.
using TensorSource = std::function<void(const ParameterSpec&, const TensorSink&)>;

// Writes a complete directory: config.json (dtype adjusted to what is stored), model.safetensors or shards with an
// index, generation_config.json and the tokenizer's files as they are in the input. It is built beside its place and
// renamed into it, so it is complete or absent. Memory is bounded by what the source gives at once. Throws FileError,
// ConfigurationError (the directory exists or cannot be replaced), ContractError (wrong number of values), Error (a
// value is not finite, or is not in the stored type).
void export_model(const ModelDirectory& input, std::span<const ParameterSpec> parameters, const ExportOptions& options,
                  const TensorSource& source);

}  // namespace ithaca
