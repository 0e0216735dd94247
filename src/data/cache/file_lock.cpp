#include "data/cache/file_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace ithaca {

FileLock::FileLock(const std::string& path)
    : path_(path), descriptor_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) throw FileError(fmt::format("{}: cannot open: {}", path, std::strerror(errno)));
}

FileLock::~FileLock() {
  ::close(descriptor_);
}

bool FileLock::try_lock() {
  while (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) throw FileError(fmt::format("{}: cannot lock: {}", path_, std::strerror(errno)));
  }
  return true;
}

}  // namespace ithaca
