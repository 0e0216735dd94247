#include "data/packed_dataset.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "data/cache/content_hash.h"

namespace ithaca {

// The cache's documents, as packing wants to know them.
class PackedDataset::Table : public DocumentTable {
 public:
  explicit Table(const TokenCache& cache) : cache_(cache) {}
  int64_t samples() const override { return cache_.summary().samples; }
  int64_t documents() const override { return cache_.summary().documents; }
  int64_t first_document(int64_t sample) const override { return cache_.first_document(sample); }
  int64_t length(int64_t document) const override { return cache_.length(document); }

 private:
  const TokenCache& cache_;
};

namespace {

// A list of lines as one: notes are lines of a plan.
std::string one_line(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c != '\n') {
      if (c != ' ' || result.empty() || result.back() != ' ') result += c;
    } else {
      result += result.ends_with(':') ? " " : "; ";
    }
  }
  return result;
}

// The targets that a piece's labels are: token i's label is token i + 1.
TargetTotals targets_of(const TokenCache& cache, const Piece& piece) {
  return cache.targets(piece.document, piece.begin + 1, std::min(piece.end + 1, piece.label_end));
}

}  // namespace

PackedDataset::PackedDataset(std::shared_ptr<const TokenCache> cache, const PackedDatasetOptions& options)
    : cache_(std::move(cache)), options_(options), table_(std::make_unique<Table>(*cache_)) {
  require(!options.stages.empty() && options.stages.front().first_step == 0, "the first stage begins at step 0");
  for (const ContextStage& stage : options.stages) add_stage(stage);
}

PackedDataset::~PackedDataset() = default;

void PackedDataset::add_stage(const ContextStage& stage) {
  require(stages_.empty() || stages_.back().bounds.first_step < stage.first_step,
          "stages stand in order of their steps");
  Stage result;
  PackingOptions packing;
  packing.kind = options_.packing;
  packing.overlong = options_.overlong;
  packing.max_length = stage.max_length;
  result.packing = make_packing(*table_, packing);
  result.summary = summarize(*result.packing);
  if (result.summary.valid_tokens == 0) {
    const DatasetSummary& summary = result.summary;
    const ReasonCounter& skipped = cache_->summary().skipped;
    const std::string skips = skipped.empty() ? std::string() : one_line(skipped.text());
    if (summary.documents == 0 && !skips.empty()) {
      throw InputError(fmt::format("{}: there is nothing to train on: no record is left; {}", options_.name, skips));
    }
    std::string reason = summary.documents == 1
                             ? std::string("the only document holds no label")
                             : fmt::format("the {} documents hold no label", format_count(summary.documents));
    if (stage.max_length == 1) reason += "; data.max_length 1 leaves no token beside another, which would be its label";
    if (summary.skipped_documents > 0) {
      reason += fmt::format("; {} have fewer than two tokens", format_count(summary.skipped_documents));
    }
    if (summary.dropped_documents > 0) {
      reason += fmt::format("; {} are longer than data.max_length {} and dropped by data.overlong",
                            format_count(summary.dropped_documents), format_count(stage.max_length));
    }
    if (summary.unlabelled_documents > 0) {
      reason += fmt::format("; in {} nothing is trained (a weight of 0, or data.train_on)",
                            format_count(summary.unlabelled_documents));
    }
    if (!skips.empty()) reason += "; " + skips;
    throw InputError(fmt::format("{}: there is nothing to train on: {}", options_.name, reason));
  }
  const int64_t begin = stages_.empty() ? 0 : stages_.back().bounds.end;
  result.bounds = {stage.first_step, stage.max_length, begin, begin + result.packing->size()};
  stages_.push_back(std::move(result));
}

DatasetSummary PackedDataset::summarize(const Packing& packing) const {
  const TokenCacheSummary& cached = cache_->summary();
  const PackingTotals& packed = packing.totals();
  DatasetSummary summary;
  summary.sequences = packed.sequences;
  summary.samples = cached.samples;
  summary.documents = cached.documents;
  summary.tokens = packed.tokens;
  summary.longest_sequence = packed.longest_sequence;
  summary.longest_document = packed.longest_document;
  summary.unfilled_tokens = packed.unfilled;
  summary.skipped_documents = packed.skipped_documents;
  summary.split_documents = packed.split_documents;
  summary.truncated_documents = packed.truncated_documents;
  summary.truncated_tokens = packed.truncated_tokens;
  summary.dropped_documents = packed.dropped_documents;
  summary.dropped_tokens = packed.dropped_tokens;
  summary.skipped_records = cached.skipped.count();
  packing.visit_kept([&](int64_t document, int64_t kept) {
    if (kept < 2) return;
    const int64_t targets = cache_->targets(document, 1, kept).count;
    summary.valid_tokens += targets;
    summary.unlabelled_documents += targets == 0 ? 1 : 0;
  });
  if (!cached.skipped.empty()) summary.notes.push_back(one_line(cached.skipped.text()));
  return summary;
}

