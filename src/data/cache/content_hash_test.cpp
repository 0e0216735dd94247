#include "data/cache/content_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/random.h"
#include "data/test_files.h"

namespace ithaca {
namespace {

std::string random_text(uint64_t seed, size_t size) {
  const RandomStream random(seed, "content");
  std::string text;
  for (size_t i = 0; i < size; ++i) text += static_cast<char>(random.bits(i));
  return text;
}

ContentDigest digest_of(std::string_view text) {
  ContentHash hash;
  hash.add(text);
  return hash.digest();
}

TEST(ContentHash, DoesNotDependOnThePieces) {
  const std::string text = random_text(1, 1000);
  const RandomStream random(2, "cuts");
  for (uint64_t round = 0; round < 50; ++round) {
    ContentHash hash;
    size_t at = 0;
    for (uint64_t cut = 0; at < text.size(); ++cut) {
      const size_t size = std::min<size_t>(random.bits(100 * round + cut) % 90, text.size() - at);
      hash.add(std::string_view(text).substr(at, size));
      at += size;
    }
    EXPECT_EQ(hash.digest(), digest_of(text));
  }
}

// Every bit, every length, and every two neighbouring words count.
TEST(ContentHash, SeesEveryChange) {
  std::string text = random_text(3, 200);
  std::set<std::string> digests = {digest_of(text).text()};
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_TRUE(digests.insert(digest_of(text).text()).second) << bit;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
  }
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_TRUE(digests.insert(digest_of(text.substr(0, size)).text()).second) << size;
  }
  const std::string zeros(100, '\0');
  for (size_t size = 1; size < zeros.size(); ++size) {
    EXPECT_TRUE(digests.insert(digest_of(zeros.substr(0, size)).text()).second) << size;
  }
  for (size_t word = 0; word + 16 <= text.size(); word += 8) {
    std::string swapped = text;
    std::swap_ranges(swapped.begin() + static_cast<std::ptrdiff_t>(word),
                     swapped.begin() + static_cast<std::ptrdiff_t>(word) + 8,
                     swapped.begin() + static_cast<std::ptrdiff_t>(word) + 8);
    EXPECT_TRUE(digests.insert(digest_of(swapped).text()).second) << word;
  }
}

TEST(ContentHash, NeighboursDoNotRunTogether) {
  ContentHash first;
  first.add_text("ab");
  first.add_text("c");
  ContentHash second;
  second.add_text("a");
  second.add_text("bc");
  EXPECT_NE(first.digest(), second.digest());
  EXPECT_EQ(first.digest().text().size(), 32u);
}

TEST(ContentHash, OfAFile) {
  const TemporaryDirectory directory;
  const std::string text = random_text(4, (size_t{1} << 20) + 17);
  EXPECT_EQ(hash_file(directory.write("a", text)), digest_of(text));
  EXPECT_EQ(hash_file(directory.write("b", "")), digest_of(""));
  EXPECT_THAT(message_of<FileError>([&] { hash_file(directory.file("absent")); }), testing::HasSubstr("absent"));
  EXPECT_THAT(message_of<FileError>([] { hash_file("/dev/zero"); }), testing::HasSubstr("is a device"));
}

}  // namespace
}  // namespace ithaca
