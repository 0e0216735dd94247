#include "comm/nccl_order.h"

#include <utility>

namespace ithaca {

void NcclTurn::wait() {
  std::unique_lock<std::mutex> lock(order_.mutex_);
  order_.turn_over_.wait(lock, [this] { return *order_.open_turns_.begin() == number_; });
}

void NcclTurn::end() noexcept {
  if (is_over_) return;
  is_over_ = true;
  {
    const std::lock_guard<std::mutex> lock(order_.mutex_);
    order_.open_turns_.erase(number_);
  }
  order_.turn_over_.notify_all();
}

std::shared_ptr<NcclTurn> NcclOrder::take_turn() {
  const int64_t number = turns_++;
  auto turn = std::make_shared<NcclTurn>(*this, number);
  const std::lock_guard<std::mutex> lock(mutex_);
  open_turns_.insert(number);
  return turn;
}

void NcclOrder::wait_for_last(DeviceIssuer& issuer) const {
  issuer.wait(last_);
}

void NcclOrder::issued(Event begin, Event end, std::shared_ptr<MeetingTicket> ticket) {
  last_ = end;
  const std::lock_guard<std::mutex> lock(mutex_);
  pending_.push_back({std::move(begin), std::move(end), std::move(ticket), std::nullopt});
}

std::optional<std::string> NcclOrder::find_stalled(DeviceExchange& exchange, double timeout_seconds, bool is_excused) {
  std::deque<Pending> done;  // goes after the lock: it may hold the last of many things
  const std::lock_guard<std::mutex> lock(mutex_);
  while (!pending_.empty() && exchange.has_happened(pending_.front().end)) {
    done.push_back(std::move(pending_.front()));
    pending_.pop_front();
  }
  if (pending_.empty()) return std::nullopt;
  Pending& oldest = pending_.front();
  if (!oldest.begun) {
    if (exchange.has_happened(oldest.begin)) oldest.begun.emplace(timeout_seconds);
    return std::nullopt;
  }
  if (!oldest.begun->look(is_excused)) return std::nullopt;
  return oldest.ticket->describe();
}

std::string NcclOrder::describe_oldest() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return pending_.empty() ? std::string() : pending_.front().ticket->describe();
}

}  // namespace ithaca
