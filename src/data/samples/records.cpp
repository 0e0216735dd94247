#include "data/samples/records.h"

#include <utility>

#include "base/error.h"
#include "data/byte_reader.h"
#include "data/samples/record_splitter.h"

namespace ithaca {

namespace {

class FileRecordSource : public RecordSource {
 public:
  explicit FileRecordSource(const RecordOptions& options)
      : files_(find_record_files(options.paths)), largest_record_bytes_(options.largest_record_bytes) {
    require(largest_record_bytes_ > 0, "RecordOptions::largest_record_bytes must be above 0");
  }

  std::optional<Record> next() override {
    while (true) {
      if (splitter_ == nullptr) {
        if (next_file_ == files_.files.size()) return std::nullopt;
        open_file(files_.files[next_file_++]);
      }
      std::optional<Record> record = splitter_->next();
      if (record) {
        ++records_of_file_;
        return record;
      }
      const std::string file = reader_->path();
      bytes_of_earlier_files_ += reader_->file_bytes_read();
      splitter_.reset();
      reader_.reset();
      if (records_of_file_ == 0) {
        throw RecordError(file, "holds no record; remove it from the data or fill it", "the file holds no record");
      }
    }
  }

  int64_t bytes_read() const override {
    return bytes_of_earlier_files_ + (reader_ == nullptr ? 0 : reader_->file_bytes_read());
  }
  int64_t bytes_in_all() const override { return files_.bytes; }

 private:
  void open_file(const std::string& file) {
    reader_ = std::make_unique<ByteReader>(file);
    ByteReader* reader = reader_.get();
    splitter_ = std::make_unique<RecordSplitter>([reader] { return reader->next(); }, file, record_kind_of(file),
                                                 largest_record_bytes_);
    records_of_file_ = 0;
  }

  RecordFiles files_;
  int64_t largest_record_bytes_;
  size_t next_file_ = 0;
  std::unique_ptr<ByteReader> reader_;  // outlives the splitter that reads from it
  std::unique_ptr<RecordSplitter> splitter_;
  int64_t records_of_file_ = 0;
  int64_t bytes_of_earlier_files_ = 0;
};

}  // namespace

std::unique_ptr<RecordSource> open_records(const RecordOptions& options) {
  return std::make_unique<FileRecordSource>(options);
}

}  // namespace ithaca
