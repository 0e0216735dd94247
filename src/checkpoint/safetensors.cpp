#include "checkpoint/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/regular_file.h"
#include "checkpoint/file_output.h"

namespace ithaca {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and is used in place");

namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kLargestHeader = 100'000'000;  // bytes: the limit of the format's own reader
constexpr int64_t kPrefix = 8;                    // bytes of the header's length

struct StoredType {
  std::string_view name;
  int64_t bytes;
  std::optional<DType> dtype;
};

constexpr std::array<StoredType, 15> kStoredTypes{{
    {"F32", 4, DType::float32},
    {"BF16", 2, DType::bfloat16},
    {"F16", 2, DType::float16},
    {"F64", 8, DType::float64},
    {"I64", 8, DType::int64},
    {"I32", 4, DType::int32},
    {"U8", 1, DType::uint8},
    {"BOOL", 1, std::nullopt},
    {"I8", 1, std::nullopt},
    {"F8_E4M3", 1, std::nullopt},
    {"F8_E5M2", 1, std::nullopt},
    {"I16", 2, std::nullopt},
    {"U16", 2, std::nullopt},
    {"U32", 4, std::nullopt},
    {"U64", 8, std::nullopt},
}};

const StoredType* find_stored_type(std::string_view name) {
  const auto* found =
      std::find_if(kStoredTypes.begin(), kStoredTypes.end(), [&](const StoredType& type) { return type.name == name; });
  return found == kStoredTypes.end() ? nullptr : found;
}

std::string_view stored_name(DType dtype) {
  for (const StoredType& type : kStoredTypes) {
    if (type.dtype == dtype) return type.name;
  }
  throw ContractError("this element type has no safetensors name");
}

bool is_floating(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float64 || dtype == DType::bfloat16 || dtype == DType::float16;
}

// A whole number of at least 0 that fits into int64, or nothing.
std::optional<int64_t> natural_number(const Json& value) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  return static_cast<int64_t>(value.get<uint64_t>());
}

// One tensor's part of the header, checked against itself and the size of the data.
SafetensorsFile::Entry read_entry(const std::string& name, const Json& json, int64_t data_bytes,
                                  const std::string& path) {
  const auto complain = [&](const std::string& problem) {
    throw InputError(fmt::format("{}: tensor \"{}\": {}", path, name, problem));
  };
  if (!json.is_object()) complain("its description must be an object with dtype, shape and data_offsets");
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!json.contains(key)) complain(fmt::format("the key \"{}\" is missing", key));
  }
  SafetensorsFile::Entry entry;
  entry.name = name;
  const StoredType* type = json["dtype"].is_string() ? find_stored_type(json["dtype"].get<std::string>()) : nullptr;
  if (type == nullptr) complain(fmt::format("unknown dtype {}", json["dtype"].dump()));
  entry.stored_type = type->name;
  entry.dtype = type->dtype;

  if (!json["shape"].is_array()) complain("shape must be a list of whole numbers");
  int64_t bytes = type->bytes;
  bool is_empty = false;
  for (const Json& value : json["shape"]) {
    const std::optional<int64_t> extent = natural_number(value);
    if (!extent) complain(fmt::format("shape {} must hold whole numbers of at least 0", json["shape"].dump()));
    entry.shape.push_back(*extent);
    is_empty = is_empty || *extent == 0;
  }
  for (const int64_t extent : entry.shape) {
    if (!is_empty && __builtin_mul_overflow(bytes, extent, &bytes)) {
      complain(fmt::format("shape {} is larger than any file", json["shape"].dump()));
    }
  }
  if (is_empty) bytes = 0;

  const Json& offsets = json["data_offsets"];
  const bool is_pair =
      offsets.is_array() && offsets.size() == 2 && natural_number(offsets[0]) && natural_number(offsets[1]);
  if (!is_pair) complain(fmt::format("data_offsets {} must be two whole numbers [begin, end]", offsets.dump()));
  entry.begin = *natural_number(offsets[0]);
  entry.end = *natural_number(offsets[1]);
  if (entry.begin > entry.end || entry.end > data_bytes) {
    complain(fmt::format("data_offsets [{}, {}] do not lie within the {} bytes of data; the file may be cut off",
                         entry.begin, entry.end, data_bytes));
  }
  if (entry.end - entry.begin != bytes) {
    complain(fmt::format("{} {} takes {} bytes, but data_offsets [{}, {}] hold {}", entry.stored_type,
                         json["shape"].dump(), bytes, entry.begin, entry.end, entry.end - entry.begin));
  }
  return entry;
}

