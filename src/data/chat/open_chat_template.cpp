#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/regular_file.h"
#include "data/chat/chat_template.h"

namespace ithaca {
namespace {

using Json = nlohmann::ordered_json;

std::optional<std::string> file_text(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  return read_regular_file(path.string());
}

Json file_json(const std::filesystem::path& path) {
  const auto text = file_text(path);
  if (!text) return Json::object();
  Json json = parse_json(*text, path.string());
  if (!json.is_object()) throw InputError(path.string() + ": expected a JSON object, found " + json.type_name());
  return json;
}

// A special token is a text, or an object with the text as "content". Nothing for null and what is no token.
std::optional<std::string> token_content(const Json& token) {
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token.at("content").is_string()) {
    return token.at("content").get<std::string>();
  }
  return std::nullopt;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// The special tokens of one file, by the names that templates have for them. What is known already stays.
void add_special_tokens(const Json& config, Json& tokens) {
  const auto add = [&](const std::string& name, const Json& token) {
    const auto content = token_content(token);
    if (content && !tokens.contains(name)) tokens[name] = *content;
  };
  for (const auto& [name, value] : config.items()) {
    if (ends_with(name, "_token")) add(name, value);
  }
  if (config.contains("extra_special_tokens") && config.at("extra_special_tokens").is_object()) {
    for (const auto& [name, value] : config.at("extra_special_tokens").items()) add(name, value);
  }
  constexpr const char* kMore = "additional_special_tokens";
  if (config.contains(kMore) && config.at(kMore).is_array() && !tokens.contains(kMore)) {
    Json more = Json::array();
    for (const Json& token : config.at(kMore)) {
      if (const auto content = token_content(token)) more.push_back(*content);
    }
    tokens[kMore] = std::move(more);
  }
}

// The text of chat_template in a file's JSON.
std::string template_text(const Json& value, const std::string& where) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) {
    throw InputError(where + " is neither a text nor a list of named templates, but " + value.type_name());
  }
  std::string names;
  for (const Json& entry : value) {
    const bool is_template = entry.is_object() && entry.contains("name") && entry.at("name").is_string() &&
                             entry.contains("template") && entry.at("template").is_string();
    if (!is_template) throw InputError(where + ": an entry of the list is not an object of \"name\" and \"template\"");
    const std::string name = entry.at("name").get<std::string>();
    if (name == "default") return entry.at("template").get<std::string>();
    names += (names.empty() ? "" : ", ") + name;
  }
  throw InputError(where + " has no template named \"default\"" + (names.empty() ? "" : "; there are: " + names));
}

}  // namespace

ChatTemplate open_chat_template(const std::filesystem::path& model_directory) {
  const auto config_path = model_directory / "tokenizer_config.json";
  const Json config = file_json(config_path);
  std::string text;
  std::string name;
  const auto jinja_path = model_directory / "chat_template.jinja";
  const auto processor_path = model_directory / "chat_template.json";
  if (auto source = file_text(jinja_path)) {
    text = std::move(*source);
    name = jinja_path.string();
  } else if (config.contains("chat_template") && !config.at("chat_template").is_null()) {
    name = config_path.string() + " (chat_template)";
    text = template_text(config.at("chat_template"), name);
  } else if (const Json processor = file_json(processor_path); processor.contains("chat_template")) {
    name = processor_path.string() + " (chat_template)";
    text = template_text(processor.at("chat_template"), name);
  } else {
    throw FileError("the model in " + model_directory.string() +
                    " has no chat template: neither chat_template.jinja nor "
                    "\"chat_template\" in tokenizer_config.json or chat_template.json; put one there");
  }
  ChatTemplate result(text, name);
  Json tokens = Json::object();
  add_special_tokens(config, tokens);
  add_special_tokens(file_json(model_directory / "special_tokens_map.json"), tokens);
  for (const auto& [token, value] : tokens.items()) result.set_variable(token, value);
  return result;
}

}  // namespace ithaca
