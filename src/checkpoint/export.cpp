#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/file_output.h"
#include "checkpoint/hugging_face.h"

namespace ithaca {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Everything a model directory may hold beside config.json and the weights.
constexpr std::array<const char*, 11> kCopiedFiles{"generation_config.json",
                                                   "tokenizer.json",
                                                   "tokenizer_config.json",
                                                   "special_tokens_map.json",
                                                   "added_tokens.json",
                                                   "vocab.json",
                                                   "merges.txt",
                                                   "tokenizer.model",
                                                   "tekken.json",
                                                   "chat_template.jinja",
                                                   "chat_template.json"};

DType dtype_of_name(const std::string& name) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::float64}) {
    if (dtype_name(dtype) == name) return dtype;
  }
  throw ContractError("no stored type is called " + name);
}

// The largest float32 that is finite in the stored type, to which halves round.
float largest_finite(DType dtype) {
  switch (dtype) {
    case DType::float16:
      return std::nextafter(65520.0f, 0.0f);  // 65520 lies halfway between 65504 and what would be next
    case DType::bfloat16:
      return std::bit_cast<float>(0x7F7F7FFFu);
    default:
      return std::numeric_limits<float>::max();
  }
}

// One file of weights: parameters [first, last).
struct WeightFile {
  size_t first = 0;
  size_t last = 0;
  std::string name;
};

std::vector<SafetensorsWriter::Spec> stored_tensors(const ModelDirectory& input,
                                                    std::span<const ParameterSpec> parameters,
                                                    const ExportOptions& options) {
  const DType declared = dtype_of_name(input.description().weights_dtype);
  std::vector<SafetensorsWriter::Spec> tensors;
  tensors.reserve(parameters.size());
  for (const ParameterSpec& parameter : parameters) {
    const DType dtype = options.dtype.value_or(input.stored_dtype(parameter.name).value_or(declared));
    tensors.push_back({parameter.name, dtype, parameter.extents});
  }
  return tensors;
}

int64_t bytes_of(const SafetensorsWriter::Spec& tensor) {
  return tensor.extents.product() * element_size(tensor.dtype);
}

// In the given order, as many tensors to a file as fit.
std::vector<WeightFile> plan_files(const std::vector<SafetensorsWriter::Spec>& tensors, int64_t max_bytes) {
  std::vector<WeightFile> files(1);
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t size = bytes_of(tensors[i]);
    if (i > files.back().first && size > max_bytes - bytes) {
      files.push_back({i, i, {}});
      bytes = 0;
    }
    files.back().last = i + 1;
    bytes += size;
  }
  for (size_t i = 0; i < files.size(); ++i) {
    files[i].name =
        files.size() == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
  }
  return files;
}

std::string index_text(const std::vector<SafetensorsWriter::Spec>& tensors, const std::vector<WeightFile>& files) {
  Json index = Json::object();
  int64_t total = 0;
  for (const SafetensorsWriter::Spec& tensor : tensors) total += bytes_of(tensor);
  index["metadata"] = {{"total_size", total}};
  index["weight_map"] = Json::object();
  for (const WeightFile& file : files) {
    for (size_t i = file.first; i < file.last; ++i) index["weight_map"][tensors[i].name] = file.name;
  }
  return index.dump(2) + "\n";
}

// In the spelling that the config has: rope_parameters with everything, or rope_theta beside rope_scaling.
void write_rope(const RopeDescription& rope, Json& config) {
  Json object = {{"rope_type", rope_name(rope.kind)}};
  if (rope.kind != RopeKind::standard) object["factor"] = rope.factor;
  if (rope.kind == RopeKind::llama3 || rope.kind == RopeKind::yarn) {
    object["original_max_position_embeddings"] = rope.original_max_positions;
  }
  if (rope.kind == RopeKind::llama3) {
    object["low_freq_factor"] = rope.low_frequency_factor;
    object["high_freq_factor"] = rope.high_frequency_factor;
  }
  if (rope.kind == RopeKind::yarn) {
    object["beta_fast"] = rope.beta_fast;
    object["beta_slow"] = rope.beta_slow;
    object["truncate"] = rope.truncate;
    if (rope.attention_factor) object["attention_factor"] = *rope.attention_factor;
    if (rope.mscale) object["mscale"] = *rope.mscale;
    if (rope.mscale_all_dimensions) object["mscale_all_dim"] = *rope.mscale_all_dimensions;
  }
  const bool is_newer = config.contains("rope_parameters");
  // At the top it would win over the object.
  for (const char* key : {"rope_parameters", "rope_scaling", "rope_theta", "original_max_position_embeddings"}) {
    config.erase(key);
  }
  if (is_newer) {
    object["rope_theta"] = rope.theta;
    config["rope_parameters"] = std::move(object);
    return;
  }
  config["rope_theta"] = rope.theta;
  config["rope_scaling"] = rope.kind == RopeKind::standard ? Json() : std::move(object);
}

// The input's config.json, unchanged to the byte unless the element type or the RoPE is not what it says.
std::string config_text(const ModelDirectory& input, const std::vector<SafetensorsWriter::Spec>& tensors,
                        const ExportOptions& options) {
  const bool as_input = !options.dtype || dtype_name(*options.dtype) == input.description().weights_dtype;
  const bool new_dtype = !as_input && !tensors.empty();
  if (!new_dtype && !options.rope && !options.max_positions) return input.config_text();
  Json config = parse_json(input.config_text(), input.path() + "/config.json");
  if (options.rope) write_rope(*options.rope, config);
  if (options.max_positions) config["max_position_embeddings"] = *options.max_positions;
  if (!new_dtype) return config.dump(2) + "\n";
  const std::string name(dtype_name(*options.dtype));
  const bool is_newer = config.contains("dtype") || config.contains("rope_parameters");
  if (config.contains("torch_dtype")) config["torch_dtype"] = name;
  if (config.contains("dtype") || !config.contains("torch_dtype")) config[is_newer ? "dtype" : "torch_dtype"] = name;
  return config.dump(2) + "\n";
}

