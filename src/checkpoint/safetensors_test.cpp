#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "data/test_files.h"

namespace ithaca {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string with_length(const std::string& header, const std::string& data) {
  std::string text(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(text.data(), &length, sizeof(length));
  return text + header + data;
}

std::string complaint(const std::string& content) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("x.safetensors", content);
  return message_of<InputError>([&] { const SafetensorsFile file(path); });
}

std::string small_file() {
  return with_length(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                     R"("b":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]},"__metadata__":{"format":"pt"}})",
                     std::string("\x00\x00\x80\x3f\x00\x00\x00\xc0", 8) + std::string("\x80\x3f\x00\xc0", 4));
}

TEST(Safetensors, ReadsAHandMadeFile) {
  const TemporaryDirectory directory;
  const SafetensorsFile file(directory.write("x.safetensors", small_file()));
  ASSERT_EQ(file.entries().size(), 2u);
  EXPECT_EQ(file.entries()[0].name, "a");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_THAT(file.read_float32("a"), ElementsAre(1.0f, -2.0f));
  EXPECT_THAT(file.read_float32("b"), ElementsAre(1.0f, -2.0f));
  EXPECT_EQ(file.find("b")->shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_THROW(file.read_float32("c"), InputError);
}

TEST(Safetensors, EveryTruncationIsAnInputError) {
  const TemporaryDirectory directory;
  const std::string whole = small_file();
  for (size_t length = 0; length < whole.size(); ++length) {
    const std::string path = directory.write("x.safetensors", whole.substr(0, length));
    EXPECT_THAT(message_of<InputError>([&] { const SafetensorsFile file(path); }), HasSubstr(path)) << length;
  }
}

// Any single wrong byte either is noticed or leaves a file whose tensors can all be read.
TEST(Safetensors, NoByteCanCrashTheReader) {
  const TemporaryDirectory directory;
  const std::string whole = small_file();
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int change : {1, 0x20, 0xff}) {
      std::string broken = whole;
      broken[at] = static_cast<char>(broken[at] ^ change);
      const std::string path = directory.write("x.safetensors", broken);
      try {
        const SafetensorsFile file(path);
        for (const SafetensorsFile::Entry& entry : file.entries()) {
          ASSERT_LE(static_cast<size_t>(entry.end), whole.size());
          if (entry.dtype == DType::float32 || entry.dtype == DType::bfloat16) {
            ASSERT_LE(file.read_float32(entry.name).size(), 4u);
          }
        }
      } catch (const InputError&) {
        continue;
      }
    }
  }
}

TEST(Safetensors, BrokenFilesSayWhatIsWrong) {
  const std::string data(8, '\0');
  const auto of = [&](const std::string& header) { return complaint(with_length(header, data)); };
  EXPECT_THAT(complaint(""), HasSubstr("0 bytes are too few"));
  EXPECT_THAT(complaint(std::string(8, '\xff')), HasSubstr("its header claims"));
  EXPECT_THAT(of("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(of("[]"), HasSubstr("JSON object"));
  EXPECT_THAT(of(R"({"a":3})"), HasSubstr("tensor \"a\""));
  EXPECT_THAT(of(R"({"a":{"dtype":"F32","shape":[2]}})"), HasSubstr("\"data_offsets\" is missing"));
  EXPECT_THAT(of(R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})"), HasSubstr("unknown dtype \"F33\""));
  EXPECT_THAT(of(R"({"a":{"dtype":7,"shape":[2],"data_offsets":[0,8]}})"), HasSubstr("unknown dtype 7"));
  EXPECT_THAT(of(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})"), HasSubstr("shape [-2]"));
  EXPECT_THAT(of(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})"), HasSubstr("shape [2.0]"));
  EXPECT_THAT(of(R"({"a":{"dtype":"F32","shape":"2","data_offsets":[0,8]}})"), HasSubstr("a list"));
  EXPECT_THAT(of(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})"),
              AllOf(HasSubstr("takes 12 bytes"), HasSubstr("hold 8")));
  EXPECT_THAT(of(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})"),
              HasSubstr("larger than any file"));
  EXPECT_THAT(of(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})"),
              HasSubstr("within the 8 bytes of data"));
  EXPECT_THAT(of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}})"), HasSubstr("[8, 4]"));
  EXPECT_THAT(of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})"),
              HasSubstr("two whole numbers"));
  EXPECT_THAT(of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],)"
                 R"("data_offsets":[4,8]}})"),
              HasSubstr("tensor \"b\" overlaps tensor \"a\""));
  EXPECT_THAT(of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],)"
                 R"("data_offsets":[4,8]}})"),
              HasSubstr("\"a\" appears twice"));
  EXPECT_THAT(of(R"({"__metadata__":{"format":1}})"), HasSubstr("must be a string"));
  EXPECT_THAT(of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})"),
              HasSubstr("4 bytes after its last tensor belong to none"));
  EXPECT_THAT(of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"),
              HasSubstr("bytes 0 to 4 of its data belong to no tensor, before tensor \"a\""));
}

