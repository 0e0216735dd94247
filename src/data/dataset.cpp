#include "data/dataset.h"

#include <fmt/format.h>

#include "base/error.h"
#include "data/text_dataset.h"
#include "data/token_dataset.h"

namespace ithaca {

SequenceTotals sequence_totals(const Sequence& sequence) {
  SequenceTotals totals;
  totals.tokens = static_cast<int64_t>(sequence.token_ids.size());
  for (size_t i = 0; i < sequence.shifted_labels.size(); ++i) {
    if (sequence.shifted_labels[i] == kNoLabel) continue;
    ++totals.valid_tokens;
    totals.label_weight_sum += sequence.label_weights.empty() ? 1.0 : static_cast<double>(sequence.label_weights[i]);
  }
  return totals;
}

std::unique_ptr<Dataset> open_dataset(const DatasetOptions& options) {
  if (options.files.empty()) throw ConfigurationError("the list of data files is empty; name at least one file");
  if (options.max_length < 1) {
    throw ConfigurationError(fmt::format("data.max_length is {}; at least 1 is needed", options.max_length));
  }
  if (options.format == "text") return open_text_dataset(options);
  if (options.format == "tokens") return open_token_dataset(options);
  throw ConfigurationError(fmt::format("data.format is \"{}\"; supported are \"text\" and \"tokens\"", options.format));
}

}  // namespace ithaca
