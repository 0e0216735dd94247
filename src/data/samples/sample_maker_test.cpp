// Formats that need no chat template; chat_weights_test.cpp has those that do.
#include "data/samples/sample_maker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/samples/testing_tokenizer.h"
#include "data/samples/token_weights.h"
#include "data/test_files.h"

namespace ithaca {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

SampleOptions options_for(const std::string& format) {
  SampleOptions options;
  options.format = format;
  options.tokenizer = std::make_shared<WordTokenizer>();
  options.vocabulary = 1000;
  return options;
}

std::string made(const SampleOptions& options, const std::string& json) {
  return marked(make_sample_maker(options)->make(json_record(json)), *options.tokenizer);
}

std::string refusal(const SampleOptions& options, const std::string& json) {
  return message_of<RecordError>([&] { made(options, json); });
}

TEST(TextSamples, EndAndBeginning) {
  SampleOptions options = options_for("text");
  EXPECT_EQ(made(options, R"({"text": "to be", "id": 5})"), "{to}{ be}{<eos>}");
  EXPECT_EQ(made(options, R"({"text": "to<eos>"})"), "{to}{<eos>}") << "not doubled";
  EXPECT_EQ(made(options, R"({"text": ""})"), "");
  options.append_eos = "never";
  EXPECT_EQ(made(options, R"({"text": "to be"})"), "{to}{ be}");
  options.append_eos = "always";
  options.tokenizer = std::make_shared<WordTokenizer>(true, true);
  EXPECT_EQ(made(options, R"({"text": "to be"})"), "{<bos>}{to}{ be}{<eos>}");
  options.append_eos = "auto";
  options.tokenizer = std::make_shared<WordTokenizer>(true, false);
  EXPECT_EQ(made(options, R"({"text": "to be"})"), "{<bos>}{to}{ be}");
}

TEST(TextSamples, PlainTextFiles) {
  const SampleOptions options = options_for("text");
  const std::unique_ptr<SampleMaker> maker = make_sample_maker(options);
  Record record;
  record.bytes = "{\"to\n";
  record.place = record.file = "a.txt";
  record.is_plain_text = true;
  EXPECT_EQ(marked(maker->make(record), *options.tokenizer), "{{}{\"}{to}{\n}{<eos>}");
  record.bytes = "one\ntwo \xC3(";
  EXPECT_THAT(message_of<RecordError>([&] { maker->make(record); }),
              AllOf(StartsWith("a.txt:2:5: not UTF-8"), HasSubstr("byte 8")));
  EXPECT_THAT(message_of<RecordError>([&] { make_sample_maker(options_for("prompt_completion"))->make(record); }),
              HasSubstr("a.txt: is a text file"));
}

TEST(TextSamples, Faults) {
  const SampleOptions options = options_for("text");
  EXPECT_THAT(refusal(options, R"({"text": null})"), HasSubstr("x.jsonl:1: the key \"text\" is null"));
  EXPECT_THAT(refusal(options, R"({"text": 5})"), HasSubstr("\"text\" must be a string, not number"));
  EXPECT_THAT(refusal(options, R"({"texts": "a"})"), HasSubstr("is \"texts\" meant to be it?"));
  EXPECT_THAT(refusal(options, R"({"input_ids": [1]})"), HasSubstr("looks like data.format: input_ids"));
  EXPECT_THAT(refusal(options, R"({"body": "a", "n": 1})"), HasSubstr("has the keys \"body\", \"n\""));
  EXPECT_THAT(refusal(options, R"(["text"])"), HasSubstr("must be an object"));
  EXPECT_THAT(refusal(options, R"({"text": "a")"), HasSubstr("x.jsonl:1:13: not valid JSON"));

  SampleOptions small = options;
  small.vocabulary = 3;
  EXPECT_EQ(made(small, R"({"text": "a"})"), "{a}{<eos>}");
  EXPECT_THAT(refusal(small, R"({"text": "b"})"), AllOf(HasSubstr("the id 3 (\"b\")"), HasSubstr("0 to 2")));
  small.vocabulary = 1;
  EXPECT_THAT(refusal(small, R"({"text": "<bos>"})"), HasSubstr("the id 1 (\"<eos>\")")) << "the end counts too";
}

TEST(PromptSamples, CompletionIsTrained) {
  SampleOptions options = options_for("prompt_completion");
  const std::string record = R"({"prompt": "Why?", "completion": " Because.", "id": 1})";
  EXPECT_EQ(made(options, record), "Why?{ Because}{.}{<eos>}");
  options.train_on = "assistant";
  EXPECT_EQ(made(options, record), "Why?{ Because}{.}{<eos>}");
  options.train_on = "all";
  EXPECT_EQ(made(options, record), "{Why}{?}{ Because}{.}{<eos>}");
  options.train_on = "completion";
  options.append_eos = "never";
  EXPECT_EQ(made(options, record), "Why?{ Because}{.}");
  options.tokenizer = std::make_shared<WordTokenizer>(true, false);
  EXPECT_EQ(made(options, record), "<bos>Why?{ Because}{.}");
  EXPECT_EQ(made(options, R"({"prompt": "", "completion": "No"})"), "{<bos>}{No}");
}

TEST(PromptSamples, Faults) {
  SampleOptions options = options_for("prompt_completion");
  // The space belongs to the word that follows it: the boundary is inside of a token.
  EXPECT_THAT(refusal(options, R"({"prompt": "A: ", "completion": "yes"})"),
              AllOf(HasSubstr("x.jsonl:1: the token of \" yes\" is partly trained"), HasSubstr("A: yes")));
  EXPECT_EQ(made(options, R"({"prompt": "A:", "completion": " yes"})"), "A:{ yes}{<eos>}");
  EXPECT_EQ(made(options, R"({"prompt": "A:", "completion": ""})"), "A:{<eos>}");
  options.append_eos = "never";
  EXPECT_THAT(refusal(options, R"({"prompt": "A:", "completion": ""})"), HasSubstr("the completion is empty"));
  EXPECT_THAT(refusal(options, R"({"prompt": "A:"})"), HasSubstr("\"completion\" is missing"));
  EXPECT_THAT(refusal(options, R"({"prompt": "A:", "completion": []})"), HasSubstr("two strings or two lists"));
  EXPECT_THAT(refusal(options, R"({"prompt": {}, "completion": {}})"), HasSubstr("not object and object"));
  EXPECT_THAT(refusal(options, R"({"prompt": [], "completion": []})"), HasSubstr("the model has none"));
}

TEST(InstructionSamples, AlpacaWordingWithoutAChatTemplate) {
  const SampleOptions options = options_for("instruction");
  const auto text = [&](const std::string& json) {
    const Sample sample = make_sample_maker(options)->make(json_record(json));
    std::string all;
    std::string trained;
    for (size_t i = 0; i < sample.token_ids.size(); ++i) {
      all += options.tokenizer->token_text(sample.token_ids[i]);
      if (sample.target_weights[i] == 1.0f) trained += options.tokenizer->token_text(sample.token_ids[i]);
    }
    return all + "|" + trained;
  };
  EXPECT_EQ(
      text(R"({"instruction": "Add.", "input": "1 2", "output": "3"})"),
      "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
      "response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### "
      "Response:\n3<eos>|3<eos>");
  const std::string without =
      "Below is an instruction that describes a task. Write a response that appropriately completes the "
      "request.\n\n### Instruction:\nAdd.\n\n### Response:\n3<eos>|3<eos>";
  EXPECT_EQ(text(R"({"instruction": "Add.", "input": "", "output": "3"})"), without);
  EXPECT_EQ(text(R"({"instruction": "Add.", "input": null, "output": "3", "history": []})"), without);
  EXPECT_THAT(refusal(options, R"({"instruction": "Add."})"), HasSubstr("\"output\" is missing"));
  EXPECT_THAT(refusal(options, R"({"instruction": "a", "output": "b", "history": [["c", "d"]]})"),
              HasSubstr("\"history\" is not supported"));
  EXPECT_THAT(refusal(options, R"({"instruction": "a", "output": "b", "system": "c"})"), HasSubstr("chat template"));
}

class TokenIdSamples : public testing::Test {
 protected:
  Sample make(const std::string& json) const {
    SampleOptions options;
    options.format = "input_ids";
    options.vocabulary = 10;
    return make_sample_maker(options)->make(json_record(json, 2));
  }
  std::string complaint(const std::string& json) const {
    return message_of<RecordError>([&] { make(json); });
  }
};

TEST_F(TokenIdSamples, IdsAlone) {
  const Sample sample = make(R"({"input_ids": [1, 2, 3], "note": "mine", "labels": null})");
  EXPECT_THAT(sample.token_ids, ElementsAre(1, 2, 3));
  EXPECT_THAT(sample.target_weights, IsEmpty());
  EXPECT_THAT(sample.labels, IsEmpty());
  EXPECT_THAT(sample.document_lengths, IsEmpty());
  EXPECT_THAT(make(R"({"input_ids": []})").token_ids, IsEmpty());
}

TEST_F(TokenIdSamples, LabelsWeightsAndDocuments) {
  const Sample masked = make(R"({"input_ids": [1, 2, 3], "labels": [-100, 2, 3]})");
  EXPECT_THAT(masked.target_weights, ElementsAre(0.0f, 1.0f, 1.0f));
  EXPECT_THAT(masked.labels, IsEmpty()) << "they are the ids";
  const Sample all = make(R"({"input_ids": [1, 2, 3, 4], "labels": [-100, 7, 3, -100], "weights": [9, 0.5, 2, 8],
                              "document_lengths": [1, 3]})");
  EXPECT_THAT(all.target_weights, ElementsAre(0.0f, 0.5f, 2.0f, 0.0f));
  EXPECT_THAT(all.labels, ElementsAre(1, 7, 3, 4));
  EXPECT_THAT(all.document_lengths, ElementsAre(1, 3));
  EXPECT_THAT(make(R"({"input_ids": [1, 2], "weights": [0, 3]})").target_weights, ElementsAre(0.0f, 3.0f));
}

