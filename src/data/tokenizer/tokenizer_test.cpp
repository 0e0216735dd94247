// Tokenizers against Hugging Face's own ids, texts and offsets.
#include "data/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"

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
                         testing::Values("bpe-byte-fallback", "bpe-llama3-style", "bpe-qwen-style", "sentencepiece"),
                         [](const testing::TestParamInfo<std::string>& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

std::unique_ptr<Tokenizer> fixture(const std::string& name) {
  return open_tokenizer(std::filesystem::path(ITHACA_TEST_DATA) / "tokenizers" / name);
}

std::vector<std::pair<int64_t, int64_t>> spans_of(const Tokenizer& tokenizer, const std::string& text,
                                                  bool special = false) {
  std::vector<std::pair<int64_t, int64_t>> result;
  for (const TextSpan& span : tokenizer.encode(text, {special, true}).spans) result.emplace_back(span.begin, span.end);
  return result;
}

using testing::ElementsAre;
using testing::Pair;

TEST(Spans, PartsOfOneCharacterHaveAllOfIt) {
  // x, three tokens for the four bytes of one character, y.
  EXPECT_THAT(spans_of(*fixture("bpe-llama3-style"), "x\xF0\x9F\xA7\xBFy"),
              ElementsAre(Pair(0, 1), Pair(1, 5), Pair(1, 5), Pair(1, 5), Pair(5, 6)));
  EXPECT_THAT(spans_of(*fixture("sentencepiece"), "\xF0\x9F\xA7\xBF"),
              ElementsAre(Pair(0, 0), Pair(0, 4), Pair(0, 4), Pair(0, 4), Pair(0, 4)));
}

TEST(Spans, SpecialTokensAroundATextAreEmpty) {
  EXPECT_THAT(spans_of(*fixture("bpe-llama3-style"), "7", true), ElementsAre(Pair(0, 0), Pair(0, 1)));
  EXPECT_THAT(spans_of(*fixture("sentencepiece"), "7", true), ElementsAre(Pair(0, 0), Pair(0, 0), Pair(0, 1)));
}

TEST(Spans, ComposedCharactersComeFromAllTheirParts) {
  // NFC makes one character (two tokens) of e and U+0301.
  EXPECT_THAT(spans_of(*fixture("bpe-qwen-style"),
                       "1e\xCC\x81"
                       "2"),
              ElementsAre(Pair(0, 1), Pair(1, 4), Pair(1, 4), Pair(4, 5)));
}

TEST(Spans, BytesThatAreNotUtf8StandForThemselves) {
  const auto tokenizer = fixture("bpe-llama3-style");
  const Encoding encoding = tokenizer->encode(
      "1\xFF"
      "2\xE2\x82",
      {false, true});
  EXPECT_EQ(tokenizer->decode(encoding.ids, {}),
            "1\xEF\xBF\xBD"
            "2\xEF\xBF\xBD");
  std::vector<std::pair<int64_t, int64_t>> places;
  for (const TextSpan& span : encoding.spans) {
    if (places.empty() || places.back() != std::pair(span.begin, span.end)) places.emplace_back(span.begin, span.end);
  }
  EXPECT_THAT(places, ElementsAre(Pair(0, 1), Pair(1, 2), Pair(2, 3), Pair(3, 5)));
}

TEST(Spans, WhatIsInsertedHasNoBytes) {
  const auto tokenizer = fixture("bpe-byte-fallback");
  const auto spans = spans_of(*tokenizer, "</s>9");
  EXPECT_THAT(spans, ElementsAre(Pair(0, 4), Pair(4, 4), Pair(4, 5)));
}

// Random texts of ASCII, other scripts, broken UTF-8 and special tokens.
std::string random_text(std::mt19937& random, size_t length) {
  static const std::vector<std::string> pieces = {"a",
                                                  "the ",
                                                  " ",
                                                  "\n",
                                                  "1",
                                                  "'s",
                                                  "\xC3\xA9",
                                                  "\xE4\xBD\xA0",
                                                  "<|im_end|>",
                                                  "\t",
                                                  "word",
                                                  "_",
                                                  "\xF0\x9F\x91\x8D",
                                                  "\xFF",
                                                  "\xE2\x82",
                                                  "-",
                                                  "  ",
                                                  "Z"};
  std::string text;
  while (text.size() < length) text += pieces[random() % pieces.size()];
  return text;
}

TEST(Properties, ByteLevelTokenizersGiveBackTheText) {
  const auto tokenizer = fixture("bpe-llama3-style");
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const std::string text = random_text(random, random() % 200);
    const Encoding encoding = tokenizer->encode(text, {false, true});
    EXPECT_EQ(tokenizer->decode(encoding.ids, {}), valid_utf8(text));
    // Everything is covered, in order.
    int64_t end = 0;
    for (const TextSpan& span : encoding.spans) {
      EXPECT_LE(span.begin, end);
      EXPECT_GE(span.end, end);
      end = std::max(end, span.end);
    }
    EXPECT_EQ(end, static_cast<int64_t>(text.size()));
  }
}

