// What is trained of conversations, held to marks that were set by hand.
#include "data/samples/chat_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "data/samples/sample_maker.h"
#include "data/samples/testing_tokenizer.h"
#include "data/test_files.h"

namespace ithaca {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// <role>, line end, content, <end>, line end.
constexpr const char* kPlain =
    "{% for m in messages %}<{{ m.role }}>{{ '\\n' }}{{ m.content }}<end>{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{{ '\\n' }}{% endif %}";
// The same, with the answers marked; of answers with a "thought" that in a block of its own.
constexpr const char* kMarked =
    "{% for m in messages %}<{{ m.role }}>{{ '\\n' }}"
    "{% if m.role == 'assistant' %}{% if m.thought %}{% generation %}({{ m.thought }}){% endgeneration %}{{ '\\n' }}"
    "{% endif %}{% generation %}{{ m.content }}<end>{% endgeneration %}{% else %}{{ m.content }}<end>{% endif %}"
    "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}<assistant>{{ '\\n' }}{% endif %}";
// Thoughts are rendered in the last turn alone, as reasoning models have it.
constexpr const char* kForgetful =
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and loop.last %}<think>{{ m.thought }}</think>"
    "{% endif %}{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

class ChatWeights : public testing::Test {
 protected:
  std::string made(const char* source, const std::string& json, const std::string& train_on = "",
                   const std::string& format = "messages") const {
    SampleOptions options;
    options.format = format;
    options.train_on = train_on;
    options.tokenizer = std::make_shared<WordTokenizer>(true, true);
    options.chat_template = std::make_shared<ChatTemplate>(source, "x.jinja");
    options.vocabulary = 1000;
    return marked(make_sample_maker(options)->make(json_record(json)), *options.tokenizer);
  }
  std::string refusal(const char* source, const std::string& json, const std::string& train_on = "",
                      const std::string& format = "messages") const {
    return message_of<RecordError>([&] { made(source, json, train_on, format); });
  }
};

// A user and an assistant in turn, with what else the assistant's messages have.
std::string dialogue(const std::string& first = "", const std::string& second = "") {
  return R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "A"},
             {"role": "assistant", "content": "B")" +
         first + R"(}, {"role": "user", "content": "C"}, {"role": "assistant", "content": "D")" + second + "}]}";
}

// The end of the turn is part of it, and so is what the template writes behind that: the beginnings of the conversation
// cannot tell them apart.
TEST_F(ChatWeights, ByBeginnings) {
  EXPECT_EQ(made(kPlain, dialogue()),
            "<system>\nS<end>\n<user>\nA<end>\n<assistant>\n{B}{<end>}{\n}<user>\nC<end>\n<assistant>\n{D}{<end>}{\n}");
  EXPECT_EQ(made(kPlain, dialogue(), "completion"),
            "<system>\nS<end>\n<user>\nA<end>\n<assistant>\nB<end>\n<user>\nC<end>\n<assistant>\n{D}{<end>}{\n}");
  EXPECT_EQ(
      made(kPlain, R"({"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B c."}]})",
           "all"),
      "{<user>}{\n}{A}{<end>}{\n}{<assistant>}{\n}{B}{ c}{.}{<end>}{\n}");
}

TEST_F(ChatWeights, ByMarks) {
  EXPECT_EQ(made(kMarked, dialogue()),
            "<system>\nS<end>\n<user>\nA<end>\n<assistant>\n{B}{<end>}\n<user>\nC<end>\n<assistant>\n{D}{<end>}\n");
  EXPECT_EQ(made(kMarked, dialogue(R"(, "thought": "T")"), "assistant"),
            "<system>\nS<end>\n<user>\nA<end>\n<assistant>\n{(}{T}{)}\n{B}{<end>}\n<user>\nC<end>\n<assistant>\n{D}"
            "{<end>}\n");
  EXPECT_EQ(
      made(kMarked, dialogue("", R"(, "thought": "T")"), "completion"),
      "<system>\nS<end>\n<user>\nA<end>\n<assistant>\nB<end>\n<user>\nC<end>\n<assistant>\n{(}{T}{)}\n{D}{<end>}\n");
  EXPECT_EQ(made(kMarked, R"({"messages": [{"role": "assistant", "content": "B"}]})"), "<assistant>\n{B}{<end>}\n");
}