TEST_F(TokenIdSamples, ErrorsNameThePlaceAndTheCure) {
  EXPECT_THAT(complaint(R"({"input_ids": [1, 10]})"),
              AllOf(HasSubstr("x.jsonl:2: "), HasSubstr("input_ids[1] is 10"), HasSubstr("0 to 9")));
  EXPECT_THAT(complaint(R"({"input_ids": [-1, 2]})"), HasSubstr("input_ids[0] is -1"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2.5]})"), HasSubstr("input_ids[1] is 2.5"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 18446744073709551615]})"), HasSubstr("input_ids[1]"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 99999999999999999999]})"), HasSubstr("a whole number"));
  EXPECT_THAT(complaint(R"({"input_ids": [[1]]})"), HasSubstr("input_ids[0] is an array"));
  EXPECT_THAT(complaint(R"({"input_ids": "1 2"})"), HasSubstr("must be a list"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "labels": [1]})"), HasSubstr("\"labels\" has 1 elements"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "labels": [1, 10]})"), HasSubstr("labels[1] is 10"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "labels": [1, -1]})"), HasSubstr("-100 (none)"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "weights": [1, -0.5]})"), HasSubstr("weights[1] is -0.5"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "weights": [1, 1e300]})"), HasSubstr("weights[1]"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "weights": [1, 1e39]})"),
              AllOf(HasSubstr("weights[1] is 1e+39"), HasSubstr("the largest one is 3.4028235e+38")));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "weights": [1, 1e-60]})"),
              AllOf(HasSubstr("weights[1] is 1e-60, which is 0 as a float32"), HasSubstr("at least 1.17549")));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "weights": [1, null]})"), HasSubstr("weights[1] is null"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "document_lengths": [1, 2]})"), HasSubstr("document_lengths[1] is 2"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "document_lengths": [1]})"), HasSubstr("sum to 1"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "document_lengths": [0, 2]})"), HasSubstr("document_lengths[0] is 0"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "label": [1, 2]})"), HasSubstr("is \"labels\" meant?"));
  EXPECT_THAT(complaint(R"({"input_ids": [1, 2], "attention_mask": [1, 1]})"), HasSubstr("document_lengths"));
  EXPECT_THAT(complaint(R"({"text": "ab"})"), HasSubstr("data.format: text"));
}

