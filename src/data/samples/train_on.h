// What of a record is trained: the values of data.train_on.
#pragma once

namespace ithaca {

enum class TrainOn {
  kAssistant,   // every turn of the assistant
  kCompletion,  // the last one; of a prompt and its completion, the completion
  kAll,
};

}  // namespace ithaca
