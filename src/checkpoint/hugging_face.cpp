#include "checkpoint/hugging_face.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/file_output.h"

namespace ithaca {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kHead = "lm_head.weight";
constexpr std::string_view kEmbedding = "model.embed_tokens.weight";
constexpr std::string_view kIndexName = "model.safetensors.index.json";

// Older exports stored this buffer; it is computed from config.json.
bool is_computed_buffer(std::string_view name) {
  return name.ends_with("rotary_emb.inv_freq");
}

// Whether weights can be read from this stored type.
bool is_floating(const std::optional<DType>& dtype) {
  return dtype == DType::float32 || dtype == DType::bfloat16 || dtype == DType::float16 || dtype == DType::float64;
}

// "a, b, c and 12 more"
std::string list_some(const std::vector<std::string>& names) {
  constexpr size_t kShown = 6;
  const size_t shown = std::min(names.size(), kShown);
  std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

std::vector<int64_t> as_vector(const Extents& extents) {
  return {extents.begin(), extents.end()};
}

std::string describe_shape(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// weight_map of an index: tensor -> shard, with the shard's name checked to be a plain file name.
std::map<std::string, std::string> read_index(const std::string& path) {
  const Json index = parse_json_unique(read_whole_file(path), path);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw InputError(path + ": an object with a key \"weight_map\" (tensor name to file name) is needed");
  }
  std::map<std::string, std::string> result;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    const bool is_plain =
        file.is_string() && !file.get<std::string>().empty() && file.get<std::string>().find('/') == std::string::npos;
    if (!is_plain) {
      throw InputError(fmt::format("{}: weight_map \"{}\" is {}: the name of a file in the same directory is needed",
                                   path, tensor, file.dump()));
    }
    result[tensor] = file.get<std::string>();
  }
  if (result.empty()) throw InputError(path + ": its weight_map names no tensor");
  return result;
}

}  // namespace

ModelDirectory::ModelDirectory(const std::string& path) : path_(path) {
  const std::filesystem::path directory(path);
  std::error_code ignored;
  if (!std::filesystem::is_directory(directory, ignored)) {
    throw FileError(path + ": there is no such directory; a Hugging Face model directory with a config.json is needed");
  }
  const std::string config = (directory / "config.json").string();
  if (!std::filesystem::exists(config, ignored)) {
    throw FileError(path + ": there is no config.json in it; a Hugging Face model directory has one");
  }
  config_text_ = read_whole_file(config);
  description_ = parse_model_description(config_text_, config);
  open_weights();
}

void ModelDirectory::open_weights() {
  const std::filesystem::path directory(path_);
  const std::filesystem::path single = directory / "model.safetensors";
  std::error_code ignored;
  if (std::filesystem::exists(single, ignored)) {
    files_.push_back(std::make_unique<SafetensorsFile>(single.string()));
    for (const SafetensorsFile::Entry& entry : files_.back()->entries()) {
      file_by_tensor_[entry.name] = files_.back().get();
    }
    return;
  }
  const std::string index = (directory / kIndexName).string();
  if (!std::filesystem::exists(index, ignored)) return;
  std::map<std::string, const SafetensorsFile*> opened;
  for (const auto& [tensor, shard] : read_index(index)) {
    const SafetensorsFile*& file = opened[shard];
    if (file == nullptr) {
      const std::string shard_path = (directory / shard).string();
      if (!std::filesystem::exists(shard_path, ignored)) {
        throw InputError(fmt::format("{}: the shard {} that it names is not in the directory; fetch the missing file",
                                     index, shard));
      }
      files_.push_back(std::make_unique<SafetensorsFile>(shard_path));
      file = files_.back().get();
    }
    if (file->find(tensor) == nullptr) {
      throw InputError(fmt::format("{}: tensor \"{}\" is said to be in {}, but is not", index, tensor, shard));
    }
    file_by_tensor_[tensor] = file;
  }
  // Tensors that the index forgot are not lost silently: they count as there, and check() judges them.
  for (const auto& file : files_) {
    for (const SafetensorsFile::Entry& entry : file->entries()) file_by_tensor_.try_emplace(entry.name, file.get());
  }
}

std::string ModelDirectory::missing_weights_reason() const {
  if (has_weights()) return {};
  std::error_code ignored;
  for (const char* other : {"pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.safetensors"}) {
    if (std::filesystem::exists(std::filesystem::path(path_) / other, ignored)) {
      return fmt::format("{}: its weights are in {}, which cannot be read; save the model as model.safetensors", path_,
                         other);
    }
  }
  return fmt::format(
      "{}: there is neither model.safetensors nor {}; add the weights, or start from random ones with "
      "model.init: random",
      path_, kIndexName);
}

int64_t ModelDirectory::weight_bytes() const {
  int64_t total = 0;
  for (const auto& [name, file] : file_by_tensor_) total += static_cast<int64_t>(file->bytes(*file->find(name)).size());
  return total;
}

std::vector<std::string> ModelDirectory::tensor_names() const {
  std::vector<std::string> names;
  names.reserve(file_by_tensor_.size());
  for (const auto& [name, file] : file_by_tensor_) names.push_back(name);
  return names;
}

