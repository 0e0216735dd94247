// Bytes as a data file: split into records, each made into a sample by every format that it may be of. The first byte
// chooses the kind of file and how long the pieces are that its bytes come in.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/chat/chat_template.h"
#include "data/samples/record_splitter.h"
#include "data/samples/sample_maker.h"
#include "data/tokenizer/tokenizer.h"

namespace {

using ithaca::Record;
using ithaca::RecordKind;
using ithaca::Sample;
using ithaca::SampleMaker;

constexpr int64_t kVocabulary = 256;
constexpr int64_t kLargestRecord = 4096;

constexpr const char* kPlainTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<assistant>"
    "{% endif %}";
constexpr const char* kMarkedTemplate =
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ m.tool_calls "
    "}}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}{{ tools }}";

std::vector<std::unique_ptr<SampleMaker>> make_makers() {
  std::vector<std::unique_ptr<SampleMaker>> makers;
  const std::shared_ptr<const ithaca::Tokenizer> tokenizer = ithaca::byte_tokenizer();
  for (const char* source : {kPlainTemplate, kMarkedTemplate}) {
    const auto chat_template = std::make_shared<const ithaca::ChatTemplate>(source, "x.jinja");
    for (const std::string& format : ithaca::sample_formats()) {
      for (const char* train_on : {"", "completion", "all"}) {
        ithaca::SampleOptions options;
        options.format = format;
        options.train_on = train_on;
        options.tokenizer = tokenizer;
        options.chat_template = chat_template;
        options.vocabulary = kVocabulary;
        try {
          makers.push_back(ithaca::make_sample_maker(options));
        } catch (const ithaca::ConfigurationError&) {
          continue;  // a text has no completion
        }
      }
    }
  }
  return makers;
}

// What every sample promises.
bool is_sound(const Sample& sample) {
  const auto is_id = [](int64_t id) { return id >= 0 && id < kVocabulary; };
  const size_t size = sample.token_ids.size();
  int64_t document_sum = 0;
  for (const int64_t length : sample.document_lengths) document_sum += length;
  return std::all_of(sample.token_ids.begin(), sample.token_ids.end(), is_id) &&
         std::all_of(sample.labels.begin(), sample.labels.end(), is_id) &&
         std::all_of(sample.target_weights.begin(), sample.target_weights.end(),
                     [](float weight) { return weight >= 0.0f; }) &&
         (sample.labels.empty() || sample.labels.size() == size) &&
         (sample.target_weights.empty() || sample.target_weights.size() == size) &&
         (sample.document_lengths.empty() || document_sum == static_cast<int64_t>(size));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<std::unique_ptr<SampleMaker>> makers = make_makers();
  if (size == 0) return 0;
  constexpr std::array<RecordKind, 4> kinds = {RecordKind::kLines, RecordKind::kJson, RecordKind::kText,
                                               RecordKind::kUnknown};
  const RecordKind kind = kinds[data[0] % kinds.size()];
  const size_t piece_bytes = 1 + data[0] / kinds.size();
  std::span<const char> rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto next_piece = [&] {
    const std::span<const char> piece = rest.first(std::min(piece_bytes, rest.size()));
    rest = rest.subspan(piece.size());
    return piece;
  };
  try {
    ithaca::RecordSplitter splitter(next_piece, "x", kind, kLargestRecord);
    for (std::optional<Record> record = splitter.next(); record; record = splitter.next()) {
      if (record->bytes.empty() || static_cast<int64_t>(record->bytes.size()) > kLargestRecord) std::abort();
      for (const std::unique_ptr<SampleMaker>& maker : makers) {
        try {
          if (!is_sound(maker->make(*record))) std::abort();
        } catch (const ithaca::RecordError&) {
          continue;
        }
      }
    }
  } catch (const ithaca::InputError&) {
    return 0;
  }
  return 0;
}
