#include "data/cache/mapped_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/regular_file.h"

namespace ithaca {

MappedFile::MappedFile(const std::string& path) {
  const int descriptor = open_regular_file(path);
  struct stat status {};
  const bool known = ::fstat(descriptor, &status) == 0;
  size_ = known ? static_cast<size_t>(status.st_size) : 0;
  void* memory = nullptr;
  if (size_ > 0) memory = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0);
  const int error = errno;
  ::close(descriptor);
  if (!known || memory == MAP_FAILED) {
    throw FileError(fmt::format("{}: cannot map into memory: {}", path, std::strerror(error)));
  }
  data_ = static_cast<const std::byte*>(memory);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace ithaca
