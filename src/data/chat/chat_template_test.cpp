#include "data/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace ithaca {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;
using testing::StartsWith;

Json one_turn() {
  return Json::parse(R"([{"role": "user", "content": "Hi"}])");
}

std::string rendered(const std::string& source, const Json& conversation = one_turn(),
                     const ChatOptions& options = {}) {
  return ChatTemplate(source, "t.jinja").render(conversation, options).text;
}

// The message of the InputError that rendering (or parsing) gives.
std::string error_of(const std::string& source, const Json& conversation = one_turn(),
                     const ChatOptions& options = {}) {
  try {
    const std::string text = rendered(source, conversation, options);
    return "no error; rendered " + text.substr(0, 100);
  } catch (const InputError& error) {
    return error.what();
  }
}

std::string repeated(const std::string& text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

// --- What a conversation becomes

TEST(ChatTemplate, SeesMessagesAndWhatElseTheConversationHas) {
  const std::string source =
      "{{ messages[0].content }} {{ tools }} {{ documents }} {{ extra }} {{ add_generation_prompt }}";
  EXPECT_EQ(rendered(source), "Hi None None  False");
  Json conversation = {{"messages", one_turn()}, {"extra", "more"}, {"tools", Json::array({1})}};
  ChatOptions options;
  options.add_generation_prompt = true;
  EXPECT_EQ(rendered(source, conversation, options), "Hi [1] None more True");
}

TEST(ChatTemplate, VariablesAreSeenUnlessTheConversationHasItsOwn) {
  ChatTemplate chat("{{ bos_token }}{{ flag }}", "t.jinja");
  chat.set_variable("bos_token", "<s>");
  chat.set_variable("flag", 1);
  EXPECT_EQ(chat.render(one_turn(), {}).text, "<s>1");
  chat.set_variable("flag", 2);
  EXPECT_EQ(chat.render(one_turn(), {}).text, "<s>2");
  EXPECT_EQ(chat.render({{"messages", one_turn()}, {"flag", 3}}, {}).text, "<s>3");
  // One rendering leaves nothing for the next.
  EXPECT_EQ(chat.render(one_turn(), {}).text, "<s>2");
}

TEST(ChatTemplate, RefusesWhatIsNoConversation) {
  EXPECT_THAT(error_of("", Json::parse(R"({"role": "user"})")), HasSubstr("this object has none"));
  EXPECT_THAT(error_of("", Json::parse(R"({"messages": "text"})")), HasSubstr("an array, not string"));
  EXPECT_THAT(error_of("", Json("text")), HasSubstr("an array, not string"));
  EXPECT_THAT(error_of("", Json()), HasSubstr("an array, not null"));
}

TEST(ChatTemplate, NumbersAreThoseOfTheJson) {
  const Json conversation =
      Json::parse(R"({"messages": [], "n": [18446744073709551615, -9223372036854775808, 1.0, 1e20, 0.1]})");
  EXPECT_EQ(rendered("{{ n }} {{ n|tojson }}", conversation),
            "[18446744073709551615, -9223372036854775808, 1.0, 1e+20, 0.1] "
            "[18446744073709551615, -9223372036854775808, 1.0, 1e+20, 0.1]");
}

TEST(ChatTemplate, BytesThatAreNotUtf8AreReplaced) {
  Json conversation = {{"messages", Json::array()}};
  conversation["x"] = std::string("a\xff\xc3");
  EXPECT_EQ(rendered("\xfe{{ x|length }}{{ x }}", conversation),
            "\xef\xbf\xbd"
            "3a\xef\xbf\xbd\xef\xbf\xbd");
}

// --- {% generation %}

TEST(ChatTemplate, GivesTheBytesOfGenerationBlocks) {
  ChatTemplate chat(
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
      "{% else %}[{{ m.content }}]{% endif %}{% endfor %}",
      "t.jinja");
  EXPECT_TRUE(chat.marks_generation());
  const Json conversation = Json::parse(
      R"([{"role": "user", "content": "é"}, {"role": "assistant", "content": "ja 🎉"}, {"role": "user", "content": ""},
          {"role": "assistant", "content": ""}, {"role": "assistant", "content": "x"}])");
  const RenderedChat result = chat.render(conversation, {});
  EXPECT_EQ(result.text, "[é]ja 🎉[]x");
  EXPECT_EQ(result.generated, (std::vector<TextSpan>{{4, 11}, {13, 13}, {13, 14}}));
  EXPECT_FALSE(ChatTemplate("{{ messages }}", "t.jinja").marks_generation());
}

