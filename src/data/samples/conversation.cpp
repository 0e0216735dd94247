#include "data/samples/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/text.h"
#include "data/samples/record_json.h"

namespace ithaca {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 7> kRoles = {"system", "developer", "user",   "assistant",
                                               "tool",   "function",  "ipython"};

struct ShareGptRole {
  const char* from;
  const char* role;
};
constexpr std::array<ShareGptRole, 14> kShareGptRoles{{{"human", "user"},
                                                       {"user", "user"},
                                                       {"gpt", "assistant"},
                                                       {"assistant", "assistant"},
                                                       {"model", "assistant"},
                                                       {"chatgpt", "assistant"},
                                                       {"bing", "assistant"},
                                                       {"bard", "assistant"},
                                                       {"system", "system"},
                                                       {"tool", "tool"},
                                                       {"tool_response", "tool"},
                                                       {"function_response", "tool"},
                                                       {"observation", "tool"},
                                                       {"function_call", "assistant"}}};

// Keys of a message that other tools take as a mask, or that templates do not know any more.
struct RefusedKey {
  const char* name;
  const char* advice;
};
constexpr std::array<RefusedKey, 5> kRefusedKeys{{
    {"train", "give \"weight\": 0 or 1 instead"},
    {"train_detail", "train whole messages, with \"weight\", or give ready token ids (data.format: input_ids)"},
    {"loss", "give \"weight\": 0 or 1 instead"},
    {"mask", "give \"weight\": 0 or 1 instead"},
    {"function_call", "templates know \"tool_calls\": a list of {\"function\": {\"name\": ..., \"arguments\": ...}}"},
}};

class Reader {
 public:
  explicit Reader(const RecordObject& record) : record_(record) {}

  // Adds the messages of a list; `key` is what errors call it.
  void add_list(const Json& list, const char* key) {
    if (!list.is_array()) {
      record_.complain(fmt::format("\"{}\" must be a list of messages, not {}", key, list.type_name()),
                       fmt::format("\"{}\" is not a list", key));
    }
    for (size_t i = 0; i < list.size(); ++i) {
      where_ = fmt::format("{}[{}]", key, i);
      if (!list[i].is_object()) {
        complain(fmt::format("must be an object {{\"role\": ..., \"content\": ...}}, not {}", list[i].type_name()),
                 "a message is not an object");
      }
      add_message(list[i], std::string_view(key) == "conversations");
    }
  }

  void add(const char* role, std::string content) {
    result_.messages.push_back(Json{{"role", role}, {"content", std::move(content)}});
    result_.turns.push_back({std::string_view(role) == "assistant"});
  }

  // tools, documents, enable_thinking and chat_template_kwargs, as Hugging Face's libraries hand them to templates.
  void add_variables() {
    for (const char* key : {"tools", "documents"}) {
      if (!record_.has(key)) continue;
      Json list = record_.at(key);
      // Tables whose columns have one type keep lists of objects as JSON texts.
      if (list.is_string()) {
        const auto& text = list.get_ref<const std::string&>();
        list = text.empty() ? Json::array() : parse_embedded_json(text);
      }
      if (!list.is_array()) {
        record_.complain(fmt::format("\"{}\" must be a list, or a string that holds one as JSON", key),
                         fmt::format("\"{}\" is not a list", key));
      }
      if (!list.empty()) result_.variables[key] = std::move(list);
    }
    if (record_.has("enable_thinking")) result_.variables["enable_thinking"] = record_.at("enable_thinking");
    if (!record_.has("chat_template_kwargs")) return;
    const Json& variables = record_.at("chat_template_kwargs");
    const char* reason = "\"chat_template_kwargs\" cannot be used";
    if (!variables.is_object()) record_.complain("\"chat_template_kwargs\" must be an object", reason);
    for (const auto& [name, value] : variables.items()) {
      if (name == "messages" || name == "add_generation_prompt" || result_.variables.contains(name)) {
        record_.complain(fmt::format("\"chat_template_kwargs\" gives \"{}\", which is given elsewhere", name), reason);
      }
      result_.variables[name] = value;
    }
  }

  void begin_completion() { result_.completion_begin = static_cast<int64_t>(result_.turns.size()); }