template <typename T, typename Convert>
void convert_to_float(const std::byte* source, std::span<float> destination, Convert convert) {
  for (size_t i = 0; i < destination.size(); ++i) {
    T value;
    std::memcpy(&value, source + i * sizeof(T), sizeof(T));  // the file promises no alignment
    destination[i] = convert(value);
  }
}

template <typename T, typename Convert>
void append_as(std::vector<std::byte>& buffer, std::span<const float> values, Convert convert) {
  const size_t old_size = buffer.size();
  buffer.resize(old_size + values.size() * sizeof(T));
  std::byte* target = buffer.data() + old_size;
  for (const float value : values) {
    const T stored = convert(value);
    std::memcpy(target, &stored, sizeof(T));
    target += sizeof(T);
  }
}

}  // namespace

struct SafetensorsFile::Mapping {
  explicit Mapping(const std::string& path) {
    const int descriptor = open_regular_file(path);
    struct stat status {};
    if (::fstat(descriptor, &status) != 0) {
      const int reason = errno;
      ::close(descriptor);
      errno = reason;
      throw_file_error("look at", path);
    }
    size = static_cast<int64_t>(status.st_size);
    if (size > 0) {
      data = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_PRIVATE, descriptor, 0);
      if (data == MAP_FAILED) {
        const int reason = errno;
        ::close(descriptor);
        errno = reason;
        throw_file_error("map into memory", path);
      }
    }
    ::close(descriptor);
  }
  // Memory of someone else.
  explicit Mapping(std::span<const std::byte> content)
      : data(const_cast<std::byte*>(content.data())), size(static_cast<int64_t>(content.size())), is_owned(false) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (is_owned && size > 0) ::munmap(data, static_cast<size_t>(size));
  }

  std::byte* bytes() const { return static_cast<std::byte*>(data); }

  void* data = nullptr;
  int64_t size = 0;
  bool is_owned = true;
};

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path), mapping_(std::make_shared<Mapping>(path)) {
  read_header();
}

SafetensorsFile::SafetensorsFile(const std::string& name, std::span<const std::byte> content)
    : path_(name), mapping_(std::make_shared<Mapping>(content)) {
  read_header();
}

