// A tokenizer.json in memory: the large tables of its model flat, the rest as JSON.
//
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ithaca::tokenizer_internal {

// Moves may throw where a set of the standard library does. NOLINTNEXTLINE(bugprone-exception-escape)
struct TokenizerFile {
  nlohmann::ordered_json rest;  // without model.vocab and model.merges
  std::vector<std::pair<std::string, int32_t>> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;
};

// Throws InputError that begins with `where` and, where the JSON is broken, line and column.
TokenizerFile read_tokenizer_file(std::string_view text, const std::string& where);

}  // namespace ithaca::tokenizer_internal
