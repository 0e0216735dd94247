// The templates of published models, and some of our own, over many conversations: what python3-jinja2 makes of them
// when the test runs (tests/data/chat/reference.py, set up as transformers does it) is what ours must be, byte for
// byte.
//
// scripts/fetch_tokenizers.sh fetches the published ones; what cannot be had here is skipped aloud.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/chat/chat_template.h"

namespace ithaca {
namespace {

using Json = nlohmann::ordered_json;
constexpr int64_t kNow = 1722003723;

std::string source_folder() {
  return ITHACA_SOURCE_DIR;
}
std::string data_folder() {
  return std::string(ITHACA_TEST_DATA) + "/chat";
}

int run(const std::string& command) {
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

Json read_json(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw FileError("cannot read " + path);
  return Json::parse(file);
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw FileError("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// What Jinja makes of {"template", "variables"}, one after the other.
Json reference(const Json& cases) {
  char name[] = "/tmp/ithaca-chat-XXXXXX";
  const std::string folder = mkdtemp(name);
  std::ofstream(folder + "/cases.json") << cases.dump();
  const std::string command = "TZ=UTC python3 -B '" + data_folder() + "/reference.py' < " + folder + "/cases.json > " +
                              folder + "/results.json";
  const int status = run(command);
  Json results = status == 0 ? read_json(folder + "/results.json") : Json();
  std::filesystem::remove_all(folder);
  if (status != 0) throw FileError("failed: " + command);
  return results;
}

class ChatReference : public testing::Test {
 protected:
  void SetUp() override {
    if (run("python3 -c 'import jinja2' 2>/dev/null") != 0) {
      GTEST_SKIP() << "python3-jinja2 is not installed: the templates were NOT compared with Jinja's own rendering";
    }
    setenv("TZ", "UTC", 1);
  }

  // Renders every conversation, with and without a generation prompt, and compares. `source` is the text of `chat`,
  // `tokens` are its special tokens. Returns how many were rendered without an error.
  static int64_t compare(const ChatTemplate& chat, const std::string& source, const Json& tokens) {
    std::vector<std::pair<Json, ChatOptions>> inputs;
    Json cases = Json::array();
    for (const Json& conversation : read_json(data_folder() + "/conversations.json")) {
      for (const bool prompt : {false, true}) {
        ChatOptions options;
        options.add_generation_prompt = prompt;
        options.now = kNow;
        inputs.emplace_back(conversation, options);
        Json variables = tokens;
        for (const auto& [key, value] : conversation.items()) variables[key] = value;
        variables["add_generation_prompt"] = prompt;
        cases.push_back({{"template", source}, {"variables", variables}, {"now", kNow}});
      }
    }
    const Json expected = reference(cases);
    EXPECT_EQ(expected.size(), inputs.size());
    int64_t rendered = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto& [conversation, options] = inputs[i];
      SCOPED_TRACE(conversation.at("name").get<std::string>() +
                   (options.add_generation_prompt ? ", with a prompt" : ""));
      if (expected[i].contains("error")) {
        const auto message = expected[i].at("error").get<std::string>();
        try {
          ADD_FAILURE() << "rendered " << chat.render(conversation, options).text << "\nJinja: " << message;
        } catch (const InputError& error) {
          // Words that the template itself chose are the same.
          const std::string raised = "TemplateError: ";
          if (message.rfind(raised, 0) == 0) {
            EXPECT_NE(std::string(error.what()).find(message.substr(raised.size())), std::string::npos) << error.what();
          }
        }
        continue;
      }
      ++rendered;
      const RenderedChat result = chat.render(conversation, options);
      EXPECT_EQ(result.text, expected[i].at("text").get<std::string>());
      Json spans = Json::array();
      for (const TextSpan& span : result.generated) spans.push_back({span.begin, span.end});
      EXPECT_EQ(spans, expected[i].at("spans"));
    }
    return rendered;
  }

  // Variables that a model's template sees, from its tokenizer_config.json.
  static Json special_tokens(const Json& config) {
    Json tokens = Json::object();
    for (const auto& [key, value] : config.items()) {
      const bool is_token = key.size() > 6 && key.compare(key.size() - 6, 6, "_token") == 0;
      if (is_token && value.is_string()) tokens[key] = value;
      if (is_token && value.is_object()) tokens[key] = value.at("content");
    }
    return tokens;
  }
};

class PublishedTemplate : public ChatReference, public testing::WithParamInterface<const char*> {};

TEST_P(PublishedTemplate, RendersAsJinjaDoes) {
  const std::string folder = source_folder() + "/build/tokenizers";
  const int status = run(source_folder() + "/scripts/fetch_tokenizers.sh '" + folder + "'");
  if (status == 3) GTEST_SKIP() << "the published tokenizers cannot be fetched here: their templates were NOT compared";
  ASSERT_EQ(status, 0);
  const std::string model = folder + "/" + GetParam();
  const Json config = read_json(model + "/tokenizer_config.json");
  const ChatTemplate chat = open_chat_template(model);
  EXPECT_GT(compare(chat, config.at("chat_template").get<std::string>(), special_tokens(config)), 15);
}

INSTANTIATE_TEST_SUITE_P(Models, PublishedTemplate, testing::Values("qwen3", "llama3_1", "gemma3"));

TEST_F(ChatReference, TheTokenizerOfLlama2IsPublishedWithoutATemplate) {
  const std::string folder = source_folder() + "/build/tokenizers";
  if (run(source_folder() + "/scripts/fetch_tokenizers.sh '" + folder + "'") == 3) {
    GTEST_SKIP() << "the published tokenizers cannot be fetched here";
  }
  EXPECT_THROW(open_chat_template(folder + "/llama2"), FileError);
}

class OwnTemplate : public ChatReference, public testing::WithParamInterface<const char*> {};

TEST_P(OwnTemplate, RendersAsJinjaDoes) {
  const std::string path = data_folder() + "/templates/" + GetParam();
  const std::string source = read_text(path);
  const Json tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  ChatTemplate chat(source, path);
  for (const auto& [name, value] : tokens.items()) chat.set_variable(name, value);
  EXPECT_GT(compare(chat, source, tokens), 15);
}

// llama2.jinja is the format of Llama 2, whose tokenizer is published without it.
INSTANTIATE_TEST_SUITE_P(Templates, OwnTemplate, testing::Values("llama2.jinja", "generation.jinja", "macros.jinja"));

}  // namespace
}  // namespace ithaca
