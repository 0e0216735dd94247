#include "data/samples/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>

#include "base/error.h"
#include "data/samples/record_splitter.h"
#include "data/test_files.h"

namespace ithaca {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kAnySize = int64_t{1} << 32;

// Records as "place|bytes".
std::vector<std::string> read_all(RecordSource& source) {
  std::vector<std::string> records;
  for (std::optional<Record> record = source.next(); record; record = source.next()) {
    records.push_back(record->place + "|" + record->bytes);
  }
  return records;
}

std::vector<Record> split(const std::string& content, RecordKind kind, size_t piece_bytes, int64_t largest = kAnySize) {
  size_t begin = 0;
  const auto next_piece = [&]() -> std::span<const char> {
    const size_t size = std::min(piece_bytes, content.size() - begin);
    begin += size;
    return {content.data() + begin - size, size};
  };
  RecordSplitter splitter(next_piece, "x", kind, largest);
  std::vector<Record> records;
  for (std::optional<Record> record = splitter.next(); record; record = splitter.next()) {
    records.push_back(std::move(*record));
  }
  EXPECT_FALSE(splitter.next().has_value());
  return records;
}

// "line:column|bytes", the same however the bytes come in pieces.
std::vector<std::string> split_texts(const std::string& content, RecordKind kind) {
  std::vector<std::string> expected;
  for (const size_t piece_bytes : {size_t{100000}, size_t{1}, size_t{2}, size_t{3}, size_t{7}}) {
    std::vector<std::string> texts;
    for (const Record& record : split(content, kind, piece_bytes)) {
      texts.push_back(std::to_string(record.line) + ":" + std::to_string(record.column) + "|" + record.bytes);
    }
    if (piece_bytes == 100000) expected = texts;
    EXPECT_EQ(texts, expected) << piece_bytes;
  }
  return expected;
}

std::string complaint(const std::string& content, RecordKind kind, int64_t largest = kAnySize) {
  return message_of<InputError>([&] { split(content, kind, 5, largest); });
}

TEST(RecordSplitter, Lines) {
  EXPECT_THAT(split_texts("{\"a\": 1}\n\n  \t\n{\"b\": 2}\r\n{\"c\"", RecordKind::kLines),
              ElementsAre("1:1|{\"a\": 1}", "4:1|{\"b\": 2}", "5:1|{\"c\""));
  EXPECT_THAT(split_texts("\xEF\xBB\xBF{}\n", RecordKind::kLines), ElementsAre("1:1|{}"));
  EXPECT_THAT(split_texts("", RecordKind::kLines), IsEmpty());
  EXPECT_THAT(split_texts("\n\r\n \n", RecordKind::kLines), IsEmpty());
  EXPECT_THAT(complaint("\n [{}]", RecordKind::kLines), AllOf(HasSubstr("x: begins with ["), HasSubstr(".json")));
  // A CR within a value is white space as any other; between two values it is no end of a line.
  EXPECT_THAT(split_texts("{\r\"a\":\r{}}\r\n[{},\r{}]\n", RecordKind::kLines),
              ElementsAre("1:1|{\r\"a\":\r{}}", "2:1|[{},\r{}]"));
  EXPECT_THAT(complaint("{\"a\": 1}\r{\"a\": 2}\r{\"a\": 3}\r", RecordKind::kLines),
              AllOf(HasSubstr("x: its lines end in CR"), HasSubstr("must end in LF")));
  EXPECT_THAT(complaint("{}\n{} \r\r {}\n", RecordKind::kLines), HasSubstr("x:2: its lines end in CR"));
}

TEST(RecordSplitter, ElementsOfAnArray) {
  // Brackets, quotes and escapes inside of strings, nesting, scalars, white space of every kind.
  const std::string content =
      " [ {\"a\": \"]}\\\"[\"},\n{\"b\": [1, {\"c\": []}]} , 1.5e3,\"x\\\\\",\r\n\tnull, [[]] ]\n ";
  EXPECT_THAT(split_texts(content, RecordKind::kJson),
              ElementsAre("1:4|{\"a\": \"]}\\\"[\"}", "2:1|{\"b\": [1, {\"c\": []}]}", "2:25|1.5e3", "2:31|\"x\\\\\"",
                          "3:2|null", "3:8|[[]]"));
  EXPECT_THAT(split_texts("[]", RecordKind::kJson), IsEmpty());
  EXPECT_THAT(split_texts("[1]", RecordKind::kJson), ElementsAre("1:2|1"));
}

TEST(RecordSplitter, ValuesWithoutAnArray) {
  EXPECT_THAT(split_texts("{\"a\":\n 1}\n{\"b\": 2} {\"c\": 3}", RecordKind::kJson),
              ElementsAre("1:1|{\"a\":\n 1}", "3:1|{\"b\": 2}", "3:10|{\"c\": 3}"));
  EXPECT_THAT(split_texts("", RecordKind::kJson), IsEmpty());
  EXPECT_THAT(complaint("{\"a\": 1},\n{\"b\": 2}", RecordKind::kJson), HasSubstr("x:1:9: not valid JSON: ','"));
}

TEST(RecordSplitter, WhatIsNoArray) {
  EXPECT_THAT(complaint("[{\"a\": 1}\n {\"b\": 2}]", RecordKind::kJson), HasSubstr("x:2:2: not valid JSON: a comma"));
  EXPECT_THAT(complaint("[1, 2,]", RecordKind::kJson), HasSubstr("x:1:7: not valid JSON: ']'"));
  EXPECT_THAT(complaint("[,1]", RecordKind::kJson), HasSubstr("x:1:2: not valid JSON: ','"));
  EXPECT_THAT(complaint("[1, 2", RecordKind::kJson), HasSubstr("cut off?"));
  EXPECT_THAT(complaint("[1, ", RecordKind::kJson), HasSubstr("x:1:5: not valid JSON: the file ends"));
  EXPECT_THAT(complaint("[", RecordKind::kJson), HasSubstr("cut off?"));
  EXPECT_THAT(complaint("[{\"a\": [1, 2}]", RecordKind::kJson), HasSubstr("x:1:13: not valid JSON: '}' where ']'"));
  EXPECT_THAT(complaint("[1,\n{\"a\": \"b]", RecordKind::kJson),
              AllOf(HasSubstr("x:2:10"), HasSubstr("begins at 2:1")));
  EXPECT_THAT(complaint("[\"abc", RecordKind::kJson), HasSubstr("a string that begins at 1:2"));
  EXPECT_THAT(complaint("[\"abc\\\"", RecordKind::kJson), HasSubstr("a string that begins at 1:2"));
  EXPECT_THAT(complaint("[1] [2]", RecordKind::kJson), HasSubstr("x:1:5: something follows the array"));
  EXPECT_THAT(complaint("[1:2]", RecordKind::kJson), HasSubstr("x:1:3"));
  EXPECT_THAT(complaint("[:]", RecordKind::kJson), HasSubstr("x:1:2"));
  EXPECT_THAT(complaint(std::string("[\0]", 3), RecordKind::kJson), HasSubstr("x:1:2"));
}

TEST(RecordSplitter, TextAndUnknownKinds) {
  const auto kinds = [](const std::string& content) {
    std::string text;
    for (const Record& record : split(content, RecordKind::kUnknown, 4)) text += record.is_plain_text ? 't' : 'j';
    return text;
  };
  EXPECT_EQ(kinds("{\"text\": 1}\n{\"text\": 2}"), "jj");
  EXPECT_EQ(kinds(" [ {}, {}, {}]"), "jjj");
  EXPECT_EQ(kinds("{% if x %}"), "t");
  EXPECT_EQ(kinds("[1] Plato."), "t");
  EXPECT_EQ(kinds("Call me Ishmael.\n"), "t");
  EXPECT_EQ(kinds("{"), "t");
  EXPECT_THAT(split_texts("\xEF\xBB\xBF{\"a\"}\n\n", RecordKind::kText), ElementsAre("1:1|{\"a\"}\n\n"));
}

TEST(RecordSplitter, LimitAndOtherFormats) {
  EXPECT_EQ(split("{\"a\": 1}\n", RecordKind::kLines, 3, 8).size(), 1u);
  EXPECT_THAT(complaint("{}\n{\"a\": 10}\n", RecordKind::kLines, 8),
              AllOf(HasSubstr("x:2:"), HasSubstr("longer than 8 B")));
  EXPECT_THAT(complaint("[{\"a\": 10}]", RecordKind::kJson, 8), HasSubstr("longer than 8 B"));
  EXPECT_THAT(complaint("123456789", RecordKind::kText, 8), HasSubstr("longer than 8 B"));
  EXPECT_THAT(complaint("\xFF\xFE{\0", RecordKind::kLines), HasSubstr("UTF-16"));
  EXPECT_THAT(complaint(std::string("PAR1\0\0", 6), RecordKind::kUnknown), HasSubstr("Parquet"));
  EXPECT_EQ(split("PAR1 is a par-3 hole", RecordKind::kText, 100).size(), 1u);
}

class RecordsTest : public testing::Test {
 protected:
  std::vector<std::string> read(const std::vector<std::string>& names) const {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(directory_.file(name));
    const std::unique_ptr<RecordSource> source = open_records({paths});
    std::vector<std::string> records = read_all(*source);
    EXPECT_EQ(source->bytes_read(), source->bytes_in_all());
    for (std::string& record : records) record = record.substr(directory_.path().size() + 1);
    return records;
  }
  void make_folder(const std::string& name) const { std::filesystem::create_directories(directory_.file(name)); }
  std::vector<std::string> files(const std::string& path) const {
    std::vector<std::string> files = find_record_files({directory_.file(path)}).files;
    for (std::string& file : files) file = file.substr(directory_.path().size() + 1);
    return files;
  }