TEST_F(ChatWeights, WeightsOfMessages) {
  for (const char* source : {kPlain, kMarked}) {
    const bool is_plain = source == kPlain;
    EXPECT_EQ(made(source, dialogue(R"(, "weight": 0)", R"(, "weight": 0.5)")),
              std::string("<system>\nS<end>\n<user>\nA<end>\n<assistant>\nB<end>\n<user>\nC<end>\n<assistant>\n{D*0.5}"
                          "{<end>*0.5}") +
                  (is_plain ? "{\n*0.5}" : "\n"));
    EXPECT_EQ(made(source, dialogue(R"(, "weight": 2, "thought": "")", R"(, "weight": 3)"), "completion"),
              std::string("<system>\nS<end>\n<user>\nA<end>\n<assistant>\nB<end>\n<user>\nC<end>\n<assistant>\n{D*3}"
                          "{<end>*3}") +
                  (is_plain ? "{\n*3}" : "\n"));
    // Nobody but the user says so.
    EXPECT_THAT(made(source, dialogue(R"(, "weight": 0)", R"(, "weight": 0)")), testing::Not(HasSubstr("{")));
    EXPECT_THAT(made(source, dialogue(R"(, "weight": null)")), AllOf(HasSubstr("{B}"), HasSubstr("{D}")));
  }
  EXPECT_EQ(
      made(kMarked, dialogue(R"(, "weight": 2, "thought": "T")"), "assistant"),
      "<system>\nS<end>\n<user>\nA<end>\n<assistant>\n{(*2}{T*2}{)*2}\n{B*2}{<end>*2}\n<user>\nC<end>\n<assistant>\n"
      "{D}{<end>}\n");
  // With all, every message has its piece, and the weight of any message counts.
  EXPECT_EQ(made(kPlain,
                 R"({"messages": [{"role": "user", "content": "A", "weight": 0},
                     {"role": "assistant", "content": "B", "weight": 2}, {"role": "user", "content": "C"}]})",
                 "all"),
            "<user>\nA<end>\n{<assistant>*2}{\n*2}{B*2}{<end>*2}{\n*2}{<user>}{\n}{C}{<end>}{\n}");
  EXPECT_EQ(made(kPlain, R"({"messages": [{"role": "user", "content": "A", "weight": 0.25}]})", "all"),
            "{<user>*0.25}{\n*0.25}{A*0.25}{<end>*0.25}{\n*0.25}");
}

// Whose a mark is must be known where weights differ.
TEST_F(ChatWeights, MarksOfOthers) {
  const char* source =
      "{% for m in messages %}<{{ m.role }}>{% generation %}{{ m.content }}{% endgeneration %}<end>{% endfor %}";
  EXPECT_EQ(made(source, dialogue()),
            "<system>{S}<end><user>{A}<end><assistant>{B}<end><user>{C}<end><assistant>{D}<end>");
  EXPECT_THAT(refusal(source, dialogue(R"(, "weight": 2)")), HasSubstr("messages before message 2 that are not"));
  const char* of_tools =
      "{% for m in messages %}<{{ m.role }}>{% if m.role in ['assistant', 'tool'] %}{% generation %}{{ m.content }}"
      "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}";
  const std::string with_tool =
      R"({"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"},
          {"role": "tool", "content": "C"}, {"role": "assistant", "content": "D", "weight": 2}]})";
  EXPECT_THAT(refusal(of_tools, with_tool), HasSubstr("messages before message 3 that are not"));
  EXPECT_THAT(refusal(of_tools, dialogue(R"(, "weight": 2}, {"role": "tool", "content": "E")")),
              HasSubstr("messages before message 5 that are not"));
}

