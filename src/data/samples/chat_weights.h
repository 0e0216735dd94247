// Chat weights: a conversation as its template renders it, and which bytes of that are trained.
//
// For .cpp files only (it brings nlohmann-json in). Thread-safety: a pure function.
#pragma once

#include <string>

#include "data/chat/chat_template.h"
#include "data/samples/conversation.h"
#include "data/samples/token_weights.h"
#include "data/samples/train_on.h"

namespace ithaca {

// Where the template has {% generation %} blocks, what they render is trained, of those turns that `train_on` chooses.
//
// Elsewhere the bytes of turn i are found by rendering the conversation's beginnings. With P = the messages before i
// and the generation prompt, F = the messages up to i, T = all of them: P must begin F, F must begin T, and what F has
// beyond P is the turn: everything that the model has to write after the generation prompt, the template's end of turn
// included. With train_on all and weights of messages that differ, message i is what the beginning of i + 1 messages
// has beyond that of i messages (the first one: everything).
//
// Throws RecordError where the template refuses the conversation, where the pieces do not make up the whole (a template
// that rewrites earlier turns when later ones come), where nothing is trained although no weight says so, and where a
// weight stands at a message that `train_on` cannot train.
WeightedText weigh_conversation(const Conversation& conversation, TrainOn train_on, const ChatTemplate& chat_template,
                                const std::string& place);

}  // namespace ithaca
