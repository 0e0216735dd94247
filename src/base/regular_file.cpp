#include "base/regular_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace ithaca {

namespace {

[[noreturn]] void fail(const std::string& path, const char* action) {
  throw FileError(fmt::format("{}: cannot {}: {}", path, action, std::strerror(errno)));
}

void require_regular(const std::string& path, mode_t mode) {
  if (!S_ISREG(mode)) throw FileError(fmt::format("{}: is {}, not a regular file", path, file_kind(mode)));
}

struct Descriptor {
  explicit Descriptor(int opened) : value(opened) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
  int value;
};

}  // namespace

std::string file_kind(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISSOCK(mode)) return "a socket";
  return "a file";
}

std::string irregular_kind(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return "";
  return file_kind(status.st_mode);
}

int open_regular_file(const std::string& path) {
  struct stat status {};
  // Before it is opened: to open a device may do something.
  if (::stat(path.c_str(), &status) != 0) fail(path, "open");
  require_regular(path, status.st_mode);
  // O_NONBLOCK means nothing to regular files; it is for what may have taken the path's place since.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.value < 0 || ::fstat(file.value, &status) != 0) fail(path, "open");
  require_regular(path, status.st_mode);
  const int result = file.value;
  file.value = -1;
  return result;
}

std::string read_regular_file(const std::string& path) {
  const Descriptor file(open_regular_file(path));
  std::string content;
  std::array<char, 65536> block{};
  while (true) {
    const ssize_t count = ::read(file.value, block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path, "read");
    if (count == 0) return content;
    content.append(block.data(), static_cast<size_t>(count));
  }
}

}  // namespace ithaca
