#include "checkpoint/file_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/regular_file.h"
#include "base/write_all.h"

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

std::string link_target(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr int kMostLinks = 40;  // as Linux has it
  fs::path target(path);
  std::error_code error;
  for (int links = 0; fs::is_symlink(fs::symlink_status(target, error)); ++links) {
    const fs::path folder = fs::canonical(target.has_parent_path() ? target.parent_path() : fs::path("."), error);
    if (error || links == kMostLinks) {
      errno = links == kMostLinks ? ELOOP : error.value();
      throw_file_error("create", path);
    }
    // The links in there name open files as the kernel sees them, and not places.
    if (folder.string().starts_with("/proc/")) {
      throw FileError(path + ": is an open stream of a process, not a file; name a file");
    }
    const fs::path next = fs::read_symlink(target, error);
    if (error) {
      errno = error.value();
      throw_file_error("create", path);
    }
    target = folder / next;  // which is `next` where that is absolute
  }
  return target.string();
}

FileOutput::FileOutput(const std::string& path)
    : path_(path), target_(link_target(path)), partial_path_(target_ + ".partial") {
  for (const std::string& place : {target_, partial_path_}) {
    const std::string kind = irregular_kind(place);
    if (!kind.empty()) {
      throw FileError(fmt::format("{}: is {}, not a file, and is left as it is; name a file",
                                  place == target_ ? path_ : place, kind));
    }
  }
  descriptor_ = ::open(partial_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (descriptor_ < 0) throw_file_error("create", path_);
}

FileOutput::~FileOutput() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(partial_path_.c_str());
}

void FileOutput::write(std::span<const std::byte> bytes) {
  if (!write_all(descriptor_, bytes)) throw_file_error("write", path_);
}

void FileOutput::finish() {
  flush_descriptor(descriptor_, path_);
  // From here on the destructor has nothing to close; a failure leaves no partial file behind.
  const int closed = ::close(descriptor_);
  descriptor_ = -1;
  if (closed != 0 || ::rename(partial_path_.c_str(), target_.c_str()) != 0) {
    const int reason = errno;
    ::unlink(partial_path_.c_str());
    errno = reason;
    throw_file_error("finish writing", path_);
  }
  const std::string parent = std::filesystem::path(target_).parent_path().string();
  flush_directory(parent.empty() ? "." : parent);
}

void write_whole_file(const std::string& path, std::string_view content) {
  FileOutput output(path);
  output.write(content);
  output.finish();
}

std::string read_whole_file(const std::string& path) {
  return read_regular_file(path);
}

void flush_directory(const std::string& path) {
  const Descriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) throw_file_error("open", path);
  flush_descriptor(directory.get(), path);
}

}  // namespace ithaca
