// Tokenizers against Hugging Face's own ids, texts and offsets.
#include "data/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"

namespace ithaca {
namespace {

nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

class TokenizerFixture : public testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder() const { return std::filesystem::path(ITHACA_TEST_DATA) / "tokenizers" / GetParam(); }
};

TEST_P(TokenizerFixture, GivesTheIdsAndTextsOfHuggingFace) {
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(folder());
  const nlohmann::json cases = read_json(folder() / "cases.json");
  ASSERT_GT(cases.size(), 5U);
  for (const nlohmann::json& item : cases) {
    const auto text = item.at("text").get<std::string>();
    const auto ids = item.at("ids").get<std::vector<int64_t>>();
    EXPECT_EQ(tokenizer->encode(text, {}).ids, ids) << text;
    EXPECT_EQ(tokenizer->encode(text, {true, false}).ids, item.at("ids_with_special").get<std::vector<int64_t>>())
        << text;
    EXPECT_EQ(tokenizer->decode(ids, {}), item.at("decoded").get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerFixture,
                         testing::Values("bpe-byte-fallback", "bpe-llama3-style", "bpe-qwen-style"),
                         [](const testing::TestParamInfo<std::string>& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace ithaca