  Conversation finish(const char* key) {
    if (result_.turns.empty()) {
      record_.complain(fmt::format("\"{}\" is empty; a conversation has at least one message", key),
                       "the conversation is empty");
    }
    return std::move(result_);
  }

 private:
  [[noreturn]] void complain(const std::string& problem, const std::string& reason) const {
    record_.complain(where_ + ": " + problem, reason);
  }

  void add_message(const Json& message, bool may_be_sharegpt) {
    for (const RefusedKey& refused : kRefusedKeys) {
      const auto found = message.find(refused.name);
      if (found != message.end() && !found->is_null()) {
        complain(fmt::format("\"{}\" is not supported; {}", refused.name, refused.advice),
                 fmt::format("\"{}\" in a message is not supported", refused.name));
      }
    }
    if (message.contains("from") && !message.contains("role")) {
      if (!may_be_sharegpt) {
        complain(
            "has \"from\" instead of \"role\"; conversations of this kind stand under the key \"conversations\" "
            "(data.format: conversations)",
            "a message has no role");
      }
      add_sharegpt_message(message);
      return;
    }
    const std::string role = string_in(message, "role");
    if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) unknown_role(role);
    Json result = Json::object();
    for (const auto& [key, value] : message.items()) {
      if (key == "weight" || (value.is_null() && key != "content")) continue;
      if (key == "content") {
        result[key] = content_of(message, value);
      } else {
        result[key] = value;
      }
    }
    if (!message.contains("content") && !result.contains("tool_calls")) {
      complain(fmt::format("the key \"content\" is missing; the message has {}", keys_text(message)),
               "a message has no content");
    }
    push(std::move(result), role == "assistant", message);
  }

  [[noreturn]] void unknown_role(const std::string& role) const {
    std::string advice;
    for (const ShareGptRole& known : kShareGptRoles) {
      if (role == known.from) advice = fmt::format("; here it is called \"{}\"", known.role);
    }
    const std::string near = nearest_name(role, std::vector<std::string>(kRoles.begin(), kRoles.end()));
    if (advice.empty() && !near.empty()) advice = fmt::format("; is \"{}\" meant?", near);
    complain(fmt::format("the role \"{}\" is not known (system, developer, user, assistant, tool, function, ipython "
                         "are){}",
                         role, advice),
             "the role of a message is not known");
  }

  // A string, null beside tool calls, or the joined texts of a list of parts.
  Json content_of(const Json& message, const Json& content) const {
    if (content.is_string()) return content;
    if (content.is_null()) {
      const auto calls = message.find("tool_calls");
      if (calls != message.end() && calls->is_array() && !calls->empty()) return content;
      complain("\"content\" is null; only a message with tool_calls may have no content", "a message has no content");
    }
    if (!content.is_array()) {
      complain(fmt::format("\"content\" must be a string or a list of {{\"type\": \"text\", \"text\": ...}}, not {}",
                           content.type_name()),
               "the content of a message is neither a string nor a list of texts");
    }
    std::string joined;
    for (size_t i = 0; i < content.size(); ++i) {
      const Json& part = content[i];
      const bool is_text = part.is_object() && part.contains("text") && part["text"].is_string() &&
                           (!part.contains("type") || part["type"] == "text");
      if (!is_text) {
        const std::string type = part.is_object() && part.contains("type") && part["type"].is_string()
                                     ? part["type"].get<std::string>()
                                     : "";
        complain(fmt::format("content[{}] is not {{\"type\": \"text\", \"text\": ...}}{}; models here read text alone",
                             i, type.empty() ? "" : " but of type \"" + type + "\""),
                 "the content of a message has parts that are not text");
      }
      joined += part["text"].get_ref<const std::string&>();
    }
    return joined;
  }

  void add_sharegpt_message(const Json& message) {
    const std::string from = string_in(message, "from");
    const auto known = std::find_if(kShareGptRoles.begin(), kShareGptRoles.end(),
                                    [&from](const ShareGptRole& role) { return from == role.from; });
    if (known == kShareGptRoles.end()) {
      complain(
          fmt::format("\"from\" is \"{}\", which is not known (human, gpt, system, tool, observation, function_call "
                      "and their other names are)",
                      from),
          "the role of a message is not known");
    }
    const std::string value = string_in(message, "value");
    Json result = {{"role", known->role}, {"content", value}};
    if (from == "function_call") {
      result["content"] = "";
      result["tool_calls"] = tool_calls_of(value);
    }
    const bool is_assistant = std::string_view(known->role) == "assistant";
    push(std::move(result), is_assistant, message);
  }

