#include "data/byte_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace ithaca {

namespace {

constexpr size_t kBlockBytes = size_t{1} << 18;

std::span<char> writable(std::vector<char>& block) {
  return {block.data(), block.size()};
}

}  // namespace

// The file's raw bytes, and the inflating of them where they are gzip.
class ByteReader::Source {
 public:
  explicit Source(const std::string& path) : path_(path), raw_(kBlockBytes) {
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) throw FileError(fmt::format("{}: cannot open: {}", path, std::strerror(errno)));
    struct stat status {};
    if (::fstat(descriptor_, &status) == 0 && S_ISDIR(status.st_mode)) {
      ::close(descriptor_);
      throw FileError(path + ": is a directory; a file is needed");
    }
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  ~Source() {
    ::close(descriptor_);
    if (is_gzip_) ::inflateEnd(&stream_);
  }

  std::span<const char> next() {
    if (!is_started_) start();
    return is_gzip_ ? inflate_some() : take_raw();
  }

 private:
  void start() {
    is_started_ = true;
    // Two bytes may come in two reads from a pipe.
    while (raw_size_ < 2 && !is_at_end_) fill();
    if (raw_size_ < 2 || raw_[0] != '\x1f' || raw_[1] != '\x8b') return;
    constexpr int kGzipOnly = 15 + 16;  // largest window, gzip header
    if (::inflateInit2(&stream_, kGzipOnly) != Z_OK) throw FileError(path_ + ": zlib could not be started");
    is_gzip_ = true;
    plain_.resize(kBlockBytes);
  }

  // Appends what one read gives to what is still unused.
  void fill() {
    if (raw_begin_ > 0) {
      std::memmove(raw_.data(), raw_.data() + raw_begin_, raw_size_);
      raw_begin_ = 0;
    }
    while (true) {
      const ssize_t count = ::read(descriptor_, raw_.data() + raw_size_, raw_.size() - raw_size_);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw FileError(fmt::format("{}: cannot read: {}", path_, std::strerror(errno)));
      is_at_end_ = count == 0;
      raw_size_ += static_cast<size_t>(count);
      return;
    }
  }

  std::span<const char> take_raw() {
    if (raw_size_ == 0 && !is_at_end_) fill();
    const std::span<const char> piece(raw_.data() + raw_begin_, raw_size_);
    raw_begin_ = 0;
    raw_size_ = 0;
    return piece;
  }

  std::span<const char> inflate_some() {
    const std::span<char> target = writable(plain_);
    size_t produced = 0;
    while (produced == 0) {
      if (raw_size_ == 0 && !is_at_end_) fill();
      if (is_between_members_ && !begin_member()) return {};
      if (raw_size_ == 0) {
        throw InputError(fmt::format("{}: the gzip data is cut off after {} plain bytes; fetch or compress it again",
                                     path_, plain_bytes_));
      }
      stream_.next_in = reinterpret_cast<Bytef*>(raw_.data() + raw_begin_);
      stream_.avail_in = static_cast<uInt>(raw_size_);
      stream_.next_out = reinterpret_cast<Bytef*>(target.data());
      stream_.avail_out = static_cast<uInt>(target.size());
      const int status = ::inflate(&stream_, Z_NO_FLUSH);
      raw_begin_ += raw_size_ - stream_.avail_in;
      raw_size_ = stream_.avail_in;
      produced = target.size() - stream_.avail_out;
      plain_bytes_ += static_cast<int64_t>(produced);
      if (status == Z_STREAM_END) {
        is_between_members_ = true;
      } else if (status != Z_OK && status != Z_BUF_ERROR) {
        throw InputError(
            fmt::format("{}: the gzip data is damaged after {} plain bytes ({}); fetch or compress it again", path_,
                        plain_bytes_, stream_.msg == nullptr ? "unknown" : stream_.msg));
      }
    }
    return target.first(produced);
  }

  // After a member: another one follows, or the end, or zeros that some tools pad with. False: nothing more comes.
  bool begin_member() {
    while (true) {
      while (raw_size_ > 0 && raw_[raw_begin_] == '\0') {
        ++raw_begin_;
        --raw_size_;
      }
      if (raw_size_ >= 2 || is_at_end_) break;
      fill();
    }
    if (raw_size_ == 0) return false;
    if (raw_size_ < 2 || raw_[raw_begin_] != '\x1f' || raw_[raw_begin_ + 1] != '\x8b') {
      throw InputError(fmt::format("{}: something that is not gzip follows the gzip data after {} plain bytes", path_,
                                   plain_bytes_));
    }
    ::inflateReset(&stream_);
    is_between_members_ = false;
    return true;
  }

  std::string path_;
  int descriptor_ = -1;
  std::vector<char> raw_;  // bytes [raw_begin_, raw_begin_ + raw_size_) are read and not yet used
  size_t raw_begin_ = 0;
  size_t raw_size_ = 0;
  bool is_at_end_ = false;
  bool is_started_ = false;
  bool is_gzip_ = false;
  bool is_between_members_ = false;
  int64_t plain_bytes_ = 0;
  std::vector<char> plain_;
  z_stream stream_{};
};

ByteReader::ByteReader(const std::string& path) : path_(path), source_(std::make_unique<Source>(path)) {}
ByteReader::~ByteReader() = default;
std::span<const char> ByteReader::next() {
  return source_->next();
}

bool LineReader::next(std::string_view& line) {
  line_.clear();
  bool has_any = false;
  while (true) {
    if (piece_.empty()) piece_ = reader_.next();
    if (piece_.empty()) break;
    has_any = true;
    const auto* end = static_cast<const char*>(std::memchr(piece_.data(), '\n', piece_.size()));
    const size_t length = end == nullptr ? piece_.size() : static_cast<size_t>(end - piece_.data());
    line_.append(piece_.data(), length);
    piece_ = piece_.subspan(end == nullptr ? length : length + 1);
    if (end != nullptr) break;
  }
  if (!has_any) return false;
  if (!line_.empty() && line_.back() == '\r') line_.pop_back();
  ++line_number_;
  line = line_;
  return true;
}

}  // namespace ithaca
