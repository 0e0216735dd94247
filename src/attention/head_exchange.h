// From sequence shards (some tokens, all heads) to head shards (all tokens of a ring part, some heads) and back, among
// the ulysses ranks: the outer half of the schedules `ulysses` and `hybrid`.
//
// Enqueues on the communication stream; ordering is the caller's. Thread-safety: the rank's own thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "attention/head_deal.h"
#include "attention/local_attention.h"
#include "attention/schedule.h"
#include "comm/communicator.h"

namespace ithaca {

class HeadExchange {
 public:
  // `token_begin`: where the tokens of each ulysses rank begin within the ring part; one more entry for its end.
  // Both must outlive the exchange.
  HeadExchange(Backend& backend, Communicator& ulysses, const std::vector<int64_t>& token_begin)
      : backend_(backend), ulysses_(ulysses), token_begin_(token_begin) {}

  // Tokens of the ring part.
  int64_t part_tokens() const { return token_begin_.back(); }

  using HeadsOfRank = std::function<HeadRange(int rank)>;
  // Every rank p gets heads heads_of(p) of all ranks' tokens. from: [own tokens, heads, size] with all heads;
  // to: [part tokens, heads_of(own), size].
  void to_heads(const Tensor& from, const HeadsOfRank& heads_of, const Tensor& to);
  // Every rank p gives its heads back to the owners of the tokens. from: [part tokens, some heads, size];
  // to_views[p]: [own tokens, heads of rank p, size].
  void to_tokens(const Tensor& from, const std::vector<Tensor>& to_views);

 private:
  // Tokens of rank `rank` within the ring part.
  Tensor tokens_of(const Tensor& part, int rank) const {
    return part.slice(0, token_begin_[static_cast<size_t>(rank)], token_begin_[static_cast<size_t>(rank) + 1]);
  }

  Backend& backend_;
  Communicator& ulysses_;
  const std::vector<int64_t>& token_begin_;
};

// Gathers the gradients of keys or values at the owners of the tokens. A key head may come from several ranks; then the
// contributions are summed in rank order, whatever the order of arrival.
class KeyGradientReturn {
 public:
  // gradient: [own tokens, key heads, size], overwritten; what is exchanged and summed is float32.
  KeyGradientReturn(const HeadDeal& deal, Backend& backend, HeadExchange& exchange, const Tensor& gradient)
      : deal_(deal),
        backend_(backend),
        exchange_(exchange),
        sum_(backend, "key head gradients", MemoryClass::communication, gradient, backend.communication_stream()) {}

  // Enqueues the exchange of the key heads that are complete with `group`. from: [part tokens, those heads of this
  // rank, size].
  void exchange(int group, const Tensor& from);
  // Enqueues the sums on the compute stream, which must have been made to wait for all exchanges.
  void finish();

 private:
  // What came from a rank whose first key head has come from a lower rank too.
  struct Shared {
    int rank;
    HeadRange heads;
    Buffer buffer;
  };

  const HeadDeal& deal_;
  Backend& backend_;
  HeadExchange& exchange_;
  GradientSum sum_;
  std::vector<Shared> shared_;
};

}  // namespace ithaca