  // {"name": ..., "arguments": ...} or a list of such, as JSON.
  Json tool_calls_of(const std::string& text) const {
    Json calls = parse_embedded_json(text);
    if (calls.is_object()) calls = Json::array({std::move(calls)});
    Json result = Json::array();
    bool is_good = calls.is_array() && !calls.empty();
    for (size_t i = 0; is_good && i < calls.size(); ++i) {
      is_good = calls[i].is_object() && calls[i].contains("name") && calls[i].contains("arguments");
      if (is_good) result.push_back(Json{{"type", "function"}, {"function", calls[i]}});
    }
    if (!is_good) {
      complain("the value of a function_call must be JSON: {\"name\": ..., \"arguments\": ...} or a list of these",
               "a function_call is not one");
    }
    return result;
  }

  void push(Json message, bool is_assistant, const Json& original) {
    Turn turn;
    turn.is_assistant = is_assistant;
    const auto weight = original.find("weight");
    if (weight != original.end() && !weight->is_null()) {
      turn.has_weight = true;
      const std::string problem = read_weight(*weight, turn.weight);
      if (!problem.empty()) complain("\"weight\" " + problem, "a weight cannot be used");
    }
    result_.messages.push_back(std::move(message));
    result_.turns.push_back(turn);
  }

  std::string string_in(const Json& message, const char* key) const {
    const auto found = message.find(key);
    if (found == message.end() || found->is_null()) {
      complain(fmt::format("the key \"{}\" is {}; the message has {}", key, found == message.end() ? "missing" : "null",
                           keys_text(message)),
               fmt::format("a message has no {}", key));
    }
    if (!found->is_string()) {
      complain(fmt::format("\"{}\" must be a string, not {}", key, found->type_name()),
               fmt::format("\"{}\" of a message is not a string", key));
    }
    return found->get<std::string>();
  }

  const RecordObject& record_;
  std::string where_;
  Conversation result_;
};

}  // namespace

Conversation conversation_of_messages(const RecordObject& record) {
  Reader reader(record);
  reader.add_list(record.at("messages"), "messages");
  reader.add_variables();
  return reader.finish("messages");
}

Conversation conversation_of_sharegpt(const RecordObject& record) {
  Reader reader(record);
  const Json& list = record.at("conversations");
  const std::string& system = record.string_or_empty("system");
  if (!system.empty()) reader.add("system", system);
  reader.add_list(list, "conversations");
  reader.add_variables();
  Conversation result = reader.finish("conversations");
  if (!system.empty() && result.messages.size() > 1 && result.messages[1]["role"] == "system") {
    record.complain("\"system\" and conversations[0] both give a system message; one of them must go",
                    "there are two system messages");
  }
  if (!system.empty() && result.messages.size() == 1) {
    record.complain("\"conversations\" is empty; a conversation has at least one message", "the conversation is empty");
  }
  return result;
}

Conversation conversation_of_prompt(const RecordObject& record) {
  Reader reader(record);
  reader.add_list(record.at("prompt"), "prompt");
  reader.begin_completion();
  reader.add_list(record.at("completion"), "completion");
  reader.add_variables();
  Conversation result = reader.finish("prompt");
  if (result.completion_begin == static_cast<int64_t>(result.turns.size())) {
    record.complain("\"completion\" is empty; it needs at least one message", "the completion is empty");
  }
  return result;
}

Conversation conversation_of_instruction(const RecordObject& record) {
  Reader reader(record);
  const std::string& system = record.string_or_empty("system");
  if (!system.empty()) reader.add("system", system);
  const std::string& input = record.string_or_empty("input");
  std::string request = record.string("instruction");
  if (!input.empty()) request += "\n\n" + input;
  reader.add("user", std::move(request));
  reader.begin_completion();
  reader.add("assistant", record.string("output"));
  return reader.finish("instruction");
}

}  // namespace ithaca
