// A file that grows by whole lines: each is on its way to the disk when write() returns, and where there is no room for
// all of it nothing of it stays. For what others read while it is written (metrics.jsonl, rows of a benchmark).
// Thread-safety: one thread at a time.
#pragma once

#include <string>
#include <string_view>

namespace ithaca {

class LineOutput {
 public:
  // Empties the file, or makes it; devices and FIFOs will do. Throws FileError.
  explicit LineOutput(const std::string& path);
  LineOutput(const LineOutput&) = delete;
  LineOutput& operator=(const LineOutput&) = delete;
  ~LineOutput();

  // Adds the line and a newline. Throws FileError.
  void write(std::string_view line);

 private:
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace ithaca
