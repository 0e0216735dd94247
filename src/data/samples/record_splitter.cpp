#include "data/samples/record_splitter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/text.h"

namespace ithaca {

namespace {

// As many of a file's first bytes are looked at to tell what it is.
constexpr size_t kFirstBytes = 4096;
constexpr std::string_view kUtf8Mark = "\xEF\xBB\xBF";

bool is_white_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

// Formats that are often taken for text, by how their files begin.
struct KnownStart {
  std::string_view bytes;
  const char* name;
};
constexpr std::array<KnownStart, 6> kBinaryFormats{{{"PAR1", "Parquet"},
                                                    {"ARROW1", "Arrow"},
                                                    {std::string_view("PK\x03\x04", 4), "a ZIP archive"},
                                                    {std::string_view("\xFD"
                                                                      "7zXZ\0",
                                                                      6),
                                                     "compressed with xz"},
                                                    {"BZh", "compressed with bzip2"},
                                                    {"\x89HDF", "HDF5"}}};

void refuse_other_formats(std::string_view start, const std::string& file) {
  if (start.starts_with("\xFF\xFE") || start.starts_with("\xFE\xFF")) {
    throw InputError(file + ": is UTF-16; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)");
  }
  if (start.find('\0') == std::string_view::npos) return;  // so texts may begin with these letters
  for (const KnownStart& format : kBinaryFormats) {
    if (start.starts_with(format.bytes)) {
      throw InputError(fmt::format(
          "{}: is {}, which is not read here; convert it to JSON Lines (.gz and .zst are read)", file, format.name));
    }
  }
}

// Whether a file of unknown kind begins as JSON records do.
bool looks_like_records(std::string_view start) {
  const size_t first = start.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return false;
  const size_t second = start.find_first_not_of(" \t\r\n", first + 1);
  if (second == std::string_view::npos) return false;
  return (start[first] == '{' && start[second] == '"') || (start[first] == '[' && start[second] == '{');
}

// Whether one value follows another behind a CR alone. Nothing that is valid has "}", CR, "{": strings have no raw CR,
// and between two objects of an array or an object a comma stands.
bool ends_lines_in_cr(std::string_view bytes) {
  size_t behind = 0;
  for (size_t cr = bytes.find('\r'); cr != std::string_view::npos; cr = bytes.find('\r', behind)) {
    const size_t before = bytes.substr(0, cr).find_last_not_of(" \t");
    behind = bytes.find_first_not_of(" \t\r", cr);
    if (behind == std::string_view::npos) return false;
    if (before != std::string_view::npos && bytes[before] == '}' && bytes[behind] == '{') return true;
  }
  return false;
}

void refuse_cr_lines(std::string_view bytes, const std::string& place) {
  if (!ends_lines_in_cr(bytes)) return;
  throw InputError(place +
                   ": its lines end in CR (\\r) alone; lines of JSON Lines must end in LF (\\n) or CR LF; convert the "
                   "file (tr '\\r' '\\n')");
}

}  // namespace

RecordSplitter::RecordSplitter(std::function<std::span<const char>()> next_piece, std::string file, RecordKind kind,
                               int64_t largest_record_bytes)
    : next_piece_(std::move(next_piece)),
      file_(std::move(file)),
      kind_(kind),
      largest_record_bytes_(largest_record_bytes) {}

RecordKind record_kind_of(std::string_view name) {
  for (const std::string_view packed : {".gz", ".zst"}) {
    if (name.ends_with(packed)) {
      name.remove_suffix(packed.size());
      break;
    }
  }
  if (name.ends_with(".jsonl") || name.ends_with(".ndjson")) return RecordKind::kLines;
  if (name.ends_with(".json")) return RecordKind::kJson;
  if (name.ends_with(".txt") || name.ends_with(".md")) return RecordKind::kText;
  return RecordKind::kUnknown;
}

RecordKind RecordSplitter::kind() {
  if (!is_started_) start();
  return kind_;
}

std::optional<Record> RecordSplitter::next() {
  if (!is_started_) start();
  switch (kind_) {
    case RecordKind::kLines:
      return next_line();
    case RecordKind::kJson:
      return is_array_ ? next_element() : next_value();
    case RecordKind::kText:
    case RecordKind::kUnknown:
      break;
  }
  return whole_text();
}

void RecordSplitter::start() {
  is_started_ = true;
  while (first_bytes_.size() < kFirstBytes) {
    const std::span<const char> piece = next_piece_();
    if (piece.empty()) break;
    first_bytes_.append(piece.data(), piece.size());
  }
  piece_ = first_bytes_;
  if (piece_.starts_with(kUtf8Mark)) piece_.remove_prefix(kUtf8Mark.size());
  const std::string_view start = piece_.substr(0, kFirstBytes);
  refuse_other_formats(start, file_);
  if (kind_ == RecordKind::kUnknown) kind_ = looks_like_records(start) ? RecordKind::kJson : RecordKind::kText;
  if (kind_ == RecordKind::kLines) {
    const size_t first = start.find_first_not_of(" \t\r\n");
    if (first != std::string_view::npos && start[first] == '[') {
      throw InputError(file_ +
                       ": begins with [, but every line of JSON Lines is one object; a file that is one array must be "
                       "named .json");
    }
    // Before all of it is taken for one long line.
    refuse_cr_lines(start.substr(0, start.find('\n')), file_);
  }
  if (kind_ == RecordKind::kJson && skip_white_space() && piece_.front() == '[') {
    advance(1);
    is_array_ = true;
  }
}

bool RecordSplitter::has_bytes() {
  if (piece_.empty() && !is_at_end_) {
    const std::span<const char> piece = next_piece_();
    piece_ = {piece.data(), piece.size()};
    is_at_end_ = piece_.empty();
  }
  return !piece_.empty();
}

void RecordSplitter::advance(size_t count) {
  const std::string_view passed = piece_.substr(0, count);
  const size_t last = passed.rfind('\n');
  if (last == std::string_view::npos) {
    column_ += static_cast<int64_t>(count);
  } else {
    line_ += std::count(passed.begin(), passed.end(), '\n');
    column_ = static_cast<int64_t>(count - last);
  }
  piece_.remove_prefix(count);
}

void RecordSplitter::append(std::string& bytes, size_t count) {
  if (static_cast<int64_t>(bytes.size() + count) > largest_record_bytes_) {
    throw InputError(
        fmt::format("{}: the record that goes on here is longer than {}; split it, a record must fit into "
                    "memory several times over",
                    here(), format_bytes(largest_record_bytes_)));
  }
  bytes.append(piece_.data(), count);
  advance(count);
}

bool RecordSplitter::skip_white_space() {
  while (has_bytes()) {
    size_t count = 0;
    while (count < piece_.size() && is_white_space(piece_[count])) ++count;
    const bool is_done = count < piece_.size();
    advance(count);
    if (is_done) return true;
  }
  return false;
}

std::string RecordSplitter::here() const {
  return fmt::format("{}:{}:{}", file_, line_, column_);
}

Record RecordSplitter::begin_record() const {
  Record record;
  record.file = file_;
  record.line = line_;
  record.column = column_;
  return record;
}

void RecordSplitter::complain_of_end(const Record& record, const char* what) const {
  throw InputError(fmt::format("{}: the file ends inside of {} that begins at {}:{}; is it cut off?", here(), what,
                               record.line, record.column));
}

std::optional<Record> RecordSplitter::next_line() {
  while (has_bytes()) {
    Record record = begin_record();
    bool is_complete = false;
    while (!is_complete && has_bytes()) {
      const size_t end = piece_.find('\n');
      is_complete = end != std::string_view::npos;
      append(record.bytes, is_complete ? end : piece_.size());
    }
    if (is_complete) advance(1);
    if (!record.bytes.empty() && record.bytes.back() == '\r') record.bytes.pop_back();
    if (record.bytes.find_first_not_of(" \t\r") == std::string::npos) continue;
    record.place = fmt::format("{}:{}", file_, record.line);
    refuse_cr_lines(record.bytes, record.place);
    return record;
  }
  return std::nullopt;
}

std::optional<Record> RecordSplitter::whole_text() {
  Record record = begin_record();
  while (has_bytes()) append(record.bytes, piece_.size());
  if (record.bytes.empty()) return std::nullopt;
  record.place = file_;
  record.is_plain_text = true;
  return record;
}

std::optional<Record> RecordSplitter::next_value() {
  if (!skip_white_space()) return std::nullopt;
  Record record = begin_record();
  if (piece_.front() == ',' || piece_.front() == ']' || piece_.front() == '}') {
    throw InputError(
        fmt::format("{}: not valid JSON: '{}' where a record should begin; records are the elements of one "
                    "array, or values with nothing but white space between them",
                    here(), piece_.front()));
  }
  read_value(record.bytes);
  record.place = fmt::format("{}:{}", file_, record.line);
  return record;
}

std::optional<Record> RecordSplitter::next_element() {
  if (is_array_closed_) {
    if (skip_white_space()) throw InputError(here() + ": something follows the array; one array makes the file");
    return std::nullopt;
  }
  const auto need_more = [this] {
    if (skip_white_space()) return;
    throw InputError(here() + ": not valid JSON: the file ends before its array does; is it cut off?");
  };
  need_more();
  if (piece_.front() == ']') {
    is_array_closed_ = true;
    advance(1);
    return next_element();
  }
  if (elements_ > 0) {
    if (piece_.front() != ',') {
      throw InputError(here() + ": not valid JSON: a comma or the end of the array should follow an element");
    }
    advance(1);
    need_more();
  }
  if (piece_.front() == ',' || piece_.front() == ']' || piece_.front() == '}') {
    throw InputError(fmt::format("{}: not valid JSON: '{}' where an element should begin", here(), piece_.front()));
  }
  Record record = begin_record();
  read_value(record.bytes);
  record.place = fmt::format("{}[{}]", file_, elements_);
  ++elements_;
  return record;
}

void RecordSplitter::read_value(std::string& bytes) {
  if (piece_.front() == '{' || piece_.front() == '[') return read_bracketed(bytes);
  if (piece_.front() == '"') {
    const Record record = begin_record();
    append(bytes, 1);
    read_string(bytes);
    if (bytes.size() < 2 || bytes.back() != '"') complain_of_end(record, "a string");
    return;
  }
  // A number or a word; what it is worth is for the parser to say.
  while (has_bytes()) {
    size_t count = 0;
    while (count < piece_.size() && !is_white_space(piece_[count]) &&
           std::strchr(",:[]{}\"", piece_[count]) == nullptr) {
      ++count;
    }
    const bool is_done = count < piece_.size();
    append(bytes, count);
    if (is_done) break;
  }
  if (bytes.empty()) throw InputError(fmt::format("{}: not valid JSON: a value should begin", here()));
}

// From after the opening quote to the closing one, or to the end of the file.
void RecordSplitter::read_string(std::string& bytes) {
  bool is_escaped = false;
  while (has_bytes()) {
    size_t i = 0;
    while (i < piece_.size()) {
      const char c = piece_[i++];
      if (is_escaped) {
        is_escaped = false;
      } else if (c == '\\') {
        is_escaped = true;
      } else if (c == '"') {
        append(bytes, i);
        return;
      }
    }
    append(bytes, i);
  }
  bytes.push_back('\0');  // so that nothing takes what came last for the closing quote
}

void RecordSplitter::read_bracketed(std::string& bytes) {
  const Record record = begin_record();
  std::string closing;  // brackets that are still open, by what closes them
  while (has_bytes()) {
    size_t i = 0;
    bool is_string = false;
    while (i < piece_.size() && !is_string) {
      const char c = piece_[i];
      if (c == '"') {
        is_string = true;
      } else if (c == '{' || c == '[') {
        closing.push_back(c == '{' ? '}' : ']');
      } else if (c == '}' || c == ']') {
        if (closing.back() != c) {
          append(bytes, i);
          throw InputError(fmt::format("{}: not valid JSON: '{}' where '{}' is needed to close what is open", here(), c,
                                       closing.back()));
        }
        closing.pop_back();
        if (closing.empty()) {
          append(bytes, i + 1);
          return;
        }
      }
      ++i;
    }
    append(bytes, i);
    if (is_string) read_string(bytes);
  }
  complain_of_end(record, "a record");
}

}  // namespace ithaca
