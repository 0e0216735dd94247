// Text as byte tokens: documents held once as bytes, windows made on demand. Thread-safety: as Dataset.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace ithaca {

// For DatasetOptions::format "text".
std::unique_ptr<Dataset> open_text_dataset(const DatasetOptions& options);

// Windows of `max_length` tokens that a run of `tokens` tokens makes, where its last token has no label: a last window
// that would hold that token alone is left out.
constexpr int64_t window_count(int64_t tokens, int64_t max_length) {
  return tokens < 2 ? 0 : (tokens - 2) / max_length + 1;
}

}  // namespace ithaca
