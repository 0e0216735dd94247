#include "checkpoint/file_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace ithaca {

namespace {

// Closes a descriptor on every way out.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  int get() const { return value_; }

 private:
  int value_;
};

// Some file systems know no fsync (EINVAL, EROFS): then there is nothing to wait for.
void flush_descriptor(int descriptor, const std::string& path) {
  while (::fsync(descriptor) != 0) {
    if (errno == EINTR) continue;
    if (errno == EINVAL || errno == EROFS) return;
    throw_file_error("flush to the disk", path);
  }
}

}  // namespace

void throw_file_error(std::string_view action, const std::string& path) {
  const int reason = errno;
  std::string text = fmt::format("{}: cannot {}: {}", path, action, std::strerror(reason));
  if (reason == ENOSPC || reason == EDQUOT) text += "; free some space or choose a directory on a larger disk";
  throw FileError(text);
}

FileOutput::FileOutput(const std::string& path) : path_(path), partial_path_(path + ".partial") {
  descriptor_ = ::open(partial_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw_file_error("create", partial_path_);
}

FileOutput::~FileOutput() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(partial_path_.c_str());
}

void FileOutput::write(std::span<const std::byte> bytes) {
  constexpr size_t kLargestCall = size_t{1} << 30;  // write() takes less than 2 GiB at a time
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kLargestCall));
    if (count < 0) {
      if (errno == EINTR) continue;
      throw_file_error("write", partial_path_);
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

void FileOutput::finish() {
  flush_descriptor(descriptor_, partial_path_);
  // From here on the destructor has nothing to close; a failure leaves no partial file behind.
  const int closed = ::close(descriptor_);
  descriptor_ = -1;
  if (closed != 0 || ::rename(partial_path_.c_str(), path_.c_str()) != 0) {
    const int reason = errno;
    ::unlink(partial_path_.c_str());
    errno = reason;
    throw_file_error("finish writing", path_);
  }
  const std::string parent = std::filesystem::path(path_).parent_path().string();
  flush_directory(parent.empty() ? "." : parent);
}

void write_whole_file(const std::string& path, std::string_view content) {
  FileOutput output(path);
  output.write(content);
  output.finish();
}

std::string read_whole_file(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) throw_file_error("open", path);
  std::string content;
  std::array<char, 65536> block{};
  while (true) {
    const ssize_t count = ::read(file.get(), block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_file_error("read", path);
    if (count == 0) return content;
    content.append(block.data(), static_cast<size_t>(count));
  }
}

void flush_directory(const std::string& path) {
  const Descriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) throw_file_error("open", path);
  flush_descriptor(directory.get(), path);
}

}  // namespace ithaca
