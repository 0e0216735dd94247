// ByteReader: the bytes of a plain, gzip or Zstandard file, in pieces, in bounded memory.
//
// Compression is told by the first bytes, not by the name. Several gzip members or Zstandard frames in one file are
// read one after the other, as gunzip and unzstd do. Thread-safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace ithaca {

class ByteReader {
 public:
  // Throws FileError when the file cannot be opened, or is not a regular one.
  explicit ByteReader(const std::string& path);
  ByteReader(const ByteReader&) = delete;
  ByteReader& operator=(const ByteReader&) = delete;
  ~ByteReader();

  const std::string& path() const { return path_; }
  // The next piece, valid until the next call; empty at the end. Throws FileError when reading fails, InputError when
  // the compressed data is damaged or cut off.
  std::span<const char> next();
  // Bytes of the file read so far, compressed as they are.
  int64_t file_bytes_read() const;

 private:
  class Source;
  std::string path_;
  std::unique_ptr<Source> source_;
};

// The lines of such a file, without their ends (\n or \r\n).
class LineReader {
 public:
  explicit LineReader(const std::string& path) : reader_(path) {}

  // False at the end. `line` is valid until the next call.
  bool next(std::string_view& line);
  // Number of the line that next() gave last, from 1.
  int64_t line_number() const { return line_number_; }
  const std::string& path() const { return reader_.path(); }

 private:
  ByteReader reader_;
  std::span<const char> piece_;
  std::string line_;
  int64_t line_number_ = 0;
};

}  // namespace ithaca
