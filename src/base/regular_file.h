// Reading regular files alone: what is read here is measured, mapped or read twice, which FIFOs, devices and sockets do
// not allow; opening a FIFO would wait for a writer, and some devices never end.
// Thread-safety: pure functions of the file system.
#pragma once

#include <sys/stat.h>

#include <string>

namespace ithaca {

// "a file", "a directory", "a FIFO", "a device", "a socket", of a stat's st_mode.
std::string file_kind(mode_t mode);

// What a path names, through links, when it is there and not a regular file ("a FIFO"); otherwise empty.
std::string irregular_kind(const std::string& path);

// A descriptor for reading, which the caller closes. Throws FileError "path: cannot open: reason" or "path: is a FIFO,
// not a regular file".
int open_regular_file(const std::string& path);

// The whole content. Throws FileError, as open_regular_file() and when reading fails.
std::string read_regular_file(const std::string& path);

}  // namespace ithaca
