#include "cli/sequence_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/step_batch.h"

namespace ithaca {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Documents of bytes; upper-case letters are trained.
Sequence sequence_of(const std::vector<std::string>& documents) {
  Sequence sequence;
  for (const std::string& document : documents) {
    for (size_t i = 0; i < document.size(); ++i) {
      sequence.token_ids.push_back(static_cast<unsigned char>(document[i]));
      sequence.position_ids.push_back(static_cast<int64_t>(i));
      const bool trained = i + 1 < document.size() && document[i + 1] >= 'A' && document[i + 1] <= 'Z';
      sequence.shifted_labels.push_back(trained ? static_cast<unsigned char>(document[i + 1]) : kNoLabel);
    }
    sequence.document_lengths.push_back(static_cast<int64_t>(document.size()));
  }
  return sequence;
}

TEST(SequenceView, TrainedTextStandsOut) {
  const auto tokenizer = byte_tokenizer();
  SequenceViewOptions options;
  EXPECT_THAT(sequence_lines(sequence_of({"askANSWERend", "xY"}), tokenizer.get(), options),
              ElementsAre("  document 1: tokens 0-11, positions 0-11, 6 trained",
                          "  document 2: tokens 12-13, positions 0-1, 1 trained", "ask⟨ANSWER⟩end¶\nx⟨Y⟩"));
  options.color = true;
  EXPECT_EQ(sequence_lines(sequence_of({"askAend"}), tokenizer.get(), options).back(), "ask\x1b[32mA\x1b[0mend");
}

TEST(SequenceView, ADocumentThatGoesOn) {
  Sequence sequence = sequence_of({"abC"});
  sequence.shifted_labels.back() = 'D';
  sequence.position_ids = {5, 6, 7};
  const auto lines = sequence_lines(sequence, byte_tokenizer().get(), {});
  EXPECT_EQ(lines.at(0),
            "  document 1: tokens 0-2, positions 5-7, 2 trained; goes on from an earlier sequence; goes on in another "
            "sequence");
  EXPECT_EQ(lines.at(1), "ab⟨C⟩…⟨D⟩");
}

TEST(SequenceView, ShardsOfTheMesh) {
  SequenceViewOptions options;
  options.ring_size = 2;
  options.layout = Layout::zigzag;
  const auto lines = sequence_lines(sequence_of({"abcdEfgh"}), byte_tokenizer().get(), options);
  EXPECT_THAT(lines,
              ElementsAre("  document 1: tokens 0-7, positions 0-7, 1 trained", "  rank 0: tokens 0-1, 6-7 (0 labels)",
                          "  rank 1: tokens 2-5 (1 labels)", "│0│ab│1│cd⟨E⟩f│0│gh"));
  options.layout = Layout::striped;
  const auto striped = sequence_lines(sequence_of({"abcdEfgh"}), byte_tokenizer().get(), options);
  EXPECT_THAT(striped, ElementsAre(HasSubstr("document 1"), "  rank 0: tokens 0-6 every 2 (0 labels)",
                                   "  rank 1: tokens 1-7 every 2 (1 labels)", "abcd⟨E⟩fgh"));
}

TEST(SequenceView, LongSequencesShowTheirEnds) {
  SequenceViewOptions options;
  options.tokens = 6;
  const auto lines =
      sequence_lines(sequence_of({std::string(10, 'a') + std::string(10, 'b')}), byte_tokenizer().get(), options);
  EXPECT_THAT(lines, ElementsAre(HasSubstr("document 1"), "aaaa", "  [14 tokens are not shown]", "bb"));
  options.tokens = 0;
  EXPECT_EQ(sequence_lines(sequence_of({"abc"}), byte_tokenizer().get(), options).back(), "  [3 tokens are not shown]");
}

TEST(SequenceView, NothingOfATextReachesTheTerminalAsACommand) {
  const auto lines = sequence_lines(sequence_of({"a\x1b[2j\tb\r\n\x7f"}), byte_tokenizer().get(), {});
  EXPECT_EQ(lines.back(), "a\\x1b[2j→\tb\\x0d⏎\n\\x7f");
}

TEST(SequenceView, NumbersWithoutATokenizer) {
  EXPECT_EQ(sequence_lines(sequence_of({"aBc"}), nullptr, {}).back(), "97 ⟨66 ⟩99 ");
}

TEST(LengthHistogram, ByHand) {
  EXPECT_EQ(length_power(1), 0u);
  EXPECT_EQ(length_power(1023), 9u);
  EXPECT_EQ(length_power(1024), 10u);
  std::vector<int64_t> counts(64, 0);
  EXPECT_TRUE(length_histogram(counts, "documents").empty());
  counts[3] = 2;
  counts[5] = 1000;
  EXPECT_THAT(length_histogram(counts, "documents"),
              ElementsAre("tokens           documents", "             8+  █ 2", "            16+  0",
                          "            32+  ████████████████████████████████████████ 1,000"));
}

}  // namespace
}  // namespace ithaca