TEST_F(ChatWeights, WeightsThatCannotBeHonoured) {
  const std::string of_user = R"({"messages": [{"role": "user", "content": "A", "weight": 1},
                                               {"role": "assistant", "content": "B"}]})";
  EXPECT_THAT(refusal(kPlain, of_user), AllOf(HasSubstr("message 0 has the weight 1"), HasSubstr("train_on: all")));
  EXPECT_THAT(refusal(kPlain, dialogue(R"(, "weight": -1)")), HasSubstr("messages[2]: \"weight\" is -1"));
  EXPECT_THAT(refusal(kPlain, dialogue(R"(, "weight": "1")")), HasSubstr("\"weight\" is \"1\""));
  EXPECT_THAT(refusal(kPlain, dialogue(R"(, "weight": 1e300)")), HasSubstr("\"weight\" is 1e+300; weights are"));
  EXPECT_THAT(refusal(kPlain, dialogue(R"(, "weight": 1e-300)")), HasSubstr("\"weight\" is 1e-300, which is 0"));
  EXPECT_THAT(refusal(kPlain, dialogue(R"(, "train": false)")), HasSubstr("\"train\" is not supported"));
}

// Where a template changes earlier turns when later ones come, nothing is guessed.
TEST_F(ChatWeights, TemplatesThatRewriteEarlierTurns) {
  const std::string text = refusal(kForgetful, dialogue(R"(, "thought": "T")", R"(, "thought": "U")"));
  EXPECT_THAT(text, AllOf(HasSubstr("x.jsonl:1: the chat template changes message 2"),
                          HasSubstr("data.train_on: completion"), HasSubstr("{% generation %}")));
  EXPECT_EQ(made(kForgetful, dialogue(R"(, "thought": "T")", R"(, "thought": "U")"), "completion"),
            "<system>S<end><user>A<end><assistant>B<end><user>C<end><assistant>{<think>}{U}{</think>}{D}{<end>}");
  EXPECT_EQ(made(kForgetful, dialogue(R"(, "thought": "T", "weight": 0)", R"(, "thought": "U")")),
            "<system>S<end><user>A<end><assistant>B<end><user>C<end><assistant>{<think>}{U}{</think>}{D}{<end>}");
  // The whole needs no pieces.
  EXPECT_THAT(made(kForgetful, dialogue(), "all"), HasSubstr("{<user>}{A}"));
  EXPECT_THAT(refusal(kForgetful, dialogue("", R"(, "weight": 2)"), "all"), HasSubstr("changes message 2"));
}

TEST_F(ChatWeights, GenerationPromptsThatDoNotBeginTheTurn) {
  const char* source =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
      "{% if add_generation_prompt %}<assistant><think>{% endif %}";
  EXPECT_THAT(refusal(source, dialogue()), AllOf(HasSubstr("message 2 does not begin as the generation prompt does"),
                                                 HasSubstr("after 37 bytes"), HasSubstr("<think>")));
}

TEST_F(ChatWeights, BoundariesInsideOfTokens) {
  // The line ends of the prompt and of the answer make one token.
  EXPECT_THAT(
      refusal(kPlain, R"({"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "\nB"}]})"),
      HasSubstr("x.jsonl:1: the token of \"\\n\\n\" is partly trained"));
  EXPECT_EQ(made(kPlain, R"({"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "\nB"}]})",
                 "all"),
            "{<user>}{\n}{A}{<end>}{\n}{<assistant>}{\n\n}{B}{<end>}{\n}");
}

TEST_F(ChatWeights, NothingToTrain) {
  const std::string of_user = R"({"messages": [{"role": "user", "content": "A"}]})";
  EXPECT_THAT(refusal(kPlain, of_user), HasSubstr("has no message of the assistant"));
  EXPECT_EQ(made(kPlain, of_user, "all"), "{<user>}{\n}{A}{<end>}{\n}");
  EXPECT_THAT(
      refusal("{% for m in messages %}<{{ m.role }}>{% generation %}{% endgeneration %}{% endfor %}", dialogue()),
      HasSubstr("renders no text for what the assistant says"));
  EXPECT_EQ(made(kPlain, R"({"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": ""}]})"),
            "<user>\nA<end>\n<assistant>\n{<end>}{\n}");
}

