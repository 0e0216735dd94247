// Event files, held to the CRC values of RFC 3720 and to Debian's protobuf compiler, which decodes every record.
#include "train/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <memory>

#include "base/error.h"

namespace ithaca {
namespace {

namespace fs = std::filesystem;

// One bit after the other, straight from the definition.
uint32_t slow_crc32c(const std::string& bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const char byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool odd = ((crc ^ (static_cast<uint8_t>(byte) >> bit)) & 1) != 0;
      crc = (crc >> 1) ^ (odd ? 0x82f63b78U : 0U);
    }
  }
  return ~crc;
}

uint32_t slow_masked(const std::string& bytes) {
  const uint32_t crc = slow_crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

template <typename Value>
Value take(const std::string& bytes, size_t& at) {
  Value value{};
  EXPECT_LE(at + sizeof(value), bytes.size());
  std::memcpy(&value, bytes.data() + at, sizeof(value));  // the tests run on little-endian machines
  at += sizeof(value);
  return value;
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The data of every record, after both checks.
std::vector<std::string> records_of(const fs::path& path) {
  const std::string bytes = read_file(path);
  std::vector<std::string> records;
  for (size_t at = 0; at < bytes.size();) {
    const std::string length_bytes = bytes.substr(at, 8);
    const auto length = take<uint64_t>(bytes, at);
    EXPECT_EQ(take<uint32_t>(bytes, at), slow_masked(length_bytes));
    const std::string data = bytes.substr(at, length);
    EXPECT_EQ(data.size(), length);
    at += length;
    EXPECT_EQ(take<uint32_t>(bytes, at), slow_masked(data));
    records.push_back(data);
  }
  return records;
}

class Tensorboard : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              (std::string("ithaca_tensorboard_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // The message as protobuf's own compiler prints it.
  std::string decode(const std::string& event) const {
    const fs::path file = folder_ / "one_event";
    std::ofstream(file, std::ios::binary) << event;
    const std::string command = "protoc --decode=tensorboard.Event -I" ITHACA_TEST_DATA "/tensorboard event.proto < '" +
                                file.string() + "' 2>&1";
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
    std::string text;
    char part[4096];
    for (size_t count = 0; (count = fread(part, 1, sizeof(part), pipe.get())) > 0;) text.append(part, count);
    return text;
  }
  static bool protoc_is_here() { return std::system("command -v protoc >/dev/null 2>&1") == 0; }

  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder_ / "tensorboard")) found.push_back(entry.path());
    std::sort(found.begin(), found.end());
    return found;
  }
  std::string target() const { return (folder_ / "tensorboard").string(); }

  static StepMetrics some_metrics(int64_t step) {
    StepMetrics metrics;
    metrics.step = step;
    metrics.loss = 2.5;
    metrics.grad_norm = 0.125;
    metrics.learning_rate = 0.0009765625;
    metrics.memory.peak = int64_t{1} << 40;
    metrics.memory.peak_by_class[0] = 4096;
    return metrics;
  }

  fs::path folder_;
};

TEST(Crc32c, TheVectorsOfRfc3720) {
  std::string rising;
  std::string falling;
  for (int value = 0; value < 32; ++value) {
    rising.push_back(static_cast<char>(value));
    falling.push_back(static_cast<char>(31 - value));
  }
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c(rising), 0x46dd794eU);
  EXPECT_EQ(crc32c(falling), 0x113fdb5cU);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);  // the check value of the catalogue of CRC algorithms
  EXPECT_EQ(crc32c(""), 0U);
}