  TemporaryDirectory directory_;
};

TEST_F(RecordsTest, FilesOfAllKindsInTheOrderGiven) {
  directory_.write("b.jsonl", "{\"n\": 1}\n\n{\"n\": 2}\n");
  directory_.write("a.json", "[{\"n\": 3}, {\"n\": 4}]");
  directory_.write("c.txt", "plain\ntext");
  EXPECT_THAT(read({"b.jsonl", "a.json", "c.txt", "b.jsonl"}),
              ElementsAre("b.jsonl:1|{\"n\": 1}", "b.jsonl:3|{\"n\": 2}", "a.json[0]|{\"n\": 3}",
                          "a.json[1]|{\"n\": 4}", "c.txt|plain\ntext", "b.jsonl:1|{\"n\": 1}", "b.jsonl:3|{\"n\": 2}"));
  const RecordFiles found = find_record_files({directory_.file("b.jsonl"), directory_.file("b.jsonl")});
  EXPECT_EQ(found.bytes, 2 * 19);
  EXPECT_THAT(found.notes, ElementsAre(HasSubstr("b.jsonl is named 2 times")));
}

TEST_F(RecordsTest, CompressedFiles) {
  const std::string content = "{\"n\": 1}\n{\"n\": 2}\n";
  const std::string gzip_path = directory_.file("a.jsonl.gz");
  gzFile gzip = gzopen(gzip_path.c_str(), "wb");
  gzwrite(gzip, content.data(), static_cast<unsigned>(content.size()));
  gzclose(gzip);
  std::string packed(ZSTD_compressBound(content.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), content.data(), content.size(), 3));
  directory_.write("b.jsonl.zst", packed);
  EXPECT_THAT(read({"a.jsonl.gz", "b.jsonl.zst"}), ElementsAre("a.jsonl.gz:1|{\"n\": 1}", "a.jsonl.gz:2|{\"n\": 2}",
                                                               "b.jsonl.zst:1|{\"n\": 1}", "b.jsonl.zst:2|{\"n\": 2}"));
  directory_.write("c.json.zst", packed.substr(0, packed.size() - 3));
  EXPECT_THAT(message_of<InputError>([&] { read({"c.json.zst"}); }), HasSubstr("cut off"));
}

