// Tokenized sequences from JSONL files. Thread-safety: as Dataset.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace ithaca {

// For DatasetOptions::format "tokens".
std::unique_ptr<Dataset> open_token_dataset(const DatasetOptions& options);

}  // namespace ithaca