void SafetensorsFile::read_header() {
  const std::string& path = path_;
  if (mapping_->size < kPrefix) {
    throw InputError(
        fmt::format("{}: {} bytes are too few for a safetensors file; it may be cut off", path, mapping_->size));
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, mapping_->data, sizeof(header_bytes));
  if (header_bytes > kLargestHeader || header_bytes > static_cast<uint64_t>(mapping_->size - kPrefix)) {
    throw InputError(
        fmt::format("{}: its header claims {} bytes, but the file has {} and the format allows {}; it is cut "
                    "off or not a safetensors file",
                    path, header_bytes, mapping_->size, kLargestHeader));
  }
  data_begin_ = kPrefix + static_cast<int64_t>(header_bytes);
  const std::string_view text(reinterpret_cast<const char*>(mapping_->bytes() + kPrefix), header_bytes);
  const Json header = parse_json_unique(text, path + " (header)");
  if (!header.is_object()) throw InputError(path + ": its header must be a JSON object");

  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") {
      entries_.push_back(read_entry(name, value, mapping_->size - data_begin_, path));
      continue;
    }
    if (!value.is_object()) throw InputError(path + ": __metadata__ must be an object of strings");
    for (const auto& [key, text_value] : value.items()) {
      if (!text_value.is_string()) throw InputError(fmt::format("{}: __metadata__ \"{}\" must be a string", path, key));
      metadata_[key] = text_value.get<std::string>();
    }
  }
  std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& left, const Entry& right) {
    return std::pair(left.begin, left.end) < std::pair(right.begin, right.end);
  });
  int64_t used_until = 0;
  size_t last_with_data = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].begin < used_until && entries_[i].end > entries_[i].begin) {
      throw InputError(fmt::format("{}: tensor \"{}\" overlaps tensor \"{}\"", path, entries_[i].name,
                                   entries_[last_with_data].name));
    }
    if (entries_[i].begin > used_until && entries_[i].end > entries_[i].begin) {
      throw InputError(
          fmt::format("{}: bytes {} to {} of its data belong to no tensor, before tensor \"{}\"; the format leaves no "
                      "gaps, so its header and its data do not belong together: fetch or save it again",
                      path, used_until, entries_[i].begin, entries_[i].name));
    }
    if (entries_[i].end > used_until) {
      used_until = entries_[i].end;
      last_with_data = i;
    }
    by_name_[entries_[i].name] = i;
  }
  if (const int64_t left_over = mapping_->size - data_begin_ - used_until; left_over > 0) {
    throw InputError(fmt::format(
        "{}: {} bytes after its last tensor belong to none; its header and its data do not belong together: "
        "fetch or save it again",
        path, left_over));
  }
}

const SafetensorsFile::Entry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const Entry& entry) const {
  return {mapping_->bytes() + data_begin_ + entry.begin, static_cast<size_t>(entry.end - entry.begin)};
}

Tensor SafetensorsFile::tensor(std::string_view name) const {
  const Entry* entry = find(name);
  if (entry == nullptr) throw InputError(fmt::format("{}: there is no tensor \"{}\"", path_, name));
  if (!entry->dtype || entry->shape.size() > static_cast<size_t>(Extents::kMaxRank)) {
    throw InputError(fmt::format("{}: tensor \"{}\" of {} and {} dimensions cannot be used", path_, name,
                                 entry->stored_type, entry->shape.size()));
  }
  std::byte* data = mapping_->bytes() + data_begin_ + entry->begin;
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(element_size(*entry->dtype)) != 0) {
    throw InputError(fmt::format("{}: tensor \"{}\" does not lie at a multiple of its element size", path_, name));
  }
  return Tensor::contiguous(data, *entry->dtype, Extents(std::span<const int64_t>(entry->shape)));
}

void SafetensorsFile::read_float32(std::string_view name, int64_t first, std::span<float> destination) const {
  const Entry* entry = find(name);
  if (entry == nullptr) throw InputError(fmt::format("{}: there is no tensor \"{}\"", path_, name));
  if (!entry->dtype || !is_floating(*entry->dtype)) {
    throw InputError(fmt::format("{}: tensor \"{}\" is stored as {}; weights must be F32, BF16, F16 or F64", path_,
                                 name, entry->stored_type));
  }
  const int64_t element_bytes = element_size(*entry->dtype);
  const int64_t count = (entry->end - entry->begin) / element_bytes;
  require(first >= 0 && first <= count && static_cast<int64_t>(destination.size()) <= count - first,
          fmt::format("tensor \"{}\" has {} elements; [{}, {}) lies outside", name, count, first,
                      first + static_cast<int64_t>(destination.size())));
  const std::byte* source = bytes(*entry).data() + first * element_bytes;
  switch (*entry->dtype) {
    case DType::float32:
      if (!destination.empty()) std::memcpy(destination.data(), source, destination.size_bytes());
      break;
    case DType::float64:
      convert_to_float<double>(source, destination, [](double value) { return static_cast<float>(value); });
      break;
    case DType::bfloat16:
      convert_to_float<BFloat16>(source, destination, [](BFloat16 value) { return to_float(value); });
      break;
    default:
      convert_to_float<Float16>(source, destination, [](Float16 value) { return to_float(value); });
      break;
  }
}

