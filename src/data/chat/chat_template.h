// ChatTemplate: a conversation to text, by the Jinja template of a model, byte for byte as Hugging Face renders it.
//
// Thread-safety: all functions are const and may be called from several threads at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace ithaca {

struct ChatOptions {
  bool add_generation_prompt = false;
};

struct RenderedChat {
  std::string text;
  // Bytes of `text` inside {% generation %} blocks, in order.
  std::vector<TextSpan> generated;
};

class ChatTemplate {
 public:
  // `name` is what errors call it (a file). Throws InputError with line and column.
  ChatTemplate(std::string_view source, std::string name);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // A variable that every rendering sees beside messages and add_generation_prompt: bos_token, eos_token, ...
  void set_variable(const std::string& name, const nlohmann::ordered_json& value);
  // Whether the template marks what the assistant says with {% generation %}.
  bool marks_generation() const;
  // `conversation` is an array of messages, or an object with "messages" whose other keys (tools, documents,
  // enable_thinking, ...) are variables too. Throws InputError with line, column and what raise_exception said.
  RenderedChat render(const nlohmann::ordered_json& conversation, const ChatOptions& options) const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// From chat_template.jinja, or chat_template in tokenizer_config.json (a string, or a list of named ones of which
// "default" is taken), with the special tokens as variables. Throws InputError, FileError when the model has none.
ChatTemplate open_chat_template(const std::filesystem::path& model_directory);

}  // namespace ithaca
