#include "data/cache/sample_encoder.h"

#include <fmt/format.h>

#include <numeric>
#include <span>

#include "data/cache/content_hash.h"

namespace ithaca {

namespace {

template <typename Element>
void append_narrow(std::span<const int64_t> values, std::vector<std::byte>& bytes) {
  const size_t start = bytes.size();
  bytes.resize(start + values.size() * sizeof(Element));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto narrow = static_cast<Element>(values[i]);
    for (size_t byte = 0; byte < sizeof(Element); ++byte) {
      bytes[start + i * sizeof(Element) + byte] = static_cast<std::byte>(narrow >> (8 * byte));
    }
  }
}

template <typename T>
std::span<const T> part(const std::vector<T>& values, size_t begin, size_t end) {
  return values.empty() ? std::span<const T>() : std::span<const T>(values).subspan(begin, end - begin);
}

}  // namespace

int64_t EncodedSamples::memory_bytes() const {
  const size_t entries = documents.size() * (sizeof(TokenCache::DocumentRecord) + 2 * sizeof(int64_t));
  return static_cast<int64_t>(tokens.size() + targets.size() + entries + sample_documents.size() * sizeof(int64_t));
}

SampleEncoder::SampleEncoder(int64_t vocabulary) : vocabulary_(vocabulary), token_bytes_(token_bytes_of(vocabulary)) {
  require(vocabulary > 0 && vocabulary <= (int64_t{1} << 32), "token ids are kept in 32 bits at most");
}

void SampleEncoder::add(const Sample& sample, const std::string& place, EncodedSamples& out) const {
  const size_t tokens = sample.token_ids.size();
  require((sample.target_weights.empty() || sample.target_weights.size() == tokens) &&
              (sample.labels.empty() || sample.labels.size() == tokens),
          "a sample's weights and labels must be as many as its tokens");
  for (const std::vector<int64_t>* ids : {&sample.token_ids, &sample.labels}) {
    for (size_t i = 0; i < ids->size(); ++i) {
      const int64_t id = (*ids)[i];
      if (id >= 0 && id < vocabulary_) continue;
      throw RecordError(place,
                        fmt::format("token {} has the id {}, but the model's ids are 0 to {}; does the tokenizer "
                                    "belong to another model?",
                                    i, id, vocabulary_ - 1),
                        "a token id is not in the model's vocabulary");
    }
  }
  if (sample.document_lengths.empty()) {
    add_document(sample, 0, tokens, out);
    out.sample_documents.push_back(1);
    return;
  }
  require(std::accumulate(sample.document_lengths.begin(), sample.document_lengths.end(), int64_t{0}) ==
              static_cast<int64_t>(tokens),
          "a sample's document lengths must sum to its tokens");
  size_t begin = 0;
  for (const int64_t length : sample.document_lengths) {
    add_document(sample, begin, begin + static_cast<size_t>(length), out);
    begin += static_cast<size_t>(length);
  }
  out.sample_documents.push_back(static_cast<int64_t>(sample.document_lengths.size()));
}

void SampleEncoder::add_document(const Sample& sample, size_t begin, size_t end, EncodedSamples& out) const {
  const std::span<const int64_t> ids = part(sample.token_ids, begin, end);
  const size_t tokens_start = out.tokens.size();
  if (token_bytes_ == 1) {
    append_narrow<uint8_t>(ids, out.tokens);
  } else if (token_bytes_ == 2) {
    append_narrow<uint16_t>(ids, out.tokens);
  } else {
    append_narrow<uint32_t>(ids, out.tokens);
  }
  const auto length = static_cast<int64_t>(ids.size());
  const size_t targets_start = out.targets.size();
  encode_targets(length, part(sample.target_weights, begin, end), part(sample.labels, begin, end), ids, out.targets);

  const auto token_part = std::span<const std::byte>(out.tokens).subspan(tokens_start);
  const auto target_part = std::span<const std::byte>(out.targets).subspan(targets_start);
  const TargetTotals totals = TargetView(target_part, length).totals(0, length);
  ContentHash hash;
  hash.add_number(static_cast<uint64_t>(token_bytes_));
  hash.add_number(token_part.size());
  hash.add(token_part);
  hash.add(target_part);
  out.documents.push_back({hash.digest().low, totals.count, totals.weight_sum});
  out.document_tokens.push_back(length);
  out.document_target_bytes.push_back(static_cast<int64_t>(target_part.size()));
}

}  // namespace ithaca