std::vector<float> SafetensorsFile::read_float32(std::string_view name) const {
  const Entry* entry = find(name);
  if (entry == nullptr) throw InputError(fmt::format("{}: there is no tensor \"{}\"", path_, name));
  const int64_t element_bytes = find_stored_type(entry->stored_type)->bytes;
  std::vector<float> result(static_cast<size_t>((entry->end - entry->begin) / element_bytes));
  read_float32(name, 0, result);
  return result;
}

class SafetensorsWriter::Output : public FileOutput {
 public:
  using FileOutput::FileOutput;
};

namespace {

constexpr size_t kBufferBytes = size_t{4} << 20;

std::string header_text(const std::vector<SafetensorsWriter::Spec>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::set<std::string> names;
  int64_t offset = 0;
  for (const SafetensorsWriter::Spec& tensor : tensors) {
    require(is_floating(tensor.dtype), "a safetensors file is written in float32, bfloat16, float16 or float64");
    require(tensor.name != "__metadata__" && names.insert(tensor.name).second,
            "tensor name used twice: " + tensor.name);
    int64_t bytes = 0;
    int64_t end = 0;
    const bool overflows = __builtin_mul_overflow(tensor.extents.product(), element_size(tensor.dtype), &bytes) ||
                           __builtin_add_overflow(offset, bytes, &end);
    require(!overflows, "the tensors exceed what a file can hold");
    header[tensor.name] = {{"dtype", stored_name(tensor.dtype)},
                           {"shape", std::vector<int64_t>(tensor.extents.begin(), tensor.extents.end())},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the data starts at a multiple of 8
  return text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<Spec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : tensors_(std::move(tensors)) {
  const std::string header = header_text(tensors_, metadata);
  output_ = std::make_unique<Output>(path);
  const uint64_t length = header.size();
  output_->write(std::as_bytes(std::span(&length, 1)));
  output_->write(header);
  buffer_.reserve(kBufferBytes);
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(std::span<const float> values) {
  while (true) {
    while (current_ < tensors_.size() && written_of_current_ == tensors_[current_].extents.product()) {
      ++current_;
      written_of_current_ = 0;
    }
    if (values.empty()) return;
    require(current_ < tensors_.size(), "more values than the tensors of the file have");
    const Spec& tensor = tensors_[current_];
    const int64_t missing = tensor.extents.product() - written_of_current_;
    const auto room = static_cast<int64_t>((kBufferBytes - buffer_.size()) / sizeof(double));
    if (room == 0) {
      flush();
      continue;
    }
    const int64_t count = std::min({missing, room, static_cast<int64_t>(values.size())});
    const std::span<const float> part = values.first(static_cast<size_t>(count));
    switch (tensor.dtype) {
      case DType::float32:
        append_as<float>(buffer_, part, [](float value) { return value; });
        break;
      case DType::float64:
        append_as<double>(buffer_, part, [](float value) { return static_cast<double>(value); });
        break;
      case DType::bfloat16:
        append_as<BFloat16>(buffer_, part, [](float value) { return to_bfloat16(value); });
        break;
      default:
        append_as<Float16>(buffer_, part, [](float value) { return to_float16(value); });
        break;
    }
    written_of_current_ += count;
    values = values.subspan(static_cast<size_t>(count));
  }
}

void SafetensorsWriter::flush() {
  output_->write(buffer_);
  buffer_.clear();
}

void SafetensorsWriter::finish() {
  write({});  // steps over tensors without elements
  require(current_ == tensors_.size(),
          current_ == tensors_.size()
              ? std::string()
              : fmt::format("tensor \"{}\" has {} values, {} were written", tensors_[current_].name,
                            tensors_[current_].extents.product(), written_of_current_));
  flush();
  output_->finish();
}

}  // namespace ithaca
