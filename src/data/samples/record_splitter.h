// RecordSplitter: the bytes of one file to records, in memory bounded by the longest record.
//
// Thread-safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "data/samples/sample.h"

namespace ithaca {

enum class RecordKind {
  kLines,    // JSON Lines: every line that is not blank
  kJson,     // the elements of an array; without one, JSON values one after the other
  kText,     // all of it
  kUnknown,  // kJson where the first characters are { and " or [ and {, kText otherwise
};

// By the ending of a file's name, before .gz or .zst.
RecordKind record_kind_of(std::string_view name);

class RecordSplitter {
 public:
  // `next_piece` gives the bytes of the file piece by piece, each valid until the next call, and an empty one at the
  // end; `file` is what errors and places call it.
  RecordSplitter(std::function<std::span<const char>()> next_piece, std::string file, RecordKind kind,
                 int64_t largest_record_bytes);

  // What the file is taken for: never kUnknown. Reads its first bytes.
  RecordKind kind();
  // The next record; nothing at the end. Throws InputError with file:line:column where the file is not what it is taken
  // for and no record boundary can be told any more, and what next_piece() throws.
  std::optional<Record> next();

 private:
  void start();
  bool has_bytes();
  // Consumes `count` bytes of the piece at hand.
  void advance(size_t count);
  void append(std::string& bytes, size_t count);
  bool skip_white_space();
  std::string here() const;
  Record begin_record() const;

  std::optional<Record> next_line();
  std::optional<Record> next_element();
  std::optional<Record> next_value();
  std::optional<Record> whole_text();
  // Appends one JSON value, which begins at the next byte, as far as its brackets and strings tell.
  void read_value(std::string& bytes);
  void read_bracketed(std::string& bytes);
  void read_string(std::string& bytes);
  [[noreturn]] void complain_of_end(const Record& record, const char* what) const;

  std::function<std::span<const char>()> next_piece_;
  std::string file_;
  RecordKind kind_;
  int64_t largest_record_bytes_;
  std::string first_bytes_;  // what start() read to look at
  std::string_view piece_;
  bool is_started_ = false;
  bool is_at_end_ = false;
  bool is_array_ = false;
  bool is_array_closed_ = false;
  int64_t elements_ = 0;
  // Of the next byte, from 1.
  int64_t line_ = 1;
  int64_t column_ = 1;
};

}  // namespace ithaca
