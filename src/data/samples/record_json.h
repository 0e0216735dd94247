// The JSON of one record: parsed, with errors that name the place in the file.
//
// For .cpp files only (it brings nlohmann-json in). Thread-safety: a pure function.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "data/samples/sample.h"

namespace ithaca {

// Deeper nesting is an error: what walks over values calls itself for each level.
constexpr size_t kDeepestJson = 200;

// Throws RecordError for text that is not JSON (with line and column), bytes that are not UTF-8, a key that an object
// has twice, and nesting beyond kDeepestJson.
nlohmann::ordered_json parse_record(const Record& record);

// The same limits for JSON that stands in a string of a record; a discarded value where `text` is no such JSON.
nlohmann::ordered_json parse_embedded_json(const std::string& text);

// Takes a weight of the loss as a target's. Returns what is wrong with it, "is -1; ...", or nothing. What float32
// cannot hold is wrong too: above the largest, and what would silently become 0.
std::string read_weight(const nlohmann::ordered_json& value, float& weight);

// A value as errors show it: numbers, words and the beginning of strings; the kind of anything that has parts.
std::string brief_json(const nlohmann::ordered_json& value);

// "<file>:<line>:<column>" of byte `offset` of a record, or its place and the offset where the file is not known.
std::string place_in(const Record& record, int64_t offset);

// Throws RecordError unless `record` is UTF-8.
void require_utf8(const Record& record);

}  // namespace ithaca