TEST_F(RecordsTest, Folders) {
  make_folder("data/sub/deep");
  make_folder("data/.cache");
  for (const char* name :
       {"data/z.jsonl", "data/a.txt", "data/sub/deep/m.json.gz", "data/sub/B.ndjson.zst", "data/r.md", "data/README",
        "data/x.jsonl.bak", "data/.hidden.jsonl", "data/.cache/c.jsonl", "data/.jsonl"}) {
    directory_.write(name, "{}");
  }
  std::filesystem::create_directory_symlink(directory_.file("data"), directory_.file("data/sub/loop"));
  EXPECT_THAT(files("data"), ElementsAre("data/a.txt", "data/r.md", "data/sub/B.ndjson.zst", "data/sub/deep/m.json.gz",
                                         "data/z.jsonl"));
  const RecordFiles found = find_record_files({directory_.file("data")});
  EXPECT_THAT(found.left_out,
              ElementsAre(HasSubstr("data/.cache/"), HasSubstr("data/.hidden.jsonl"), HasSubstr("data/.jsonl"),
                          HasSubstr("data/README"), HasSubstr("data/sub/loop/"), HasSubstr("data/x.jsonl.bak")));
  EXPECT_THAT(found.notes, ElementsAre(AllOf(HasSubstr("5 files are read, left out: "), HasSubstr("and 1 more"))));
  std::filesystem::create_symlink("nowhere", directory_.file("data/dangling.jsonl"));
  EXPECT_THAT(message_of<FileError>([&] { files("data"); }), HasSubstr("dangling.jsonl: is a link"));
  make_folder("none");
  directory_.write("none/x.csv", "");
  EXPECT_THAT(message_of<InputError>([&] { files("none"); }), AllOf(HasSubstr("no file to read"), HasSubstr("x.csv")));
}

