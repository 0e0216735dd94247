#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/samples/sample_maker.h"
#include "data/test_files.h"

namespace ithaca {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class DetectFormat : public testing::Test {
 protected:
  DetectedFormat detect(const std::string& content, const std::string& name = "x.jsonl") const {
    return detect_format({directory_.write(name, content)});
  }
  std::string complaint(const std::string& content) const {
    return message_of<InputError>([&] { detect(content); });
  }

  TemporaryDirectory directory_;
};

TEST_F(DetectFormat, ByTheKeys) {
  EXPECT_EQ(detect(R"({"input_ids": [1]})").format, "input_ids");
  EXPECT_EQ(detect(R"({"messages": []})").format, "messages");
  EXPECT_EQ(detect(R"({"conversations": []})").format, "conversations");
  EXPECT_EQ(detect(R"({"prompt": "", "completion": ""})").format, "prompt_completion");
  EXPECT_EQ(detect(R"({"instruction": "", "output": ""})").format, "instruction");
  EXPECT_EQ(detect(R"({"text": ""})").format, "text");
  EXPECT_EQ(detect(R"({"messages": null, "text": ""})").format, "text");
  EXPECT_EQ(detect("{\"no\": \"JSON\"}", "x.txt").format, "text");
  EXPECT_EQ(detect("[{\"messages\": []}]", "x.json").format, "messages");
}

TEST_F(DetectFormat, SaysWhy) {
  const std::string reason = detect("{\"messages\": [], \"text\": \"\", \"prompt\": 1}\n{\"messages\": []}\n").reason;
  EXPECT_THAT(reason, AllOf(HasSubstr("auto took messages because "),
                            HasSubstr("x.jsonl:1 has \"messages\" (and is not taken for its \"text\")"),
                            HasSubstr("2 records of 1 of 1 file")));
}

TEST_F(DetectFormat, MixturesNameBoth) {
  EXPECT_THAT(complaint("{\"text\": \"a\"}\n{\"messages\": []}\n"),
              AllOf(HasSubstr("x.jsonl:1 has \"text\" (text)"), HasSubstr("x.jsonl:2 has \"messages\" (messages)")));
  const std::string first = directory_.write("a.jsonl", "{\"text\": \"a\"}\n");
  const std::string second = directory_.write("b.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
  EXPECT_THAT(message_of<InputError>([&] {
                detect_format({first, second});
              }),
              AllOf(HasSubstr("a.jsonl:1"), HasSubstr("b.jsonl:1 has \"prompt\" and \"completion\"")));
}

TEST_F(DetectFormat, NoFormat) {
  EXPECT_THAT(complaint(R"({"prompt": "a", "chosen": "b", "rejected": "c"})"), HasSubstr("pairs of a chosen"));
  EXPECT_THAT(complaint(R"({"body": "a"})"), AllOf(HasSubstr("x.jsonl:1"), HasSubstr("has the keys \"body\"")));
  EXPECT_THAT(complaint("17"), HasSubstr("is not an object but number"));
  EXPECT_THAT(complaint("{]"), HasSubstr("x.jsonl:1:2: not valid JSON"));
  EXPECT_THAT(complaint(""), HasSubstr("finds no record"));
}

// What cannot be read is left for data.on_error.
TEST_F(DetectFormat, RecordsThatCannotBeRead) {
  EXPECT_EQ(detect("{]\n{\"text\": \"\"}\n").format, "text");
}

}  // namespace
}  // namespace ithaca
