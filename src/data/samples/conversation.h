// Conversation: what a record of any chat format says, in the form that chat templates take.
//
// For .cpp files only (it brings nlohmann-json in). Thread-safety: pure functions; values.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "data/samples/record_object.h"

namespace ithaca {

struct Turn {
  bool is_assistant = false;
  bool has_weight = false;
  float weight = 1.0f;
};

struct Conversation {
  // {"role": ..., "content": ..., ...}: without the weight, without keys that hold null (but for content), lists of
  // text parts joined.
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  // What the template sees beside the messages: tools, documents, ...
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  std::vector<Turn> turns;  // of each message
  // Where a prompt and its completion are told apart: the first message of the completion.
  int64_t completion_begin = -1;
};

// All throw RecordError.

// {"messages": [{"role": "user", "content": "..."}, ...], "tools": [...]}
Conversation conversation_of_messages(const RecordObject& record);
// {"conversations": [{"from": "human", "value": "..."}, ...], "system": "...", "tools": ...}
Conversation conversation_of_sharegpt(const RecordObject& record);
// {"prompt": [messages], "completion": [messages], "tools": [...]}
Conversation conversation_of_prompt(const RecordObject& record);
// {"instruction": "...", "input": "...", "output": "...", "system": "..."}
Conversation conversation_of_instruction(const RecordObject& record);

}  // namespace ithaca