TEST_F(RecordsTest, Patterns) {
  make_folder("d/e/f");
  make_folder("d/.g");
  for (const char* name : {"d/1.jsonl", "d/2.jsonl", "d/10.jsonl", "d/e/3.jsonl", "d/e/f/4.jsonl", "d/.g/5.jsonl",
                           "d/.6.jsonl", "d/7.dat", "d/[8].jsonl"}) {
    directory_.write(name, "{\"n\": 1}");
  }
  EXPECT_THAT(files("d/*.jsonl"), ElementsAre("d/1.jsonl", "d/10.jsonl", "d/2.jsonl", "d/[8].jsonl"));
  EXPECT_THAT(files("d/?.jsonl"), ElementsAre("d/1.jsonl", "d/2.jsonl"));
  EXPECT_THAT(files("d/[12].jsonl"), ElementsAre("d/1.jsonl", "d/2.jsonl"));
  EXPECT_THAT(files("d/*/3.jsonl"), ElementsAre("d/e/3.jsonl"));
  EXPECT_THAT(files("d/**/[34].jsonl"), ElementsAre("d/e/3.jsonl", "d/e/f/4.jsonl"));
  EXPECT_THAT(files("d/**/1.jsonl"), ElementsAre("d/1.jsonl"));
  EXPECT_THAT(files("d/e/**"), ElementsAre("d/e/3.jsonl", "d/e/f/4.jsonl"));
  EXPECT_THAT(files("d/*.dat"), ElementsAre("d/7.dat"));
  EXPECT_THAT(files("d/[8].jsonl"), ElementsAre("d/[8].jsonl")) << "a file of that very name comes first";
  EXPECT_THAT(message_of<InputError>([&] { files("d/*.csv"); }), HasSubstr("d/*.csv: no file matches"));
  EXPECT_THAT(message_of<InputError>([&] { files("x*/y/*"); }), HasSubstr("no file matches"));
  EXPECT_THAT(message_of<InputError>([&] { files("d/e*"); }), HasSubstr("the folder"));
}

