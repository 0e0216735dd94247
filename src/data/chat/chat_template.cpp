#include "data/chat/chat_template.h"

#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "data/chat/jinja/format.h"
#include "data/chat/jinja/interpreter.h"
#include "data/chat/jinja/syntax.h"

namespace ithaca {
namespace {

// JSON deeper than this is refused before anything walks it.
bool is_nested_deeper(const nlohmann::ordered_json& json, int levels) {
  if (!json.is_structured()) return false;
  if (levels == 0) return true;
  for (const auto& item : json) {
    if (is_nested_deeper(item, levels - 1)) return true;
  }
  return false;
}

jinja::Value converted(const nlohmann::ordered_json& json, const std::string& what) {
  if (is_nested_deeper(json, jinja::kMostNested)) {
    throw InputError(what + " is nested deeper than " + std::to_string(jinja::kMostNested) + " levels");
  }
  return jinja::from_json(json);
}

}  // namespace

class ChatTemplate::Implementation {
 public:
  Implementation(std::string_view source, std::string name) : syntax_(jinja::parse(source, std::move(name))) {}

  void set_variable(const std::string& name, const nlohmann::ordered_json& value) {
    jinja::Value held = converted(value, "the variable " + name);
    for (auto& [known, before] : variables_) {
      if (known == name) {
        before = std::move(held);
        return;
      }
    }
    variables_.emplace_back(name, std::move(held));
  }

  bool marks_generation() const { return syntax_->has_generation; }

  RenderedChat render(const nlohmann::ordered_json& conversation, const ChatOptions& options) const {
    const bool has_more = conversation.is_object();
    if (has_more && !conversation.contains("messages")) {
      throw InputError(syntax_->name +
                       ": a conversation is an array of messages, or an object with \"messages\"; this "
                       "object has none");
    }
    const auto& messages = has_more ? conversation.at("messages") : conversation;
    if (!messages.is_array()) {
      throw InputError(syntax_->name + ": the messages of a conversation are an array, not " + messages.type_name());
    }
    jinja::Interpreter interpreter(*syntax_, options.limits,
                                   options.now ? *options.now : static_cast<int64_t>(std::time(nullptr)));
    for (const auto& [name, value] : variables_) interpreter.set_variable(name, value);
    interpreter.set_variable("tools", jinja::Value());
    interpreter.set_variable("documents", jinja::Value());
    if (has_more) {
      for (const auto& [name, value] : conversation.items()) {
        // What the template never names need not be converted.
        if (syntax_->symbol_places.count(name) != 0) interpreter.set_variable(name, converted(value, name));
      }
    } else {
      interpreter.set_variable("messages", converted(messages, "messages"));
    }
    interpreter.set_variable("add_generation_prompt", jinja::Value(options.add_generation_prompt));
    return interpreter.render();
  }

 private:
  std::shared_ptr<const jinja::Syntax> syntax_;
  std::vector<std::pair<std::string, jinja::Value>> variables_;
};

ChatTemplate::ChatTemplate(std::string_view source, std::string name)
    : implementation_(std::make_unique<Implementation>(source, std::move(name))) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

void ChatTemplate::set_variable(const std::string& name, const nlohmann::ordered_json& value) {
  implementation_->set_variable(name, value);
}

bool ChatTemplate::marks_generation() const {
  return implementation_->marks_generation();
}

RenderedChat ChatTemplate::render(const nlohmann::ordered_json& conversation, const ChatOptions& options) const {
  return implementation_->render(conversation, options);
}

}  // namespace ithaca