std::vector<TextSpan> generated(const std::string& source) {
  return ChatTemplate(source, "t.jinja").render(one_turn(), {}).generated;
}

TEST(ChatTemplate, FollowsGenerationBlocksThroughMacrosAndBlocks) {
  using Spans = std::vector<TextSpan>;
  EXPECT_EQ(generated("{% macro m() %}a{% generation %}é{% endgeneration %}b{% endmacro %}x{{ m() }}{{ m() }}"),
            (Spans{{2, 4}, {6, 8}}));
  EXPECT_EQ(generated("{% macro m() %}aa{% generation %}a{% endgeneration %}{% endmacro %}{{ m() if 1 }}"),
            (Spans{{2, 3}}));
  EXPECT_EQ(generated("{% set x %}a{% generation %}b{% endgeneration %}{% endset %}c{{ x }}{{ x }}"),
            (Spans{{2, 3}, {4, 5}}));
  EXPECT_EQ(generated("{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}a{% generation %}b{% endgeneration "
                      "%}{% endcall %}"),
            (Spans{{2, 3}}));
  EXPECT_EQ(generated("{% for x in [[[]]] recursive %}({{ loop(x) }}{% generation %}g{% endgeneration %}){% endfor %}"),
            (Spans{{2, 3}, {4, 5}}));
  EXPECT_EQ(generated("{% macro m() %}{% generation %}y{% endgeneration %}{% endmacro %}a{% generation %}x{{ m() }}{% "
                      "endgeneration %}"),
            (Spans{{2, 3}, {1, 3}}));
}

TEST(ChatTemplate, SaysWhenThePlaceOfAGenerationBlockIsNotKnown) {
  const std::string macro = "{% macro m() %}a{% generation %}b{% endgeneration %} {% endmacro %}x";
  for (const std::string use : {"{{ m() | trim }}", "{{ m() + '' }}", "{{ '' ~ m() }}", "{{ m()[:1] }}",
                                "{% set unused = m() %}", "{% filter upper %}{{ m() }}{% endfilter %}"}) {
    EXPECT_THAT(error_of(macro + use), HasSubstr("its place in the text is not known")) << use;
  }
}

// --- Errors

TEST(ChatTemplate, ErrorsNameFileLineAndColumn) {
  EXPECT_THAT(error_of("ok\n  {{ messages[0].nope.deeper }}"), StartsWith("t.jinja:2:22: "));
  EXPECT_THAT(error_of("ok\n  {{ messages[0].nope.deeper }}"), HasSubstr("'dict object' has no attribute 'nope'"));
  EXPECT_THAT(error_of("\n\n{{ 1 + }}"), StartsWith("t.jinja:3:8: unexpected '}}'"));
  EXPECT_THAT(error_of("{% if x %}\n{% for y in z %}\n"), StartsWith("t.jinja:2:4: the block 'for' is not closed"));
  EXPECT_THAT(error_of("a\r\nb {{ 'x'|uper }}"),
              StartsWith("t.jinja:2:10: No filter named 'uper'; did you mean 'upper'?"));
  EXPECT_THAT(error_of("{{ 1 is strin }}"), HasSubstr("No test named 'strin'; did you mean 'string'?"));
  EXPECT_THAT(error_of("{{ 'x'|wordwrap }}"), HasSubstr("'wordwrap' of Jinja is not available"));
  EXPECT_THAT(error_of("{% include 'x' %}"), HasSubstr("a chat template stands alone"));
  EXPECT_THAT(error_of("{% frobnicate %}"), StartsWith("t.jinja:1:4: Encountered unknown tag 'frobnicate'"));
  EXPECT_THAT(error_of("x {{ missing() }}"), StartsWith("t.jinja:1:13: 'missing' is undefined"));
  EXPECT_THAT(error_of("{{ 'a' + 1 }}"), HasSubstr("can only concatenate str (not \"int\") to str"));
}

