// MappedFile: a file's bytes as read-only memory. Thread-safety: immutable after construction; share freely.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ithaca {

class MappedFile {
 public:
  // Throws FileError. The file may be deleted or renamed while it is mapped, but not be written or cut.
  explicit MappedFile(const std::string& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // As elements of T, which the file must be a whole number of.
  template <typename T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(data_), size_ / sizeof(T)};
  }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace ithaca
