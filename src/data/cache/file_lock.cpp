#include "data/cache/file_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace ithaca {

FileLock::FileLock(const std::string& path) : path_(path) {
  open();
}

FileLock::~FileLock() {
  // Removed while it is held: whoever locks it after this finds that it is not in its place any more.
  if (held_) ::unlink(path_.c_str());
  ::close(descriptor_);
}

void FileLock::fail(const char* action) const {
  throw FileError(fmt::format("{}: cannot {}: {}; data.cache_dir says where token caches are kept", path_, action,
                              std::strerror(errno)));
}

void FileLock::open() {
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("open");
}

bool FileLock::is_in_place() const {
  struct stat own {};
  struct stat named {};
  return ::fstat(descriptor_, &own) == 0 && ::stat(path_.c_str(), &named) == 0 && own.st_dev == named.st_dev &&
         own.st_ino == named.st_ino;
}

bool FileLock::try_lock() {
  while (!held_) {
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) {
      if (is_in_place()) {
        held_ = true;
      } else {
        ::close(descriptor_);
        open();
      }
    } else if (errno == EWOULDBLOCK) {
      return false;
    } else if (errno != EINTR) {
      fail("lock");
    }
  }
  return true;
}

}  // namespace ithaca
