// Records from files: JSON Lines, JSON arrays and plain text, compressed or not, in an order that the paths alone
// decide.
//
// Thread-safety: find_record_files() is a function of the file system; a RecordSource is used by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/samples/sample.h"

namespace ithaca {

// What paths stand for.
struct RecordFiles {
  std::vector<std::string> files;  // in reading order
  int64_t bytes = 0;               // of all files, compressed as they are
  // Members of folders that are not read (another ending, hidden, no regular files), in the order they were met.
  std::vector<std::string> left_out;
  // What a plan or a log should say: folders with members left out, files that are named several times.
  std::vector<std::string> notes;
};

// Paths are files, folders, or patterns, read in the order given:
//   a file     is read whatever its name is, as often as it is named. FIFOs, devices and sockets are refused where they
//              are named, and left out with a note of folders and patterns.
//   a folder   stands for the files below it, at any depth, whose names end in .jsonl, .ndjson, .json, .txt or .md
//              (.gz or .zst may follow), sorted by the bytes of their paths. Names that begin with a dot are left out.
//   a pattern  has *, ? or [...] in any part between slashes, as a shell has it, and ** for any number of folders; its
//              matches are sorted in the same way. Matches that are folders are left out.
// Throws FileError for a file that does not exist or is not a regular one, InputError for a folder or a pattern that
// stands for no file, ConfigurationError without any path.
RecordFiles find_record_files(const std::vector<std::string>& paths);

struct RecordOptions {
  std::vector<std::string> paths;  // as find_record_files() takes them
  // A record that is longer is an error: it has to fit into memory several times over.
  int64_t largest_record_bytes = int64_t{1} << 32;
};

// The records of all files, one after the other. By the ending of the name (before .gz or .zst, which are told by the
// files' first bytes and not by the name):
//   .jsonl .ndjson   every line that is not blank is a record, and JSON
//   .json            every element of an array is a record; or, without the array, every JSON value
//   .txt .md         the whole file is one record of plain text
//   others           as .json where the first characters are { and " or [ and {, as text otherwise
// Files are streamed: memory is bounded by the longest record, not by a file's size. A byte order mark is left out.
// Throws as find_record_files(); next() throws as RecordSource says, with file:line:column.
std::unique_ptr<RecordSource> open_records(const RecordOptions& options);

}  // namespace ithaca
