// What is said to files that Ithaca does not understand, and what the files beside a tokenizer decide.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "data/tokenizer/json_tokenizer.h"

namespace ithaca {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json small() {
  return json::parse(R"({"added_tokens": [{"id": 4, "content": "<s>", "special": true, "normalized": false},
                                          {"id": 5, "content": "</s>", "special": true, "normalized": false}],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": ["a b"]}})");
}

std::unique_ptr<Tokenizer> make(const std::string& text) {
  return tokenizer_internal::make_json_tokenizer(text, "model/tokenizer.json", {});
}

// The message of the InputError for small() changed so.
std::string complaint(const std::function<void(json&)>& change) {
  json description = small();
  change(description);
  try {
    make(description.dump());
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing was wrong";
}

TEST(TokenizerErrors, UnknownPartsAreNamedWithTheFile) {
  const auto expect = [](const std::function<void(json&)>& change, const std::string& what) {
    const std::string message = complaint(change);
    EXPECT_THAT(message, testing::StartsWith("model/tokenizer.json: "));
    EXPECT_THAT(message, HasSubstr(what));
  };
  for (const char* type : {"Unigram", "WordPiece", "WordLevel", "Other"}) {
    expect([&](json& file) { file["model"]["type"] = type; }, std::string("the model \"") + type + "\"");
  }
  expect(
      [](json& file) {
        file["normalizer"] = {{"type", "Precompiled"}};
      },
      "normalizer: there is no normalizer \"Precompiled\"");
  expect(
      [](json& file) {
        file["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "X"}}}}};
      },
      "normalizer.normalizers[1]: there is no normalizer \"X\"");
  expect(
      [](json& file) {
        file["pre_tokenizer"] = {{"type", "UnicodeScripts"}};
      },
      "there is no pre-tokenizer \"UnicodeScripts\"");
  expect([](json& file) { file["post_processor"] = {{"type", "X"}}; }, "there is no post-processor \"X\"");
  expect([](json& file) { file["decoder"] = {{"type", "CTC"}}; }, "there is no decoder \"CTC\"");
  expect([](json& file) { file["decoder"] = json::object(); }, "decoder has no \"type\"");
  expect([](json& file) { file["decoder"] = 3; }, "decoder is not an object");
}

TEST(TokenizerErrors, WrongModelsAreRefused) {
  EXPECT_THAT(complaint([](json& file) { file["model"]["dropout"] = 0.1; }), HasSubstr("model.dropout is 0.1"));
  EXPECT_EQ(complaint([](json& file) { file["model"]["dropout"] = 0.0; }), "nothing was wrong");
  EXPECT_THAT(complaint([](json& file) {
                file["model"]["merges"] = {"a b", "a d"};
              }),
              HasSubstr("model.merges[1]: \"d\" is not in the vocabulary"));
  EXPECT_THAT(complaint([](json& file) { file["model"]["merges"] = {"b a"}; }),
              HasSubstr("\"ba\" is not in the vocabulary"));
  EXPECT_THAT(complaint([](json& file) { file["model"]["merges"] = {"a b c"}; }),
              HasSubstr("model.merges[0] is \"a b c\""));
  EXPECT_THAT(complaint([](json& file) {
                file["model"]["merges"] = {{"a", "b", "c"}};
              }),
              HasSubstr("more than two texts"));
  EXPECT_THAT(complaint([](json& file) { file["model"]["merges"] = {{"a"}}; }), HasSubstr("not two texts"));
  EXPECT_THAT(complaint([](json& file) { file["model"]["merges"] = {1}; }), HasSubstr("a number"));
  EXPECT_THAT(complaint([](json& file) { file["model"]["vocab"]["d"] = -1; }), HasSubstr("not a token id at \"d\""));
  EXPECT_THAT(complaint([](json& file) { file["model"]["vocab"]["d"] = 4294967296; }), HasSubstr("not a token id"));
  EXPECT_THAT(
      complaint([](json& file) { file["model"]["vocab"]["d"] = 2000000000; }),
      HasSubstr("model/tokenizer.json: model.vocab[\"d\"] is 2000000000, which is not a token id: with 5 entries "
                "ids from 0 to 16777215 are understood"));
  EXPECT_THAT(complaint([](json& file) { file["added_tokens"][1]["id"] = 2000000000; }),
              HasSubstr("model/tokenizer.json: added_tokens[1].id is 2000000000, which is not a token id"));
  EXPECT_THAT(complaint([](json& file) { file["added_tokens"][1]["id"] = -1; }), HasSubstr("not a token id"));
  EXPECT_THAT(complaint([](json& file) { file["model"]["vocab"]["d"] = "x"; }),
              HasSubstr("a text where an id belongs"));
  EXPECT_THAT(complaint([](json& file) { file["model"].erase("vocab"); }), HasSubstr("model has no \"vocab\""));
  EXPECT_THAT(complaint([](json& file) { file.erase("model"); }), HasSubstr("model is not an object"));
}

TEST(TokenizerErrors, ExpressionsThatCannotBeRunExactlyAreRefused) {
  const auto of = [](const char* expression) {
    return complaint([&](json& file) {
      file["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}};
    });
  };
  for (const char* expression :
       {"(?i:ss)", "(?i:\xC3\x9F)", "\\K", "(?~a)", "(*FAIL)", "a{2}?", "a{1,2}+", "a(?i)b", "(?x) a", "\\G", "\\pL",
        "(", ")", "[a", "[b-a]", "\\p{NoSuchScript}", "\\xE4", "a**", "(?<n>a)\\k<n>"}) {
    EXPECT_THAT(of(expression), HasSubstr("model/tokenizer.json: pre_tokenizer.pattern.Regex: the regular expression"))
        << expression;
  }
  // Of a long one the part that matters, in whole characters.
  std::string words;
  for (int i = 0; i < 400; ++i) words += "\xC3\xA4|";
  const std::string message = of((words + "\\K" + words).c_str());
  EXPECT_LT(message.size(), 300u);
  EXPECT_THAT(message, HasSubstr("|\xC3\xA4|\\K\xC3\xA4|"));
  EXPECT_THAT(message, HasSubstr("...\" has at byte 1201 "));
  EXPECT_EQ(json(message).dump(-1, ' ', true, json::error_handler_t::replace).find("\\ufffd"), std::string::npos);
  EXPECT_LT(of((words + "(" + words).c_str()).size(), 500u);
}

TEST(TokenizerErrors, BrokenJsonHasItsPlace) {
  try {
    make("{\"model\":\n {\"vocab\": {\"a\": 0,,}}}");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::StartsWith("model/tokenizer.json:2:20: not valid JSON"));
  }
  EXPECT_THROW(make(""), InputError);
  EXPECT_THROW(make("[]"), InputError);
  EXPECT_THROW(make(std::string(100000, '[')), InputError);
}

TEST(TokenizerErrors, TextsDoNotGrowWithoutEnd) {
  json description = small();
  json steps = json::array();
  for (int step = 0; step < 40; ++step) {
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  }
  description["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  EXPECT_THROW(make(description.dump())->encode("a", {}), InputError);
  description.erase("normalizer");
  description["decoder"] = {{"type", "Sequence"}, {"decoders", steps}};
  EXPECT_THROW(make(description.dump())->decode(std::vector<int64_t>{0}, {}), InputError);
}

TEST(TokenizerErrors, UnknownTokenThatIsMissingIsAnErrorWhereItIsNeeded) {
  json description = small();
  description["model"]["unk_token"] = "<unk>";
  const auto tokenizer = make(description.dump());
  EXPECT_THAT(tokenizer->encode("abc", {}).ids, ElementsAre(2, 3));
  EXPECT_THROW(tokenizer->encode("abd", {}), InputError);
}

// A folder with files.
class ModelFolder : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "ithaca-tokenizer-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    write("tokenizer.json", small());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const json& content) const { std::ofstream(folder_ / name) << content.dump(); }
  std::filesystem::path folder_;
};

TEST_F(ModelFolder, ConfigurationDecidesWhatIsAddedAround) {
  json description = small();
  description["post_processor"] = {{"type", "RobertaProcessing"}, {"cls", {"<s>", 4}}, {"sep", {"</s>", 5}}};
  write("tokenizer.json", description);
  const auto plain = open_tokenizer(folder_);
  EXPECT_THAT(plain->encode("ab", {true}).ids, ElementsAre(4, 2, 5));
  write("tokenizer_config.json", {{"add_bos_token", true}, {"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}});
  const auto beginning = open_tokenizer(folder_);
  EXPECT_THAT(beginning->encode("ab", {true}).ids, ElementsAre(4, 2));
  EXPECT_THAT(beginning->encode("ab", {}).ids, ElementsAre(2));
  EXPECT_NE(beginning->content_hash(), plain->content_hash());
  write("tokenizer_config.json", {{"add_eos_token", true}, {"bos_token", "<s>"}, {"eos_token", "</s>"}});
  EXPECT_THAT(open_tokenizer(folder_)->encode("ab", {true}).ids, ElementsAre(2, 5));
  write("tokenizer_config.json", {{"add_bos_token", true}, {"bos_token", nullptr}});
  EXPECT_THAT(open_tokenizer(folder_)->encode("ab", {true}).ids, ElementsAre(2));
}

TEST_F(ModelFolder, EndOfTextComesFromTheFirstFileThatNamesIt) {
  EXPECT_EQ(open_tokenizer(folder_)->end_of_text_id(), std::nullopt);
  write("config.json", {{"eos_token_id", 3}, {"bos_token_id", 4}});
  EXPECT_EQ(open_tokenizer(folder_)->end_of_text_id(), 3);
  EXPECT_EQ(open_tokenizer(folder_)->beginning_of_text_id(), 4);
  write("generation_config.json", {{"eos_token_id", {2, 5}}});
  EXPECT_EQ(open_tokenizer(folder_)->end_of_text_id(), 2);
  write("special_tokens_map.json", {{"eos_token", "a"}});
  EXPECT_EQ(open_tokenizer(folder_)->end_of_text_id(), 0);
  write("tokenizer_config.json", {{"eos_token", "</s>"}});
  EXPECT_EQ(open_tokenizer(folder_)->end_of_text_id(), 5);
}

TEST_F(ModelFolder, ConfigurationAddsTokens) {
  write("tokenizer_config.json", {{"added_tokens_decoder",
                                   {{"6", {{"content", "<new>"}, {"special", true}, {"lstrip", true}}},
                                    {"4", {{"content", "<s>"}, {"special", false}}}}},
                                  {"pad_token", "<pad>"},
                                  {"additional_special_tokens", {"c"}}});
  const auto tokenizer = open_tokenizer(folder_);
  EXPECT_THAT(tokenizer->encode("ab <new>c<pad>", {}).ids, ElementsAre(2, 6, 3, 7));
  EXPECT_EQ(tokenizer->token_text(6), "<new>");
  EXPECT_EQ(tokenizer->vocabulary_size(), 8);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("ab<pad>", {}).ids, {true}), "ab");
}

TEST_F(ModelFolder, WrongFilesBesideItAreNamed) {
  const auto expect = [&](const std::string& name, const json& content) {
    write(name, content);
    EXPECT_THAT([&] { open_tokenizer(folder_); }, testing::ThrowsMessage<InputError>(HasSubstr(name)));
    std::filesystem::remove(folder_ / name);
  };
  expect("tokenizer_config.json", json::array());
  expect("tokenizer_config.json", {{"add_bos_token", "yes"}});
  expect("tokenizer_config.json", {{"added_tokens_decoder", {{"x", {{"content", "<new>"}}}}}});
  expect("tokenizer_config.json", {{"added_tokens_decoder", {{"2000000000", {{"content", "<new>"}}}}}});
  expect("tokenizer_config.json", {{"eos_token", 3}});
  expect("generation_config.json", {{"eos_token_id", "x"}});
  std::filesystem::remove(folder_ / "tokenizer.json");
  EXPECT_THAT([&] { open_tokenizer(folder_); }, testing::ThrowsMessage<FileError>(HasSubstr("tokenizer.model")));
  for (const char* name : {"tokenizer.model", "tokenizer.json"}) {
    ASSERT_EQ(::mkfifo((folder_ / name).c_str(), 0600), 0);
    EXPECT_THAT([&] { open_tokenizer(folder_); },
                testing::ThrowsMessage<FileError>(HasSubstr(std::string(name) + ": is a FIFO, not a regular file")));
    std::filesystem::remove(folder_ / name);
  }
  std::ofstream(folder_ / "tokenizer.model") << "this is no model";
  EXPECT_THAT([&] { open_tokenizer(folder_); }, testing::ThrowsMessage<InputError>(HasSubstr("tokenizer.model")));
}

}  // namespace
}  // namespace ithaca