const SafetensorsFile* ModelDirectory::file_of(std::string_view name) const {
  const auto found = file_by_tensor_.find(name);
  return found == file_by_tensor_.end() ? nullptr : found->second;
}

const SafetensorsFile& ModelDirectory::require_file_of(std::string_view name) const {
  if (!has_weights()) throw InputError(missing_weights_reason());
  const SafetensorsFile* file = file_of(name);
  if (file != nullptr) return *file;
  const std::string near = nearest_name(name, tensor_names());
  throw InputError(fmt::format("{}: the weights have no tensor \"{}\"{}", path_, name,
                               near.empty() ? "" : "; the nearest is \"" + near + "\""));
}

std::optional<DType> ModelDirectory::stored_dtype(std::string_view name) const {
  const SafetensorsFile* file = file_of(name);
  return file == nullptr ? std::nullopt : file->find(name)->dtype;
}

void ModelDirectory::check(std::span<const ParameterSpec> parameters) const {
  if (!has_weights()) throw InputError(missing_weights_reason());
  std::set<std::string_view> expected;
  std::vector<std::string> missing;
  std::vector<std::string> misshapen;
  std::vector<std::string> mistyped;
  for (const ParameterSpec& parameter : parameters) {
    expected.insert(parameter.name);
    const SafetensorsFile* file = file_of(parameter.name);
    if (file == nullptr) {
      missing.push_back(parameter.name);
      continue;
    }
    const SafetensorsFile::Entry& entry = *file->find(parameter.name);
    if (entry.shape != as_vector(parameter.extents)) {
      misshapen.push_back(fmt::format("{} is {} and should be {}", parameter.name, describe_shape(entry.shape),
                                      parameter.extents.to_string()));
    }
    if (!is_floating(entry.dtype)) mistyped.push_back(fmt::format("{} is {}", parameter.name, entry.stored_type));
  }
  std::vector<std::string> extra;
  for (const auto& [name, file] : file_by_tensor_) {
    if (expected.contains(name) || is_computed_buffer(name)) continue;
    if (name == kHead && description_.tied_head) {
      check_tied_head();
      continue;
    }
    extra.push_back(name);
  }
  if (missing.empty() && misshapen.empty() && mistyped.empty() && extra.empty()) return;
  std::string problem =
      path_ + ": the weights do not fit config.json (model_type " + std::string(family_name(description_.family)) + ")";
  if (!missing.empty()) problem += fmt::format("; missing tensors: {}", list_some(missing));
  if (!misshapen.empty()) problem += fmt::format("; tensors of another shape: {}", list_some(misshapen));
  if (!mistyped.empty())
    problem += fmt::format("; weights must be stored as F32, BF16, F16 or F64, but {}", list_some(mistyped));
  if (!extra.empty()) problem += fmt::format("; tensors that the model has no place for: {}", list_some(extra));
  throw InputError(problem);
}

// A tied head may be stored too, as long as it is the embedding: otherwise one of the two would be lost.
void ModelDirectory::check_tied_head() const {
  const SafetensorsFile* embedding_file = file_of(kEmbedding);
  if (embedding_file == nullptr) return;  // reported as missing
  const SafetensorsFile& head_file = *file_of(kHead);
  const auto differ = [&](const std::string& how) {
    throw InputError(
        fmt::format("{}: config.json says tie_word_embeddings, but {} {} {}; set tie_word_embeddings to false "
                    "to train both",
                    path_, kHead, how, kEmbedding));
  };
  const SafetensorsFile::Entry& head = *head_file.find(kHead);
  const SafetensorsFile::Entry& embedding = *embedding_file->find(kEmbedding);
  if (head.shape != embedding.shape) differ("has another shape than");
  int64_t count = 1;
  for (const int64_t extent : head.shape) count *= extent;
  constexpr int64_t kBlock = 1 << 18;
  std::vector<float> head_values(static_cast<size_t>(std::min(count, kBlock)));
  std::vector<float> embedding_values(head_values.size());
  for (int64_t first = 0; first < count; first += kBlock) {
    const auto size = static_cast<size_t>(std::min(kBlock, count - first));
    head_file.read_float32(kHead, first, std::span(head_values).first(size));
    embedding_file->read_float32(kEmbedding, first, std::span(embedding_values).first(size));
    if (std::memcmp(head_values.data(), embedding_values.data(), size * sizeof(float)) != 0) differ("is not equal to");
  }
}

void ModelDirectory::read_float32(std::string_view name, std::span<float> destination) const {
  const SafetensorsFile& file = require_file_of(name);
  const SafetensorsFile::Entry& entry = *file.find(name);
  int64_t count = 1;
  for (const int64_t extent : entry.shape) count *= extent;
  if (count != static_cast<int64_t>(destination.size())) {
    throw InputError(fmt::format("{}: tensor \"{}\" is {}: {} elements, but {} are needed", path_, name,
                                 describe_shape(entry.shape), count, destination.size()));
  }
  file.read_float32(name, 0, destination);
}

void ModelDirectory::read_float32(std::string_view name, int64_t first, std::span<float> destination) const {
  require_file_of(name).read_float32(name, first, destination);
}

}  // namespace ithaca