TEST(Safetensors, UnusualButRight) {
  const TemporaryDirectory directory;
  // A scalar, a tensor without elements, a type that is of no use here, data that is not aligned.
  const std::string path = directory.write(
      "x.safetensors",
      with_length(R"({"late":{"dtype":"F32","shape":[1],"data_offsets":[5,9]},"scalar":{"dtype":"F32","shape":[],)"
                  R"("data_offsets":[0,4]},"none":{"dtype":"F32","shape":[0,5],"data_offsets":[4,4]},)"
                  R"("mask":{"dtype":"BOOL","shape":[1],"data_offsets":[4,5]}})",
                  std::string("\x00\x00\x40\x40\x01\x00\x00\xa0\x40", 9)));
  const SafetensorsFile file(path);
  EXPECT_THAT(file.read_float32("scalar"), ElementsAre(3.0f));
  EXPECT_THAT(file.read_float32("late"), ElementsAre(5.0f));
  EXPECT_TRUE(file.read_float32("none").empty());
  EXPECT_THAT(message_of<InputError>([&] { (void)file.read_float32("mask"); }), HasSubstr("stored as BOOL"));
  EXPECT_THAT(message_of<InputError>([&] { (void)file.tensor("mask"); }), HasSubstr("BOOL"));
  EXPECT_THROW(SafetensorsFile(directory.file("absent.safetensors")), FileError);
  EXPECT_THROW(SafetensorsFile(directory.path()), FileError);
}

TEST(Safetensors, OffsetsBeyondFourGigabytes) {
  const TemporaryDirectory directory;
  const int64_t count = (int64_t{5} << 30) / 4;  // sparse: takes no room
  const std::string header = R"({"big":{"dtype":"F32","shape":[)" + std::to_string(count) + R"(],"data_offsets":[0,)" +
                             std::to_string(4 * count) + "]}}";
  const std::string path = directory.write("x.safetensors", with_length(header, ""));
  std::filesystem::resize_file(path, 8 + header.size() + static_cast<size_t>(4 * count) - 4);
  std::ofstream(path, std::ios::binary | std::ios::app).write("\x00\x00\x40\x40", 4);
  const SafetensorsFile file(path);
  std::vector<float> last(2);
  file.read_float32("big", count - 2, last);
  EXPECT_THAT(last, ElementsAre(0.0f, 3.0f));
  EXPECT_THROW(file.read_float32("big", count - 1, last), ContractError);
}

