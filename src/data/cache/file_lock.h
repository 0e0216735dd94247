// FileLock: one holder among all processes and threads, by flock on a file. It is let go when its holder dies, however
// that happens; a holder that ends in order removes the file too.
// Thread-safety: one thread at a time; every FileLock has its own descriptor.
#pragma once

#include <string>

namespace ithaca {

class FileLock {
 public:
  // Opens the file, making it when it is not there; holds nothing yet. Throws FileError.
  explicit FileLock(const std::string& path);
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock();

  // Whether the lock is held now; does not wait. Throws FileError where the file system has no locks.
  bool try_lock();

 private:
  void open();
  [[noreturn]] void fail(const char* action) const;
  // Whether the file is still the one that its path names: an earlier holder may have removed it meanwhile.
  bool is_in_place() const;

  std::string path_;
  int descriptor_ = -1;
  bool held_ = false;
};

}  // namespace ithaca
