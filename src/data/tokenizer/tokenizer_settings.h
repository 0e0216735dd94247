// What lies beside a tokenizer and decides about it: tokenizer_config.json, special_tokens_map.json,
// generation_config.json, config.json.
//
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer/added_tokens.h"

namespace ithaca::tokenizer_internal {

struct TokenizerSettings {
  // add_bos_token and add_eos_token: where one of them is given, the two decide what is added around a text, and what
  // tokenizer.json says about it does not count (as in Hugging Face's transformers).
  std::optional<bool> add_beginning;
  std::optional<bool> add_end;
  std::optional<std::string> beginning;               // bos_token
  std::optional<std::string> end;                     // eos_token
  std::vector<std::pair<int64_t, AddedToken>> added;  // added_tokens_decoder, by id
  std::vector<AddedToken> special;                    // bos_token, pad_token, ..., additional_special_tokens
  // bos_token_id and eos_token_id (of several the first) of generation_config.json, else config.json.
  std::optional<int64_t> beginning_id;
  std::optional<int64_t> end_id;
};

// Files that do not exist say nothing. Throws InputError that names the file.
TokenizerSettings read_tokenizer_settings(const std::filesystem::path& directory);

// One object of added_tokens in a tokenizer.json or of added_tokens_decoder in a tokenizer_config.json.
AddedToken read_added_token(const nlohmann::ordered_json& description, const std::string& where);

// Tables are as long as the largest id, and published models stay below a million. Throws InputError, which begins with
// `where`, for an id below 0, or of 2^24 and more where a list of `entries` does not come near it either (16 x
// entries).
void check_token_id(int64_t id, size_t entries, const std::string& where);

}  // namespace ithaca::tokenizer_internal
