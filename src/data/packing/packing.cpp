#include "data/packing/packing.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "data/packing/best_fit.h"

namespace ithaca {

namespace {

// What is kept of a run of `length` tokens, and what is said about the rest.
int64_t keep(int64_t length, int64_t documents, const PackingOptions& options, PackingTotals& totals) {
  if (length < 2) {
    totals.skipped_documents += documents;
    return 0;
  }
  if (length <= options.max_length || options.overlong == Overlong::split) return length;
  if (options.overlong == Overlong::drop) {
    totals.dropped_documents += documents;
    totals.dropped_tokens += length;
    return 0;
  }
  ++totals.truncated_documents;
  totals.truncated_tokens += length - options.max_length;
  // One token has no label: a document cut to that is skipped as a shorter one would be.
  return options.max_length < 2 ? 0 : options.max_length;
}

// sequences x max_length - tokens, or the largest number where that is larger.
int64_t unfilled_of(const PackingTotals& totals, int64_t max_length) {
  int64_t room = 0;
  if (__builtin_mul_overflow(totals.sequences, max_length, &room)) return std::numeric_limits<int64_t>::max();
  return room - totals.tokens;
}

int64_t last_begin(int64_t tokens, int64_t max_length) {
  return (window_count(tokens, max_length) - 1) * max_length;
}

// Units (samples or documents) and how many windows each has: which unit and window has a number.
class WindowNumbers {
 public:
  void reserve(int64_t units) { starts_.reserve(static_cast<size_t>(units) + 1); }
  void add(int64_t windows) { starts_.push_back(starts_.back() + windows); }
  int64_t total() const { return starts_.back(); }
  std::pair<int64_t, int64_t> find(int64_t index) const {
    // Units without windows begin where the next one does, so the last one that begins here is meant.
    const auto after = std::upper_bound(starts_.begin(), starts_.end(), index);
    return {after - starts_.begin() - 1, index - *(after - 1)};
  }

 private:
  std::vector<int64_t> starts_ = {0};
};

class NonePacking : public Packing {
 public:
  NonePacking(const DocumentTable& table, const PackingOptions& options) : table_(table), options_(options) {
    windows_.reserve(table.samples());
    for (int64_t sample = 0; sample < table.samples(); ++sample) {
      int64_t tokens = 0;
      const int64_t first = table.first_document(sample);
      const int64_t end = table.first_document(sample + 1);
      for (int64_t document = first; document < end; ++document) {
        tokens += table.length(document);
        totals_.longest_document = std::max(totals_.longest_document, table.length(document));
      }
      const int64_t kept = keep(tokens, end - first, options, totals_);
      const int64_t windows = window_count(kept, options.max_length);
      windows_.add(windows);
      if (windows == 0) continue;
      const int64_t held = std::min(kept, windows * options.max_length);
      totals_.tokens += held;
      totals_.longest_sequence = std::max(totals_.longest_sequence, std::min(held, options.max_length));
      if (windows > 1) totals_.split_documents += end - first;
    }
    totals_.sequences = windows_.total();
    totals_.unfilled = unfilled_of(totals_, options.max_length);
  }

  std::vector<Piece> pieces(int64_t index) const override {
    const auto [sample, window] = windows_.find(index);
    const int64_t first = table_.first_document(sample);
    const int64_t end = table_.first_document(sample + 1);
    const int64_t window_begin = window * options_.max_length;
    const int64_t window_end = window_begin + options_.max_length;
    std::vector<Piece> result;
    int64_t offset = 0;  // of the document in the sample
    for (int64_t document = first; document < end && offset < window_end; ++document) {
      const int64_t length = table_.length(document);
      const int64_t begin = std::max(window_begin - offset, int64_t{0});
      const int64_t piece_end = std::min(window_end - offset, length);
      if (begin < piece_end) {
        const int64_t label_end = options_.overlong == Overlong::truncate ? piece_end : length;
        result.push_back({document, begin, piece_end, label_end, 0});
      }
      offset += length;
    }
    return result;
  }

  void visit_kept(const std::function<void(int64_t, int64_t)>& visit) const override {
    PackingTotals ignored;
    for (int64_t sample = 0; sample < table_.samples(); ++sample) {
      const int64_t first = table_.first_document(sample);
      const int64_t end = table_.first_document(sample + 1);
      int64_t tokens = 0;
      for (int64_t document = first; document < end; ++document) tokens += table_.length(document);
      int64_t left = keep(tokens, end - first, options_, ignored);
      for (int64_t document = first; document < end; ++document) {
        const int64_t kept = std::min(left, table_.length(document));
        visit(document, kept);
        left -= kept;
      }
    }
  }

 private:
  const DocumentTable& table_;
  PackingOptions options_;
  WindowNumbers windows_;
};

class WrappedPacking : public Packing {
 public:
  WrappedPacking(const DocumentTable& table, const PackingOptions& options) : table_(table), options_(options) {
    const int64_t length = options.max_length;
    starts_.reserve(static_cast<size_t>(table.documents()) + 1);
    starts_.push_back(0);
    for (int64_t document = 0; document < table.documents(); ++document) {
      const int64_t tokens = table.length(document);
      totals_.longest_document = std::max(totals_.longest_document, tokens);
      const int64_t begin = starts_.back();
      const int64_t end = begin + keep(tokens, 1, options, totals_);
      starts_.push_back(end);
      if (end > begin && begin / length != (end - 1) / length) ++totals_.split_documents;
    }
    // The last token of all is the last of its document and has no label.
    totals_.sequences = window_count(starts_.back(), length);
    totals_.tokens = std::min(starts_.back(), totals_.sequences * length);
    totals_.longest_sequence = std::min(totals_.tokens, length);
    totals_.unfilled = unfilled_of(totals_, length);
  }

