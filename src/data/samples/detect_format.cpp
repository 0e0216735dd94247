#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "data/byte_reader.h"
#include "data/samples/record_json.h"
#include "data/samples/record_object.h"
#include "data/samples/record_splitter.h"
#include "data/samples/records.h"
#include "data/samples/sample_maker.h"

namespace ithaca {

namespace {

using Json = nlohmann::ordered_json;

// How much is looked at: enough to see a mixture, little enough to be quick on any data.
constexpr size_t kFiles = 16;
constexpr int kRecordsOfFile = 32;
constexpr int64_t kBytesOfFile = int64_t{64} << 20;

struct Finding {
  std::string format;
  std::string place;
  std::string evidence;
};

[[noreturn]] void complain_of_no_format(const Record& record, const Json& value) {
  std::string advice = "set data.format and see what it misses";
  if (value.is_object() && (value.contains("chosen") || value.contains("rejected"))) {
    advice = "pairs of a chosen and a rejected answer are not trained here; give the chosen one as \"completion\"";
  }
  throw InputError(fmt::format(
      "{}: data.format: auto finds none of the keys that formats have (input_ids; messages; conversations; prompt and "
      "completion; instruction and output; text); the record {}; {}",
      record.place,
      value.is_object() ? "has the keys " + keys_text(value)
                        : fmt::format("is not an object but {}", value.type_name()),
      advice));
}

Finding finding_of(const Record& record) {
  const Json value = parse_record(record);
  const std::vector<std::string> formats = value.is_object() ? formats_of(value) : std::vector<std::string>();
  if (formats.empty()) complain_of_no_format(record, value);
  std::string evidence = "has " + keys_of_format(formats.front());
  for (size_t i = 1; i < formats.size(); ++i) {
    evidence += fmt::format("{}{}", i == 1 ? " (and is not taken for its " : ", ", keys_of_format(formats[i]));
  }
  return {formats.front(), record.place, evidence + (formats.size() > 1 ? ")" : "")};
}

}  // namespace

DetectedFormat detect_format(const std::vector<std::string>& paths) {
  const RecordFiles files = find_record_files(paths);
  std::optional<Finding> first;
  std::optional<RecordError> first_error;
  int64_t looked_at = 0;
  const auto compare = [&](Finding finding) {
    ++looked_at;
    if (!first) {
      first = std::move(finding);
    } else if (finding.format != first->format) {
      throw InputError(
          fmt::format("data.format: auto finds different formats: {} {} ({}), {} {} ({}); set data.format, and train "
                      "on one kind of "
                      "record at a time",
                      first->place, first->evidence, first->format, finding.place, finding.evidence, finding.format));
    }
  };
  const size_t file_count = std::min(files.files.size(), kFiles);
  for (size_t i = 0; i < file_count; ++i) {
    const std::string& file = files.files[i];
    ByteReader reader(file);
    RecordSplitter splitter([&reader] { return reader.next(); }, file, record_kind_of(file),
                            RecordOptions().largest_record_bytes);
    if (splitter.kind() == RecordKind::kText) {
      compare({"text", file, "is a text file"});
      continue;
    }
    int64_t bytes = 0;
    for (int count = 0; count < kRecordsOfFile && bytes < kBytesOfFile; ++count) {
      const std::optional<Record> record = splitter.next();
      if (!record) break;
      bytes += static_cast<int64_t>(record->bytes.size());
      std::optional<Finding> finding;
      try {
        finding = finding_of(*record);
      } catch (const RecordError& error) {
        // Whether a record that cannot be read is skipped is for data.on_error to say, later.
        if (!first_error) first_error = error;
      }
      if (finding) compare(std::move(*finding));
    }
  }
  if (!first) {
    if (first_error) throw RecordError(*first_error);
    throw InputError(files.files.front() + ": data.format: auto finds no record; remove the file or fill it");
  }
  return {first->format,
          fmt::format("data.format: auto took {} because {} {}; looked at {} record{} of {} of {} file{}",
                      first->format, first->place, first->evidence, looked_at, looked_at == 1 ? "" : "s", file_count,
                      files.files.size(), files.files.size() == 1 ? "" : "s")};
}

}  // namespace ithaca
