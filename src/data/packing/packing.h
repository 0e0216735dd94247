// Packing: how documents are laid out as sequences of at most max_length tokens.
//
//   none      each sample is a sequence of its own. One that is longer than max_length L is cut into windows: window w
//             holds its tokens [w L, (w+1) L). Positions begin at 0 in every window.
//   wrapped   documents are laid end to end, in order, and cut into windows of L tokens. A document goes on in the next
//             window: its positions go on too, but it does not attend across the cut.
//   best_fit  whole documents share sequences: longest first, each into the fullest sequence that has room for it
//             (best-fit decreasing; Ding et al. 2024, arXiv 2404.10830). One that is longer than L is cut into windows
//             as with none, and the last, shorter one is placed like a document.
//
// Wherever a document is cut into windows, the label of a window's last token is the first token of the next window:
// every token of a document but its first is a label exactly once. A last window that would hold one token alone, which
// has no label any more, is left out. What is longer than L is, by `overlong`, split in this way, truncated to its
// first L tokens, or dropped. Documents of fewer than two tokens have no label and are skipped. Documents never see
// each other.
//
// A packing is a function of the documents' lengths alone; it takes O(n log n) time and some 8 to 16 bytes a document.
// Thread-safety: immutable after construction; share freely.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace ithaca {

enum class PackingKind : uint8_t { none, wrapped, best_fit };
std::string_view packing_name(PackingKind kind);

enum class Overlong : uint8_t { split, truncate, drop };
std::string_view overlong_name(Overlong overlong);

struct PackingOptions {
  PackingKind kind = PackingKind::none;
  Overlong overlong = Overlong::split;
  int64_t max_length = 8192;
};

// How long documents are, and which samples they belong to: a sample is one document, or several that go together.
class DocumentTable {
 public:
  DocumentTable() = default;
  DocumentTable(const DocumentTable&) = delete;
  DocumentTable& operator=(const DocumentTable&) = delete;
  virtual ~DocumentTable() = default;
  virtual int64_t samples() const = 0;
  virtual int64_t documents() const = 0;
  // Documents of sample s are [first_document(s), first_document(s + 1)).
  virtual int64_t first_document(int64_t sample) const = 0;
  virtual int64_t length(int64_t document) const = 0;
};

// Tokens [begin, end) of a document, as one document of a sequence. Token i has the position first_position + i - begin
// and, where i + 1 < label_end, the label of token i + 1.
struct Piece {
  int64_t document = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t label_end = 0;
  int64_t first_position = 0;
  int64_t length() const { return end - begin; }
  bool operator==(const Piece&) const = default;
};

// What became of the documents.
struct PackingTotals {
  int64_t sequences = 0;
  int64_t tokens = 0;  // in sequences
  int64_t longest_sequence = 0;
  int64_t longest_document = 0;   // before anything is cut
  int64_t unfilled = 0;           // what sequences lack to max_length, summed; it is not computed, there is no padding
  int64_t skipped_documents = 0;  // of fewer than two tokens
  int64_t split_documents = 0;    // that have become several pieces
  int64_t truncated_documents = 0;
  int64_t truncated_tokens = 0;  // cut off from those
  int64_t dropped_documents = 0;
  int64_t dropped_tokens = 0;
};

class Packing {
 public:
  Packing(const Packing&) = delete;
  Packing& operator=(const Packing&) = delete;
  virtual ~Packing() = default;

  int64_t size() const { return totals_.sequences; }
  const PackingTotals& totals() const { return totals_; }
  // The pieces of sequence `index` (0 <= index < size()), in order; never empty.
  virtual std::vector<Piece> pieces(int64_t index) const = 0;
  // Calls visit(document, tokens) for the documents in order: their first `tokens` tokens are in sequences; 0 where
  // they were skipped or dropped.
  virtual void visit_kept(const std::function<void(int64_t, int64_t)>& visit) const = 0;

 protected:
  Packing() = default;
  PackingTotals totals_;
};

// `table` must outlive the packing. Throws ConfigurationError for more documents than it can number (2^32).
std::unique_ptr<Packing> make_packing(const DocumentTable& table, const PackingOptions& options);

// Windows of `max_length` tokens that a run of `tokens` tokens makes, where its last token has no label.
constexpr int64_t window_count(int64_t tokens, int64_t max_length) {
  return tokens < 2 ? 0 : (tokens - 2) / max_length + 1;
}

}  // namespace ithaca
