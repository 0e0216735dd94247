// Byte pair encoding against a slow and simple one, for words of every length.
#include "data/tokenizer/bpe_model.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

namespace ithaca::tokenizer_internal {
namespace {

using Merges = std::vector<std::pair<std::string, std::string>>;

class Ids : public TokenSink {
 public:
  void take(std::span<const TokenOfWord> tokens, int64_t begin) override {
    for (const TokenOfWord& token : tokens) {
      ids.push_back(token.token);
      ends.push_back(begin + token.end);
    }
  }
  std::vector<int32_t> ids;
  std::vector<int64_t> ends;
};

// Merges the pair of lowest rank, of these the leftmost, until there is none.
std::vector<std::string> merged(const std::string& text, const Merges& merges) {
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  for (size_t rank = 0; rank < merges.size(); ++rank) ranks[merges[rank]] = rank;
  std::vector<std::string> parts;
  for (const char letter : text) parts.emplace_back(1, letter);
  for (;;) {
    size_t best = merges.size();
    size_t place = 0;
    for (size_t index = 0; index + 1 < parts.size(); ++index) {
      const auto found = ranks.find({parts[index], parts[index + 1]});
      if (found != ranks.end() && found->second < best) {
        best = found->second;
        place = index;
      }
    }
    if (best == merges.size()) return parts;
    parts[place] += parts[place + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

TEST(BpeModel, IsWhatMergingPairByPairGives) {
  std::mt19937 random(5);
  for (int round = 0; round < 30; ++round) {
    // Letters, and merges of random tokens; space and '_' never merge with what is on their left or right.
    std::vector<std::pair<std::string, int32_t>> vocabulary;
    for (const char letter : std::string("abcd _")) {
      vocabulary.emplace_back(std::string(1, letter), static_cast<int32_t>(vocabulary.size()));
    }
    Merges merges;
    const size_t letters = 4;
    std::vector<std::string> tokens = {"a", "b", "c", "d", " a"};
    vocabulary.emplace_back(" a", static_cast<int32_t>(vocabulary.size()));
    merges.emplace_back(" ", "a");
    for (int count = 0; count < 40; ++count) {
      const std::string left = tokens[random() % tokens.size()];
      const std::string right = tokens[random() % letters];
      bool known = false;
      for (const auto& [spelling, id] : vocabulary) known = known || spelling == left + right;
      if (known || (left + right).size() > 9) continue;
      vocabulary.emplace_back(left + right, static_cast<int32_t>(vocabulary.size()));
      merges.emplace_back(left, right);
      tokens.push_back(left + right);
    }
    const BpeModel model(vocabulary, merges, {}, "test");
    BpeScratch scratch;
    for (size_t length = 0; length < 400; length += 1 + length / 8) {
      std::string text;
      while (text.size() < length) text.push_back("abcd _abcdabcd"[random() % 14]);
      std::vector<int32_t> ids;
      std::vector<int64_t> ends;
      int64_t end = 0;
      for (const std::string& part : merged(text, merges)) {
        ids.push_back(*model.token_id(part));
        ends.push_back(end += static_cast<int64_t>(part.size()));
      }
      for (int twice = 0; twice < 2; ++twice) {  // the second time from the cache
        Ids found;
        model.encode(text, false, scratch, found);
        EXPECT_EQ(found.ids, ids) << text;
        EXPECT_EQ(found.ends, ends) << text;
      }
    }
  }
}

TEST(WordCache, ForgetsAllWhenItIsFullAndGivesWhatWasPut) {
  WordCache cache;
  for (int32_t number = 0; number < 200000; ++number) {
    const std::string word = "w" + std::to_string(number);
    const uint64_t hash = hash_bytes(word);
    ASSERT_TRUE(cache.find(word, hash).empty());
    const std::vector<TokenOfWord> tokens = {{number, 0, 1}, {number + 1, 1, 2}};
    cache.insert(word, hash, tokens);
    const auto found = cache.find(word, hash);
    ASSERT_EQ(found.size(), 2U);
    EXPECT_EQ(found[1].token, number + 1);
  }
  EXPECT_TRUE(cache.find("w5", hash_bytes("w5")).empty());
}

}  // namespace
}  // namespace ithaca::tokenizer_internal