void PackedDataset::describe_source(const std::string& format, bool tokens_are_bytes,
                                    const std::vector<std::string>& notes) {
  for (Stage& stage : stages_) {
    stage.summary.format = format;
    stage.summary.tokens_are_bytes = tokens_are_bytes;
    stage.summary.notes.insert(stage.summary.notes.begin(), notes.begin(), notes.end());
  }
}

const PackedDataset::Stage& PackedDataset::longest() const {
  return *std::max_element(stages_.begin(), stages_.end(), [](const Stage& a, const Stage& b) {
    return a.summary.longest_sequence < b.summary.longest_sequence;
  });
}

std::vector<DatasetStage> PackedDataset::stages() const {
  std::vector<DatasetStage> result;
  for (const Stage& stage : stages_) result.push_back(stage.bounds);
  return result;
}

uint64_t PackedDataset::stage_hash(int64_t stage) const {
  ContentHash hash;
  hash.add_number(cache_->key().high);
  hash.add_number(cache_->key().low);
  hash.add_text(packing_name(options_.packing));
  hash.add_text(overlong_name(options_.overlong));
  hash.add_number(static_cast<uint64_t>(stages_.at(static_cast<size_t>(stage)).bounds.max_length));
  return hash.digest().low;
}

std::vector<Piece> PackedDataset::pieces(int64_t index) const {
  if (index < 0 || index >= size()) throw ContractError(fmt::format("sequence {} of {}", index, size()));
  for (const Stage& stage : stages_) {
    if (index < stage.bounds.end) return stage.packing->pieces(index - stage.bounds.begin);
  }
  throw ContractError("a sequence belongs to a stage");
}

SequenceTotals PackedDataset::totals(int64_t index) const {
  SequenceTotals totals;
  for (const Piece& piece : pieces(index)) {
    const TargetTotals targets = targets_of(*cache_, piece);
    totals.tokens += piece.length();
    totals.valid_tokens += targets.count;
    totals.label_weight_sum += targets.weight_sum;
  }
  return totals;
}

SequenceShape PackedDataset::shape(int64_t index) const {
  SequenceShape shape;
  for (const Piece& piece : pieces(index)) {
    shape.document_lengths.push_back(piece.length());
    shape.tokens += piece.length();
    shape.largest_position = std::max(shape.largest_position, piece.first_position + piece.length() - 1);
    shape.weighted = shape.weighted || cache_->weighted(piece.document);
  }
  return shape;
}

uint64_t PackedDataset::content_hash(int64_t index) const {
  ContentHash hash;
  for (const Piece& piece : pieces(index)) {
    hash.add_number(cache_->content_hash(piece.document));
    for (const int64_t number : {piece.begin, piece.end, piece.label_end, piece.first_position}) {
      hash.add_number(static_cast<uint64_t>(number));
    }
  }
  return hash.digest().low;
}

double PackedDataset::cost(int64_t index) const {
  double sum = 0.0;
  for (const Piece& piece : pieces(index)) {
    sum += static_cast<double>(piece.length()) * static_cast<double>(piece.length());
  }
  return sum;
}

void PackedDataset::read(int64_t index, const Segment& tokens, bool with_weights, TokenSlice& out) const {
  int64_t offset = 0;  // of the piece in the sequence
  int64_t done = 0;
  for (const Piece& piece : pieces(index)) {
    if (done == tokens.count) return;
    // The tokens of the segment that lie in this piece: `count` from `begin` on, in the document.
    const int64_t begin = tokens.begin + done * tokens.stride - offset + piece.begin;
    offset += piece.length();
    if (begin >= piece.end) continue;
    const int64_t count = std::min(tokens.count - done, (piece.end - 1 - begin) / tokens.stride + 1);
    cache_->read_tokens(piece.document, begin, count, tokens.stride, out.token_ids);
    for (int64_t i = 0; i < count; ++i) {
      out.position_ids.push_back(piece.first_position + begin + i * tokens.stride - piece.begin);
    }
    // Only the last token may have no successor.
    const int64_t last = begin + (count - 1) * tokens.stride;
    const int64_t labels = last + 1 < piece.label_end ? count : count - 1;
    cache_->read_targets(piece.document, begin + 1, labels, tokens.stride, out.shifted_labels,
                         with_weights ? &out.label_weights : nullptr);
    if (labels < count) {
      out.shifted_labels.push_back(kNoLabel);
      if (with_weights) out.label_weights.push_back(0.0f);
    }
    done += count;
  }
  require(done == tokens.count, "tokens beyond the end of a sequence were asked for");
}

Sequence PackedDataset::sequence(int64_t index) const {
  SequenceShape shape = this->shape(index);
  TokenSlice slice;
  read(index, {0, shape.tokens, 1}, shape.weighted, slice);
  Sequence result;
  result.token_ids = std::move(slice.token_ids);
  result.position_ids = std::move(slice.position_ids);
  result.shifted_labels = std::move(slice.shifted_labels);
  result.label_weights = std::move(slice.label_weights);
  result.document_lengths = std::move(shape.document_lengths);
  return result;
}

}  // namespace ithaca