TEST(TokenWeights, BoundariesAndTokensWithoutBytes) {
  WeightedText text;
  text.text = "abcdef";
  text.add({0, 0}, 1.0f);
  text.add({1, 2}, 2.0f);
  text.add({2, 3}, 2.0f);
  text.add({3, 4}, 0.0f);
  text.add({4, 6}, 0.5f);
  ASSERT_EQ(text.spans.size(), 2u);

  Encoding encoding;
  encoding.ids = {1, 2, 3, 4, 5, 6, 7, 8};
  // Two tokens of one character have both all of it.
  encoding.spans = {{0, 0}, {0, 1}, {1, 1}, {1, 3}, {3, 4}, {4, 6}, {4, 6}, {0, 0}};
  EXPECT_THAT(token_weights(text, encoding, 7.0f, "p"), ElementsAre(0.0f, 0.0f, 2.0f, 2.0f, 0.0f, 0.5f, 0.5f, 7.0f));
  encoding.ids = {1};
  for (const TextSpan straddling : {TextSpan{0, 2}, TextSpan{2, 4}, TextSpan{3, 5}, TextSpan{0, 6}}) {
    encoding.spans = {straddling};
    EXPECT_THAT(message_of<RecordError>([&] { token_weights(text, encoding, 0.0f, "p"); }), StartsWith("p: the token"));
  }
}