TEST_F(Tensorboard, ARunThatProtobufReads) {
  if (!protoc_is_here()) GTEST_SKIP() << "protoc is not installed: nothing outside Ithaca has read the events";
  TensorboardWriter writer(target(), 0);
  EXPECT_THAT(fs::path(writer.path()).filename().string(), testing::StartsWith("events.out.tfevents.1"));
  writer.write(some_metrics(1));
  // What has been written is there before the writer is gone: a live view depends on it.
  ASSERT_EQ(records_of(writer.path()).size(), 2u);
  StepMetrics skipped = some_metrics(300);
  skipped.loss = std::numeric_limits<double>::quiet_NaN();
  writer.write(skipped);
  writer.write(EvaluationMetrics{300, 3.25, 10, 0.5});

  const std::vector<std::string> records = records_of(writer.path());
  ASSERT_EQ(records.size(), 4u);
  EXPECT_THAT(decode(records[0]), testing::ContainsRegex("wall_time: [0-9.e+]+\nfile_version: \"brain.Event:2\"\n$"));
  const std::string first = decode(records[1]);
  EXPECT_THAT(first, testing::HasSubstr("step: 1\n"));
  EXPECT_THAT(first, testing::HasSubstr("  value {\n    tag: \"train/loss\"\n    simple_value: 2.5\n  }\n"));
  EXPECT_THAT(first, testing::HasSubstr("    tag: \"train/grad_norm\"\n    simple_value: 0.125\n"));
  EXPECT_THAT(first, testing::HasSubstr("    tag: \"train/learning_rate\"\n    simple_value: 0.0009765625\n"));
  EXPECT_THAT(first, testing::HasSubstr("    tag: \"memory/total\"\n    simple_value: 1.09951163e+12\n"));
  EXPECT_THAT(first, testing::HasSubstr("    tag: \"memory/weights\"\n    simple_value: 4096\n"));
  EXPECT_THAT(first, testing::HasSubstr("    tag: \"memory/saved\"\n    simple_value: 0\n"));
  const std::string third = decode(records[2]);
  EXPECT_THAT(third, testing::HasSubstr("step: 300\n"));
  EXPECT_THAT(third, testing::HasSubstr("tag: \"train/loss\"\n    simple_value: nan\n"));
  EXPECT_THAT(decode(records[3]), testing::HasSubstr("tag: \"eval/loss\"\n    simple_value: 3.25\n"));
  // Field numbers that the description does not have would be printed as numbers.
  for (const std::string& record : records)
    EXPECT_THAT(decode(record), testing::Not(testing::ContainsRegex("\n *[0-9]+[:{ ]")));
}

TEST_F(Tensorboard, LargeStepsAndLongTags) {
  if (!protoc_is_here()) GTEST_SKIP() << "protoc is not installed: nothing outside Ithaca has read the events";
  const std::string tag(300, 't');
  const std::string text = decode(scalar_event(1.5, int64_t{1} << 40, {{tag, -1.0}}));
  EXPECT_EQ(text, "wall_time: 1.5\nstep: 1099511627776\nsummary {\n  value {\n    tag: \"" + tag +
                      "\"\n    simple_value: -1\n  }\n}\n");
}

TEST_F(Tensorboard, ANewRunTakesTheFilesOfAnotherAway) {
  TensorboardWriter(target(), 0).write(some_metrics(1));
  std::ofstream(folder_ / "tensorboard" / "notes.txt") << "not a run's";
  TensorboardWriter second(target(), 0);
  EXPECT_EQ(files().size(), 2u);
  EXPECT_TRUE(fs::exists(folder_ / "tensorboard" / "notes.txt"));
  EXPECT_EQ(records_of(second.path()).size(), 1u);
}

TEST_F(Tensorboard, AResumedRunGoesOnAfterItsLastStep) {
  if (!protoc_is_here()) GTEST_SKIP() << "protoc is not installed: nothing outside Ithaca has read the events";
  std::string first;
  {
    TensorboardWriter writer(target(), 0);
    for (int64_t step = 1; step <= 5; ++step) writer.write(some_metrics(step));
    first = writer.path();
  }
  TensorboardWriter resumed(target(), 3);
  ASSERT_EQ(files().size(), 2u);
  EXPECT_EQ(files()[0], fs::path(first));
  EXPECT_EQ(files()[1], fs::path(resumed.path()));  // read after the first, whatever the clock said
  const std::vector<std::string> records = records_of(resumed.path());
  ASSERT_EQ(records.size(), 2u);
  EXPECT_THAT(decode(records[1]), testing::ContainsRegex("step: 4\nsession_log \\{\n  status: START\n\\}\n$"));
}

TEST_F(Tensorboard, FilesAreRemovedWithTheirFolder) {
  TensorboardWriter(target(), 0).write(some_metrics(1));
  remove_event_files(target());
  EXPECT_FALSE(fs::exists(target()));
  EXPECT_NO_THROW(remove_event_files(target()));
  std::ofstream(folder_ / "tensorboard") << "a file";
  EXPECT_THROW(TensorboardWriter(target(), 0), FileError);
}

}  // namespace
}  // namespace ithaca
