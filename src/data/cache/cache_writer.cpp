#include "data/cache/cache_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "base/write_all.h"

namespace ithaca {

namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
// Indices into cache_file_names().
enum FileIndex : size_t { kTokens, kTokenOffsets, kDocuments, kTargets, kTargetOffsets, kSamples };

}  // namespace

class CacheWriter::File {
 public:
  explicit File(const std::string& path) : path_(path) {
    descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor_ < 0) complain("cannot create");
    buffer_.reserve(kBufferBytes);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  void add(std::span<const std::byte> bytes) {
    hash_.add(bytes);
    written_ += static_cast<int64_t>(bytes.size());
    if (buffer_.size() + bytes.size() > kBufferBytes) flush();
    if (bytes.size() > kBufferBytes) {
      write(bytes);
    } else {
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    }
  }
  void add_number(int64_t value) { add(std::as_bytes(std::span(&value, 1))); }

  CacheFile finish() {
    flush();
    const int descriptor = descriptor_;
    descriptor_ = -1;
    if (::close(descriptor) != 0) complain("cannot write");
    return {written_, hash_.digest()};
  }

 private:
  [[noreturn]] void complain(const char* what) const {
    throw FileError(
        fmt::format("{}: {}: {}; data.cache_dir says where token caches are kept", path_, what, std::strerror(errno)));
  }

  void flush() {
    write(buffer_);
    buffer_.clear();
  }

  void write(std::span<const std::byte> bytes) {
    if (!write_all(descriptor_, bytes)) complain("cannot write");
  }

  std::string path_;
  int descriptor_ = -1;
  std::vector<std::byte> buffer_;
  ContentHash hash_;
  int64_t written_ = 0;
};

CacheWriter::CacheWriter(const std::string& folder, const ContentDigest& key, std::vector<std::string> sources,
                         int64_t vocabulary)
    : folder_(folder) {
  meta_.key = key;
  meta_.sources = std::move(sources);
  meta_.token_bytes = token_bytes_of(vocabulary);
  for (const std::string& name : cache_file_names()) {
    files_.push_back(std::make_unique<File>((std::filesystem::path(folder) / name).string()));
  }
  file(kTokenOffsets).add_number(0);
}

CacheWriter::~CacheWriter() = default;

void CacheWriter::add(const EncodedSamples& samples) {
  TokenCacheSummary& summary = meta_.summary;
  // Files that say the usual thing stay empty until something else comes; then what was left out is written first.
  const bool one_each = std::all_of(samples.sample_documents.begin(), samples.sample_documents.end(),
                                    [](int64_t documents) { return documents == 1; });
  if (one_document_each_ && !one_each) {
    one_document_each_ = false;
    for (int64_t sample = 0; sample <= summary.samples; ++sample) file(kSamples).add_number(sample);
  }
  if (target_bytes_ == 0 && !samples.targets.empty()) {
    for (int64_t document = 0; document <= summary.documents; ++document) file(kTargetOffsets).add_number(0);
  }
  const bool writes_targets = target_bytes_ > 0 || !samples.targets.empty();

  file(kTokens).add(samples.tokens);
  file(kTargets).add(samples.targets);
  file(kDocuments).add(std::as_bytes(std::span(samples.documents)));
  for (size_t document = 0; document < samples.documents.size(); ++document) {
    const int64_t length = samples.document_tokens[document];
    summary.tokens += length;
    summary.targets += samples.documents[document].targets;
    summary.longest_document = std::max(summary.longest_document, length);
    file(kTokenOffsets).add_number(summary.tokens);
    target_bytes_ += samples.document_target_bytes[document];
    if (writes_targets) file(kTargetOffsets).add_number(target_bytes_);
  }
  int64_t documents = summary.documents;
  for (const int64_t count : samples.sample_documents) {
    documents += count;
    if (!one_document_each_) file(kSamples).add_number(documents);
  }
  summary.documents = documents;
  summary.samples += static_cast<int64_t>(samples.sample_documents.size());
}

void CacheWriter::finish() {
  for (size_t index = 0; index < files_.size(); ++index) meta_.files[cache_file_names()[index]] = file(index).finish();
  File meta((std::filesystem::path(folder_) / kCacheMetaName).string());
  const std::string text = cache_meta_text(meta_);
  meta.add(std::as_bytes(std::span(text.data(), text.size())));
  meta.finish();
}

}  // namespace ithaca
