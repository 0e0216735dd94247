#include "data/token_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/test_files.h"

namespace ithaca {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class TokenDatasetTest : public testing::Test {
 protected:
  std::unique_ptr<Dataset> open(const std::string& content, int64_t max_length = 100) const {
    DatasetOptions options;
    options.files = {directory_.write("x.jsonl", content)};
    options.format = "tokens";
    options.max_length = max_length;
    options.vocabulary = 10;
    return open_dataset(options);
  }
  std::string complaint(const std::string& content) const {
    return message_of<InputError>([&] { open(content); });
  }

  TemporaryDirectory directory_;
};

TEST_F(TokenDatasetTest, LabelsAreTheSuccessors) {
  const auto dataset = open(R"({"input_ids": [1, 2, 3, 4, 5]})");
  ASSERT_EQ(dataset->size(), 1);
  const Sequence sequence = dataset->sequence(0);
  EXPECT_THAT(sequence.token_ids, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(sequence.position_ids, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(sequence.shifted_labels, ElementsAre(2, 3, 4, 5, kNoLabel));
  EXPECT_THAT(sequence.label_weights, IsEmpty());
  EXPECT_THAT(sequence.document_lengths, ElementsAre(5));
}

// labels and weights stand at the token they belong to: the shift moves both.
TEST_F(TokenDatasetTest, GivenLabelsAndWeightsAreShifted) {
  const auto dataset =
      open(R"({"input_ids": [1, 2, 3, 4], "labels": [-100, -100, 7, 4], "weights": [9, 9, 0.5, 2], "note": "mine"})");
  const Sequence sequence = dataset->sequence(0);
  EXPECT_THAT(sequence.shifted_labels, ElementsAre(kNoLabel, 7, 4, kNoLabel));
  EXPECT_THAT(sequence.label_weights, ElementsAre(0.0f, 0.5f, 2.0f, 0.0f));
  EXPECT_EQ(dataset->summary().valid_tokens, 2);
  EXPECT_EQ(dataset->totals(0).label_weight_sum, 2.5);
}

TEST_F(TokenDatasetTest, NoLabelAcrossDocuments) {
  const auto dataset = open(R"({"input_ids": [1, 2, 3, 4, 5, 6], "document_lengths": [2, 1, 3]})");
  const Sequence sequence = dataset->sequence(0);
  EXPECT_THAT(sequence.shifted_labels, ElementsAre(2, kNoLabel, kNoLabel, 5, 6, kNoLabel));
  EXPECT_THAT(sequence.position_ids, ElementsAre(0, 1, 0, 0, 1, 2));
  EXPECT_THAT(sequence.document_lengths, ElementsAre(2, 1, 3));
  EXPECT_EQ(dataset->summary().documents, 3);
}

// A window cuts documents too: labels look over its edge, positions go on.
TEST_F(TokenDatasetTest, LongLinesAreCutIntoWindows) {
  const auto dataset = open(R"({"input_ids": [1, 2, 3, 4, 5, 6, 7, 8], "document_lengths": [2, 5, 1]})", 4);
  ASSERT_EQ(dataset->size(), 2);
  const Sequence first = dataset->sequence(0);
  EXPECT_THAT(first.token_ids, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(first.shifted_labels, ElementsAre(2, kNoLabel, 4, 5));
  EXPECT_THAT(first.document_lengths, ElementsAre(2, 2));
  const Sequence second = dataset->sequence(1);
  EXPECT_THAT(second.token_ids, ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(second.position_ids, ElementsAre(2, 3, 4, 0));
  EXPECT_THAT(second.shifted_labels, ElementsAre(6, 7, kNoLabel, kNoLabel));
  EXPECT_THAT(second.document_lengths, ElementsAre(3, 1));

  // A window edge that is a document's edge too; and a last token that would be alone.
  const auto edges = open(R"({"input_ids": [1, 2, 3, 4, 5, 6, 7, 8, 9], "document_lengths": [4, 5]})", 4);
  ASSERT_EQ(edges->size(), 2);
  EXPECT_THAT(edges->sequence(0).shifted_labels, ElementsAre(2, 3, 4, kNoLabel));
  EXPECT_THAT(edges->sequence(1).shifted_labels, ElementsAre(6, 7, 8, 9));
  EXPECT_THAT(edges->sequence(1).position_ids, ElementsAre(0, 1, 2, 3));
}

TEST_F(TokenDatasetTest, WeightsAndLabelsOfCutLines) {
  const auto dataset = open(R"({"input_ids": [1,2,3,4,5], "labels": [1,2,3,-100,5], "weights": [1,2,3,4,5]})"
                            "\n{\"input_ids\": [6,7]}",
                            2);
  ASSERT_EQ(dataset->size(), 3);
  EXPECT_THAT(dataset->sequence(0).shifted_labels, ElementsAre(2, 3));
  EXPECT_THAT(dataset->sequence(0).label_weights, ElementsAre(2.0f, 3.0f));
  EXPECT_THAT(dataset->sequence(1).shifted_labels, ElementsAre(kNoLabel, 5));
  EXPECT_THAT(dataset->sequence(1).label_weights, ElementsAre(0.0f, 5.0f));
  EXPECT_THAT(dataset->sequence(2).shifted_labels, ElementsAre(7, kNoLabel));
  EXPECT_THAT(dataset->sequence(2).label_weights, IsEmpty());
  EXPECT_EQ(dataset->summary().valid_tokens, 4);
  EXPECT_EQ(dataset->summary().sequences, 3);
}

TEST_F(TokenDatasetTest, LinesWithNothingToTrain) {
  const auto dataset = open(
      "{\"input_ids\": []}\n{\"input_ids\": [3]}\n\n{\"input_ids\": [1, 2]}\n"
      "{\"input_ids\": [1, 2], \"labels\": [-100, -100]}\n");
  EXPECT_EQ(dataset->size(), 2);
  EXPECT_EQ(dataset->summary().skipped_documents, 2);
  EXPECT_EQ(dataset->totals(1).valid_tokens, 0);
}

TEST_F(TokenDatasetTest, ErrorsNameThePlaceAndTheCure) {
  const std::string good = "{\"input_ids\": [1, 2]}\n";
  EXPECT_THAT(complaint(good + "{\"input_ids\": [1, 10]}"),
              AllOf(HasSubstr("x.jsonl:2"), HasSubstr("input_ids[1] is 10"), HasSubstr("0 to 9")));
  EXPECT_THAT(complaint(R"({"input_ids": [-1, 2]})"), HasSubstr("input_ids[0] is -1"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2.5]})"), HasSubstr("input_ids[1] is 2.5"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 18446744073709551615]})"), HasSubstr("input_ids[1]"));
  EXPECT_THAT(complaint(R"({"input_ids": "1 2"})"), HasSubstr("must be a list"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "labels": [1]})"), HasSubstr("\"labels\" has 1 elements"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "labels": [1, 10]})"), HasSubstr("labels[1] is 10"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "labels": [1, -1]})"), HasSubstr("-100 (none)"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "weights": [1, -0.5]})"), HasSubstr("weights[1] is -0.5"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "weights": [1, 1e300]})"), HasSubstr("weights[1]"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "weights": [1, NaN]})"), HasSubstr("x.jsonl:1:"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "weights": [1, null]})"), HasSubstr("weights[1] is null"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "document_lengths": [1, 2]})"), HasSubstr("document_lengths[1] is 2"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "document_lengths": [1]})"), HasSubstr("sum to 1"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "document_lengths": [0, 2]})"), HasSubstr("document_lengths[0] is 0"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "label": [1, 2]})"), HasSubstr("is \"labels\" meant?"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "attention_mask": [1, 1]})"), HasSubstr("document_lengths"));
  EXPECT_THAT(complaint(R"({"text": "ab"})"), HasSubstr("data.format: text"));
  EXPECT_THAT(complaint("{\"input_ids\": [1, 2]}\n{\"input_ids\": [1,, 2]}"),
              HasSubstr("x.jsonl:2:18: not valid JSON"));
  EXPECT_THAT(complaint("[1, 2]"), HasSubstr("an object"));
  EXPECT_THAT(complaint("\n"), HasSubstr("holds no line"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "labels": [1, -100]})"), HasSubstr("nothing to train on"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "weights": [1, 0]})"), HasSubstr("weight above 0"));
  EXPECT_THAT(complaint(R"({"input_ids": [1]})"), HasSubstr("nothing to train on"));
}

}  // namespace
}  // namespace ithaca
