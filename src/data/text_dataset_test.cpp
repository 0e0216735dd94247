#include "data/text_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "base/error.h"
#include "base/random.h"
#include "data/test_files.h"

namespace ithaca {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Dataset> open(std::vector<std::string> files, int64_t max_length, int64_t vocabulary = 256) {
  DatasetOptions options;
  options.files = std::move(files);
  options.max_length = max_length;
  options.vocabulary = vocabulary;
  return open_dataset(options);
}

std::vector<std::vector<int64_t>> all_labels(const Dataset& dataset) {
  std::vector<std::vector<int64_t>> labels;
  for (int64_t i = 0; i < dataset.size(); ++i) labels.push_back(dataset.sequence(i).shifted_labels);
  return labels;
}

TEST(TextDataset, WindowsByHand) {
  const TemporaryDirectory directory;
  const auto dataset = open({directory.write("x.txt", std::string("\x01\x02\x03\x04\x05", 5))}, 3);
  ASSERT_EQ(dataset->size(), 2);
  const Sequence first = dataset->sequence(0);
  EXPECT_THAT(first.token_ids, ElementsAre(1, 2, 3));
  EXPECT_THAT(first.position_ids, ElementsAre(0, 1, 2));
  EXPECT_THAT(first.shifted_labels, ElementsAre(2, 3, 4));
  EXPECT_THAT(first.document_lengths, ElementsAre(3));
  EXPECT_TRUE(first.label_weights.empty());
  const Sequence second = dataset->sequence(1);
  EXPECT_THAT(second.token_ids, ElementsAre(4, 5));
  EXPECT_THAT(second.position_ids, ElementsAre(0, 1));
  EXPECT_THAT(second.shifted_labels, ElementsAre(5, kNoLabel));
  EXPECT_THROW(dataset->sequence(2), ContractError);
  EXPECT_THROW(dataset->sequence(-1), ContractError);
}

// The last token alone would be a sequence without a label: it is left out, its label is not.
TEST(TextDataset, NoWindowWithoutALabel) {
  const TemporaryDirectory directory;
  const auto dataset = open({directory.write("x.txt", "abcd")}, 3);
  EXPECT_THAT(all_labels(*dataset), ElementsAre(ElementsAre('b', 'c', 'd')));
  EXPECT_EQ(dataset->summary().tokens, 3);
  EXPECT_EQ(dataset->summary().valid_tokens, 3);
}

// Every token but a document's first is a label exactly once, in order, and follows its own token.
TEST(TextDataset, NothingLostNothingRepeated) {
  const TemporaryDirectory directory;
  const RandomStream random(3, "text");
  for (int64_t round = 0; round < 40; ++round) {
    const auto length = static_cast<int64_t>(2 + random.bits(static_cast<uint64_t>(round)) % 90);
    std::string text;
    for (int64_t i = 0; i < length; ++i)
      text += static_cast<char>(random.bits(static_cast<uint64_t>(1000 * round + i)));
    const std::string path = directory.write("x.txt", text);
    for (const int64_t max_length : {1, 2, 3, 7, 30, 89, 90, 1000}) {
      const auto dataset = open({path}, max_length);
      std::vector<int64_t> tokens;
      std::vector<int64_t> labels;
      for (int64_t i = 0; i < dataset->size(); ++i) {
        const Sequence sequence = dataset->sequence(i);
        ASSERT_LE(static_cast<int64_t>(sequence.token_ids.size()), max_length);
        for (size_t k = 0; k < sequence.token_ids.size(); ++k) {
          if (sequence.shifted_labels[k] == kNoLabel) continue;
          tokens.push_back(sequence.token_ids[k]);
          labels.push_back(sequence.shifted_labels[k]);
        }
        const SequenceTotals known = dataset->totals(i);
        const SequenceTotals counted = sequence_totals(sequence);
        EXPECT_EQ(known.tokens, counted.tokens);
        EXPECT_EQ(known.valid_tokens, counted.valid_tokens);
        EXPECT_EQ(known.label_weight_sum, counted.label_weight_sum);
      }
      std::vector<int64_t> expected;
      for (const char c : text) expected.push_back(static_cast<unsigned char>(c));
      EXPECT_EQ(tokens, std::vector<int64_t>(expected.begin(), expected.end() - 1)) << length << " by " << max_length;
      EXPECT_EQ(labels, std::vector<int64_t>(expected.begin() + 1, expected.end())) << length << " by " << max_length;
      EXPECT_EQ(dataset->summary().valid_tokens, length - 1);
    }
  }
}

TEST(TextDataset, DocumentsOfSeveralFiles) {
  const TemporaryDirectory directory;
  const std::string plain = directory.write("a.txt", "hello");
  const std::string lines = directory.write(
      "b.jsonl", "{\"text\": \"ab\", \"source\": 7}\n\n{\"text\": \"\"}\n{\"text\": \"x\"}\n{\"text\": \"\\u00e9z\"}");
  const auto dataset = open({plain, lines}, 4);
  EXPECT_THAT(all_labels(*dataset), ElementsAre(ElementsAre('e', 'l', 'l', 'o'), ElementsAre('b', kNoLabel),
                                                ElementsAre(0xa9, 'z', kNoLabel)));
  EXPECT_EQ(dataset->summary().documents, 5);
  EXPECT_EQ(dataset->summary().skipped_documents, 2);
  EXPECT_EQ(dataset->summary().sequences, 3);
  EXPECT_EQ(dataset->summary().tokens, 4 + 2 + 3);
  EXPECT_EQ(dataset->summary().valid_tokens, 4 + 1 + 2);
  EXPECT_EQ(dataset->summary().longest_sequence, 4);
}

TEST(TextDataset, GzipEqualsPlain) {
  const TemporaryDirectory directory;
  const std::string text = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  const std::string plain = directory.write("a.jsonl", text);
  const std::string packed = directory.file("b.jsonl.gz");
  gzFile file = gzopen(packed.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())), static_cast<int>(text.size()));
  gzclose(file);
  EXPECT_EQ(all_labels(*open({plain}, 8)), all_labels(*open({packed}, 8)));
}