TEST_F(RecordsTest, NothingToRead) {
  EXPECT_THAT(message_of<FileError>([&] { files("absent.jsonl"); }), HasSubstr("absent.jsonl: there is no such file"));
  EXPECT_THAT(message_of<FileError>([] { find_record_files({"/dev/zero"}); }),
              HasSubstr("/dev/zero: is a device, not a regular file"));
  EXPECT_THAT(message_of<ConfigurationError>([] { find_record_files({}); }), HasSubstr("no data file is named"));
  EXPECT_THAT(message_of<ConfigurationError>([] { find_record_files({""}); }), HasSubstr("empty path"));
}

// At once, and without waiting for somebody who writes into the FIFO.
TEST_F(RecordsTest, FilesThatAreNotRegular) {
  make_folder("f");
  ASSERT_EQ(::mkfifo(directory_.file("f/a.jsonl").c_str(), 0600), 0);
  EXPECT_THAT(message_of<FileError>([&] { files("f/a.jsonl"); }),
              HasSubstr("f/a.jsonl: is a FIFO, not a regular file"));
  EXPECT_THAT(message_of<InputError>([&] { files("f"); }), AllOf(HasSubstr("no file to read"), HasSubstr("(a FIFO)")));
  EXPECT_THAT(message_of<InputError>([&] { files("f/*.jsonl"); }),
              AllOf(HasSubstr("no file matches"), HasSubstr("a.jsonl (a FIFO)")));
  directory_.write("f/b.jsonl", "{}");
  EXPECT_THAT(files("f"), ElementsAre("f/b.jsonl"));
  EXPECT_THAT(files("f/**"), ElementsAre("f/b.jsonl"));
  for (const char* path : {"f", "f/*"}) {
    const RecordFiles found = find_record_files({directory_.file(path)});
    EXPECT_THAT(found.left_out, ElementsAre(directory_.file("f/a.jsonl")));
    EXPECT_THAT(found.notes, ElementsAre(AllOf(HasSubstr("not regular files"), HasSubstr("f/a.jsonl (a FIFO)"))));
  }
}

// An empty file is the fault of one record: what follows it can be read.
TEST_F(RecordsTest, EmptyFiles) {
  const std::string empty = directory_.write("a.jsonl", " \n\n");
  const std::string good = directory_.write("b.jsonl", "{}");
  const std::unique_ptr<RecordSource> source = open_records({{empty, good, directory_.write("c.txt", "")}});
  EXPECT_THAT(message_of<RecordError>([&] { source->next(); }), HasSubstr("a.jsonl: holds no record"));
  EXPECT_EQ(source->next()->place, good + ":1");
  EXPECT_THAT(message_of<RecordError>([&] { source->next(); }), HasSubstr("c.txt: holds no record"));
  EXPECT_FALSE(source->next().has_value());
}

// A long line costs a few times its size, a long array only its longest element.
TEST_F(RecordsTest, LongLinesAndArrays) {
  const std::string long_text(3000000, 'x');
  directory_.write("a.jsonl", "{\"text\": \"" + long_text + "\"}\n{}\n");
  std::string array = "[";
  for (int i = 0; i < 100000; ++i) array += (i == 0 ? "" : ",") + std::string("{\"n\": [") + std::to_string(i) + "]}";
  directory_.write("b.json", array + "]");
  const std::vector<std::string> records = read({"a.jsonl", "b.json"});
  ASSERT_EQ(records.size(), 100002u);
  EXPECT_EQ(records[0], "a.jsonl:1|{\"text\": \"" + long_text + "\"}");
  EXPECT_EQ(records.back(), "b.json[99999]|{\"n\": [99999]}");
}

}  // namespace
}  // namespace ithaca