  std::vector<Piece> pieces(int64_t index) const override {
    const int64_t window_begin = index * options_.max_length;
    const int64_t window_end = std::min(window_begin + options_.max_length, totals_.tokens);
    const auto after = std::upper_bound(starts_.begin(), starts_.end(), window_begin);
    std::vector<Piece> result;
    for (auto document = static_cast<size_t>(after - starts_.begin()) - 1; starts_[document] < window_end; ++document) {
      const int64_t document_begin = starts_[document];
      const int64_t document_end = starts_[document + 1];
      if (document_begin == document_end) continue;
      const int64_t begin = std::max(window_begin, document_begin) - document_begin;
      const int64_t end = std::min(window_end, document_end) - document_begin;
      result.push_back({static_cast<int64_t>(document), begin, end, document_end - document_begin, begin});
    }
    return result;
  }

  void visit_kept(const std::function<void(int64_t, int64_t)>& visit) const override {
    for (int64_t document = 0; document < table_.documents(); ++document) {
      const auto at = static_cast<size_t>(document);
      visit(document, starts_[at + 1] - starts_[at]);
    }
  }

 private:
  const DocumentTable& table_;
  PackingOptions options_;
  std::vector<int64_t> starts_;  // of the kept parts of documents, end to end; one more for the end
};

class BestFitPacking : public Packing {
 public:
  BestFitPacking(const DocumentTable& table, const PackingOptions& options) : table_(table), options_(options) {
    const int64_t length = options.max_length;
    std::vector<FitItem> items;
    items.reserve(static_cast<size_t>(table.documents()));
    for (int64_t document = 0; document < table.documents(); ++document) {
      const int64_t tokens = table.length(document);
      totals_.longest_document = std::max(totals_.longest_document, tokens);
      const int64_t kept = keep(tokens, 1, options, totals_);
      const int64_t windows = window_count(kept, length);
      if (windows == 0) continue;
      if (windows > 1) {
        ++totals_.split_documents;
        cut_documents_.push_back(document);
        full_windows_.add(windows - 1);
      }
      const int64_t begin = last_begin(kept, length);
      items.push_back({std::min(kept - begin, length), static_cast<uint32_t>(document)});
      totals_.tokens += begin + items.back().length;
      totals_.longest_sequence = std::max(totals_.longest_sequence, windows > 1 ? length : int64_t{0});
    }
    bins_ = best_fit_decreasing(std::move(items), length);
    for (int64_t bin = 0; bin < bins_.size(); ++bin) {
      totals_.longest_sequence = std::max(totals_.longest_sequence, length_of_bin(bin));
    }
    totals_.sequences = full_windows_.total() + bins_.size();
    totals_.unfilled = unfilled_of(totals_, length);
  }

  std::vector<Piece> pieces(int64_t index) const override {
    const int64_t full = full_windows_.total();
    if (index < full) {
      const auto [cut, window] = full_windows_.find(index);
      const int64_t document = cut_documents_[static_cast<size_t>(cut)];
      const int64_t begin = window * options_.max_length;
      return {{document, begin, begin + options_.max_length, table_.length(document), 0}};
    }
    std::vector<Piece> result;
    for (const uint32_t document : bins_.documents_of(index - full)) result.push_back(last_piece(document));
    return result;
  }

  void visit_kept(const std::function<void(int64_t, int64_t)>& visit) const override {
    PackingTotals ignored;
    for (int64_t document = 0; document < table_.documents(); ++document) {
      visit(document, keep(table_.length(document), 1, options_, ignored));
    }
  }

 private:
  // The whole document, or what its full windows leave over.
  Piece last_piece(int64_t document) const {
    PackingTotals ignored;
    const int64_t kept = keep(table_.length(document), 1, options_, ignored);
    const int64_t begin = last_begin(kept, options_.max_length);
    return {document, begin, std::min(begin + options_.max_length, kept), kept, 0};
  }

  int64_t length_of_bin(int64_t bin) const {
    int64_t tokens = 0;
    for (const uint32_t document : bins_.documents_of(bin)) tokens += last_piece(document).length();
    return tokens;
  }

  const DocumentTable& table_;
  PackingOptions options_;
  // Sequences are first the full windows of documents longer than max_length, then the bins.
  std::vector<int64_t> cut_documents_;
  WindowNumbers full_windows_;  // of those
  FitBins bins_;
};

}  // namespace

std::string_view packing_name(PackingKind kind) {
  switch (kind) {
    case PackingKind::none:
      return "none";
    case PackingKind::wrapped:
      return "wrapped";
    case PackingKind::best_fit:
      return "best_fit";
  }
  throw ContractError("unknown packing");
}

std::string_view overlong_name(Overlong overlong) {
  switch (overlong) {
    case Overlong::split:
      return "split";
    case Overlong::truncate:
      return "truncate";
    case Overlong::drop:
      return "drop";
  }
  throw ContractError("unknown treatment of long documents");
}

std::unique_ptr<Packing> make_packing(const DocumentTable& table, const PackingOptions& options) {
  require(options.max_length > 0, "sequences need a length of at least 1");
  if (table.documents() >= int64_t{1} << 32) {
    throw ConfigurationError(
        fmt::format("{} documents are more than can be packed (4,294,967,295); join short ones, or "
                    "split the data over several runs",
                    table.documents()));
  }
  switch (options.kind) {
    case PackingKind::none:
      return std::make_unique<NonePacking>(table, options);
    case PackingKind::wrapped:
      return std::make_unique<WrappedPacking>(table, options);
    case PackingKind::best_fit:
      return std::make_unique<BestFitPacking>(table, options);
  }
  throw ContractError("unknown packing");
}

}  // namespace ithaca
