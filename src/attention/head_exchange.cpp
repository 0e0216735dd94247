#include "attention/head_exchange.h"

#include <algorithm>
#include <utility>

namespace ithaca {

void HeadExchange::to_heads(const Tensor& from, const HeadsOfRank& heads_of, const Tensor& to) {
  std::vector<Tensor> send;
  std::vector<Tensor> receive;
  for (int rank = 0; rank < ulysses_.size(); ++rank) {
    const HeadRange heads = heads_of(rank);
    send.push_back(from.slice(1, heads.begin, heads.end));
    receive.push_back(tokens_of(to, rank));
  }
  ulysses_.all_to_all(backend_.communication_stream(), send, receive);
}

void HeadExchange::to_tokens(const Tensor& from, const std::vector<Tensor>& to_views) {
  std::vector<Tensor> send;
  for (int rank = 0; rank < ulysses_.size(); ++rank) send.push_back(tokens_of(from, rank));
  ulysses_.all_to_all(backend_.communication_stream(), send, to_views);
}

void KeyGradientReturn::exchange(int group, const Tensor& from) {
  const Tensor& sum = sum_.tensor();
  std::vector<Tensor> receive;
  for (int rank = 0; rank < deal_.ranks(); ++rank) {
    const HeadRange heads = deal_.group(rank, group).key_leaves;
    const bool is_shared =
        heads.count() > 0 && heads.begin == deal_.key_heads(rank).begin && deal_.shares_first_key_head(rank);
    if (!is_shared) {
      receive.push_back(sum.slice(1, heads.begin, heads.end));
      continue;
    }
    Buffer buffer = backend_.arena(Tier::device)
                        .allocate("shared key head gradients", MemoryClass::communication, sum.dtype,
                                  {sum.extent(0), heads.count(), sum.extent(2)}, backend_.communication_stream());
    receive.push_back(buffer.tensor());
    shared_.push_back({rank, heads, std::move(buffer)});
  }
  exchange_.to_tokens(from, receive);
}

void KeyGradientReturn::finish() {
  Stream& compute = backend_.compute_stream();
  std::sort(shared_.begin(), shared_.end(),
            [](const Shared& left, const Shared& right) { return left.rank < right.rank; });
  for (Shared& shared : shared_) {
    const Tensor arrived = shared.buffer.tensor();
    const Tensor target = sum_.tensor().slice(1, shared.heads.begin, shared.heads.end);
    backend_.add(compute, {.from = arrived.slice(1, 0, 1), .to = target.slice(1, 0, 1)});
    if (shared.heads.count() > 1) {
      backend_.copy(
          compute, {.from = arrived.slice(1, 1, shared.heads.count()), .to = target.slice(1, 1, shared.heads.count())});
    }
    shared.buffer.last_used_on(compute);
  }
  shared_.clear();
  sum_.finish();
}

}  // namespace ithaca