TEST_F(ChatWeights, TemplatesThatRefuse) {
  const char* source =
      "{% if not messages or messages[0].role == 'assistant' %}{{ raise_exception('user first') }}{% endif %}"
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<assistant>"
      "{% endif %}";
  const std::string assistant_first =
      R"({"messages": [{"role": "assistant", "content": "B"}, {"role": "user", "content": "A"}]})";
  EXPECT_THAT(refusal(source, assistant_first),
              AllOf(HasSubstr("x.jsonl:1: the chat template cannot render the conversation: x.jinja:1:"),
                    HasSubstr("user first")));
  // One that renders the whole, but not what comes before the first turn.
  const char* needs_one =
      "{% if not messages %}{{ raise_exception('no message') }}{% endif %}"
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<assistant>"
      "{% endif %}";
  EXPECT_THAT(refusal(needs_one, assistant_first),
              AllOf(HasSubstr("no message and the generation prompt"), HasSubstr("no message")));
  EXPECT_EQ(made(kPlain, assistant_first), "<assistant>\n{B}{<end>}{\n}<user>\nA<end>\n");
}

TEST_F(ChatWeights, WhatTemplatesSee) {
  const char* source =
      "{{ messages | tojson }}{{ tools | default(none) | tojson }}{{ enable_thinking | default(none) | tojson }}"
      "{{ extra | default(none) | tojson }}";
  const auto seen = [&](const std::string& json) {
    std::string text = made(source, json, "all");
    for (const char c : {'{', '}', ' '}) text.erase(std::remove(text.begin(), text.end(), c), text.end());
    return text;
  };
  EXPECT_EQ(
      seen(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "A"}, {"text": "B"}], "name": null},
                    {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}], "weight": 1}],
                    "tools": "[{\"n\": 1}]", "enable_thinking": false, "chat_template_kwargs": {"extra": 5}, "id": 7})"),
      R"(["role":"user","content":"AB","role":"assistant","content":null,"tool_calls":["function":"name":"f"]])"
      R"(["n":1]false5)");
  EXPECT_EQ(seen(R"({"messages": [{"role": "user", "content": "A"}], "tools": []})"),
            R"(["role":"user","content":"A"]nullnullnull)");
}

// Templates that know no tool calls would have the model learn an empty answer instead.
TEST_F(ChatWeights, ToolCallsThatTheTemplateDrops) {
  // The name stands in the conversation and among the tools, but not in the assistant's turn.
  const auto record = [](const char* rest) {
    return std::string(R"({"messages": [{"role": "user", "content": "use f"},
               {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}])") +
           rest +
           R"(}, {"role": "tool", "content": "f"}, {"role": "assistant", "content": "B"}], "tools": [{"name": "f"}]})";
  };
  const char* with_tools = "{{ tools | tojson }}";
  const auto dropped = AllOf(HasSubstr("message 1 has tool_calls (f)"), HasSubstr("does not render tool calls"));
  for (const char* train_on : {"", "all"}) {
    EXPECT_THAT(refusal((std::string(with_tools) + kPlain).c_str(), record(""), train_on), dropped) << train_on;
    EXPECT_THAT(refusal((std::string(with_tools) + kMarked).c_str(), record(""), train_on), dropped) << train_on;
  }
  // Rendered, but not as what the assistant says.
  const char* beside =
      "{% for m in messages %}<{{ m.role }}>{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}"
      "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<end>{% endgeneration %}{% else %}{{ m.content }}"
      "{% endif %}{% endfor %}";
  EXPECT_THAT(refusal(beside, record("")), dropped);
  EXPECT_NE(made(beside, record(""), "all"), "");
  // What is not trained may be dropped, and calls without "function" count too.
  EXPECT_NE(made(kPlain, record(R"(, "weight": 0)")), "");
  EXPECT_NE(made(kPlain, record(""), "completion"), "");
  const std::string flat =
      R"({"messages": [{"role": "assistant", "content": "A", "tool_calls": [{"name": "g"}, {"name": "h"}]}]})";
  EXPECT_THAT(refusal(kPlain, flat), HasSubstr("message 0 has tool_calls (g, h)"));
  EXPECT_EQ(
      made("{% for m in messages %}{% for c in m.tool_calls %}{{ c.name }} {% endfor %}{{ m.content }}{% endfor %}",
           flat),
      "{g}{ h}{ A}");
}