TEST(Safetensors, WriterMakesTheDocumentedBytes) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("x.safetensors");
  SafetensorsWriter writer(path, {{"a", DType::float32, {2}}, {"b", DType::bfloat16, {1, 2}}});
  writer.write(std::vector<float>{1.0f, -2.0f, 1.0f});
  writer.write(std::vector<float>{-2.0f});
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.finish();
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
  std::string header = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                       R"("b":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(read_test_file(path), with_length(header, std::string("\x00\x00\x80\x3f\x00\x00\x00\xc0", 8) +
                                                          std::string("\x80\x3f\x00\xc0", 4)));
}

TEST(Safetensors, RoundTripOfEveryType) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("x.safetensors");
  // More than the writer's buffer, in uneven pieces over tensor borders.
  const std::vector<SafetensorsWriter::Spec> tensors = {
      {"f32", DType::float32, {1000, 1000}}, {"empty", DType::float32, {0, 3}}, {"bf16", DType::bfloat16, {700001}},
      {"f16", DType::float16, {30, 10, 2}},  {"f64", DType::float64, {99, 7}},  {"nothing", DType::float16, {3, 0}}};
  std::vector<float> values;
  for (int64_t i = 0; i < 1000000 + 700001 + 600 + 693; ++i) values.push_back(std::sin(static_cast<float>(i)));
  SafetensorsWriter writer(path, tensors);
  for (size_t first = 0, step = 1; first < values.size(); first += step, step = step * 3 + 1) {
    writer.write(std::span(values).subspan(first, std::min(step, values.size() - first)));
  }
  writer.finish();

  const SafetensorsFile file(path);
  ASSERT_EQ(file.entries().size(), tensors.size());
  size_t at = 0;
  for (const SafetensorsWriter::Spec& tensor : tensors) {
    const std::vector<float> stored = file.read_float32(tensor.name);
    ASSERT_EQ(static_cast<int64_t>(stored.size()), tensor.extents.product());
    for (const float value : stored) {
      const float original = values[at++];
      // Half a unit in the last place: 2^-9 of the value for bfloat16's 8 bits, 2^-12 for float16's 11.
      const float bound = tensor.dtype == DType::bfloat16  ? std::ldexp(std::abs(original), -8)
                          : tensor.dtype == DType::float16 ? std::ldexp(std::abs(original), -11) + 3e-8f
                                                           : 0.0f;
      ASSERT_LE(std::abs(value - original), bound) << tensor.name;
    }
  }
  EXPECT_EQ(at, values.size());
  EXPECT_EQ(file.tensor("f16").describe(), "float16 [30, 10, 2]");
}

TEST(Safetensors, UnfinishedFilesDisappear) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("x.safetensors", small_file());
  {
    SafetensorsWriter writer(path, {{"a", DType::float32, {2}}});
    writer.write(std::vector<float>{1.0f});
    EXPECT_THAT(message_of<ContractError>([&] { writer.finish(); }), HasSubstr("\"a\" has 2 values, 1 were written"));
  }
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
  EXPECT_EQ(read_test_file(path), small_file());
  SafetensorsWriter writer(path, {{"a", DType::float32, {2}}});
  EXPECT_THROW(writer.write(std::vector<float>(3)), ContractError);
  EXPECT_THROW(SafetensorsWriter(path, {{"a", DType::float32, {2}}, {"a", DType::float32, {2}}}), ContractError);
  EXPECT_THROW(SafetensorsWriter(path, {{"a", DType::int64, {2}}}), ContractError);
  EXPECT_THROW(SafetensorsWriter(directory.file("no/such/folder/x"), {}), FileError);
}

TEST(Safetensors, ReadsFilesOfHuggingFace) {
  const SafetensorsFile file(std::string(ITHACA_TEST_DATA) + "/models/qwen3/expected.safetensors");
  EXPECT_EQ(file.find("logits")->shape, (std::vector<int64_t>{1, 96, 160}));
  for (const SafetensorsFile::Entry& entry : file.entries()) {
    for (const float value : file.read_float32(entry.name)) ASSERT_TRUE(std::isfinite(value)) << entry.name;
  }
}

}  // namespace
}  // namespace ithaca
