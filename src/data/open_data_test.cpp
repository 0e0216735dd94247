#include "data/open_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>

#include "base/error.h"
#include "base/random.h"
#include "data/test_files.h"

namespace ithaca {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class OpenData : public testing::Test {
 protected:
  DataOptions options(const std::vector<std::string>& paths, int64_t max_length = 100) const {
    DataOptions result;
    result.paths = paths;
    result.stages = {{0, max_length}};
    result.vocabulary = 256;
    result.cache_dir = directory_.file("caches");
    return result;
  }
  std::unique_ptr<PackedDataset> text(const std::vector<std::string>& paths, int64_t max_length = 100) const {
    return open_data(options(paths, max_length));
  }
  std::unique_ptr<PackedDataset> tokens(const std::string& content, int64_t max_length = 100) const {
    DataOptions with = options({directory_.write("x.jsonl", content)}, max_length);
    with.format = "tokens";
    with.vocabulary = 10;
    return open_data(with);
  }
  std::string complaint(const std::string& content) const {
    return message_of<InputError>([&] { tokens(content); });
  }

  TemporaryDirectory directory_;
};

std::vector<std::vector<int64_t>> all_labels(const Dataset& dataset) {
  std::vector<std::vector<int64_t>> labels;
  for (int64_t i = 0; i < dataset.size(); ++i) labels.push_back(dataset.sequence(i).shifted_labels);
  return labels;
}

TEST_F(OpenData, PlainTextIsOneDocumentOfBytes) {
  const auto dataset = text({directory_.write("x.txt", std::string("\x01\x02\x03\x04\x05", 5))}, 3);
  EXPECT_THAT(all_labels(*dataset), ElementsAre(ElementsAre(2, 3, 4), ElementsAre(5, kNoLabel)));
  EXPECT_EQ(dataset->summary().format, "text");
  EXPECT_TRUE(dataset->summary().tokens_are_bytes);
  EXPECT_THAT(dataset->summary().notes, testing::Contains(HasSubstr("every byte of text is a token")));
}

// The last token alone would be a sequence without a label: it is left out, its label is not.
TEST_F(OpenData, NoWindowWithoutALabel) {
  const auto dataset = text({directory_.write("x.txt", "abcd")}, 3);
  EXPECT_THAT(all_labels(*dataset), ElementsAre(ElementsAre('b', 'c', 'd')));
  EXPECT_EQ(dataset->summary().tokens, 3);
  EXPECT_EQ(dataset->summary().valid_tokens, 3);
}

// Bytes as tokens too are bytes of text.
TEST_F(OpenData, TextIsUtf8) {
  const auto dataset = text({directory_.write("x.txt", "\xc3\xa9\xf0\x9f\x8c\x8a")});
  EXPECT_THAT(dataset->sequence(0).token_ids, ElementsAre(0xc3, 0xa9, 0xf0, 0x9f, 0x8c, 0x8a));
  EXPECT_THAT(message_of<InputError>([&] { text({directory_.write("y.txt", "ab\xff")}); }),
              AllOf(HasSubstr("y.txt"), HasSubstr("UTF-8")));
}

TEST_F(OpenData, DocumentsOfSeveralFiles) {
  const std::string plain = directory_.write("a.txt", "hello");
  const std::string lines = directory_.write(
      "b.jsonl", "{\"text\": \"ab\", \"source\": 7}\n\n{\"text\": \"\"}\n{\"text\": \"x\"}\n{\"text\": \"\\u00e9z\"}");
  const auto dataset = text({plain, lines}, 4);
  EXPECT_THAT(all_labels(*dataset), ElementsAre(ElementsAre('e', 'l', 'l', 'o'), ElementsAre('b', kNoLabel),
                                                ElementsAre(0xa9, 'z', kNoLabel)));
  EXPECT_EQ(dataset->summary().documents, 5);
  EXPECT_EQ(dataset->summary().skipped_documents, 2);
  EXPECT_EQ(dataset->summary().sequences, 3);
  EXPECT_EQ(dataset->summary().valid_tokens, 4 + 1 + 2);
}

TEST_F(OpenData, GzipEqualsPlain) {
  const std::string content = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  const std::string packed = directory_.file("b.jsonl.gz");
  gzFile file = gzopen(packed.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(gzwrite(file, content.data(), static_cast<unsigned>(content.size())), static_cast<int>(content.size()));
  gzclose(file);
  EXPECT_EQ(all_labels(*text({directory_.write("a.jsonl", content)})), all_labels(*text({packed})));
}

TEST_F(OpenData, LabelsAreTheSuccessors) {
  const Sequence sequence = tokens(R"({"input_ids": [1, 2, 3, 4, 5]})")->sequence(0);
  EXPECT_THAT(sequence.token_ids, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(sequence.position_ids, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(sequence.shifted_labels, ElementsAre(2, 3, 4, 5, kNoLabel));
  EXPECT_THAT(sequence.label_weights, IsEmpty());
  EXPECT_THAT(sequence.document_lengths, ElementsAre(5));
}

// labels and weights stand at the token they belong to: the shift moves both.
TEST_F(OpenData, GivenLabelsAndWeightsAreShifted) {
  const auto dataset =
      tokens(R"({"input_ids": [1, 2, 3, 4], "labels": [-100, -100, 7, 4], "weights": [9, 9, 0.5, 2], "note": "mine"})");
  const Sequence sequence = dataset->sequence(0);
  EXPECT_THAT(sequence.shifted_labels, ElementsAre(kNoLabel, 7, 4, kNoLabel));
  EXPECT_THAT(sequence.label_weights, ElementsAre(0.0f, 0.5f, 2.0f, 0.0f));
  EXPECT_EQ(dataset->summary().valid_tokens, 2);
  EXPECT_EQ(dataset->totals(0).label_weight_sum, 2.5);
}

TEST_F(OpenData, NoLabelAcrossDocuments) {
  const auto dataset = tokens(R"({"input_ids": [1, 2, 3, 4, 5, 6], "document_lengths": [2, 1, 3]})");
  ASSERT_EQ(dataset->size(), 1);
  const Sequence sequence = dataset->sequence(0);
  EXPECT_THAT(sequence.shifted_labels, ElementsAre(2, kNoLabel, kNoLabel, 5, 6, kNoLabel));
  EXPECT_THAT(sequence.position_ids, ElementsAre(0, 1, 0, 0, 1, 2));
  EXPECT_THAT(sequence.document_lengths, ElementsAre(2, 1, 3));
  EXPECT_EQ(dataset->summary().documents, 3);
}

// A window cuts documents too: labels look over its edge.
TEST_F(OpenData, LongLinesAreCutIntoWindows) {
  const auto dataset = tokens(R"({"input_ids": [1, 2, 3, 4, 5, 6, 7, 8], "document_lengths": [2, 5, 1]})", 4);
  ASSERT_EQ(dataset->size(), 2);
  const Sequence first = dataset->sequence(0);
  EXPECT_THAT(first.token_ids, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(first.shifted_labels, ElementsAre(2, kNoLabel, 4, 5));
  EXPECT_THAT(first.document_lengths, ElementsAre(2, 2));
  const Sequence second = dataset->sequence(1);
  EXPECT_THAT(second.token_ids, ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(second.position_ids, ElementsAre(0, 1, 2, 0));
  EXPECT_THAT(second.shifted_labels, ElementsAre(6, 7, kNoLabel, kNoLabel));
  EXPECT_THAT(second.document_lengths, ElementsAre(3, 1));
}

TEST_F(OpenData, BadTokenLines) {
  const std::string good = "{\"input_ids\": [1, 2]}\n";
  EXPECT_THAT(complaint(good + "{\"input_ids\": [1, 10]}"), AllOf(HasSubstr("x.jsonl:2"), HasSubstr("10")));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2.5]})"), HasSubstr("2.5"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "labels": [1]})"), HasSubstr("labels"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "document_lengths": [1]})"), HasSubstr("document_lengths"));
  EXPECT_THAT(complaint("{\"input_ids\": [1, 2]}\n{\"input_ids\": [1,, 2]}"), HasSubstr("x.jsonl:2:18"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "labels": [1, -100]})"), HasSubstr("nothing to train on"));
  EXPECT_THAT(complaint(R"({"input_ids": [1]})"), HasSubstr("nothing to train on"));
}

TEST_F(OpenData, BadRecordsCanBeSkipped) {
  DataOptions with = options({directory_.write("x.jsonl", "{\"text\": \"ok\"}\n{\"text\": 5}\n{\"text\": oh}\n")});
  with.format = "text";
  EXPECT_THAT(message_of<InputError>([&] { open_data(with); }), HasSubstr("x.jsonl:2"));
  with.skip_bad_records = true;
  const auto dataset = open_data(with);
  EXPECT_EQ(dataset->size(), 1);
  EXPECT_EQ(dataset->summary().skipped_records, 2);
  EXPECT_THAT(dataset->summary().notes,
              testing::Contains(AllOf(HasSubstr("2 records skipped"), HasSubstr("x.jsonl:2"))));
  // Where none is left, why is said all the same.
  with.paths = {directory_.write("y.jsonl", "{\"text\": 5}\n{\"text\": oh}\n{\"text\": 6}\n")};
  EXPECT_THAT(message_of<InputError>([&] { open_data(with); }),
              AllOf(HasSubstr("nothing to train on: no record is left; 3 records skipped: 2 x "),
                    HasSubstr("y.jsonl:1"), HasSubstr("1 x not valid JSON, first "), HasSubstr("y.jsonl:2:10")));
}

TEST_F(OpenData, ConfigurationsThatCannotBe) {
  const std::string good = directory_.write("good.txt", "good");
  DataOptions with = options({good});
  with.vocabulary = 255;
  EXPECT_THAT(message_of<ConfigurationError>([&] { open_data(with); }), HasSubstr("at least 256"));
  EXPECT_THAT(message_of<ConfigurationError>([&] { text({}); }), HasSubstr("empty"));
  EXPECT_THAT(message_of<ConfigurationError>([&] { text({good}, 0); }), HasSubstr("max_length"));
  with = options({good});
  with.tokenizer = "bpe";
  EXPECT_THAT(message_of<ConfigurationError>([&] { open_data(with); }), HasSubstr("\"bpe\""));
  with = options({good});
  with.format = "parquet";
  EXPECT_THAT(message_of<ConfigurationError>([&] { open_data(with); }), HasSubstr("parquet"));
  with = options({good});
  with.cache_dir.clear();
  EXPECT_THAT(message_of<ConfigurationError>([&] { open_data(with); }), HasSubstr("data.cache_dir"));
  EXPECT_THROW(text({directory_.file("absent.txt")}), FileError);
}

// A model's own tokenizer and chat template: what is trained is what the assistant says, whatever the packing.
TEST_F(OpenData, ConversationsWithAModelsTokenizer) {
  const std::string model = directory_.file("model");
  std::filesystem::create_directories(model);
  std::filesystem::copy_file(ITHACA_TEST_DATA "/tokenizers/bpe-qwen-style/tokenizer.json", model + "/tokenizer.json");
  directory_.write("model/chat_template.jinja",
                   "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n{% endfor %}");
  std::string lines;
  for (int i = 0; i < 20; ++i) {
    lines += R"({"messages": [{"role": "user", "content": "What is )" + std::to_string(i) +
             R"( and one?"}, {"role": "assistant", "content": "It is )" + std::to_string(i + 1) + ".\"}]}\n";
  }
  DataOptions with = options({directory_.write("chat.jsonl", lines)}, 200);
  with.model_directory = model;
  with.vocabulary = open_tokenizer(model)->vocabulary_size();
  int64_t labels = 0;
  for (const PackingKind kind : {PackingKind::none, PackingKind::best_fit, PackingKind::wrapped}) {
    with.packing = kind;
    const auto dataset = open_data(with);
    EXPECT_EQ(dataset->summary().format, "messages");
    EXPECT_FALSE(dataset->summary().tokens_are_bytes);
    EXPECT_EQ(dataset->summary().unlabelled_documents, 0);
    if (kind == PackingKind::none) {
      EXPECT_EQ(dataset->size(), 20);
      labels = dataset->summary().valid_tokens;
      const Sequence sequence = dataset->sequence(7);
      std::vector<int64_t> learnt;
      for (const int64_t label : sequence.shifted_labels) {
        if (label != kNoLabel) learnt.push_back(label);
      }
      const std::string text = open_tokenizer(model)->decode(learnt, {});
      EXPECT_THAT(text, AllOf(HasSubstr("It is 8."), testing::Not(HasSubstr("What"))));
    } else {
      EXPECT_LT(dataset->size(), 20);
    }
    EXPECT_EQ(dataset->summary().valid_tokens, labels);
  }
  with.train_on = "all";
  EXPECT_GT(open_data(with)->summary().valid_tokens, labels);
  std::filesystem::remove(model + "/chat_template.jinja");
  EXPECT_THAT(message_of<InputError>([&] { open_data(with); }), HasSubstr("chat_template.jinja"));
}

}  // namespace
}  // namespace ithaca
