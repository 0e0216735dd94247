#include "data/samples/record_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/samples/quoted_text.h"
#include "data/samples/testing_tokenizer.h"
#include "data/test_files.h"

namespace ithaca {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string complaint(const std::string& text) {
  return message_of<RecordError>([&] { parse_record(json_record(text, 7)); });
}

TEST(RecordJson, EveryKindOfValue) {
  const std::string text = R"({"b":[1,-2,3.5,"x\nyé",true,null,{}],"a":{"c":[],"d":18446744073709551615}})";
  EXPECT_EQ(parse_record(json_record(text)).dump(), text);
  EXPECT_EQ(parse_record(json_record("\"only\"")).dump(), "\"only\"");
}

TEST(RecordJson, ErrorsNameThePlace) {
  EXPECT_THAT(complaint("{\"a\": 1,, \"b\": 2}"), StartsWith("x.jsonl:7:9: not valid JSON"));
  EXPECT_THAT(complaint("{\"a\": 1} {}"), StartsWith("x.jsonl:7:10: not valid JSON"));
  EXPECT_THAT(complaint("{\"a\": NaN}"), StartsWith("x.jsonl:7:7: not valid JSON"));
  EXPECT_THAT(complaint("{\"a\": 1e999}"), StartsWith("x.jsonl:7:"));
  EXPECT_THAT(complaint("{\"a\": \"\\ud800\"}"), StartsWith("x.jsonl:7:"));
  EXPECT_THAT(complaint(""), StartsWith("x.jsonl:7:1: not valid JSON"));
  EXPECT_THAT(complaint("{\"a\": \"b\xFF\"}"),
              AllOf(StartsWith("x.jsonl:7:9: not UTF-8"), HasSubstr("byte 8"), HasSubstr("0xFF")));

  // Of an element that begins in the middle of a line and goes over several.
  Record element = json_record("{\"a\":\n  1,,}", 3);
  element.column = 20;
  EXPECT_THAT(message_of<RecordError>([&] { parse_record(element); }), StartsWith("x.jsonl:4:5: "));
  element.bytes = "{,}";
  EXPECT_THAT(message_of<RecordError>([&] { parse_record(element); }), StartsWith("x.jsonl:3:21: "));
  // Of a record that knows no file.
  EXPECT_THAT(message_of<RecordError>([] { parse_record({"{,}", "there"}); }), StartsWith("there: byte 1: not valid"));
}

TEST(RecordJson, RepeatedKeys) {
  EXPECT_THAT(complaint("{\"a\": 1, \"b\": {\"c\": 1, \"c\": 2}}"),
              HasSubstr("x.jsonl:7: the key \"c\" appears twice"));
  EXPECT_EQ(parse_record(json_record("{\"a\": {\"a\": 1}, \"b\": [{\"a\": 1}, {\"a\": 1}]}")).size(), 2u);
  // Objects of many keys are watched in another way.
  std::string many = "{";
  for (int i = 0; i < 100; ++i) many += fmt::format("\"k{}\": {}, ", i, i);
  EXPECT_EQ(parse_record(json_record(many + "\"k\": 0}")).size(), 101u);
  for (const int repeated : {0, 15, 16, 17, 99}) {
    EXPECT_THAT(complaint(many + fmt::format("\"k{}\": 0}}", repeated)), HasSubstr("appears twice")) << repeated;
  }
}

TEST(RecordJson, Nesting) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(parse_record(json_record(nested(kDeepestJson))).is_array());
  EXPECT_THAT(complaint(nested(kDeepestJson + 1)), HasSubstr("nested more than 200 deep"));
  EXPECT_THAT(complaint(std::string(10000000, '[')), HasSubstr("nested more than 200 deep"));
  EXPECT_TRUE(parse_embedded_json(nested(kDeepestJson + 1)).is_discarded());
  EXPECT_TRUE(parse_embedded_json("{\"a\": 1, \"a\": 2}").is_discarded());
  EXPECT_EQ(parse_embedded_json("{\"a\": 1}").dump(), "{\"a\":1}");
}

TEST(QuotedText, CutsAtCharacters) {
  EXPECT_EQ(quoted_text("a\n\"\xC3\xA9\xFF"), "\"a\\n\\\"\\u00e9\\ufffd\"");
  EXPECT_EQ(quoted_text_around("0123456789", 5, 2), "\"3456\"");
  EXPECT_EQ(quoted_text_around("ab", 9, 3), "\"\"");
  EXPECT_EQ(quoted_text_around("\xC3\xA9\xC3\xA9\xC3\xA9", 3, 1), "\"\\u00e9\"");
  EXPECT_EQ(brief_json(nlohmann::ordered_json(std::string(100, 'x'))), "\"" + std::string(59, 'x') + "...");
  EXPECT_EQ(brief_json(nlohmann::ordered_json::array({1})), "an array");
}

}  // namespace
}  // namespace ithaca
