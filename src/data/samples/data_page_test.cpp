// The examples of docs/data.md work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "data/samples/sample_maker.h"
#include "data/samples/testing_tokenizer.h"
#include "data/test_files.h"

namespace ithaca {
namespace {

// What stands between fences, by what stands behind the opening one.
std::multimap<std::string, std::string> fenced_blocks() {
  std::istringstream page(read_test_file(std::string(ITHACA_SOURCE_DIR) + "/docs/data.md"));
  std::multimap<std::string, std::string> blocks;
  std::string kind;
  std::string block;
  bool is_inside = false;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("```")) {
      if (is_inside) block += line + "\n";
      continue;
    }
    if (is_inside) blocks.emplace(kind, std::move(block));
    is_inside = !is_inside;
    kind = line.substr(3);
    block.clear();
  }
  return blocks;
}

class DataPage : public testing::Test {
 protected:
  SampleOptions options_for(const std::string& format) const {
    SampleOptions options;
    options.format = format;
    options.tokenizer = tokenizer_;
    options.chat_template = std::make_shared<ChatTemplate>(blocks_.find("jinja")->second, "data.md");
    options.vocabulary = 1000;
    return options;
  }

  std::multimap<std::string, std::string> blocks_ = fenced_blocks();
  std::shared_ptr<WordTokenizer> tokenizer_ = std::make_shared<WordTokenizer>();
};

TEST_F(DataPage, EveryFormatHasExamplesThatWork) {
  const TemporaryDirectory directory;
  for (const std::string& format : sample_formats()) {
    const auto block = blocks_.find("json " + format);
    ASSERT_NE(block, blocks_.end()) << format;
    EXPECT_EQ(detect_format({directory.write("x.jsonl", block->second)}).format, format);
    SampleOptions options = options_for(format);
    // That of the page does not know tool calls.
    if (block->second.find("tool") != std::string::npos) {
      options.chat_template = std::make_shared<ChatTemplate>(
          "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.tool_calls }}{% endfor %}"
          "{% if add_generation_prompt %}<assistant>{% endif %}",
          "x.jinja");
    }
    const std::unique_ptr<SampleMaker> maker = make_sample_maker(options);
    std::istringstream lines(block->second);
    for (std::string line; std::getline(lines, line);) {
      const Sample sample = maker->make(json_record(line));
      EXPECT_GE(sample.token_ids.size(), 2u) << line;
      EXPECT_TRUE(
          sample.target_weights.empty() ||
          std::any_of(sample.target_weights.begin(), sample.target_weights.end(), [](float w) { return w > 0; }))
          << line;
    }
  }
}

TEST_F(DataPage, TheTemplateMarksAnswersAndTheirEnd) {
  const std::unique_ptr<SampleMaker> maker = make_sample_maker(options_for("messages"));
  EXPECT_EQ(marked(maker->make(json_record(R"({"messages": [{"role": "user", "content": "A"},
      {"role": "assistant", "content": "<think>T</think>B"}, {"role": "user", "content": "C"},
      {"role": "assistant", "content": "D"}]})")),
                   *tokenizer_),
            "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n{<think>}{T}{</think>}{B}{<|im_end|>}\n"
            "<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n{D}{<|im_end|>}\n");
}

TEST_F(DataPage, TheWordingOfInstructions) {
  SampleOptions options = options_for("instruction");
  options.chat_template = nullptr;
  options.append_eos = "never";
  const std::string first = blocks_.find("json instruction")->second;
  const Sample sample = make_sample_maker(options)->make(json_record(first.substr(0, first.find('\n'))));
  bool is_there = false;
  for (auto [block, end] = blocks_.equal_range(""); block != end; ++block) {
    is_there = is_there || block->second == tokenizer_->decode(sample.token_ids, {}) + "\n";
  }
  EXPECT_TRUE(is_there);
}

}  // namespace
}  // namespace ithaca