// Throws where a value is not finite as it is stored. `first`: the element of the tensor that values[0] is.
void check_finite(std::span<const float> values, int64_t first, const SafetensorsWriter::Spec& tensor,
                  const ExportOptions& options) {
  const float largest = largest_finite(tensor.dtype);
  const auto bad =
      std::find_if(values.begin(), values.end(), [&](float value) { return !(std::abs(value) <= largest); });
  if (bad == values.end()) return;
  const char* why = std::isfinite(*bad) ? ", which is more than it can store" : "";
  throw Error(fmt::format("{}: the model is not exported: \"{}\" ({}) holds {} at element {}{}{}{}", options.directory,
                          tensor.name, dtype_name(tensor.dtype), *bad, first + (bad - values.begin()), why,
                          options.if_not_finite.empty() ? "" : "; ", options.if_not_finite));
}

void write_weights(const fs::path& directory, const std::vector<SafetensorsWriter::Spec>& tensors,
                   std::span<const ParameterSpec> parameters, const ExportOptions& options,
                   const TensorSource& source) {
  const std::vector<WeightFile> files = plan_files(tensors, options.max_shard_bytes);
  for (const WeightFile& file : files) {
    const std::vector<SafetensorsWriter::Spec> own(tensors.begin() + static_cast<std::ptrdiff_t>(file.first),
                                                   tensors.begin() + static_cast<std::ptrdiff_t>(file.last));
    SafetensorsWriter writer((directory / file.name).string(), own);
    for (size_t i = file.first; i < file.last; ++i) {
      int64_t given = 0;
      source(parameters[i], [&](std::span<const float> values) {
        given += static_cast<int64_t>(values.size());
        require(given <= tensors[i].extents.product(), "more values than \"" + tensors[i].name + "\" has");
        check_finite(values, given - static_cast<int64_t>(values.size()), tensors[i], options);
        writer.write(values);
      });
      require(given == tensors[i].extents.product(),
              fmt::format("\"{}\" has {} values, {} were given", tensors[i].name, tensors[i].extents.product(), given));
    }
    writer.finish();
  }
  if (files.size() > 1) {
    write_whole_file((directory / "model.safetensors.index.json").string(), index_text(tensors, files));
  }
}

// A flat folder with a config.json: what an earlier export left.
bool looks_like_an_export(const fs::path& directory) {
  if (!fs::is_directory(fs::symlink_status(directory)) || !fs::exists(directory / "config.json")) return false;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (entry.is_directory()) return false;
  }
  return true;
}

void check_target(const fs::path& target, const ModelDirectory& input, const ExportOptions& options) {
  if (!fs::exists(target)) return;
  const std::string name = target.string();
  if (fs::equivalent(target, input.path())) {
    throw ConfigurationError(name + ": the export would replace the model it comes from; choose another directory");
  }
  if (fs::is_directory(target) && fs::is_empty(target)) return;
  if (!options.replace_existing) {
    throw ConfigurationError(name + ": it exists already; choose another directory or remove it first");
  }
  if (!looks_like_an_export(target)) {
    throw ConfigurationError(name + ": it exists and does not look like an earlier export; choose another directory");
  }
}

// Removes the directory under construction unless it was moved into place.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(fs::path path) : path_(std::move(path)) {
    fs::remove_all(path_);  // of an export that was killed
    fs::create_directory(path_);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  ~ScratchDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// One atomic step where the file system can exchange two names; the old directory ends up under the scratch name.
void move_into_place(const fs::path& scratch, const fs::path& target) {
  const bool is_replacement = fs::exists(target) && !fs::is_empty(target);
  if (!is_replacement) {
    if (std::rename(scratch.c_str(), target.c_str()) != 0) throw_file_error("move the export to", target.string());
    return;
  }
  if (::renameat2(AT_FDCWD, scratch.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) throw_file_error("move the export to", target.string());
  const fs::path old = scratch.string() + ".replaced";
  fs::remove_all(old);
  fs::rename(target, old);
  fs::rename(scratch, target);
  fs::remove_all(old);
}

}  // namespace

void export_model(const ModelDirectory& input, std::span<const ParameterSpec> parameters, const ExportOptions& options,
                  const TensorSource& source) {
  require(!options.directory.empty(), "an export needs a directory");
  require(options.max_shard_bytes > 0, "shards need room for at least one byte");
  try {
    fs::path target = fs::absolute(options.directory).lexically_normal();
    if (!target.has_filename()) target = target.parent_path();  // a slash at the end
    check_target(target, input, options);
    target = link_target(target.string());

    const ScratchDirectory scratch(target.parent_path() / ("." + target.filename().string() + ".partial"));
    const std::vector<SafetensorsWriter::Spec> tensors = stored_tensors(input, parameters, options);
    write_weights(scratch.path(), tensors, parameters, options, source);
    write_whole_file((scratch.path() / "config.json").string(), config_text(input, tensors, options));
    for (const char* name : kCopiedFiles) {
      const fs::path original = fs::path(input.path()) / name;
      if (fs::exists(original)) write_whole_file((scratch.path() / name).string(), read_whole_file(original.string()));
    }
    move_into_place(scratch.path(), target);
    flush_directory(target.parent_path().string());
  } catch (const fs::filesystem_error& error) {
    throw FileError(fmt::format("{}: cannot export the model: {}", options.directory, error.what()));
  }
}

}  // namespace ithaca
