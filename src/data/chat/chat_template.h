// ChatTemplate: a conversation to text, by the Jinja template of a model, byte for byte as Hugging Face renders it.
//
// Thread-safety: all functions are const and may be called from several threads at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace ithaca {

// What a template may use up before it is stopped: templates come from files of strangers.
struct ChatLimits {
  int64_t steps = 200'000'000;       // operations, and 16 bytes of text each
  int64_t bytes = int64_t{1} << 30;  // of one text or list
};

struct ChatOptions {
  bool add_generation_prompt = false;
  // What strftime_now() takes for the present, in seconds since 1970 (it prints local time). Empty: the clock.
  std::optional<int64_t> now = std::nullopt;
  ChatLimits limits = {};
};

struct RenderedChat {
  std::string text;
  // Bytes of `text` inside {% generation %} blocks, in the order in which they ended.
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
  // enable_thinking, ...) are variables too; as in transformers, tools and documents are none when they are not given,
  // and add_generation_prompt is that of the options. Throws InputError with line, column and what raise_exception
  // said; also when the place of what a {% generation %} block wrote cannot be told, because a macro or a set block
  // holds it and its text was changed before it was printed.
  RenderedChat render(const nlohmann::ordered_json& conversation, const ChatOptions& options) const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// From chat_template.jinja, or chat_template in tokenizer_config.json (a string, or a list of named ones of which
// "default" is taken) or in chat_template.json, with the special tokens as variables: every *_token and
// additional_special_tokens of tokenizer_config.json, and of special_tokens_map.json what is missing there. Throws
// InputError, FileError when the model has none.
ChatTemplate open_chat_template(const std::filesystem::path& model_directory);

}  // namespace ithaca