TEST(ChatTemplate, RaiseExceptionsWordsArriveWithTheirPlace) {
  const std::string source =
      "{% for m in messages %}\n{% if m.role != 'system' %}\n{{ raise_exception('Only ' ~ m.role) }}{% endif %}{% "
      "endfor %}";
  EXPECT_EQ(error_of(source), "t.jinja:3:19: Only user");
}

TEST(ChatTemplate, TheSandboxForbidsChanges) {
  EXPECT_THAT(error_of("{% set x = messages.append(1) %}"),
              HasSubstr("access to attribute 'append' of 'list' object is unsafe"));
  EXPECT_THAT(error_of("{{ messages[0].update({}) }}"), HasSubstr("unsafe"));
  EXPECT_THAT(error_of("{{ ''.__class__.__mro__ }}"), HasSubstr("unsafe"));
}

TEST(ChatTemplate, MethodsOfPythonThatAreMissingAreErrorsAndNotUndefined) {
  EXPECT_THAT(error_of("{{ 'a'.encode() }}"), HasSubstr("'encode' of str is not available in chat templates here"));
  EXPECT_THAT(error_of("{{ '\\N{BULLET}' }}"), HasSubstr("characters by name"));
  EXPECT_THAT(error_of("{{ 2 ** 200 }}"), HasSubstr("128 bits"));
}

// --- Bounds

TEST(ChatTemplate, LoopsAreBounded) {
  ChatOptions options;
  options.limits.steps = 100000;
  const std::string endless = "{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}";
  EXPECT_THAT(error_of(endless, one_turn(), options), HasSubstr("has done 100000 steps and is not done"));
  EXPECT_THAT(error_of("{{ range(1000000) }}"), HasSubstr("Range too big"));
}

TEST(ChatTemplate, TextsAreBounded) {
  ChatOptions options;
  options.limits.bytes = 10000;
  const std::string growing =
      "{% set ns = namespace(x='ab') %}{% for a in range(1000) %}{% set ns.x = ns.x + ns.x %}{% endfor %}";
  EXPECT_THAT(error_of(growing, one_turn(), options), HasSubstr("larger than the 10000 that a template may make"));
  EXPECT_THAT(error_of("{{ 'ab' * 100000 }}", one_turn(), options), HasSubstr("larger than the 10000"));
  EXPECT_THAT(error_of("{{ [1] * 100000 }}", one_turn(), options), HasSubstr("larger than the 10000"));
  EXPECT_THAT(error_of("{{ 'a'.center(100000) }}", one_turn(), options), HasSubstr("larger than the 10000"));
  EXPECT_THAT(error_of("{% for a in range(1000) %}0123456789012{% endfor %}", one_turn(), options),
              HasSubstr("longer than the 10000 bytes"));
  EXPECT_THAT(error_of("{{ 'a' * 99999999999999999999 }}"), HasSubstr("too large"));
  EXPECT_THAT(error_of("{{ '%999999999d' % 1 }}"), HasSubstr("wider than 100000"));
  EXPECT_THAT(error_of("{{ '{:999999999}'.format(1) }}"), HasSubstr("wider than 100000"));
}

TEST(ChatTemplate, RecursionIsBounded) {
  EXPECT_THAT(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
              HasSubstr("maximum recursion depth exceeded"));
  EXPECT_THAT(error_of("{% for x in [[]] recursive %}{{ loop([[]]) }}{% endfor %}"),
              HasSubstr("maximum recursion depth"));
  EXPECT_EQ(
      rendered("{% macro m(n) %}{% if n %}{{ n }},{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(50) }}").substr(0, 6),
      "50,49,");
}