TEST(TextDataset, ErrorsNameThePlaceAndTheCure) {
  const TemporaryDirectory directory;
  const auto complaint = [&](const std::string& name, const std::string& content) {
    return message_of<InputError>([&] { open({directory.write(name, content)}, 8); });
  };
  EXPECT_THAT(complaint("empty.txt", ""), AllOf(HasSubstr("empty.txt"), HasSubstr("holds no text")));
  EXPECT_THAT(complaint("short.txt", "a"), HasSubstr("nothing to train on"));
  EXPECT_THAT(complaint("empty.jsonl", "\n\n"), HasSubstr("holds no text"));
  EXPECT_THAT(complaint("a.jsonl", "{\"text\": \"ok\"}\n{\"text\": oh}\n"), HasSubstr("a.jsonl:2:10: not valid JSON"));
  EXPECT_THAT(complaint("a.jsonl", "{\"text\": \"ok\"}\n[1]\n"), HasSubstr("a.jsonl:2: each line must be an object"));
  EXPECT_THAT(complaint("a.jsonl", "{\"txt\": \"ok\"}"), HasSubstr("a.jsonl:1: the key \"text\" is missing"));
  EXPECT_THAT(complaint("a.jsonl", "{\"input_ids\": [1]}"), HasSubstr("data.format: tokens"));
  EXPECT_THAT(complaint("a.jsonl", "{\"text\": 5}"), HasSubstr("must be a string"));
  EXPECT_THROW(open({directory.file("absent.txt")}, 8), FileError);

  const std::string good = directory.write("good.txt", "good");
  EXPECT_THAT(message_of<ConfigurationError>([&] { open({good}, 8, 255); }), HasSubstr("at least 256"));
  EXPECT_THAT(message_of<ConfigurationError>([&] { open({}, 8); }), HasSubstr("empty"));
  EXPECT_THAT(message_of<ConfigurationError>([&] { open({good}, 0); }), HasSubstr("max_length"));
  DatasetOptions options;
  options.files = {good};
  options.vocabulary = 256;
  options.tokenizer = "bpe";
  EXPECT_THAT(message_of<ConfigurationError>([&] { open_dataset(options); }), HasSubstr("\"bpe\""));
  options.tokenizer = "bytes";
  options.format = "parquet";
  EXPECT_THAT(message_of<ConfigurationError>([&] { open_dataset(options); }), HasSubstr("\"parquet\""));
}

TEST(TextDataset, BytesNeedNotBeUtf8) {
  const TemporaryDirectory directory;
  const auto dataset = open({directory.write("x", std::string("\xff\xfe\x00\x80", 4))}, 8);
  EXPECT_THAT(dataset->sequence(0).token_ids, ElementsAre(255, 254, 0, 128));
}

}  // namespace
}  // namespace ithaca
