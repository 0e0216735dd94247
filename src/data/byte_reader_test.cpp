#include "data/byte_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "data/test_files.h"

namespace ithaca {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string gzip(std::string_view plain) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, plain.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string zstd(std::string_view plain, bool has_checksum = false) {
  const std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> context(ZSTD_createCCtx(), ZSTD_freeCCtx);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, has_checksum ? 1 : 0);
  std::string packed(ZSTD_compressBound(plain.size()), '\0');
  const size_t size = ZSTD_compress2(context.get(), packed.data(), packed.size(), plain.data(), plain.size());
  EXPECT_EQ(ZSTD_isError(size), 0u);
  packed.resize(size);
  return packed;
}

std::string read_all(const std::string& path) {
  ByteReader reader(path);
  std::string all;
  for (auto piece = reader.next(); !piece.empty(); piece = reader.next()) all.append(piece.data(), piece.size());
  EXPECT_TRUE(reader.next().empty());
  return all;
}

std::string noise(size_t size) {
  const RandomStream random(7, "bytes");
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(random.bits(i) % 23 + 'a');
  return text;
}

TEST(ByteReader, GzipEqualsPlain) {
  const TemporaryDirectory directory;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{2}, size_t{1000}, size_t{262144}, size_t{900001}}) {
    const std::string text = noise(size);
    EXPECT_EQ(read_all(directory.write("plain", text)), text) << size;
    // Whatever the name says.
    EXPECT_EQ(read_all(directory.write("packed.txt", gzip(text))), text) << size;
  }
}

TEST(ByteReader, SeveralMembersAndPadding) {
  const TemporaryDirectory directory;
  const std::string packed = gzip("first ") + gzip("") + gzip("second");
  EXPECT_EQ(read_all(directory.write("x", packed)), "first second");
  EXPECT_EQ(read_all(directory.write("x", packed + std::string(600000, '\0'))), "first second");
  EXPECT_THAT(message_of<InputError>([&] { read_all(directory.write("x", packed + "rubbish")); }),
              HasSubstr("not gzip follows"));
}

TEST(ByteReader, EveryTruncationOfGzipIsAnError) {
  const TemporaryDirectory directory;
  const std::string packed = gzip(noise(300));
  for (size_t length = 2; length < packed.size(); ++length) {
    const std::string path = directory.write("x.gz", packed.substr(0, length));
    EXPECT_THAT(message_of<InputError>([&] { read_all(path); }), AllOf(HasSubstr(path), HasSubstr("cut off")))
        << length;
  }
}

TEST(ByteReader, DamagedGzipIsAnError) {
  const TemporaryDirectory directory;
  std::string packed = gzip(noise(3000));
  packed[packed.size() - 6] = static_cast<char>(packed[packed.size() - 6] ^ 1);  // in the checksum
  EXPECT_THAT(message_of<InputError>([&] { read_all(directory.write("x", packed)); }), HasSubstr("damaged"));
}

TEST(ByteReader, ZstandardEqualsPlain) {
  const TemporaryDirectory directory;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{2}, size_t{1000}, size_t{262144}, size_t{900001}}) {
    const std::string text = noise(size);
    EXPECT_EQ(read_all(directory.write("packed.txt", zstd(text))), text) << size;
  }
}

// Frames follow one another, skippable ones (RFC 8878, 3.1.2) hold nothing; the bytes of "ab\n" come from zstd 1.5.4.
TEST(ByteReader, SeveralFrames) {
  const TemporaryDirectory directory;
  const std::string skippable("\x5A\x2A\x4D\x18\x03\x00\x00\x00xyz", 11);
  const std::string long_text = noise(700000);
  const std::string packed = skippable + zstd("first ") + zstd("") + skippable + zstd(long_text) + skippable;
  EXPECT_EQ(read_all(directory.write("x", packed)), "first " + long_text);
  EXPECT_THAT(message_of<InputError>([&] { read_all(directory.write("x", packed + "rubbish")); }),
              HasSubstr("followed by something else"));
  const std::string from_tool("\x28\xb5\x2f\xfd\x04\x58\x19\x00\x00\x61\x62\x0a\x3a\x09\x86\x75", 16);
  EXPECT_EQ(read_all(directory.write("x", from_tool)), "ab\n");
}

TEST(ByteReader, EveryTruncationOfZstandardIsAnError) {
  const TemporaryDirectory directory;
  const std::string packed = zstd(noise(300));
  for (size_t length = 4; length < packed.size(); ++length) {
    const std::string path = directory.write("x.zst", packed.substr(0, length));
    EXPECT_THAT(message_of<InputError>([&] { read_all(path); }), AllOf(HasSubstr(path), HasSubstr("cut off")))
        << length;
  }
}

TEST(ByteReader, DamagedZstandardIsAnError) {
  const TemporaryDirectory directory;
  std::string packed = zstd(noise(3000), true);
  packed.back() = static_cast<char>(packed.back() ^ 1);  // in the checksum
  EXPECT_THAT(message_of<InputError>([&] { read_all(directory.write("x", packed)); }), HasSubstr("damaged"));
}

TEST(ByteReader, CountsBytesOfTheFile) {
  const TemporaryDirectory directory;
  const std::string packed = zstd(noise(900001));
  ByteReader reader(directory.write("x", packed));
  EXPECT_EQ(reader.file_bytes_read(), 0);
  while (!reader.next().empty()) EXPECT_LE(reader.file_bytes_read(), static_cast<int64_t>(packed.size()));
  EXPECT_EQ(reader.file_bytes_read(), static_cast<int64_t>(packed.size()));
}

TEST(ByteReader, FilesThatCannotBeRead) {
  const TemporaryDirectory directory;
  EXPECT_THAT(message_of<FileError>([&] { ByteReader reader(directory.file("absent")); }),
              HasSubstr("absent: cannot open"));
  EXPECT_THAT(message_of<FileError>([&] { ByteReader reader(directory.path()); }), HasSubstr("is a directory"));
  ASSERT_EQ(::mkfifo(directory.file("fifo").c_str(), 0600), 0);
  EXPECT_THAT(message_of<FileError>([&] { ByteReader reader(directory.file("fifo")); }), HasSubstr("is a FIFO"));
  EXPECT_THAT(message_of<FileError>([&] { ByteReader reader("/dev/zero"); }), HasSubstr("is a device"));
}

TEST(LineReader, LinesOfEveryKind) {
  const TemporaryDirectory directory;
  const std::string long_line(700000, 'x');
  LineReader reader(directory.write("x", "one\n\ntwo\r\n" + long_line + "\nlast"));
  std::vector<std::string> lines;
  std::string_view line;
  while (reader.next(line)) lines.emplace_back(line);
  EXPECT_THAT(lines, ElementsAre("one", "", "two", long_line, "last"));
  EXPECT_EQ(reader.line_number(), 5);
}

}  // namespace
}  // namespace ithaca
