#include "data/byte_reader.h"

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/regular_file.h"

namespace ithaca {

namespace {

constexpr size_t kBlockBytes = size_t{1} << 18;

// RFC 8878: the magic numbers of Zstandard frames, little-endian. Skippable frames differ in their lowest four bits.
constexpr uint32_t kZstdFrame = 0xFD2FB528u;
constexpr uint32_t kZstdSkippableFrame = 0x184D2A50u;
constexpr size_t kMagicBytes = 4;
// The largest window that frames may ask for (zstd --long=31); the decoder takes as much as a frame needs.
constexpr int kLargestWindowLog = 31;

bool is_zstd(std::span<const char> start) {
  if (start.size() < kMagicBytes) return false;
  uint32_t magic = 0;
  for (size_t i = 0; i < kMagicBytes; ++i) {
    magic |= static_cast<uint32_t>(static_cast<unsigned char>(start[i])) << (8 * i);
  }
  return magic == kZstdFrame || (magic & 0xFFFFFFF0u) == kZstdSkippableFrame;
}

bool is_gzip(std::span<const char> start) {
  return start.size() >= 2 && start[0] == '\x1f' && start[1] == '\x8b';
}

std::span<char> writable(std::vector<char>& block) {
  return {block.data(), block.size()};
}

}  // namespace

// The file's raw bytes, and the decoding of them where they are compressed.
class ByteReader::Source {
 public:
  explicit Source(const std::string& path) : path_(path), descriptor_(open_regular_file(path)), raw_(kBlockBytes) {}
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  ~Source() {
    ::close(descriptor_);
    if (coding_ == Coding::kGzip) ::inflateEnd(&stream_);
  }

  std::span<const char> next() {
    if (!is_started_) start();
    switch (coding_) {
      case Coding::kGzip:
        return inflate_some();
      case Coding::kZstd:
        return decompress_some();
      case Coding::kNone:
        break;
    }
    return take_raw();
  }

  int64_t file_bytes() const { return file_bytes_; }

 private:
  enum class Coding { kNone, kGzip, kZstd };
  struct FreeZstd {
    void operator()(ZSTD_DCtx* context) const { ::ZSTD_freeDCtx(context); }
  };

  void start() {
    is_started_ = true;
    // Network file systems may give the first bytes in several reads.
    while (raw_size_ < kMagicBytes && !is_at_end_) fill();
    const std::span<const char> first(raw_.data(), raw_size_);
    if (is_gzip(first)) {
      constexpr int kGzipOnly = 15 + 16;  // largest window, gzip header
      if (::inflateInit2(&stream_, kGzipOnly) != Z_OK) throw FileError(path_ + ": zlib could not be started");
      coding_ = Coding::kGzip;
    } else if (is_zstd(first)) {
      zstd_.reset(::ZSTD_createDCtx());
      if (zstd_ == nullptr ||
          ::ZSTD_isError(::ZSTD_DCtx_setParameter(zstd_.get(), ZSTD_d_windowLogMax, kLargestWindowLog)) != 0) {
        throw FileError(path_ + ": the Zstandard decoder could not be started");
      }
      coding_ = Coding::kZstd;
    }
    if (coding_ != Coding::kNone) plain_.resize(kBlockBytes);
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
      file_bytes_ += count;
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
    if (!is_gzip({raw_.data() + raw_begin_, raw_size_})) {
      throw InputError(fmt::format("{}: something that is not gzip follows the gzip data after {} plain bytes", path_,
                                   plain_bytes_));
    }
    ::inflateReset(&stream_);
    is_between_members_ = false;
    return true;
  }

  std::span<const char> decompress_some() {
    size_t produced = 0;
    while (produced == 0) {
      if (raw_size_ == 0 && !is_at_end_) fill();
      if (raw_size_ == 0 && !is_inside_frame_) return {};
      ZSTD_inBuffer input{raw_.data() + raw_begin_, raw_size_, 0};
      ZSTD_outBuffer output{plain_.data(), plain_.size(), 0};
      // Begins the next frame by itself; 0: a frame is complete.
      const size_t status = ::ZSTD_decompressStream(zstd_.get(), &output, &input);
      if (::ZSTD_isError(status) != 0) {
        throw InputError(fmt::format(
            "{}: the Zstandard data is damaged, or followed by something else, after {} plain bytes ({}); fetch or "
            "compress it again",
            path_, plain_bytes_, ::ZSTD_getErrorName(status)));
      }
      if (raw_size_ == 0 && output.pos == 0) {
        throw InputError(fmt::format(
            "{}: the Zstandard data is cut off after {} plain bytes; fetch or compress it again", path_, plain_bytes_));
      }
      raw_begin_ += input.pos;
      raw_size_ -= input.pos;
      is_inside_frame_ = status != 0;
      produced = output.pos;
      plain_bytes_ += static_cast<int64_t>(produced);
    }
    return writable(plain_).first(produced);
  }

  std::string path_;
  int descriptor_ = -1;
  int64_t file_bytes_ = 0;
  std::vector<char> raw_;  // bytes [raw_begin_, raw_begin_ + raw_size_) are read and not yet used
  size_t raw_begin_ = 0;
  size_t raw_size_ = 0;
  bool is_at_end_ = false;
  bool is_started_ = false;
  Coding coding_ = Coding::kNone;
  bool is_between_members_ = false;  // of gzip
  bool is_inside_frame_ = false;     // of Zstandard
  int64_t plain_bytes_ = 0;
  std::vector<char> plain_;
  z_stream stream_{};
  std::unique_ptr<ZSTD_DCtx, FreeZstd> zstd_;
};

ByteReader::ByteReader(const std::string& path) : path_(path), source_(std::make_unique<Source>(path)) {}
ByteReader::~ByteReader() = default;
std::span<const char> ByteReader::next() {
  return source_->next();
}
int64_t ByteReader::file_bytes_read() const {
  return source_->file_bytes();
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
