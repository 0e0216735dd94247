// Which tokens of a document are trained, how strongly and as what: in as few bytes as the usual cases need.
//
// The bytes of one document, all numbers little-endian and 8-byte aligned:
//   nothing                      every token but the first is a target of weight 1, and its label is the token itself
//   u32 form, u32 flags          flags: 1 some weight is neither 0 nor 1; 2 labels of their own follow
//   form 0: nothing              as above
//   form 1: u64 runs, then runs of {i64 end, f32 weight, u32 0}    tokens up to `end` have this weight
//   form 2: f32 for each token, filled up to 8 bytes
//   flag 2: u32 for each token, filled up to 8 bytes
// Thread-safety: values and views; the bytes must outlive a view.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ithaca {

// Of the targets in a range of tokens.
struct TargetTotals {
  int64_t count = 0;        // of weight above 0
  double weight_sum = 0.0;  // in token order
  bool operator==(const TargetTotals&) const = default;
};

// Appends the bytes of one document of `tokens` tokens. `weights` and `labels` have `tokens` elements or are empty, as
// Sample::target_weights and Sample::labels; labels must fit into 32 bits. The weight of the first token counts for
// nothing.
void encode_targets(int64_t tokens, std::span<const float> weights, std::span<const int64_t> labels,
                    std::span<const int64_t> token_ids, std::vector<std::byte>& bytes);

class TargetView {
 public:
  TargetView(std::span<const std::byte> bytes, int64_t tokens);

  // Whether some target of the document has a weight other than 1.
  bool weighted() const { return weighted_; }
  // The labels where they are not the tokens themselves; empty otherwise.
  std::span<const uint32_t> labels() const { return labels_; }
  TargetTotals totals(int64_t begin, int64_t end) const;

  // Weights of tokens one after the other; asked for in rising order it is quick.
  class Cursor {
   public:
    explicit Cursor(const TargetView& view) : view_(view) {}
    // Of token `index` as a target; 0 for the first one.
    float weight(int64_t index);

   private:
    const TargetView& view_;
    size_t run_ = 0;
  };

 private:
  struct Run {
    int64_t end;
    float weight;
    uint32_t unused;
  };
  friend void encode_targets(int64_t, std::span<const float>, std::span<const int64_t>, std::span<const int64_t>,
                             std::vector<std::byte>&);
  size_t run_of(int64_t index) const;

  bool weighted_ = false;
  std::span<const Run> runs_;       // form 1
  std::span<const float> weights_;  // form 2
  std::span<const uint32_t> labels_;
};

}  // namespace ithaca
