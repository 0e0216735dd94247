// `ithaca tokenize` against Hugging Face's ids, and what it says to wrong input.
#include "cli/tokenize_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "base/error.h"
#include "cli/test_folder.h"

namespace ithaca {
namespace {

const std::string& model() {
  static const std::string folder = std::string(ITHACA_TEST_DATA) + "/tokenizers/bpe-llama3-style";
  return folder;
}

std::string run(const TokenizeArguments& arguments, const std::string& input) {
  std::istringstream in(input);
  std::ostringstream out;
  EXPECT_EQ(tokenize_command(arguments, in, out), 0);
  return out.str();
}

TokenizeArguments arguments_for(const std::string& folder) {
  TokenizeArguments arguments;
  arguments.model = folder;
  return arguments;
}

TEST(Tokenize, GivesTheIdsOfHuggingFaceAndTheTextBack) {
  std::ifstream file(model() + "/cases.json");
  for (const auto& item : nlohmann::json::parse(file)) {
    TokenizeArguments arguments = arguments_for(model());
    const auto text = item.at("text").get<std::string>();
    EXPECT_EQ(run(arguments, text), item.at("ids").dump() + "\n");
    arguments.special = true;
    EXPECT_EQ(run(arguments, text), item.at("ids_with_special").dump() + "\n");
    arguments.special = false;
    arguments.decode = true;
    EXPECT_EQ(run(arguments, item.at("ids").dump()), item.at("decoded").get<std::string>());
  }
}

TEST(Tokenize, ReadsIdsInTwoForms) {
  TokenizeArguments arguments = arguments_for(model());
  arguments.decode = true;
  EXPECT_EQ(run(arguments, "[39, 1289, 332, 1401, 498]"), "Hello world");
  EXPECT_EQ(run(arguments, " 39 1289\n332\t1401\r\n498\n"), "Hello world");
  EXPECT_EQ(run(arguments, " \n"), "");
  EXPECT_EQ(run(arguments, "[]"), "");
}

TEST(Tokenize, RefusesWhatAreNoIds) {
  TokenizeArguments arguments = arguments_for(model());
  arguments.decode = true;
  for (const char* input : {"39 x", "39,1289", "[39, \"x\"]", "[39.5]", "[39", "99999999", "-1", "[[1]]"}) {
    std::istringstream in(input);
    std::ostringstream out;
    EXPECT_THROW(tokenize_command(arguments, in, out), InputError) << input;
  }
}

TEST(Tokenize, ChatsAreRenderedAndEncodedWithoutFurtherSpecialTokens) {
  TestFolder folder;
  std::filesystem::copy_file(model() + "/tokenizer.json", folder.path("tokenizer.json"));
  std::ofstream(folder.path("chat_template.jinja"))
      << "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
         "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{{ note }}";
  const std::string messages = R"([{"role": "user", "content": "Hello world"}])";
  TokenizeArguments arguments = arguments_for(folder.path(""));
  arguments.chat = true;
  arguments.render = true;
  EXPECT_EQ(run(arguments, messages), "<|im_start|>user\nHello world<|im_end|>\n");
  arguments.generation_prompt = true;
  EXPECT_EQ(run(arguments, R"({"messages": )" + messages + R"(, "note": "!"})"),
            "<|im_start|>user\nHello world<|im_end|>\n<|im_start|>assistant\n!");
  const std::string text = run(arguments, messages);
  arguments.render = false;
  const std::string ids = run(arguments, messages);
  EXPECT_THAT(ids, testing::StartsWith("[1501,"));
  EXPECT_EQ(run(arguments_for(folder.path("")), text), ids);
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"[{\"role\":\n ", "standard input:2:2: not valid JSON: the text ends before it is complete"},
      {"[{\"role\": oh", "standard input:1:11: not valid JSON: invalid literal, at the end of '\"role\": o'"},
      {" \n", "standard input is empty; --chat wants a JSON array of messages"}};
  for (const auto& [input, expected] : wrong) {
    std::istringstream in(input);
    std::ostringstream out;
    try {
      tokenize_command(arguments, in, out);
      ADD_FAILURE() << input;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), testing::StartsWith(expected));
    }
  }
}

TEST(Tokenize, RefusesOptionsThatExcludeEachOther) {
  const auto refuses = [](void (*set)(TokenizeArguments&)) {
    TokenizeArguments arguments = arguments_for(model());
    set(arguments);
    std::istringstream in;
    std::ostringstream out;
    EXPECT_THROW(tokenize_command(arguments, in, out), ConfigurationError);
  };
  refuses([](TokenizeArguments& arguments) { arguments.decode = arguments.chat = true; });
  refuses([](TokenizeArguments& arguments) { arguments.decode = arguments.special = true; });
  refuses([](TokenizeArguments& arguments) { arguments.chat = arguments.special = true; });
  refuses([](TokenizeArguments& arguments) { arguments.render = true; });
  refuses([](TokenizeArguments& arguments) { arguments.generation_prompt = true; });
}

TEST(Tokenize, NamesTheFolderWithoutATokenizer) {
  TestFolder folder;
  std::istringstream in;
  std::ostringstream out;
  EXPECT_THROW(
      {
        try {
          tokenize_command(arguments_for(folder.path("")), in, out);
        } catch (const FileError& error) {
          EXPECT_THAT(error.what(), testing::HasSubstr("tokenizer.json"));
          throw;
        }
      },
      FileError);
}

}  // namespace
}  // namespace ithaca
