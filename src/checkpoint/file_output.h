// Files that appear whole or not at all: written under a temporary name, flushed to the disk, then renamed. What a link
// names is written, and the link stays; devices, FIFOs, sockets and folders are refused, for a renaming would destroy
// them.
// Thread-safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ithaca {

// Throws FileError saying what was tried, on which path, and the operating system's reason (errno).
[[noreturn]] void throw_file_error(std::string_view action, const std::string& path);

// Where writing to `path` ends: through symbolic links, also such that name nothing yet. Throws FileError for links in
// a circle, and for an open stream of a process (/dev/stdout, /proc/self/fd/1), which is no place for a file.
std::string link_target(const std::string& path);

class FileOutput {
 public:
  // Makes link_target(path) + ".partial". Throws FileError, also when `path` is there and not a regular file.
  explicit FileOutput(const std::string& path);
  FileOutput(const FileOutput&) = delete;
  FileOutput& operator=(const FileOutput&) = delete;
  ~FileOutput();  // removes the partial file unless finished

  const std::string& path() const { return path_; }
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  // Flushes to the disk and renames into place.
  void finish();

 private:
  std::string path_;  // as it was given
  std::string target_;
  std::string partial_path_;
  int descriptor_ = -1;
};

// Writes a small file in one go.
void write_whole_file(const std::string& path, std::string_view content);
// Reads a small file in one go. Throws FileError, also for what is not a regular file.
std::string read_whole_file(const std::string& path);
// Flushes a directory's entries (renames, new files) to the disk.
void flush_directory(const std::string& path);

}  // namespace ithaca