TEST(SampleMaker, OptionsThatCannotBeHonoured) {
  const auto complaint = [](const SampleOptions& options) {
    return message_of<ConfigurationError>([&] { make_sample_maker(options); });
  };
  SampleOptions options = options_for("auto");
  EXPECT_THAT(complaint(options), HasSubstr("data.format: auto is not known; messages"));
  options = options_for("text");
  options.train_on = "assistant";
  EXPECT_THAT(complaint(options), HasSubstr("data.train_on: assistant needs conversations"));
  options.train_on = "everything";
  EXPECT_THAT(complaint(options), HasSubstr("everything is not known"));
  options.train_on = "all";
  EXPECT_EQ(complaint(options), "(nothing was thrown)");
  options.append_eos = "yes";
  EXPECT_THAT(complaint(options), HasSubstr("data.append_eos: yes"));
  options.append_eos = "always";
  options.tokenizer = std::make_shared<WordTokenizer>(true, false);
  EXPECT_THAT(complaint(options), HasSubstr("the tokenizer has none"));
  options.tokenizer = nullptr;
  options.append_eos = "auto";
  EXPECT_THAT(complaint(options), HasSubstr("needs a tokenizer"));
  options = options_for("text");
  options.vocabulary = 0;
  EXPECT_THAT(complaint(options), HasSubstr("a vocabulary of 0 ids"));
  EXPECT_THAT(complaint(options_for("messages")), HasSubstr("needs a chat template"));
}

TEST(SampleMaker, SettingsHashFollowsWhatDecides) {
  const auto hash = [](const SampleOptions& options) { return make_sample_maker(options)->settings_hash(); };
  const SampleOptions options = options_for("prompt_completion");
  const uint64_t expected = hash(options);
  EXPECT_EQ(hash(options), expected);
  SampleOptions same = options;
  same.train_on = "completion";
  EXPECT_EQ(hash(same), expected) << "the default by its name";
  std::vector<SampleOptions> others(6, options);
  others[0].train_on = "all";
  others[1].append_eos = "never";
  others[2].tokenizer = std::make_shared<WordTokenizer>(true, true);
  others[3].chat_template_hash = 1;
  others[4].vocabulary = 1001;
  others[5].format = "instruction";
  for (size_t i = 0; i < others.size(); ++i) EXPECT_NE(hash(others[i]), expected) << i;
}

TEST(SampleMaker, HashOfAChatTemplateIsThatOfItsFiles) {
  const TemporaryDirectory directory;
  const uint64_t none = chat_template_hash(directory.path());
  directory.write("tokenizer_config.json", "{}");
  const uint64_t one = chat_template_hash(directory.path());
  directory.write("chat_template.jinja", "{}");
  const uint64_t two = chat_template_hash(directory.path());
  directory.write("chat_template.jinja", "{} ");
  EXPECT_NE(none, one);
  EXPECT_NE(one, two);
  EXPECT_NE(two, chat_template_hash(directory.path()));
  directory.write("chat_template.jinja", "{}");
  EXPECT_EQ(two, chat_template_hash(directory.path()));
}

}  // namespace
}  // namespace ithaca