TEST(ChatTemplate, NestedTemplatesAreBounded) {
  for (const int depth : {1000, 100000}) {
    EXPECT_THAT(error_of("{{ " + repeated("(", depth) + "1" + repeated(")", depth) + " }}"),
                HasSubstr("nested deeper"));
    EXPECT_THAT(error_of("{{ " + repeated("[", depth) + repeated("]", depth) + " }}"), HasSubstr("nested deeper"));
    EXPECT_THAT(error_of("{{ " + repeated("not ", depth) + "1 }}"), HasSubstr("nested deeper"));
    EXPECT_THAT(error_of("{{ " + repeated("-", depth) + "1 }}"), HasSubstr("nested deeper"));
    EXPECT_THAT(error_of("{{ 1" + repeated(" + 1", depth) + " }}"), HasSubstr("deeper than 400 operations"));
    EXPECT_THAT(error_of("{{ x" + repeated(".x", depth) + " }}"), HasSubstr("deeper than 400 operations"));
    EXPECT_THAT(error_of("{{ 1" + repeated("|abs", depth) + " }}"), HasSubstr("deeper than 400 operations"));
    EXPECT_THAT(error_of("{{ 1" + repeated(" if 1 else 1", depth) + " }}"), HasSubstr("nested deeper"));
    EXPECT_THAT(error_of(repeated("{% if 1 %}", depth)), HasSubstr("nested deeper"));
  }
  EXPECT_EQ(rendered("{{ " + repeated("(", 50) + "1" + repeated(")", 50) + " }}"), "1");
  EXPECT_EQ(rendered("{{ 0" + repeated(" + 1", 300) + " }}"), "300");
  EXPECT_EQ(rendered(repeated("{% if 1 %}", 200) + "x" + repeated("{% endif %}", 200)), "x");
}

TEST(ChatTemplate, NestedValuesAreBounded) {
  Json deep = Json::array();
  for (int i = 0; i < 5000; ++i) deep = Json::array({std::move(deep)});
  EXPECT_THAT(error_of("{{ messages }}", Json{{"messages", deep}}), HasSubstr("nested deeper than 200 levels"));
  EXPECT_THAT(error_of("{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}"),
              HasSubstr("nested deeper than 200 levels"));
  EXPECT_THAT(
      error_of(
          "{% set ns = namespace(x=[1]) %}{% for i in range(1000) %}{% set ns.x = ns.x|map('string') %}{% endfor %}"),
      HasSubstr("nested deeper than 200 levels"));
  // A list that holds the one before twice doubles with every turn.
  EXPECT_THAT(
      error_of(
          "{% set ns = namespace(x=[]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}"),
      HasSubstr("more than 4000000 parts"));
  EXPECT_THAT(error_of("{{ ['x' * 100000] * 10000 }}"), HasSubstr("longer than 268435456 bytes"));
  EXPECT_THAT(error_of("{{ (['x' * 100000] * 10000)|tojson }}"), HasSubstr("longer than 268435456 bytes"));
  // Namespaces can hold each other to any depth, and themselves; printing them ends all the same.
  EXPECT_THAT(
      error_of(
          "{% set ns = namespace() %}{% for i in range(2000) %}{% set ns.x = namespace(x=ns.x) %}{% endfor %}{{ ns }}"),
      HasSubstr("nested deeper than"));
  EXPECT_EQ(rendered("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}"), "<Namespace {'x': <Namespace {...}>}>");
}

TEST(ChatTemplate, WhatHoldsItselfIsFreed) {
  // What fails here is the leak checker of the sanitizer build.
  EXPECT_EQ(
      rendered(
          "{% set ns = namespace() %}{% set ns.a = [ns] %}{% macro m() %}{{ caller }}{% endmacro %}{% set ns.m = m %}"
          "{% for x in [1] recursive %}{% set ns.l = loop %}{{ loop.changed(loop) }}{% endfor %}"
          "{% call m() %}{{ m }}{% endcall %}"),
      "True<Macro anonymous>");
}

// --- The clock

TEST(ChatTemplate, TellsTheTimeThatItIsGiven) {
  setenv("TZ", "UTC", 1);
  ChatOptions options;
  options.now = 1722003723;
  EXPECT_EQ(rendered("{{ strftime_now('%d %B %Y, %H:%M') }}", one_turn(), options), "26 July 2024, 14:22");
  const std::string year = rendered("{{ strftime_now('%Y') }}");
  EXPECT_GE(std::stoi(year), 2024);
}

