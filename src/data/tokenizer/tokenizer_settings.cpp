#include "data/tokenizer/tokenizer_settings.h"

#include <algorithm>
#include <charconv>

#include "base/json.h"
#include "base/regular_file.h"
#include "data/tokenizer/component.h"

namespace ithaca::tokenizer_internal {

namespace {

constexpr const char* kNamedTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};

std::optional<Json> read_json_file(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  Json result = parse_json(read_regular_file(path.string()), path.string());
  if (!result.is_object()) throw InputError(path.string() + ": not a JSON object");
  return result;
}

// A special token is its text, or an object with its text and how it is looked for.
std::optional<AddedToken> named_token(const Json& value, const std::string& where) {
  if (value.is_null()) return std::nullopt;
  if (value.is_object()) {
    AddedToken token = read_added_token(value, where);
    token.special = true;
    return token;
  }
  if (!value.is_string()) throw InputError(where + " is neither a text nor an object with \"content\"");
  AddedToken token;
  token.content = value.get<std::string>();
  token.normalized = false;
  token.special = true;
  return token;
}

std::optional<int64_t> id_member(const Json& object, const char* key, const std::string& where) {
  if (!object.contains(key)) return std::nullopt;
  const Json* value = &object.at(key);
  if (value->is_array() && !value->empty()) value = &value->front();
  if (value->is_null()) return std::nullopt;
  if (!value->is_number_integer()) throw InputError(where + ": " + key + " is not a token id");
  return value->get<int64_t>();
}

void read_ids(const std::filesystem::path& path, TokenizerSettings& settings) {
  const std::optional<Json> file = read_json_file(path);
  if (!file) return;
  const auto read = [&](const Json& object) {
    if (!settings.beginning_id) settings.beginning_id = id_member(object, "bos_token_id", path.string());
    if (!settings.end_id) settings.end_id = id_member(object, "eos_token_id", path.string());
  };
  read(*file);
  if (file->contains("text_config") && file->at("text_config").is_object()) read(file->at("text_config"));
}

void read_named_tokens(const Json& file, const std::string& where, TokenizerSettings& settings) {
  const auto add = [&](const AddedToken& token) {
    const bool there = std::any_of(settings.special.begin(), settings.special.end(),
                                   [&](const AddedToken& other) { return other.content == token.content; });
    if (!there) settings.special.push_back(token);
  };
  for (const char* key : kNamedTokens) {
    if (!file.contains(key)) continue;
    const std::optional<AddedToken> token = named_token(file.at(key), where + ": " + key);
    if (!token) continue;
    const bool beginning = std::string(key) == "bos_token";
    if (beginning && !settings.beginning) settings.beginning = token->content;
    if (std::string(key) == "eos_token" && !settings.end) settings.end = token->content;
    add(*token);
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    if (!file.contains(key) || !file.at(key).is_structured()) continue;
    for (const auto& value : file.at(key)) {
      if (const std::optional<AddedToken> token = named_token(value, where + ": " + key)) add(*token);
    }
  }
}

}  // namespace

void check_token_id(int64_t id, size_t entries, const std::string& where) {
  const int64_t end = std::min<int64_t>(
      INT32_MAX, std::max<int64_t>(int64_t{1} << 24U, 16 * static_cast<int64_t>(std::min<size_t>(entries, INT32_MAX))));
  if (id >= 0 && id < end) return;
  throw InputError(where + " is " + std::to_string(id) + ", which is not a token id: with " + std::to_string(entries) +
                   " entries ids from 0 to " + std::to_string(end - 1) + " are understood");
}

AddedToken read_added_token(const Json& description, const std::string& where) {
  const Component component(description, where);
  AddedToken token;
  token.content = component.text("content");
  token.single_word = component.flag("single_word", false);
  token.lstrip = component.flag("lstrip", false);
  token.rstrip = component.flag("rstrip", false);
  token.special = component.flag("special", false);
  token.normalized = component.flag("normalized", !token.special);
  return token;
}

TokenizerSettings read_tokenizer_settings(const std::filesystem::path& directory) {
  TokenizerSettings settings;
  const std::filesystem::path path = directory / "tokenizer_config.json";
  if (const std::optional<Json> file = read_json_file(path)) {
    const Component config(*file, path.string());
    if (config.has("add_bos_token")) settings.add_beginning = config.flag("add_bos_token", false);
    if (config.has("add_eos_token")) settings.add_end = config.flag("add_eos_token", false);
    if (config.has("added_tokens_decoder")) {
      const Json& tokens = config.member("added_tokens_decoder");
      if (!tokens.is_object()) throw InputError(path.string() + ": added_tokens_decoder is not an object");
      for (const auto& item : tokens.items()) {
        const std::string& key = item.key();
        int64_t id = 0;
        const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
        const std::string where = path.string() + ": added_tokens_decoder[\"" + key + "\"]";
        if (error != std::errc() || end != key.data() + key.size() || id < 0) {
          throw InputError(where + ": the key is not a token id");
        }
        check_token_id(id, tokens.size(), where + ": the key");
        settings.added.emplace_back(id, read_added_token(item.value(), where));
      }
      std::sort(settings.added.begin(), settings.added.end(),
                [](const auto& a, const auto& b) { return a.first < b.first; });
    }
    read_named_tokens(*file, path.string(), settings);
  }
  const std::filesystem::path map = directory / "special_tokens_map.json";
  if (const std::optional<Json> file = read_json_file(map)) read_named_tokens(*file, map.string(), settings);
  read_ids(directory / "generation_config.json", settings);
  read_ids(directory / "config.json", settings);
  return settings;
}

}  // namespace ithaca::tokenizer_internal
