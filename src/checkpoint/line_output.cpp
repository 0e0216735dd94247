#include "checkpoint/line_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <span>

#include "base/write_all.h"
#include "checkpoint/file_output.h"

namespace ithaca {

LineOutput::LineOutput(const std::string& path)
    : path_(path), descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) throw_file_error("create", path_);
}

LineOutput::~LineOutput() {
  ::close(descriptor_);
}

void LineOutput::write(std::string_view line) {
  struct stat before {};
  if (::fstat(descriptor_, &before) != 0) throw_file_error("write", path_);
  std::string text(line);
  text += '\n';
  if (write_all(descriptor_, std::as_bytes(std::span(text)))) return;
  const int reason = errno;
  // What has no size cannot be cut either, and needs not.
  const bool is_cut = ::ftruncate(descriptor_, before.st_size) == 0;
  errno = reason;
  throw_file_error(is_cut ? "write" : "write all of a line", path_);
}

}  // namespace ithaca