// --- Threads

TEST(ChatTemplate, RendersOnSeveralThreadsAtOnce) {
  const ChatTemplate chat(
      "{% macro m(x) %}<{{ x }}>{% endmacro %}{% set ns = namespace(n=0) %}{% for i in range(200) %}"
      "{% set ns.n = ns.n + i %}{% endfor %}{{ m(messages[0].content) }}{{ ns.n }}",
      "t.jinja");
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < texts.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int turn = 0; turn < 20; ++turn) {
        texts[i] = chat.render(Json::array({{{"role", "user"}, {"content", std::to_string(i)}}}), {}).text;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(texts[i], "<" + std::to_string(i) + ">19900");
}

// --- Finding the template of a model

class ModelFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("ithaca-chat-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  std::string opened() const { return open_chat_template(folder_).render(one_turn(), {}).text; }
  std::string error() const {
    try {
      return "no error; rendered " + opened();
    } catch (const InputError& failure) {
      return std::string("InputError: ") + failure.what();
    } catch (const FileError& failure) {
      return std::string("FileError: ") + failure.what();
    }
  }
  std::filesystem::path folder_;
};

TEST_F(ModelFolder, TemplateOfTheConfigWithItsSpecialTokens) {
  write(
      "tokenizer_config.json",
      R"({"chat_template": "{{ bos_token }}{{ eos_token }}{{ pad_token }}|{{ add_bos_token }}|{{ image_token }}|{{ additional_special_tokens }}",
    "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": null, "add_bos_token": true,
    "extra_special_tokens": {"image_token": "<image>"}, "additional_special_tokens": ["<a>", {"content": "<b>"}]})");
  EXPECT_EQ(opened(), "<s></s>||<image>|['<a>', '<b>']");
}

TEST_F(ModelFolder, TokensThatTheConfigLacksComeFromTheMap) {
  write("tokenizer_config.json", R"({"chat_template": "{{ bos_token }}{{ eos_token }}", "bos_token": "<s>"})");
  write("special_tokens_map.json", R"({"bos_token": "other", "eos_token": {"content": "<end>"}})");
  EXPECT_EQ(opened(), "<s><end>");
}

TEST_F(ModelFolder, AFileOfItsOwnComesFirst) {
  write("tokenizer_config.json", R"({"chat_template": "config", "bos_token": "<s>"})");
  write("chat_template.json", R"({"chat_template": "processor"})");
  write("chat_template.jinja", "file {{ bos_token }}\n");
  EXPECT_EQ(opened(), "file <s>");
  std::filesystem::remove(folder_ / "chat_template.jinja");
  EXPECT_EQ(opened(), "config");
  write("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(opened(), "processor");
}

TEST_F(ModelFolder, OfNamedTemplatesTheDefaultIsTaken) {
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(opened(), "d");
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "rag", "template": "r"}, {"name": "tool_use", "template": "t"}]})");
  EXPECT_THAT(error(), HasSubstr("has no template named \"default\"; there are: rag, tool_use"));
}

TEST_F(ModelFolder, SaysWhatIsMissingOrWrong) {
  EXPECT_THAT(error(), StartsWith("FileError: the model in " + folder_.string() + " has no chat template"));
  write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_THAT(error(), HasSubstr("tokenizer_config.json (chat_template) is neither a text nor a list"));
  write("tokenizer_config.json", R"({"chat_template": ["x"]})");
  EXPECT_THAT(error(), HasSubstr("is not an object of \"name\" and \"template\""));
  write("tokenizer_config.json", R"({"chat_template": "a\n{{ 1 + }}"})");
  EXPECT_THAT(error(), HasSubstr("tokenizer_config.json (chat_template):2:8: unexpected '}}'"));
  write("tokenizer_config.json", "[]");
  EXPECT_THAT(error(), HasSubstr("expected a JSON object, found array"));
  write("tokenizer_config.json", "{");
  EXPECT_THAT(error(), HasSubstr("not valid JSON"));
}

}  // namespace
}  // namespace ithaca