// A template that refuses names it does not know is still asked for what it renders.
TEST_F(ChatWeights, ToolCallsOfTemplatesThatKnowTheNames) {
  const std::string record = R"({"messages": [{"role": "assistant", "content": "A", "tool_calls": [{"name": "g"}]}]})";
  const std::string strict =
      "{% for m in messages %}{% for c in m.tool_calls %}{% if c.name != 'g' %}{{ raise_exception('unknown') }}"
      "{% endif %}{% endfor %}";
  EXPECT_EQ(made((strict + "{{ m.tool_calls[0].name }} {{ m.content }}{% endfor %}").c_str(), record), "{g}{ A}");
  EXPECT_THAT(refusal((strict + "{{ m.content }}{% endfor %}").c_str(), record),
              HasSubstr("does not render tool calls"));
}

TEST_F(ChatWeights, FaultsOfMessages) {
  const auto fault = [&](const std::string& json) { return refusal(kPlain, json); };
  EXPECT_THAT(fault(R"({"messages": []})"), HasSubstr("\"messages\" is empty"));
  EXPECT_THAT(fault(R"({"messages": "a"})"), HasSubstr("must be a list of messages, not string"));
  EXPECT_THAT(fault(R"({"messages": null})"), HasSubstr("\"messages\" is null"));
  EXPECT_THAT(fault(R"({"messages": [5]})"), HasSubstr("messages[0]: must be an object"));
  EXPECT_THAT(fault(R"({"messages": [{"role": "human", "content": "a"}]})"), HasSubstr("here it is called \"user\""));
  EXPECT_THAT(fault(R"({"messages": [{"role": "asistant", "content": "a"}]})"), HasSubstr("is \"assistant\" meant?"));
  EXPECT_THAT(fault(R"({"messages": [{"role": null, "content": "a"}]})"), HasSubstr("\"role\" is null"));
  EXPECT_THAT(fault(R"({"messages": [{"content": "a"}]})"),
              HasSubstr("\"role\" is missing; the message has \"content\""));
  EXPECT_THAT(fault(R"({"messages": [{"role": "user"}]})"), HasSubstr("\"content\" is missing"));
  EXPECT_THAT(fault(R"({"messages": [{"role": "user", "content": null}]})"), HasSubstr("\"content\" is null"));
  EXPECT_THAT(fault(R"({"messages": [{"role": "user", "content": 5}]})"), HasSubstr("must be a string or a list"));
  EXPECT_THAT(fault(R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})"),
              HasSubstr("content[0] is not {\"type\": \"text\", \"text\": ...} but of type \"image_url\""));
  EXPECT_THAT(fault(R"({"messages": [{"from": "human", "value": "a"}]})"), HasSubstr("data.format: conversations"));
  EXPECT_THAT(fault(R"({"messages": [{"role": "assistant", "content": null, "function_call": {}}]})"),
              HasSubstr("\"function_call\" is not supported"));
  EXPECT_THAT(fault(R"({"messages": [{"role": "user", "content": "a"}], "tools": "x"})"),
              HasSubstr("\"tools\" must be"));
  EXPECT_THAT(fault(R"({"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"messages": 1}})"),
              HasSubstr("gives \"messages\", which is given elsewhere"));
  EXPECT_THAT(fault(R"({"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": 1})"),
              HasSubstr("must be an object"));
}

