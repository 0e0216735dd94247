// Safetensors files: a mapped reader that trusts nothing in the file, and a streaming writer.
//
// The format: 8 bytes little-endian length N, N bytes of JSON {"name": {"dtype", "shape", "data_offsets": [begin,
// end]}, "__metadata__": {string: string}}, then the data that the offsets count into. Values are little-endian and
// row-major.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace ithaca {

// A file mapped read-only. Everything is checked when it is opened: lengths, JSON, element types, shapes against
// offsets, offsets against the file, overlaps, gaps, bytes left over, duplicate names; the error names the file and the
// tensor. Thread-safety: immutable after construction; share freely.
class SafetensorsFile {
 public:
  struct Entry {
    std::string name;
    std::string stored_type;     // as the file spells it: "F32", "BF16", "BOOL", ...
    std::optional<DType> dtype;  // absent for types that Ithaca has no use for
    std::vector<int64_t> shape;
    int64_t begin = 0;  // bytes from the start of the data
    int64_t end = 0;
  };

  // Throws FileError when it cannot be read, InputError when its content is wrong.
  explicit SafetensorsFile(const std::string& path);
  // The same for bytes at hand, which must outlive it and every view of it; `name` stands for the path in messages.
  SafetensorsFile(const std::string& name, std::span<const std::byte> content);

  const std::string& path() const { return path_; }
  // All tensors, in the order of their data.
  const std::vector<Entry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // The tensor of that name, or nothing.
  const Entry* find(std::string_view name) const;

  // The stored bytes of a tensor; valid as long as this object. They may lie at any alignment.
  std::span<const std::byte> bytes(const Entry& entry) const;
  // A read-only view of a tensor. Throws InputError when there is none of that name, or it is of a type or rank that
  // Tensor does not have, or it does not lie at its type's alignment (read_float32 reads it all the same).
  Tensor tensor(std::string_view name) const;
  // Elements [first, first + destination.size()) of the flattened tensor, converted from F32, F64, BF16 or F16.
  // Throws InputError for another type or an unknown name, ContractError for a range outside of the tensor.
  void read_float32(std::string_view name, int64_t first, std::span<float> destination) const;
  // The whole tensor.
  std::vector<float> read_float32(std::string_view name) const;

 private:
  struct Mapping;
  void read_header();
  std::string path_;
  std::shared_ptr<const Mapping> mapping_;
  std::vector<Entry> entries_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
  int64_t data_begin_ = 0;
};

// Writes one file, tensor after tensor in the order given, in memory bounded by a fixed buffer. The file appears under
// its name only when finish() returns: until then it is `path` + ".partial", removed if the writer is destroyed first.
// Thread-safety: one thread at a time.
class SafetensorsWriter {
 public:
  struct Spec {
    std::string name;
    DType dtype = DType::float32;  // float32, bfloat16, float16 or float64
    Extents extents;
  };

  // Throws FileError when the file cannot be made, ContractError for duplicate names or other element types.
  SafetensorsWriter(const std::string& path, std::vector<Spec> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter();

  // The next values, in row-major order, rounded to the stored type. A call may hold any part of one tensor or run over
  // several.
  void write(std::span<const float> values);
  // Flushes to the disk and gives the file its name. Throws ContractError when values are missing.
  void finish();

 private:
  class Output;
  void flush();
  std::vector<Spec> tensors_;
  size_t current_ = 0;              // tensor that the next value belongs to
  int64_t written_of_current_ = 0;  // values of it so far
  std::vector<std::byte> buffer_;
  std::unique_ptr<Output> output_;
};

}  // namespace ithaca