TEST(Properties, SpansDoNotChangeIds) {
  std::mt19937 random(2);
  for (const char* name : {"bpe-llama3-style", "bpe-qwen-style", "bpe-byte-fallback", "sentencepiece"}) {
    const auto tokenizer = fixture(name);
    for (int round = 0; round < 50; ++round) {
      const std::string text = random_text(random, random() % 200);
      const Encoding with = tokenizer->encode(text, {true, true});
      EXPECT_EQ(tokenizer->encode(text, {true, false}).ids, with.ids) << name << ": " << text;
      EXPECT_EQ(with.spans.size(), with.ids.size());
    }
  }
}

TEST(Properties, ManyThreadsGiveTheSame) {
  const auto tokenizer = fixture("bpe-qwen-style");
  std::mt19937 random(3);
  std::vector<std::string> texts;
  std::vector<std::vector<int64_t>> wanted;
  for (int index = 0; index < 100; ++index) {
    texts.push_back(random_text(random, 300));
    wanted.push_back(tokenizer->encode(texts.back(), {}).ids);
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (size_t index = 0; index < texts.size(); ++index) {
        if (tokenizer->encode(texts[index], {}).ids != wanted[index]) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(SentencePiece, LongTextsAreTheirWordsOneAfterTheOther) {
  const auto tokenizer = fixture("sentencepiece");
  std::mt19937 random(4);
  const std::vector<std::string> words = {"the", "hacker", "of", "7", "great", "slang", "don't", "\xC3\xA9t\xC3\xA9"};
  std::string text;
  std::vector<int64_t> ids;
  while (text.size() < 200000) {
    const std::string& word = words[random() % words.size()];
    text += (text.empty() ? "" : " ") + word;
    const Encoding encoding = tokenizer->encode(word, {});
    ids.insert(ids.end(), encoding.ids.begin(), encoding.ids.end());
  }
  const Encoding encoding = tokenizer->encode(text, {false, true});
  EXPECT_EQ(encoding.ids, ids);
  EXPECT_EQ(tokenizer->encode(text, {}).ids, ids);
  EXPECT_EQ(tokenizer->decode(ids, {}), text);
  int64_t end = 0;
  for (const TextSpan& span : encoding.spans) {
    EXPECT_TRUE(span.begin == end || (span.begin < end && span.end == end));
    end = span.end;
  }
  EXPECT_EQ(end, static_cast<int64_t>(text.size()));
}

TEST(SentencePiece, KnowsItsSpecialTokens) {
  const auto tokenizer = fixture("sentencepiece");
  EXPECT_EQ(tokenizer->beginning_of_text_id(), 1);
  EXPECT_EQ(tokenizer->end_of_text_id(), 2);
  EXPECT_EQ(tokenizer->vocabulary_size(), 700);
  EXPECT_EQ(tokenizer->token_id("</s>"), 2);
  EXPECT_EQ(tokenizer->token_id("no such piece"), std::nullopt);
  EXPECT_EQ(tokenizer->token_text(1), "<s>");
  EXPECT_EQ(tokenizer->token_text(700), "");
  EXPECT_THROW(tokenizer->decode(std::vector<int64_t>{700}, {}), InputError);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("a</s>", {}).ids, {true}), "a");
}

TEST(ByteTokenizer, IsTheBytes) {
  const auto tokenizer = byte_tokenizer();
  const std::string text = "a\xC3\xA9\xFF";
  const Encoding encoding = tokenizer->encode(text, {true, true});
  EXPECT_THAT(encoding.ids, ElementsAre(97, 195, 169, 255));
  EXPECT_THAT(encoding.spans, ElementsAre(TextSpan{0, 1}, TextSpan{1, 2}, TextSpan{2, 3}, TextSpan{3, 4}));
  EXPECT_EQ(tokenizer->decode(encoding.ids, {}), text);
  EXPECT_EQ(tokenizer->vocabulary_size(), 256);
  EXPECT_EQ(tokenizer->token_id("a"), 97);
  EXPECT_EQ(tokenizer->token_text(98), "b");
  EXPECT_EQ(tokenizer->end_of_text_id(), std::nullopt);
  EXPECT_THROW(tokenizer->decode(std::vector<int64_t>{256}, {}), InputError);
}

TEST(Tokenizer, LooksUpTokens) {
  const auto tokenizer = fixture("bpe-llama3-style");
  EXPECT_EQ(tokenizer->vocabulary_size(), 1504);
  EXPECT_EQ(tokenizer->token_id("<tool_call>"), 1503);
  EXPECT_EQ(tokenizer->token_text(1503), "<tool_call>");
  EXPECT_EQ(tokenizer->token_text(-1), "");
  EXPECT_EQ(tokenizer->token_text(1504), "");
  EXPECT_EQ(tokenizer->token_id(tokenizer->token_text(700)), 700);
  // Special tokens are left out on demand; <tool_call> is not one.
  const std::vector<int64_t> ids = tokenizer->encode("<|im_start|>a<tool_call>", {}).ids;
  EXPECT_EQ(tokenizer->decode(ids, {}), "<|im_start|>a<tool_call>");
  EXPECT_EQ(tokenizer->decode(ids, {true}), "a<tool_call>");
  EXPECT_THROW(tokenizer->decode(std::vector<int64_t>{1504}, {}), InputError);
  EXPECT_THROW(tokenizer->decode(std::vector<int64_t>{-1}, {}), InputError);
}

}  // namespace
}  // namespace ithaca