TEST_F(ChatWeights, ShareGpt) {
  const auto share = [&](const std::string& json) { return made(kPlain, json, "", "conversations"); };
  EXPECT_EQ(share(R"({"conversations": [{"from": "human", "value": "A"}, {"from": "gpt", "value": "B"},
                      {"from": "observation", "value": "C"}, {"from": "gpt", "value": "D", "weight": 0}]})"),
            "<user>\nA<end>\n<assistant>\n{B}{<end>}{\n}<tool>\nC<end>\n<assistant>\nD<end>\n");
  EXPECT_EQ(
      share(R"({"system": "S", "conversations": [{"role": "user", "content": "A"}, {"from": "model", "value": "B"}]})"),
      "<system>\nS<end>\n<user>\nA<end>\n<assistant>\n{B}{<end>}{\n}");
  EXPECT_EQ(
      made(
          "{% for m in messages %}<{{ m.role }}>{{ m.tool_calls[0].function.name }} "
          "{{ m.tool_calls[0].function.arguments.a }}{% endfor %}"
          "{% if add_generation_prompt %}<assistant>{% endif %}",
          R"({"conversations": [{"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"a\": \"B\"}}"}]})",
          "", "conversations"),
      "<assistant>{f}{ B}");
  const auto fault = [&](const std::string& json) { return refusal(kPlain, json, "", "conversations"); };
  EXPECT_THAT(fault(R"({"conversations": [{"from": "alien", "value": "A"}]})"), HasSubstr("\"from\" is \"alien\""));
  EXPECT_THAT(fault(R"({"conversations": [{"from": "gpt", "value": null}]})"), HasSubstr("\"value\" is null"));
  EXPECT_THAT(fault(R"({"conversations": [{"from": "function_call", "value": "f 1"
}]
})"),
              HasSubstr("must be JSON"));
  EXPECT_THAT(fault(R"({"conversations": [], "system": "S"})"), HasSubstr("\"conversations\" is empty"));
  EXPECT_THAT(fault(R"({"conversations": [{"from": "system", "value": "A"}], "system": "S"})"),
              HasSubstr("both give a system message"));
}

TEST_F(ChatWeights, PromptAndCompletionAsMessages) {
  const std::string json =
      R"({"prompt": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"},
                     {"role": "user", "content": "C"}], "completion": [{"role": "assistant", "content": "D"}]})";
  const std::string last = "<user>\nA<end>\n<assistant>\nB<end>\n<user>\nC<end>\n<assistant>\n{D}{<end>}{\n}";
  EXPECT_EQ(made(kPlain, json, "", "prompt_completion"), last);
  EXPECT_EQ(made(kPlain, json, "assistant", "prompt_completion"),
            "<user>\nA<end>\n<assistant>\n{B}{<end>}{\n}<user>\nC<end>\n<assistant>\n{D}{<end>}{\n}");
  EXPECT_EQ(made(kMarked, json, "completion", "prompt_completion"),
            "<user>\nA<end>\n<assistant>\nB<end>\n<user>\nC<end>\n<assistant>\n{D}{<end>}\n");
  // Every answer of the completion is trained, what it is given in between is not.
  EXPECT_EQ(made(kPlain,
                 R"({"prompt": [{"role": "user", "content": "A"}], "completion": [{"role": "assistant", "content": "B"},
                     {"role": "tool", "content": "C"}, {"role": "assistant", "content": "D"}]})",
                 "", "prompt_completion"),
            "<user>\nA<end>\n<assistant>\n{B}{<end>}{\n}<tool>\nC<end>\n<assistant>\n{D}{<end>}{\n}");
  const auto fault = [&](const std::string& text) { return refusal(kPlain, text, "", "prompt_completion"); };
  EXPECT_THAT(fault(R"({"prompt": [{"role": "user", "content": "A"}], "completion": []})"),
              HasSubstr("\"completion\" is empty"));
  EXPECT_THAT(
      fault(R"({"prompt": [{"role": "user", "content": "A"}], "completion": [{"role": "user", "content": "A"}]})"),
      HasSubstr("the completion has no message of the assistant"));
}

TEST_F(ChatWeights, InstructionsThroughTheTemplate) {
  EXPECT_EQ(made(kPlain, R"({"instruction": "Add", "input": "x", "output": "Y", "system": "S"})", "", "instruction"),
            "<system>\nS<end>\n<user>\nAdd\n\nx<end>\n<assistant>\n{Y}{<end>}{\n}");
  EXPECT_EQ(made(kPlain, R"({"instruction": "Add", "output": "Y"})", "all", "instruction"),
            "{<user>}{\n}{Add}{<end>}{\n}{<assistant>}{\n}{Y}{<end>}{\n}");
}

}  // namespace
}  // namespace ithaca
