// Every part that a tokenizer.json may have, against what Hugging Face's library makes of it
// (tests/data/tokenizers/components.json, written by scripts/tokenizer_components.mjs).
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/json_tokenizer.h"

namespace ithaca {
namespace {

using nlohmann::json;

class TokenizerComponents : public testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(std::string(ITHACA_TEST_DATA) + "/tokenizers/components.json");
    data_ = json::parse(file);
    ASSERT_GT(data_.at("cases").size(), 150U);
  }
  std::unique_ptr<Tokenizer> make(const json& item) const {
    json description = item.at("parts");
    description["model"] = data_.at("models").at(item.at("model").get<std::string>());
    return tokenizer_internal::make_json_tokenizer(description.dump(), "tokenizer.json", {});
  }
  json data_;
};

TEST_F(TokenizerComponents, GiveTheIdsAndTextsOfHuggingFace) {
  for (const json& item : data_.at("cases")) {
    const auto name = item.at("name").get<std::string>();
    std::unique_ptr<Tokenizer> tokenizer;
    try {
      tokenizer = make(item);
    } catch (const Error& error) {
      ADD_FAILURE() << name << ": " << error.what();
      continue;
    }
    for (size_t index = 0; index < data_.at("texts").size(); ++index) {
      const auto text = data_.at("texts")[index].get<std::string>();
      const auto ids = item.at("ids")[index].get<std::vector<int64_t>>();
      EXPECT_EQ(tokenizer->encode(text, {true, false}).ids, ids) << name << ": " << text;
      if (item.at("decoded").empty()) continue;
      EXPECT_EQ(tokenizer->decode(ids, {true}), item.at("decoded")[index].get<std::string>()) << name << ": " << text;
    }
  }
}

// What spans promise, whatever the parts do: one for each id, in order, within the text, on borders of characters,
// overlapping only where one character gave several tokens.
TEST_F(TokenizerComponents, SpansAreInOrder) {
  for (const json& item : data_.at("cases")) {
    // Where some bytes are tokens and some are not, unknown characters come behind bytes that follow them, as in
    // Hugging Face's library.
    if (item.at("model") == "some_bytes") continue;
    const std::unique_ptr<Tokenizer> tokenizer = make(item);
    for (const json& value : data_.at("texts")) {
      const auto text = value.get<std::string>();
      const Encoding encoding = tokenizer->encode(text, {false, true});
      ASSERT_EQ(encoding.spans.size(), encoding.ids.size());
      TextSpan last;
      const auto is_border = [&](int64_t place) {
        return place == static_cast<int64_t>(text.size()) ||
               (static_cast<unsigned char>(text[static_cast<size_t>(place)]) & 0xC0U) != 0x80U;
      };
      for (const TextSpan& span : encoding.spans) {
        const bool in_order = (span.begin >= last.begin && span.end >= last.end) || span.begin == span.end;
        EXPECT_TRUE(in_order && span.begin <= span.end) << item.at("name") << ": " << text << " " << span.begin;
        ASSERT_TRUE(span.begin >= 0 && span.end <= static_cast<int64_t>(text.size()));
        EXPECT_TRUE(is_border(span.begin) && is_border(span.end)) << item.at("name") << ": " << text;
        if (span.begin < span.end) last = span;
      }
    }
  }
}

}  // namespace
}  // namespace ithaca
